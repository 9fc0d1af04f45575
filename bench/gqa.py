"""GroupQueryAttention on this CPU by Heddle, beside onnxruntime's own: a step of decoding, and prompts.

    .venv-bench/bin/python bench/gqa.py
    .venv-bench/bin/python bench/gqa.py --prompt 512 2048 --plot out/bench/gqa.svg
    .venv-bench/bin/python bench/gqa.py --batch 4 --keys 4096 --json out/bench/gqa.json
    taskset -c 0 .venv-bench/bin/python bench/gqa.py --cpu-time    # a core that others use too

Buffers are shared (present is the past), rotation and append are part of the step. Steps of all programs take turns, so
that what else the machine does meets them alike; a figure is the median of the rounds. Beside each time stands how fast
the cache was read for it, and first the rate at which the same threads read memory alone; beside a prompt's how fast
its two products were. On a GPU: bench/gpu/decode.py and bench/gpu/measure.py, beside cuDNN.
"""

import argparse
import json
import os
import statistics
import sys
import threading
import time
from pathlib import Path

import numpy as np
import onnxruntime
from onnx import TensorProto, helper

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "bindings" / "python"))
import heddle  # noqa: E402

BYTES = {"f32": 4, "bf16": 2, "f16": 2, "i8": 1, "u8": 1, "f8e4m3": 1}
# Name -> types of Q and of the cache, bits of a code.
CACHES = {"f32": ("f32", "f32", 0), "bf16": ("bf16", "bf16", 0), "f16": ("f16", "f16", 0), "int8": ("f32", "i8", 8),
          "int4": ("f32", "u8", 4), "f8e4m3": ("f32", "f8e4m3", 8)}


