"""Steps of a generation on a GPU: Heddle beside cuDNN and FlashAttention-2, as torch runs them, in one run.

    PYTHONPATH=bindings/python python bench/gpu/decode.py

Prints what each reads of keys and values a second; of latents, whose first columns are the values, they are read once
at least. Peers that do not take a case are left out of its line; caches of codes, which none takes, are compared with
Heddle's own step of bf16. The card's own rate is that of copying, bytes read and written counted.
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
    """Tokens of each sequence against its keys.

    latent: columns of a key that are its value, 0: values are apart. page: rows of a page, 0: dense. ragged: lengths
    from an eighth up. codes: "i8", "u8" (of 4 bits) or "f8e4m3", with a scale for each channel; "": bf16.
    """

    batch: int
    keys: int
    heads: int = 32
    kv_heads: int = 8
    dim: int = 128
    tokens: int = 1
    latent: int = 0
    page: int = 0
    ragged: bool = False
    codes: str = ""

    @property
    def title(self):
        more = [f"{self.latent} of them values"] * bool(self.latent) + [f"{self.tokens} tokens"] * (self.tokens > 1)
        more += [f"pages of {self.page}"] * bool(self.page)
        return ", ".join([f"{self.heads}/{self.kv_heads} heads, d {self.dim}, b {self.batch} x {self.keys}",
                          *more, *["ragged"] * self.ragged, *[f"codes of {self.codes}"] * bool(self.codes)])

    @property
    def numbers(self):
        """Of a key and its value in memory."""
        return self.dim if self.latent else 2 * self.dim

    @property
    def bytes_of_number(self):
        return {"": 2, "u8": 0.5}.get(self.codes, 1)


STEPS = [Step(1, 32768), Step(8, 8192), Step(32, 4096), Step(128, 4096), Step(8, 8192, 32, 1), Step(8, 8192, 64, 8, 64),
         Step(8, 8192, tokens=4), Step(8, 8192, tokens=16), Step(32, 4096, ragged=True), Step(32, 4096, page=16),
         Step(32, 4096, page=64), Step(32, 4096, page=256), Step(1, 1024), Step(8, 512), Step(256, 512),
         *(Step(*size, heads, 1, 576, latent=512)
           for size in [(8, 8192), (32, 4096), (128, 4096)] for heads in [16, 32, 64, 128]),
         Step(32, 4096, 16, 1, 576, latent=512, page=64), Step(32, 4096, 16, 1, 576, tokens=4, latent=512),
         Step(1, 32768, 16, 1, 576, latent=512), Step(8, 8192, 32, 8, 512), Step(32, 4096, 32, 8, 320),
         *(Step(*size, codes=codes) for size in [(32, 4096), (8, 8192)] for codes in ["i8", "u8", "f8e4m3"])]
LARGEST = {"i8": 127, "u8": 7, "f8e4m3": 448}


def coded(x, codes):
    """Codes of x, their scales, and the numbers that they stand for."""
    scale = x.float().abs().amax(dim=(0, 2), keepdim=True) / LARGEST[codes]
    held = x / scale
    if codes == "f8e4m3":
        held = held.to(torch.float8_e4m3fn)
        return held, scale, held.double() * scale
    held = held.round().to(torch.int8)
    numbers = held.double() * scale
    if codes == "u8":
        held = (held + 8).to(torch.uint8)
        held = held[..., ::2] | held[..., 1::2] << 4
    return held.contiguous(), scale, numbers


class Operands:
    """Tensors of a step, bf16; of codes k and v are what they stand for, in f64."""

    def __init__(self, step):
        random = functools.partial(torch.randn, device="cuda", dtype=torch.bfloat16)
        self.q = random(step.batch, step.heads, step.tokens, step.dim)
        self.k, self.v = (random(step.batch, step.kv_heads, step.keys, step.dim) for _ in range(2))
        if step.latent:
            self.v = self.k[..., :step.latent]
        if step.codes:
            self.k_codes, self.k_scale, self.k = coded(self.k, step.codes)
            self.v_codes, self.v_scale, self.v = coded(self.v, step.codes)
        self.o = self.q.new_full((*self.q.shape[:3], step.latent or step.dim), float("nan"))
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
        pages = {name: operands.paged(step, getattr(operands, name)) for name in ("k" if step.latent else "kv")}
        for name in "kv":
            held = pages.get(name, pages["k"][..., :step.latent])
            fields[name] = tensor(name, held, held.shape)
            dims, strides = (step.batch, 1, operands.pages, 1), [operands.pages, operands.pages, 1, 1]
            fields[f"page_table_{name}"] = tensor(f"table {name}", operands.table, dims, "i32", strides)
        fields["paged_max_seq_len_kv"] = step.keys
    elif step.codes:
        for name in "kv":
            held, scale = getattr(operands, f"{name}_codes"), getattr(operands, f"{name}_scale")
            fields[name] = tensor(name, held, held.shape, step.codes)
            fields[f"{name}_scale"] = tensor(f"{name} scale", scale, scale.shape, "f32")
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
    if step.codes or step.latent:
        return None
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


def by_matmuls(step, operands):
    """A latent's step as torch's products of matrices, which read keys for each of two: or none, of another."""
    if not step.latent or step.page or step.ragged or step.tokens > 1:
        return None
    q, k = operands.q[:, :, 0], operands.k[:, 0]

    def run():
        weights = (torch.bmm(q, k.mT).float() * step.dim**-0.5).softmax(-1)
        return torch.bmm(weights.to(q.dtype), k[..., :step.latent])

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
    parser.add_argument("--codes", action="store_true", help="the cases of codes alone")
    parser.add_argument("--wide", action="store_true", help="those of heads wider than 256 columns, and of latents")
    arguments = parser.parse_args()
    print(gpu())
    source, target = (torch.empty(1 << 30, dtype=torch.uint8, device="cuda") for _ in range(2))
    copying = interleaved_milliseconds({"copy": lambda: target.copy_(source)})["copy"]
    copied = 2 * source.numel() / copying / 1e6
    print(f"copying: {copied:.0f} GB/s")
    del source, target
    wanted = [step for step in STEPS if (step.codes or not arguments.codes) and (step.dim > 256 or not arguments.wide)]
    for step in wanted[:arguments.steps]:
        operands = Operands(step)
        run, description = planned(step, operands)
        runs = {"Heddle": run}
        if step.codes:
            plain = step._replace(codes="")
            runs["Heddle of bf16"] = planned(plain, Operands(plain))[0]
        runs |= {name: by_torch(step, operands, backend) for name, backend in PEERS.items()}
        runs["torch's products"] = by_matmuls(step, operands)
        times = interleaved_milliseconds({name: captured(run) for name, run in runs.items() if run}, arguments.rounds)
        numbers = step.numbers * step.kv_heads * operands.lengths.sum().item()
        rates = ", ".join(f"{name} {1000 * time:.1f} us "
                          f"{numbers * (step.bytes_of_number if name == 'Heddle' else 2) / time / 1e6:.0f} GB/s"
                          for name, time in times.items())
        best = min((time for name, time in times.items() if name != "Heddle"), default=None)
        peer = "the step of bf16" if step.codes else "the best peer"
        ratio = f", {best / times['Heddle']:.2f} of {peer}" if best else ""
        plan = description.splitlines()[0]
        ratio += f", {numbers * step.bytes_of_number / times['Heddle'] / 1e6 / copied:.2f} of copying"
        print(f"{step.title}: {rates}{ratio}; error {error_of(step, operands):.1e}; {plan}", flush=True)


if __name__ == "__main__":
    main()
