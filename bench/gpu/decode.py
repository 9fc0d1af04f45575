"""Steps of a generation on a GPU: Heddle beside cuDNN and FlashAttention-2, as torch runs them, in one run.

    PYTHONPATH=bindings/python python bench/gpu/decode.py

Prints what each reads of keys and values a second. Peers that do not take a case are left out of its line; the card's
own rate is that of copying, bytes read and written counted.
"""

import argparse
import functools
from typing import NamedTuple

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import heddle
from timing import gpu, interleaved_milliseconds

PEERS = {"cuDNN": SDPBackend.CUDNN_ATTENTION, "FlashAttention-2": SDPBackend.FLASH_ATTENTION}


class Step(NamedTuple):
    """Tokens of each sequence against its keys; page: rows of a page, 0: dense; ragged: lengths from an eighth up."""

    batch: int
    keys: int
    heads: int = 32
    kv_heads: int = 8
    dim: int = 128
    tokens: int = 1
    page: int = 0
    ragged: bool = False

    @property
    def title(self):
        more = [f"{self.tokens} tokens"] * (self.tokens > 1) + [f"pages of {self.page}"] * bool(self.page)
        return ", ".join([f"{self.heads}/{self.kv_heads} heads, d {self.dim}, b {self.batch} x {self.keys}",
                          *more, *["ragged"] * self.ragged])


STEPS = [Step(1, 32768), Step(8, 8192), Step(32, 4096), Step(128, 4096), Step(8, 8192, 32, 1), Step(8, 8192, 64, 8, 64),
         Step(8, 8192, tokens=4), Step(8, 8192, tokens=16), Step(32, 4096, ragged=True), Step(32, 4096, page=16),
         Step(32, 4096, page=64), Step(32, 4096, page=256), Step(1, 1024), Step(8, 512), Step(256, 512)]