def random_bytes(rng, dtype, dims):
    count = int(np.prod(dims))
    if dtype == "f32":
        return rng.standard_normal(count, np.float32).view(np.uint8)
    if dtype == "f16":
        return rng.standard_normal(count, np.float32).astype(np.float16).view(np.uint8)
    if dtype == "bf16":
        return (rng.standard_normal(count, np.float32).view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    return rng.integers(0, 100, count, np.uint8)


class Heddle:
    def __init__(self, name, a, rng, rows, keys):
        self.name = name
        io, cache, bits = CACHES[name]
        attributes = {"num_heads": a.heads, "kv_num_heads": a.kv_heads, "do_rotary": 1}
        columns = a.head_size // 2 if bits == 4 else a.head_size
        hidden = a.kv_heads * a.head_size
        node = {"query": (io, (a.batch, rows, a.heads * a.head_size)), "key": (io, (a.batch, rows, hidden)),
                "value": (io, (a.batch, rows, hidden)), "past_key": (cache, (a.batch, a.kv_heads, keys, columns)),
                "past_value": (cache, (a.batch, a.kv_heads, keys, columns)), "seqlens_k": ("i32", (a.batch,)),
                "cos_cache": (io, (keys, a.head_size // 2)), "sin_cache": (io, (keys, a.head_size // 2))}
        if bits:
            attributes |= {"k_quant_type": "PER_CHANNEL", "v_quant_type": "PER_CHANNEL", "kv_cache_bit_width": bits}
            node |= {scale: ("f32", (1, a.kv_heads, 1, a.head_size)) for scale in ("k_scale", "v_scale")}
        self.arrays = {n: random_bytes(rng, t, dims) for n, (t, dims) in node.items() if n != "seqlens_k"}
        self.arrays["seqlens_k"] = np.full(a.batch, keys - 1, np.int32)
        self.arrays["output"] = np.empty(a.batch * rows * a.heads * a.head_size * BYTES[io], np.uint8)
        self.plan = heddle.Plan(heddle.gqa(keys, **node, **attributes), "cpu")
        self.workspace = np.empty(self.plan.workspace_bytes, np.uint8)
        uids = heddle.gqa.uids
        self.addresses = {uids[n]: array.ctypes.data for n, array in self.arrays.items()}
        for part in ("key", "value"):
            self.addresses[uids[f"present_{part}"]] = self.addresses[uids[f"past_{part}"]]
        self.bytes = 2 * self.arrays["past_key"].nbytes

    def step(self):
        self.plan.execute(self.addresses, self.workspace.ctypes.data)


class OnnxRuntime:
    name = "onnxruntime f32"

    def __init__(self, a, rng, threads, rows, keys):
        names = ["query", "key", "value", "past_key", "past_value", "seqlens_k", "total_sequence_length", "cos_cache",
                 "sin_cache"]
        hidden = a.kv_heads * a.head_size
        cache = (a.batch, a.kv_heads, keys, a.head_size)
        normal = lambda *dims: rng.standard_normal(dims, np.float32)
        inputs = {"query": normal(a.batch, rows, a.heads * a.head_size), "key": normal(a.batch, rows, hidden),
                  "value": normal(a.batch, rows, hidden), "past_key": normal(*cache), "past_value": normal(*cache),
                  "seqlens_k": np.full(a.batch, keys - 1, np.int32), "total_sequence_length": np.array([keys], np.int32),
                  "cos_cache": normal(keys, a.head_size // 2), "sin_cache": normal(keys, a.head_size // 2)}
        types = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(np.int32): TensorProto.INT32}
        outputs = ["output", "present_key", "present_value"]
        node = helper.make_node("GroupQueryAttention", names, outputs, domain="com.microsoft", num_heads=a.heads,
                                kv_num_heads=a.kv_heads, do_rotary=1)
        graph = helper.make_graph(
            [node], "decode", [helper.make_tensor_value_info(n, types[inputs[n].dtype], inputs[n].shape) for n in names],
            [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs])
        model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21),
                                                                       helper.make_opsetid("com.microsoft", 1)])
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = threads, 3
        self.session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        self.binding = self.session.io_binding()
        self.values = {n: onnxruntime.OrtValue.ortvalue_from_numpy(array) for n, array in inputs.items()}
        for name, held in self.values.items():
            self.binding.bind_ortvalue_input(name, held)
        self.binding.bind_output("output")
        for part in ("key", "value"):
            self.binding.bind_ortvalue_output(f"present_{part}", self.values[f"past_{part}"])
        self.bytes = inputs["past_key"].nbytes * 2

    def step(self):
        self.session.run_with_iobinding(self.binding)


class Memory:
    """All threads sum memory that no cache holds."""

    name = "memory alone"

    def __init__(self, threads):
        self.parts = np.array_split(np.ones(64 << 20, np.float32), threads)
        self.bytes = sum(part.nbytes for part in self.parts)

    def step(self):
        readers = [threading.Thread(target=part.sum) for part in self.parts]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()


def measure(programs, rounds, clock):
    """Median and least milliseconds of each program, all of them in turns."""
    times = {program.name: [] for program in programs}
    for program in programs:
        program.step()
    for _ in range(rounds):
        for program in programs:
            begin = clock()
            program.step()
            times[program.name].append(clock() - begin)
    return {name: tuple(1e3 * of(taken) for of in (statistics.median, min)) for name, taken in times.items()}


def plot(cells, path):
    """Milliseconds by keys, a line for each program; a panel for decoding and one for prompts."""
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    modes = sorted({cell["mode"] for cell in cells})
    figure, axes = plt.subplots(1, len(modes), figsize=(5 * len(modes), 4), squeeze=False)
    for axis, mode in zip(axes[0], modes, strict=True):
        for name in dict.fromkeys(cell["cache"] for cell in cells if cell["mode"] == mode):
            line = [(cell["keys"], cell["ms"]) for cell in cells if (cell["mode"], cell["cache"]) == (mode, name)]
            axis.loglog(*zip(*line, strict=True), marker="o", base=2, label=name)
        axis.set_title(mode)
        axis.set_xlabel("keys")
        axis.set_ylabel("ms")
        axis.legend(fontsize=7)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option, default in (("batch", 1), ("heads", 32), ("kv-heads", 8), ("head-size", 128), ("rounds", 15)):
        parser.add_argument(f"--{option}", type=int, default=default)
    parser.add_argument("--keys", type=int, nargs="*", default=[8192], help="of a step of decoding")
    parser.add_argument("--prompt", type=int, nargs="*", default=[], help="rows of prompts")
    parser.add_argument("--caches", nargs="*", choices=CACHES, default=list(CACHES))
    parser.add_argument("--cpu-time", action="store_true", help="the process's time on the cores in place of the clock's")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    a = parser.parse_args()
    clock = time.process_time if a.cpu_time else time.perf_counter
    rng, threads = np.random.default_rng(0), len(os.sched_getaffinity(0))
    print(f"batch {a.batch}, {a.heads} heads on {a.kv_heads}, d {a.head_size}, {threads} threads, onnxruntime {onnxruntime.__version__}")
    cells = []
    for mode, rows, keys in [*(("decode", 1, keys) for keys in a.keys), *(("prompt", rows, rows) for rows in a.prompt)]:
        nodes = [OnnxRuntime(a, rng, threads, rows, keys), *(Heddle(name, a, rng, rows, keys) for name in a.caches)]
        programs = [Memory(threads), *nodes] if mode == "decode" else nodes
        times = measure(programs, a.rounds, clock)
        operations = 4 * a.batch * a.heads * a.head_size * (keys * (keys + 1) / 2 if mode == "prompt" else keys)
        rate = "GB/s" if mode == "decode" else "GFLOP/s"
        print(f"\n{f'{mode}, {keys} keys':22} {'ms':>8} {'least':>8} {rate:>8}")
        for program in programs:
            middle, least = times[program.name]
            cells.append({"mode": mode, "keys": keys, "cache": program.name, "ms": middle, "least_ms": least,
                          "gb_s": program.bytes / middle / 1e6, "gflops": operations / middle / 1e6})
            print(f"{program.name:22} {middle:8.3f} {least:8.3f} {cells[-1]['gb_s' if mode == 'decode' else 'gflops']:8.1f}")
    if a.json:
        a.json.parent.mkdir(parents=True, exist_ok=True)
        a.json.write_text(json.dumps({"options": {k: str(v) for k, v in vars(a).items()}, "threads": threads,
                                      "cells": cells}, indent=1))
    if a.plot:
        plot([cell for cell in cells if cell["cache"] != Memory.name], a.plot)


if __name__ == "__main__":
    main()
