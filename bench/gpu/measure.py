"""Heddle beside its peers on this GPU: the same tensors, the same run, measured in turn.

    python bench/gpu/measure.py                          # everything, about two minutes on an H200
    python bench/gpu/measure.py --only 'forward d128'    # cells whose name matches; --list names them
    python bench/gpu/measure.py --short                  # sequences of 16 to 1024, batches of encoders
    python bench/gpu/measure.py --tables out/bench/gpu.json    # tables and plots again, on any machine

Needs libheddle.so (make, or HEDDLE_LIBRARY) and a torch for CUDA. Heddle runs through its library, as graphs; cuDNN,
FlashAttention-2 and FlexAttention run through torch. Each cell is checked against f64 before it is timed. Writes
out/bench/gpu.json, gpu.md (the tables) and gpu-*.svg (a plot of each).
"""

import argparse
import json
import os
import re
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "bindings" / "python"))

import tables  # noqa: E402
from cells import all_cells, rate, short_cells  # noqa: E402


def check_machine():
    """Ends the program with a sentence where nothing can be measured."""
    try:
        import torch

        import heddle

        heddle.version()
    except (ImportError, OSError) as missing:
        sys.exit(f"measure.py needs a torch for CUDA and libheddle.so: {missing}")
    if not torch.cuda.is_available():
        sys.exit(f"measure.py needs an NVIDIA GPU, and torch {torch.__version__} finds none; --list and --tables need none.")


def plan_all(texts):
    """text -> Plan or the Error, as many at once as there are cores: most of it is compiling kernels."""
    import torch

    import heddle

    def plan(text):
        torch.zeros(1, device="cuda")  # makes the GPU's context this thread's
        try:
            return heddle.Plan(text, "cuda")
        except heddle.Error as error:
            return error

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return dict(zip(texts, pool.map(plan, texts)))


def measure(cell, plans, rounds, with_peers):
    """The cell's row of the result."""
    import torch

    import heddle
    import programs
    from timing import interleaved_milliseconds

    row = {"name": cell.name, "table": cell.table, "unit": cell.unit, "floors": cell.floors, "milliseconds": {}, "notes": {}}
    texts = programs.graph_texts(cell)
    refused = next((plans[text] for text in texts.values() if isinstance(plans[text], heddle.Error)), None)
    runs = {}
    tensors = programs.make_tensors(cell)
    if refused:
        row["notes"]["heddle"] = str(refused)
    else:
        try:
            for forward in [text for who, text in texts.items() if who.startswith("forward")]:
                programs.heddle_program(plans[forward], tensors)()
            own = plans[texts["heddle"]]
            runs["heddle"] = programs.heddle_program(own, tensors)
            row["plan"] = own.description
            row["error"] = programs.check(cell, runs["heddle"], own, tensors)
        except (ArithmeticError, heddle.Error) as error:
            runs.pop("heddle", None)
            row["notes"]["heddle"] = str(error)
        runs |= {who: programs.heddle_program(plans[text], tensors) for who, text in texts.items()
                 if who != "heddle" and not who.startswith("forward")}
    for who in cell.peers if with_peers else ():
        if who in texts or who in ("unrotated", "unordered", "joined"):
            continue
        try:
            run = programs.peer_program(who, cell, tensors)
            run()
            runs[who] = run
        except RuntimeError as error:
            row["notes"][who] = str(error).splitlines()[0]
    milliseconds = interleaved_milliseconds(runs, rounds) if runs else {}
    row["milliseconds"] = milliseconds
    row["rates"] = {who: rate(cell, ms) for who, ms in milliseconds.items()}
    torch.cuda.synchronize()
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="a regular expression for the names of cells")
    parser.add_argument("--short", action="store_true", help="the sweep of short sequences, and nothing else")
    parser.add_argument("--list", action="store_true", help="print the names of cells and stop")
    parser.add_argument("--rounds", type=int, default=10, help="timings of each program, of which the median counts")
    parser.add_argument("--no-peers", action="store_true", help="Heddle alone")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no cell after so long")
    parser.add_argument("--output", type=Path, default=ROOT / "out" / "bench", help="the folder to write to")
    parser.add_argument("--tables", type=Path, help="a gpu.json of an earlier run: make its tables and plots, measure nothing")
    options = parser.parse_args()
    try:
        wanted = [cell for cell in (short_cells if options.short else all_cells)() if re.search(options.only, cell.name)]
    except re.error as failure:
        parser.error(f"--only: '{options.only}' is no regular expression: {failure}")
    if not wanted:
        parser.error(f"--only: no cell's name matches '{options.only}'; --list names them")
    if options.list:
        print("\n".join(cell.name for cell in wanted))
        return
    if options.tables:
        try:
            result = json.loads(options.tables.read_text(encoding="utf-8"))
            print(tables.text(result))
        except (OSError, ValueError, KeyError, TypeError) as failure:
            parser.error(f"--tables: {options.tables} is no result of measure.py: {failure}")
        options.output.mkdir(parents=True, exist_ok=True)
        tables.write(result, options.output)
        return
    check_machine()

    import torch

    import programs
    from timing import gpu

    options.output.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    result = {"gpu": gpu(), "torch": torch.__version__, "cudnn": torch.backends.cudnn.version(), "cells": [], "left_out": []}
    plans = plan_all({text: None for cell in wanted for text in programs.graph_texts(cell).values()})
    print(f"{len(plans)} graphs planned in {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
    for cell in wanted:
        if time.monotonic() - start > options.seconds:
            result["left_out"].append(cell.name)
            continue
        row = measure(cell, plans, options.rounds, not options.no_peers)
        result["cells"].append(row)
        print(tables.line(row), flush=True)
        (options.output / "gpu.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        torch.cuda.empty_cache()
    result["seconds"] = time.monotonic() - start
    (options.output / "gpu.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    tables.write(result, options.output)
    print("\n" + tables.text(result))
    print(f"{result['seconds']:.0f} s; {options.output}: gpu.json, gpu.md, gpu-*.svg")


if __name__ == "__main__":
    main()
