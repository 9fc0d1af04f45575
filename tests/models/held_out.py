"""Runs programs of model libraries, original and fused, and says how much of each is fused and how far both are from f64."""

import argparse
import importlib.metadata
import os
import re
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "programs"), str(HERE)]

from definition import LIBRARIES, programs  # noqa: E402
from main import outcomes  # noqa: E402

DISTRIBUTIONS = {"flax_linen": "flax", "flax_nnx": "flax", "haiku": "dm-haiku", "keras_hub": "keras-hub"}


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
    return []


def line(library, program, found):
    fused = counted(found, program)
    sides = [f"{n} of {of} {side}" for n, of, side in zip(fused, (program.forwards, program.backwards), ("fwd", "bwd")) if of]
    errors = f"{found['original_off']:.1e} {found['fused_off']:.1e}" if found["outcome"] == "right" else ""
    more = "" if fused == program.expected() or complaints(found, program) else " (more than expected)"
    return f"{library + '.' + program.name:42} {program.dtype:5} {', '.join(sides):24} {errors:16} {found['wall']:5.1f} s  " \
        f"{'FAILED' if complaints(found, program) else found['outcome'] + more}"


def selected(options):
    """(library, Program) of what is asked for."""
    chosen = [(library, program) for library in options.libraries or LIBRARIES for program in programs(library).values()
              if not options.k or any(word in f"{library}.{program.name}" for word in options.k)]
    part, parts = map(int, options.part.split("/"))
    return chosen[part - 1::parts]


def version(library):
    name = DISTRIBUTIONS.get(library, library)
    return f"{name} {importlib.metadata.version(name)}"


def main():
    parser = argparse.ArgumentParser(prog="tests/models/run", description=__doc__)
    parser.add_argument("libraries", nargs="*", metavar="LIBRARY", help=f"of {', '.join(LIBRARIES)}; else all")
    parser.add_argument("-k", action="append", metavar="WORD", help="only programs whose names hold one of these words")
    parser.add_argument("--part", default="1/1", help="2/6: the second of six parts")
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side")
    parser.add_argument("--list", action="store_true", help="names alone")
    options = parser.parse_args()
    if unknown := set(options.libraries) - set(LIBRARIES):
        parser.error(f"there is no library {', '.join(sorted(unknown))}")
    chosen = {f"{library}.{program.name}": (library, program) for library, program in selected(options)}
    if not chosen:
        parser.error("no program is chosen")
    if options.list:
        print("\n".join(chosen))
        return 0
    failed, totals = [], [0, 0, 0, 0]
    for found in outcomes(({"model": [library, program.name]} for library, program in chosen.values()), options.jobs):
        library, program = chosen[".".join(found["job"]["model"])]
        print(line(library, program, found), flush=True)
        for sentence in (wrong := complaints(found, program)):
            print("   ", sentence)
        if wrong:
            failed.append(f"{library}.{program.name}")
        for i, n in enumerate((*counted(found, program), program.forwards, program.backwards)):
            totals[i] += n
    print(f"{len(chosen)} programs: {totals[0]} of {totals[2]} forwards and {totals[1]} of {totals[3]} backwards are fused")
    if failed:
        print("FAILED:", ", ".join(failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
