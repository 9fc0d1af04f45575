"""A section of docs/rewriter.md: of each model of a collection, how many of its attentions are fused, and why not.

    python tests/models/table.py FOLDER build/bin/heddle docs/rewriter.md

FOLDER has modules.json.gz, a dict of HLO texts, and expect.tsv, a row for each of them: how many attentions the model's
code has (columns file, form, library, version, model, dtype, pass, n_fwd, n_bwd). Form hlo is what JAX prints before
optimisation, form hook what XLA's CUDA pipeline hands to a transformation of modules.
"""

import argparse
import csv
import gzip
import json
import math
import re
import subprocess
import tempfile
from collections import defaultdict
from pathlib import Path

from sections import table, written

SECTION = """{programs} programs of {libraries} libraries, small random configurations, each in two forms: as JAX
prints it before optimisation, and as XLA's CUDA pipeline hands it over (`enable()`), inlined and simplified. **{forward} of
{forwards} forwards and {backward} of {backwards} backwards are fused.** `heddle fuse --verify` holds of {held} of {modules}
modules: on four draws of inputs the fused program is as near to the original's value in f64 as the original is, within a
small factor. {beside} Made by `tests/models/table.py`.

{table}"""
TITLES = ("library", "model", "type, pass", ">forward, printed", ">in XLA", ">backward, printed", ">in XLA",
          "left alone because")
BESIDE = """The fused modules of {programs} programs compute no array as large as scores, of
rows and keys; those of {left} do (`holds_scores`)."""
FAILURES = """
Beyond what `--verify` allows:

{failures}
"""


ARRAY = re.compile(r"\s*(?:ROOT )?%?[\w.-]+ = \w+\[([\d,]+)\]\S* (?!parameter)[\w-]+\(")


def holds_scores(text, fusions):
    """Whether a fused module computes an array with the rows and keys of a call and as many elements as its scores."""
    sizes = {(f["q_len"], f["kv_len"], f["batch"] * f["q_heads"] * f["q_len"] * f["kv_len"]) for f in fusions}
    for dims in {tuple(map(int, found[1].split(","))) for found in map(ARRAY.match, text.splitlines()) if found}:
        for rows, keys, count in sizes:
            rest = list(dims)
            if min(rows, keys) == 1 or len(dims) < 4 or math.prod(dims) < count or rows not in rest:
                continue
            rest.remove(rows)
            if keys in rest:
                return True
    return False


def fused(heddle, text):
    """(forwards, backwards, reasons, what `--verify` says against it, whether scores are left) of a module."""
    with tempfile.TemporaryDirectory() as folder:
        module, out = Path(folder, "module.hlo"), Path(folder, "fused.hlo")
        module.write_text(text)
        command = [heddle, "fuse", module, "-o", out, "--verify", "--report", "-"]
        done = subprocess.run(command, capture_output=True, text=True)
        if not out.exists():  # not verified, so not written
            subprocess.run([*command[:5], "--report", "-"], capture_output=True, check=True)
        text = out.read_text() if out.exists() else ""
    failure = done.stderr.partition("verification failed: ")[2].strip()
    if done.returncode != 0 and not failure:
        raise SystemExit(done.stderr)
    report = json.loads(done.stdout)
    kinds = [fusion["kind"] for fusion in report["fusions"]]
    reasons = {re.sub(r"%[\w.-]+", "%...", refusal["reason"]) for refusal in report["refusals"]}
    left = holds_scores(text, report["fusions"])
    return kinds.count("attention_forward"), kinds.count("attention_backward"), reasons, failure, left


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("heddle")
    parser.add_argument("document", type=Path)
    options = parser.parse_args()
    modules = json.loads(gzip.decompress((options.folder / "modules.json.gz").read_bytes()))
    programs, failures, left = defaultdict(dict), [], set()
    with open(options.folder / "expect.tsv", encoding="utf-8") as expected_of:
        for row in csv.DictReader(expected_of, delimiter="\t"):
            program = programs[row["library"], row["version"], row["model"], row["dtype"], row["pass"]]
            forwards, backwards, reasons, failure, is_left = fused(options.heddle, modules[row["file"]])
            if is_left:
                left.add(row["model"])
            if failure:
                failures.append(f"- {row['file'].removesuffix('.hlo')}: {failure}")
            expected = int(row["n_fwd"]), int(row["n_bwd"])
            # A module may hold more calls than its code has attentions: no place is counted twice.
            program[row["form"]] = [(min(n, of), of) for n, of in zip((forwards, backwards), expected)], reasons
    rows, found = [], [0, 0, 0, 0]
    for (library, version, model, dtype, kind), forms in sorted(programs.items()):
        cells, why = [], set()
        for side in (0, 1):
            for form in ("hlo", "hook"):
                (n, of), reasons = forms[form][0][side], forms[form][1]
                found[2 * side] += n
                found[2 * side + 1] += of
                cells.append(f"{n} of {of}" if of else "")
                if n < of:
                    why |= reasons or {"it is not seen as attention"}
        rows.append([f"{library} {version}", model, f"{dtype}, {kind}", *cells, "; ".join(sorted(why))])
    libraries = {library for library, *_ in programs}
    said = SECTION.format(
        programs=len(programs), libraries=len(libraries), forward=found[0], forwards=found[1], backward=found[2],
        backwards=found[3], held=len(modules) - len(failures), modules=len(modules), table=table(TITLES, rows),
        beside=BESIDE.format(programs=len(programs) - len(left), left=", ".join(sorted(left))))
    beyond = FAILURES.format(failures="\n".join(failures)) if failures else ""
    written(options.document, "A collection of modules", said + beyond)


if __name__ == "__main__":
    main()
