"""A whole step of GroupQueryAttention on a GPU, and what of it is the cache's: the device's time, and the host's.

    PYTHONPATH=bindings/python python bench/gpu/step.py

One token of each sequence, Q, K and V packed, rotated and appended, 32 query heads of 8, d 128, bf16, caches in place.
The append alone is measured beside a launch that does nothing, each a CUDA graph's, in turn: one between two events, and
behind others of its own. The host's time is that of Plan.launcher's calls, on buffers the plan has seen.
"""

import json
import random
import statistics
import time

import torch

import heddle
from decode import captured
from timing import gpu, interleaved_milliseconds

HEADS, KV_HEADS, DIM = 32, 8, 128
SIZES = [(1, 32768), (8, 8192), (32, 4096), (128, 4096)]
LAUNCHES = 20  # in a graph: what is measured is one after the other, not the start of a graph


def graphs(batch, keys):
    """The step, and its append alone: what in the step's text is virtual, handed to the attention, is its result."""
    cache = "bf16", (batch, KV_HEADS, keys, DIM)
    table = "bf16", (keys, DIM // 2)
    step = heddle.gqa(keys, query=("bf16", (batch, 1, (HEADS + 2 * KV_HEADS) * DIM)), past_key=cache, past_value=cache,
                      seqlens_k=("i32", (batch,)), cos_cache=table, sin_cache=table, num_heads=HEADS, kv_num_heads=KV_HEADS,
                      do_rotary=1).text
    append = json.loads(step)
    append["nodes"] = [node for node in append["nodes"] if node["op"] == "cache_append"]
    used = {value for node in append["nodes"] for value in node.values() if isinstance(value, int)}
    append["tensors"] = [{**tensor, "virtual": False} for tensor in append["tensors"] if tensor["uid"] in used]
    return {"step": step, "append": json.dumps(append)}


def program(text, batch, keys):
    """What queues the graph on the current stream, and its plan's description."""
    plan = heddle.Plan(text, "cuda")
    tensors = {}
    for tensor in json.loads(text)["tensors"]:
        if tensor["uid"] in (*plan.inputs, *plan.outputs):
            dtype = torch.int32 if tensor["dtype"] == "i32" else torch.bfloat16
            count = 1 + sum((dim - 1) * stride for dim, stride in zip(tensor["dims"], tensor["strides"]))
            tensors[tensor["uid"]] = torch.randn(count, device="cuda").to(dtype)
    uids = heddle.gqa.uids
    tensors[uids["seqlens_k"]].fill_(keys - 1)
    for cache in ("key", "value"):
        tensors[uids[f"present_{cache}"]] = tensors[uids[f"past_{cache}"]]
    workspace = torch.empty(max(plan.workspace_bytes, 1), dtype=torch.uint8, device="cuda")
    addresses = {uid: tensor.data_ptr() for uid, tensor in tensors.items()}

    def run():
        plan.execute(addresses, workspace.data_ptr(), torch.cuda.current_stream().cuda_stream)

    run.kept = tensors, workspace
    run.host = launched(plan, addresses, workspace)
    return run, plan.description


def launched(plan, addresses, workspace):
    launch = plan.launcher(tuple(addresses)).launch
    pointers, memory, stream = tuple(addresses.values()), workspace.data_ptr(), torch.cuda.current_stream().cuda_stream
    return lambda: launch(pointers, memory, stream)


def several(run):
    def runs():
        for _ in range(LAUNCHES):
            run()

    return captured(runs)


def alone_milliseconds(runs, rounds=60):
    """Medians of one launch between two events, all queued while the GPU is busy: the host's time is not in them."""
    times = {name: [] for name in runs}
    for _ in range(rounds):
        for name in random.sample(list(runs), len(runs)):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(200_000)
            start.record()
            runs[name]()
            end.record()
            end.synchronize()
            times[name].append(start.elapsed_time(end))
    return {name: statistics.median(some) for name, some in times.items()}


def host_microseconds(run, calls=20, rounds=25):
    """The median of what a call takes until it is queued."""
    times = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(calls):
            run()
        times.append((time.perf_counter() - begin) / calls * 1e6)
        torch.cuda.synchronize()
    return statistics.median(times)


def main():
    print(gpu())
    for batch, keys in SIZES:
        runs, words = {}, {}
        for name, text in graphs(batch, keys).items():
            runs[name], words[name] = program(text, batch, keys)
        host = {name: host_microseconds(run.host) for name, run in runs.items()}
        runs["nothing"] = lambda: torch.cuda._sleep(0)  # torch's kernel that waits, for no time
        alone = alone_milliseconds({name: captured(run) for name, run in runs.items()})
        behind = interleaved_milliseconds({name: several(run) for name, run in runs.items()})
        us = {name: (1000 * alone[name], 1000 * behind[name] / LAUNCHES) for name in runs}
        said = ", ".join(f"{name} {first:.2f} ({later:.2f} behind another)" for name, (first, later) in us.items())
        print(f"b {batch} x {keys}, us: {said}; append {us['append'][0] / us['nothing'][0]:.2f} of nothing; of the host: step "
              f"{host['step']:.2f}, append {host['append']:.2f}; {'; '.join(words['step'].splitlines())}", flush=True)


if __name__ == "__main__":
    main()
