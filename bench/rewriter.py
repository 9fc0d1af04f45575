"""How long the rewriter takes: `heddle explain` of a decoder's training step, layer after layer in one computation.

    .venv/bin/python bench/rewriter.py                  # about 10,000, 40,000 and 160,000 instructions
    .venv/bin/python bench/rewriter.py --layers 163

Prints, for each, the instructions of the module as JAX prints it, the attention calls found, and the processor's
seconds (reading the text included, the least of seven runs) and the most memory that the process had. JAX is another
process: the most memory of one that has just been forked is its parent's.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HEDDLE = Path(__file__).parents[1] / "build" / "bin" / "heddle"
PROGRAM = Path(__file__).parent / "decoder_step.py"


def run(path):
    """(output, seconds of the processor, MB at most) of one `heddle explain`."""
    with subprocess.Popen([HEDDLE, "explain", path], stdout=subprocess.PIPE, text=True) as process:
        output = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"heddle explain ended with {process.returncode}")
    return output, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--layers", type=int, nargs="+", default=[41, 163, 655])
    options = parser.parse_args()
    print(f"{'layers':>6}  {'instructions':>12}  {'calls':>5}  {'seconds':>7}  {'MB':>5}")
    for layers in options.layers:
        with tempfile.NamedTemporaryFile("w", suffix=".hlo") as file:
            subprocess.run([sys.executable, PROGRAM, str(layers)], stdout=file, check=True)
            runs = [run(file.name) for _ in range(7)]
        instructions, calls = re.search(r"(\d+) instructions; attention calls: (\d+)", runs[0][0]).groups()
        seconds, memory = (min(figures) for figures in list(zip(*runs, strict=True))[1:])
        print(f"{layers:6}  {instructions:>12}  {calls:>5}  {seconds:7.2f}  {memory:5.0f}", flush=True)


if __name__ == "__main__":
    main()
