"""A section of docs/rewriter.md: of each model of a collection, how many of its attentions are fused, and why not.

    python tests/models/table.py FOLDER build/bin/heddle docs/rewriter.md

FOLDER has modules.json.gz, a dict of HLO texts, and expect.tsv, a row for each of them: how many attentions the model's
code has (columns file, form, library, version, model, dtype, pass, n_fwd, n_bwd). Form hlo is what JAX prints before
optimisation, form hook what XLA's CUDA pipeline hands to a transformation of modules. Ends non-zero, and writes nothing, if
an array as large as scores is left in a fused module that only the attention needed.
"""

import argparse
import csv
import gzip
import json
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "programs"))

from large_arrays import large_arrays  # noqa: E402
from sections import table, written  # noqa: E402

SECTION = """{programs} programs of {libraries} libraries, small random configurations, each in two forms: as JAX
prints it before optimisation, and as XLA's CUDA pipeline hands it over (`enable()`), inlined and simplified. **{forward} of
{forwards} forwards and {backward} of {backwards} backwards are fused.** `heddle fuse --verify` holds of {held} of {modules}
modules: on four draws of inputs the fused program is as near to the original's value in f64 as the original is, within a
small factor. {beside} Made by `tests/models/table.py`.

{table}"""
TITLES = ("library", "model", "type, pass", ">forward, printed", ">in XLA", ">backward, printed", ">in XLA",
          "left alone because")
OPERANDS = """**No array as large as scores, of rows and keys, is left that only the attention needed**
(`tests/programs/large_arrays.py`). The fused modules of {programs} programs compute none at all; what the others do
compute are operands of their calls: {operands}."""
FAILURES = """
Beyond what `--verify` allows:

{failures}
"""


def fused(heddle, text):
    """(forwards, backwards, reasons, what `--verify` says against it, its arrays as large as scores) of a module."""
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
    arrays = large_arrays(text, report["fusions"])
    return kinds.count("attention_forward"), kinds.count("attention_backward"), reasons, failure, arrays


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("heddle")
    parser.add_argument("document", type=Path)
    options = parser.parse_args()
    modules = json.loads(gzip.decompress((options.folder / "modules.json.gz").read_bytes()))
    programs, failures, left, operands = defaultdict(dict), [], [], defaultdict(set)
    with open(options.folder / "expect.tsv", encoding="utf-8") as expected_of:
        for row in csv.DictReader(expected_of, delimiter="\t"):
            program = programs[row["library"], row["version"], row["model"], row["dtype"], row["pass"]]
            forwards, backwards, reasons, failure, arrays = fused(options.heddle, modules[row["file"]])
            left += (f"{row['file']}: {sentence}" for sentence in arrays.left)
            if arrays.operands:
                operands[row["model"]] |= set(arrays.operands)
            if failure:
                failures.append(f"- {row['file'].removesuffix('.hlo')}: {failure}")
            expected = int(row["n_fwd"]), int(row["n_bwd"])
            # A module may hold more calls than its code has attentions: no place is counted twice.
            program[row["form"]] = [(min(n, of), of) for n, of in zip((forwards, backwards), expected)], reasons
    if left:
        raise SystemExit("Arrays as large as scores are left:\n" + "\n".join(left))
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
        beside=OPERANDS.format(programs=len(programs) - len(operands), operands=", ".join(
            f"the {' and '.join(sorted(names))} of {model}" for model, names in sorted(operands.items()))))
    beyond = FAILURES.format(failures="\n".join(failures)) if failures else ""
    written(options.document, "A collection of modules", said + beyond)


if __name__ == "__main__":
    main()