class Operands:
    """Tensors of a step, bf16."""

    def __init__(self, step):
        random = functools.partial(torch.randn, device="cuda", dtype=torch.bfloat16)
        self.q = random(step.batch, step.heads, step.tokens, step.dim)
        self.k, self.v = (random(step.batch, step.kv_heads, step.keys, step.dim) for _ in range(2))
        self.o = torch.full_like(self.q, float("nan"))
        self.lengths = torch.full((step.batch,), step.keys, dtype=torch.int32, device="cuda")
        if step.ragged:
            self.lengths = torch.randint(step.keys // 8, step.keys + 1, (step.batch,), dtype=torch.int32, device="cuda")
        self.tokens = torch.full_like(self.lengths, step.tokens)
        if step.page:
            self.pages = step.keys // step.page
            order = torch.randperm(step.batch * self.pages, device="cuda")
            self.table = order.reshape(step.batch, self.pages).to(torch.int32)

    def paged(self, step, x):
        """The rows of x in the pages that the table names."""
        rows = x.reshape(step.batch, step.kv_heads, self.pages, step.page, step.dim).transpose(1, 2)
        dims = (step.batch * self.pages, step.kv_heads, step.page, step.dim)
        container = torch.empty(dims, dtype=x.dtype, device="cuda")
        container[self.table.flatten().long()] = rows.reshape(container.shape)
        return container


def planned(step, operands):
    """What runs the step by Heddle, on the current stream, and the plan's description."""
    graph = heddle.Graph(io="bf16", intermediate="f32", compute="f32")
    bound = {}

    def tensor(name, array, dims, dtype=None, strides=None):
        strides = strides or [*array.stride()] + [1] * (len(dims) - array.dim())
        made = graph.tensor(name, dims, strides, dtype)
        bound[made.uid] = array
        return made

    fields = {"q": tensor("q", operands.q, operands.q.shape), "attn_scale": step.dim**-0.5,
              "right_bound": 0, "diagonal_alignment": "bottom_right"}
    if step.page:
        for name in "kv":
            held = operands.paged(step, getattr(operands, name))
            fields[name] = tensor(name, held, held.shape)
            dims, strides = (step.batch, 1, operands.pages, 1), [operands.pages, operands.pages, 1, 1]
            fields[f"page_table_{name}"] = tensor(f"table {name}", operands.table, dims, "i32", strides)
        fields["paged_max_seq_len_kv"] = step.keys
    else:
        fields |= {name: tensor(name, getattr(operands, name), getattr(operands, name).shape) for name in "kv"}
    if step.page or step.ragged:
        fields |= {"padding_mask": True,
                   "seq_len_q": tensor("tokens", operands.tokens, (step.batch, 1, 1, 1), "i32", [1, 1, 1, 1]),
                   "seq_len_kv": tensor("lengths", operands.lengths, (step.batch, 1, 1, 1), "i32", [1, 1, 1, 1])}
    output = graph.tensor("o", operands.o.shape, operands.o.stride())
    bound[output.uid] = operands.o
    graph.node("sdpa", **fields, o=output)
    plan = heddle.Plan(graph, "cuda")
    workspace = torch.empty(max(plan.workspace_bytes, 1), dtype=torch.uint8, device="cuda")
    addresses = {uid: array.data_ptr() for uid, array in bound.items()}

    def run():
        plan.execute(addresses, workspace.data_ptr(), torch.cuda.current_stream().cuda_stream)

    run.kept = bound, workspace
    return run, plan.description


def hidden(step, operands):
    """The boolean mask of what a token sees."""
    keys = torch.arange(step.keys, device="cuda")
    tokens = torch.arange(step.tokens, device="cuda")
    last = operands.lengths[:, None, None, None] - step.tokens + tokens[None, None, :, None]
    return keys[None, None, None, :] <= last


def by_torch(step, operands, backend):
    """What runs the step by a peer, or none where it does not take it."""
    if step.page or step.ragged or step.tokens > 1:
        if backend is not SDPBackend.CUDNN_ATTENTION or step.page or step.ragged:
            return None
    mask = hidden(step, operands) if step.tokens > 1 else None

    def run():
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(operands.q, operands.k, operands.v, mask, enable_gqa=True)

    try:
        run()
    except RuntimeError:
        return None
    return run


def captured(run):
    """The run as a CUDA graph's launch: the device's time alone."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    graph.kept = run
    return graph.replay


def error_of(step, operands):
    """The largest distance of Heddle's result from f64's on the same numbers, of the first entries."""
    few = slice(0, min(step.batch, 2))
    q, k, v = (x[few].double() for x in (operands.q, operands.k, operands.v))
    expected = scaled_dot_product_attention(q, k, v, hidden(step, operands)[few], enable_gqa=True)
    return (operands.o[few].double() - expected).abs().max().item()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15, help="times that each is measured, in turn (15)")
    parser.add_argument("--steps", type=int, default=len(STEPS), help="how many of the cases, from the first on (all)")
    arguments = parser.parse_args()
    print(gpu())
    source, target = (torch.empty(1 << 30, dtype=torch.uint8, device="cuda") for _ in range(2))
    copying = interleaved_milliseconds({"copy": lambda: target.copy_(source)})["copy"]
    print(f"copying: {2 * source.numel() / copying / 1e6:.0f} GB/s")
    del source, target
    for step in STEPS[:arguments.steps]:
        operands = Operands(step)
        run, description = planned(step, operands)
        runs = {"Heddle": run} | {name: by_torch(step, operands, backend) for name, backend in PEERS.items()}
        times = interleaved_milliseconds({name: captured(run) for name, run in runs.items() if run}, arguments.rounds)
        read = 4 * step.kv_heads * step.dim * operands.lengths.sum().item()
        rates = ", ".join(f"{name} {1000 * time:.1f} us {read / time / 1e6:.0f} GB/s" for name, time in times.items())
        best = min((time for name, time in times.items() if name != "Heddle"), default=None)
        ratio = f", {best / times['Heddle']:.2f} of the best peer" if best else ""
        plan = description.splitlines()[0]
        print(f"{step.title}: {rates}{ratio}; error {error_of(step, operands):.1e}; {plan}", flush=True)


if __name__ == "__main__":
    main()
