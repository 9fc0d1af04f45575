#!/usr/bin/env python3
"""The host's time of calls that compute next to nothing, through each of Heddle's doors in Python, on the CPU.

    .venv-torch/bin/python bench/tiny_calls.py

One query, four keys, one head of 8, f32. The least of many short rounds, as other work on a machine only adds to it.
"""

import sys
import time
from pathlib import Path

import torch
from torch.nn.functional import scaled_dot_product_attention

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bindings" / "python"))

import heddle.torch  # noqa: E402
from heddle import cudnn  # noqa: E402

ROUNDS, CALLS = 2000, 20


def microseconds(call):
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(CALLS):
            call()
        best = min(best, (time.perf_counter() - start) / CALLS)
    return best * 1e6


def built_graph(q, k, v, o):
    """A graph of attention, its pack by tensors, and its workspace."""
    handle = cudnn.create_handle(device="cpu")
    graph = cudnn.pygraph(io_data_type=cudnn.data_type.FLOAT, intermediate_data_type=cudnn.data_type.FLOAT,
                          compute_data_type=cudnn.data_type.FLOAT, handle=handle)
    inputs = [graph.tensor_like(x) for x in (q, k, v)]
    result, _ = graph.sdpa(name="sdpa", q=inputs[0], k=inputs[1], v=inputs[2], generate_stats=False, attn_scale=0.5)
    result.set_output(True).set_dim(list(o.shape)).set_stride(list(o.stride()))
    graph.build([cudnn.heur_mode.A])
    return graph, dict(zip((*inputs, result), (q, k, v, o), strict=True)), torch.empty(graph.get_workspace_size(), dtype=torch.uint8)


def main():
    torch.set_num_threads(1)
    q, k, v = (torch.randn(1, 1, length, 8) for length in (1, 4, 4))
    arrays = [x.numpy() for x in (q, k, v)]
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    graph, pack, workspace = built_graph(q, k, v, torch.empty_like(q))
    addresses = {tensor.get_uid(): array.data_ptr() for tensor, array in pack.items()}
    calls = {
        "heddle.cudnn: execute": lambda: graph.execute(pack, workspace),
        "heddle.cudnn: execute, addresses": lambda: graph.execute(addresses, workspace.data_ptr()),
        "heddle.attention, NumPy": lambda: heddle.attention(*arrays, layout="BNTH"),
        "heddle.torch.attention": lambda: heddle.torch.attention(q, k, v, layout="BNTH"),
        "torch's own SDPA": lambda: scaled_dot_product_attention(q, k, v),
        "torch's own SDPA, with gradients": lambda: scaled_dot_product_attention(*leaves).sum().backward(),
    }
    for name, call in calls.items():
        print(f"{name:36} {microseconds(call):6.2f} us")
    with heddle.torch.enable():
        for name, call in list(calls.items())[-2:]:
            print(f"{name.replace('own', 'served'):36} {microseconds(call):6.2f} us")


main()
