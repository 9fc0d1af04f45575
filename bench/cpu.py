"""Heddle beside its peers on this CPU: the same tensors, the same threads, the same run.

    make bench
    .venv-bench/bin/python bench/cpu.py --dtype f32 --sequence 512 2048
    .venv-bench/bin/python bench/cpu.py --dtype bf16 --append    # beside what is in out/bench already

For each cell every program is measured in turn, so that what else the machine does meets them alike. Each cell
carries the machine's peak of that moment: where it is low, somebody else was at work. Writes out/bench/cpu.json,
cpu.md (the tables) and cpu.svg (the plot).
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import cells
import report

ROOT = Path(__file__).parents[1]
HEDDLE = ROOT / "build" / "bin" / "heddle"
PEERS = ("onnxruntime", "torch", "jax")


class Peer:
    """A peer in a process of its own (bench/peer.py), kept from cell to cell."""

    def __init__(self, name, tensors, threads):
        command = [sys.executable, Path(__file__).with_name("peer.py"), name, tensors, str(threads)]
        self.name = name
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True)

    def answer(self, doing):
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"\n{self.name} ended while {doing}:\n{self.process.stderr.read()}")
        return json.loads(line)

    def wait(self):
        """Until the library is loaded: nobody is measured beside that."""
        self.answer("starting")
        return self

    def measure(self, cell, memory=False):
        self.process.stdin.write(json.dumps({"cell": cell.as_json(), "memory": memory}) + "\n")
        self.process.stdin.flush()
        return self.answer(f"measuring {cell.name}")

    def close(self):
        self.process.stdin.close()
        self.process.wait()


class Heddle:
    """The heddle command's own benchmark, a process a cell."""

    name = "heddle"

    def __init__(self, tensors, threads):
        self.tensors, self.threads = tensors, threads

    def command(self, *options):
        run = subprocess.run([HEDDLE, "bench", "cpu", "--json", "-", "--threads", str(self.threads), *options],
                             capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if run.returncode != 0:
            sys.exit(f"\nheddle bench cpu ended with status {run.returncode}: {run.stderr.strip()}")
        return json.loads(run.stdout)

    def measure(self, cell):
        """The cell's figures, with what the machine could do at most just before (f32 GFLOP/s)."""
        run = self.command("--tensors", self.tensors, "--dtype", cell.dtype, "--head-dim", str(cell.head_dim),
                           "--sequence", str(cell.sequence), "--mask", "causal" if cell.causal else "none",
                           "--pass", "both" if cell.backward else "forward")
        return {**run["cells"][0], "f32_peak": run["machine"]["f32_gflops"]}

    def machine(self):
        return self.command("--machine-only")["machine"]


def progress(done, total, text):
    width = 24
    filled = width * done // total
    end = "\r" if sys.stderr.isatty() else "\n"
    print(f"[{'#' * filled}{'.' * (width - filled)}] {done}/{total}  {text:<44}", end=end, file=sys.stderr, flush=True)


def agree(results, reference="heddle"):
    """Whether every program's output has about the same component along a fixed direction."""
    numbers = {name: result["projection"] for name, result in results.items() if "projection" in result}
    wrong = [name for name, number in numbers.items() if not abs(number - numbers[reference]) < 0.02]
    return not wrong, numbers


def measure_memory(tensors, threads):
    """Peak of resident memory over forward and backward at S = 4096, each in a process of its own."""
    rows = []
    for head_dim in cells.HEAD_DIMS:
        cell = cells.Cell("f32", head_dim, 4096, False, True)
        row = {"heddle": Heddle(tensors, threads).measure(cell)["peak_bytes"]}
        for name in ("torch", "jax"):
            peer = Peer(name, tensors, threads).wait()
            row[name] = peer.measure(cell, memory=True)["peak_bytes"]
            peer.close()
        rows.append({"cell": cell.as_json(), "peak_bytes": row})
    return rows


def joined(before, now):
    """Both results; where they hold the same cell, the later one's."""
    cell_key = lambda row: tuple(row["cell"].values())
    rows = {cell_key(row): row for row in before["cells"] + now["cells"]}
    order = [tuple(cell.as_json().values()) for cell in cells.all_cells()]
    return {**now, "cells": sorted(rows.values(), key=lambda row: order.index(cell_key(row))),
            "memory": now["memory"] or before["memory"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtype", nargs="+", choices=cells.DTYPES, default=list(cells.DTYPES))
    parser.add_argument("--head-dim", nargs="+", type=int, choices=cells.HEAD_DIMS, default=list(cells.HEAD_DIMS))
    parser.add_argument("--sequence", nargs="+", type=int, choices=cells.SEQUENCES, default=list(cells.SEQUENCES))
    parser.add_argument("--peer", nargs="*", choices=PEERS, default=list(PEERS), help="whom to measure beside Heddle")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--no-memory", action="store_true", help="leave out the memory of forward and backward at S = 4096")
    parser.add_argument("--append", action="store_true",
                        help="keep what an earlier run left in the output folder, but for the cells measured now")
    parser.add_argument("--output", type=Path, default=ROOT / "out" / "bench")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    wanted = [cell for cell in cells.all_cells() if cell.dtype in options.dtype
              and cell.head_dim in options.head_dim and cell.sequence in options.sequence]

    with tempfile.TemporaryDirectory() as folder:
        tensors = Path(folder)
        cells.write_tensors(tensors)
        heddle = Heddle(tensors, options.threads)
        peers = [Peer(name, tensors, options.threads) for name in options.peer]
        programs = [heddle, *(peer.wait() for peer in peers)]
        machine = heddle.machine()
        rows = []
        for number, cell in enumerate(wanted):
            results = {}
            for program in programs:
                progress(number, len(wanted), f"{cell.name}: {program.name}")
                time.sleep(0.05)  # the threads of the one before may still spin, waiting for work
                results[program.name] = program.measure(cell)
            same, numbers = agree(results)
            if not same:
                sys.exit(f"\n{cell.name}: the programs computed different things: {numbers}")
            rows.append({"cell": cell.as_json(), "results": results})
        for peer in peers:
            peer.close()
        progress(len(wanted), len(wanted), "")
        memory = measure_memory(tensors, options.threads) if 4096 in options.sequence and not options.no_memory else []

    result = {"machine": machine, "threads": options.threads, "cells": rows, "memory": memory}
    kept = options.output / "cpu.json"
    if options.append and kept.exists():
        result = joined(json.loads(kept.read_text(encoding="utf-8")), result)
    kept.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    text = report.tables(result)
    (options.output / "cpu.md").write_text(text, encoding="utf-8")
    report.plot(result, options.output / "cpu.svg")
    print("\n" + text)
    print(f"{options.output}: cpu.json, cpu.md, cpu.svg")


if __name__ == "__main__":
    main()
