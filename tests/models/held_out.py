"""Runs programs of model libraries, original and fused: how much of each is fused, and how far both are from f64."""

import argparse
import importlib.metadata
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parents[1] / "bindings" / "python"), str(HERE.parent / "programs"), str(HERE)]

from definition import LIBRARIES, programs  # noqa: E402
from heddle import _library  # noqa: E402
from main import outcomes  # noqa: E402
from sections import table, written  # noqa: E402

LONGEST = 300  # seconds for one program; on an idle machine they take up to 15
DISTRIBUTIONS = {"flax_linen": "flax", "flax_nnx": "flax", "haiku": "dm-haiku", "keras_hub": "keras-hub"}
SECTION = """{programs} other programs of {libraries} libraries as PyPI has them, unmodified, through `heddle.jax.fuse`:
small random models that the rewriter was not made on; Penzai's led to one mend. **{forward} of {forwards} forwards and {backward} of {backwards} backwards are
fused**, and every program is right by the rule of `tests/programs/judge.py`: each row of each output is as near to its
value in f64 as the original's row is, within a small factor. An error is the largest of any output, of that output's
largest value (or of a thousandth of the largest of all outputs). Made by `tests/models/run --table`, which runs them.

{table}"""
TITLES = ("library", "model", "type, pass", ">forward", ">backward", ">error of the original", ">fused",
          "left alone because")


def counted(found, program):
    """How many of a program's forwards and backwards are fused; a checkpoint may make more calls than were written."""
    kinds = [fusion["kind"] for fusion in found["fusions"]]
    return (min(kinds.count("attention_forward"), program.forwards),
            min(kinds.count("attention_backward"), program.backwards))


def complaints(found, program):
    """What is wrong with an outcome, in sentences; none if it is as its definition says."""
    if found["outcome"] not in ("right", "left alone"):
        return [found["outcome"], *found["complaints"]]
    fused, expected = counted(found, program), program.expected()
    if any(n < of for n, of in zip(fused, expected)):
        return [f"{expected[0]} forwards and {expected[1]} backwards are to be fused", *found["refusals"]]
    # Where all is fused, nothing of rows and keys is to stay that only the attention needed.
    return found["left"] if fused == (program.forwards, program.backwards) else []


def errors(found):
    """The largest error of the original, and of the fused program; nothing where no values were compared."""
    return [f"{found[name]:.1e}" if found["outcome"] == "right" else "" for name in ("original_off", "fused_off")]


def line(name, program, found):
    fused, instances = counted(found, program), (program.forwards, program.backwards)
    sides = ", ".join(f"{n} of {of} {side}" for n, of, side in zip(fused, instances, ("fwd", "bwd")) if of)
    said = "FAILED" if complaints(found, program) else found["outcome"]
    more = " (more than expected)" if said != "FAILED" and fused != program.expected() else ""
    return f"{name:42} {program.dtype:5} {sides:24} {' '.join(errors(found)):16} {found['wall']:5.1f} s  {said}{more}"


def row(name, program, found):
    library, model = name.split(".")
    version = f"{library.replace('_', ' ')} {importlib.metadata.version(DISTRIBUTIONS.get(library, library))}"
    fused, instances = counted(found, program), (program.forwards, program.backwards)
    sides = [f"{n} of {of}" if of else "" for n, of in zip(fused, instances)]
    why = program.because if fused != instances else ""
    return version, model, f"{program.dtype}, {program.kind}", *sides, *errors(found), why


def parsed():
    parser = argparse.ArgumentParser(prog="tests/models/run", description=__doc__)
    parser.add_argument("libraries", nargs="*", metavar="LIBRARY", help=f"of {', '.join(LIBRARIES)}; else all")
    parser.add_argument("-k", action="append", metavar="WORD", help="only programs whose names hold one of these words")
    parser.add_argument("--part", default="1/1", help="2/6: the second of six parts")
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side")
    parser.add_argument("--list", action="store_true", help="names alone")
    parser.add_argument("--table", metavar="DOCUMENT", type=Path,
                        help="of all programs, where the section `Held out` is written")
    options = parser.parse_args()
    if unknown := set(options.libraries) - set(LIBRARIES):
        parser.error(f"there is no library {', '.join(sorted(unknown))}")
    if options.table and (options.libraries or options.k or options.part != "1/1"):
        parser.error("--table is of all programs")
    if not options.list:
        try:
            _library.load()
        except OSError as error:
            parser.exit(1, f"tests/models/run: {error}\n")
    return options


def selected(options):
    """LIBRARY.NAME -> Program of what is asked for."""
    named = {f"{library}.{program.name}": program for library in options.libraries or LIBRARIES
             for program in programs(library).values()}
    names = [name for name in named if not options.k or any(word in name for word in options.k)]
    part, parts = map(int, options.part.split("/"))
    return {name: named[name] for name in names[part - 1::parts]}


def main():
    options = parsed()
    chosen = selected(options)
    if not chosen:
        sys.exit("tests/models/run: no program has such a name")
    if options.list:
        print("\n".join(chosen))
        return 0
    failed, rows, totals = [], {}, [0, 0, 0, 0]
    for found in outcomes(({"model": name.split("."), "longest": LONGEST} for name in chosen), options.jobs):
        name = ".".join(found["job"]["model"])
        program = chosen[name]
        print(line(name, program, found), flush=True)
        rows[name] = row(name, program, found)
        totals = [sum(x) for x in zip(totals, (*counted(found, program), program.forwards, program.backwards))]
        if wrong := complaints(found, program):
            failed.append(name)
            print(*(f"    {sentence}" for sentence in wrong), sep="\n")
    forward, backward, forwards, backwards = totals
    print(f"{len(chosen)} programs: {forward} of {forwards} forwards and {backward} of {backwards} backwards are fused")
    if failed:
        print("FAILED:", ", ".join(failed))
    elif options.table:
        written(options.table, "Held out", SECTION.format(
            programs=len(rows), libraries=len({version for version, *_ in rows.values()}), forward=forward,
            forwards=forwards, backward=backward, backwards=backwards, table=table(TITLES, map(rows.get, chosen))))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
