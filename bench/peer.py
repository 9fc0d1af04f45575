"""The process around one peer: cells come in as JSON lines, results go out as JSON lines.

    python bench/peer.py torch TENSORS THREADS

The first line says {"ready": true}, once everything is loaded. A result is {"seconds", "projection"} with "peak_bytes" where it was asked for, or {"refused": why}.
"""

import importlib
import json
import os
import sys
from pathlib import Path

import cells


def main():
    name, tensors, threads = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    peer = importlib.import_module(f"peer_{name}")
    peer.start(threads)
    answers = os.fdopen(os.dup(1), "w")  # what a library prints must not end up between our lines
    os.dup2(2, 1)
    answers.write(json.dumps({"ready": True}) + "\n")
    answers.flush()
    for line in sys.stdin:
        request = json.loads(line)
        cell = cells.Cell(**request["cell"])
        query, key, value, gradient = cells.read_tensors(tensors, cell)
        try:
            call, output = peer.prepare(cell, query, key, value, gradient)
        except NotImplementedError as reason:
            answer = {"refused": str(reason)}
        else:
            answer = {}
            if request.get("memory"):
                answer["peak_bytes"] = cells.peak_bytes(call)
            answer["seconds"] = cells.median_seconds(call)
            answer["projection"] = cells.projection(output(), gradient)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
