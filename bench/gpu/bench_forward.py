"""The Hopper forward kernel beside cuDNN and FlashAttention-2 in the same run.

usage: bench_forward.py [--out results.json] [--cells REGEX] [--variants FILE]

FLOPs: 4 * B * H * Sq * Skv * D, halved if causal, the band's share under a window. A variants file
defines `variants(cell) -> {name: config overrides}` to time beside the default configuration.
"""

import argparse
import json
import pathlib
import re
import runpy

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from attention_forward import Call, causal_bounds, configure, source
from check_forward import ALIBI, SOFT_CAP, mark, watch
from compile import compile_all, flaws
from driver import Kernel, interleaved_milliseconds


def cells():
    for dim in (64, 128, 256):
        for causal in (False, True):
            for length in (512, 2048, 8192, 16384):
                yield f"d{dim}_{'causal' if causal else 'full'}_{length}", dict(
                    dim=dim, causal=causal, length=length, batch=16384 // length, heads=2048 // dim)
    for batch, length in ((8, 2048), (2, 8192)):
        yield f"gqa32_8_causal_{length}", dict(dim=128, causal=True, length=length, batch=batch,
                                              heads=32, kv_heads=8)
    base = dict(dim=128, causal=True, length=8192, batch=2, heads=16)
    yield "soft_cap", dict(base, score=SOFT_CAP)
    yield "alibi", dict(base, score=ALIBI)
    yield "window_1024", dict(base, left=1024)
    for batch, length in ((8, 2048), (2, 8192)):
        yield f"rope_gqa32_8_causal_{length}", dict(dim=128, causal=True, length=length, batch=batch,
                                                   heads=32, kv_heads=8, rope=128)
    yield "d192_128_causal_4096", dict(dim=192, v_dim=128, causal=True, length=4096, batch=4, heads=16)
    yield "f16_causal_8192", dict(base, dtype="f16")


def teraflops(cell, ms):
    length = cell["length"]
    pairs = length * length * (0.5 if cell["causal"] else 1)
    if cell.get("left"):
        pairs = length * cell["left"] - cell["left"] ** 2 / 2
    dims = cell["dim"] + cell.get("v_dim", cell["dim"])
    return 2 * cell["batch"] * cell["heads"] * pairs * dims / ms / 1e9


def config_of(cell, overrides):
    v_dim = cell.get("v_dim", cell["dim"])
    config = configure(cell["dim"], v_dim, cell["length"], cell["causal"],
                       "edited" if "score" in cell else "plain", "left" in cell)
    config.update(kQkDim=cell["dim"], kVDim=v_dim, Element=cell.get("dtype", "bf16"),
                  kUpperVaries=cell["causal"], kLowerVaries="left" in cell)
    if "rope" in cell:
        config["kRopeDim"] = cell["rope"]
    config.update(overrides)
    return config


def rope_then_cudnn(q, k, v, cosines, sines):
    """RoPE by torch.compile, then cuDNN: what a user has today."""
    cos, sin = cosines.repeat(1, 2), sines.repeat(1, 2)

    @torch.compile(dynamic=False)
    def rope(q, k):
        def turn(x):
            half = x.shape[-1] // 2
            other = torch.cat((-x[..., half:], x[..., :half]), -1)
            return (x * cos + other * sin).to(x.dtype)
        return turn(q), turn(k)

    def call():
        rotated = rope(q, k)
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            torch.nn.functional.scaled_dot_product_attention(*rotated, v, is_causal=True,
                                                             enable_gqa=True)
    return call


def flex_call(cell, q, k, v):
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    length = cell["length"]
    keep = lambda b, h, i, j: i >= j
    if cell.get("left"):
        keep = lambda b, h, i, j: (i >= j) & (i - j < cell["left"])
    mask = create_block_mask(keep, None, None, length, length, device="cuda")
    score = None
    if cell.get("score") is SOFT_CAP:
        score = lambda s, b, h, i, j: 20 * torch.tanh(s / 20)
    if cell.get("score") is ALIBI:
        slopes = torch.exp2(-torch.arange(1, cell["heads"] + 1, device="cuda").float())
        score = lambda s, b, h, i, j: s + slopes[h] * (j - i)
    flex = torch.compile(flex_attention, dynamic=False)
    return lambda: flex(q, k, v, score_mod=score, block_mask=mask)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out")
    parser.add_argument("--cells", default=".")
    parser.add_argument("--variants")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--no-flex", action="store_true")
    args = parser.parse_args()
    watch(100)
    variants = runpy.run_path(args.variants)["variants"] if args.variants else lambda cell: {}
    todo = {n: c for n, c in cells() if re.search(args.cells, n)}
    sources = {}
    calls = {}
    for name, cell in todo.items():
        for variant, overrides in {"heddle": {}, **variants(cell)}.items():
            order = {k: overrides[k] for k in ("section", "static") if k in overrides}
            config = config_of(cell, {k: v for k, v in overrides.items() if k not in order})
            text = source(config, cell["score"][0] if "score" in cell else "")
            sources[text] = text
            calls.setdefault(name, {})[variant] = (text, order)
    built = compile_all(sources)
    kernels = {}
    for text, result in built.items():
        if isinstance(result, Exception):
            print(str(result)[:500])
            continue
        kernels[text] = Kernel(result[0], "attention_forward")
        if flaws(result[1]):
            print("flaws:", flaws(result[1]), re.findall(r"kTileN = \d+|k\w+Dim = \d+", text))
    counter = torch.zeros(1, device="cuda", dtype=torch.int32)
    rows = []
    for name, cell in todo.items():
        mark(name)
        dtype = torch.float16 if cell.get("dtype") == "f16" else torch.bfloat16
        make = lambda heads, dim: torch.randn(cell["batch"], heads, cell["length"], dim, device="cuda",
                                              dtype=dtype)
        kv_heads, v_dim = cell.get("kv_heads", cell["heads"]), cell.get("v_dim", cell["dim"])
        q, k, v = make(cell["heads"], cell["dim"]), make(kv_heads, cell["dim"]), make(kv_heads, v_dim)
        o = torch.full((*q.shape[:3], v_dim), float("nan"), device="cuda", dtype=dtype)
        stats = torch.empty(*q.shape[:3], 1, device="cuda")
        loads = ()
        if cell.get("score") is ALIBI:
            slopes = torch.exp2(-torch.arange(1, cell["heads"] + 1, device="cuda").float())
            loads = (slopes.reshape(1, -1, 1, 1),)
        runs, rope = {}, {}
        if "rope" in cell:
            angles = torch.rand(cell["length"], cell["rope"] // 2, device="cuda") * 100
            rope = dict(rope=(angles.cos(), angles.sin(), 1.0), rotated_k=torch.empty_like(k))
        bounds = tuple(causal_bounds(False, cell.get("left"))) if cell["causal"] else ()
        for variant, (text, order) in calls[name].items():
            if text not in kernels:
                continue
            runs[variant] = Call(kernels[text], q, k, v, o, stats, bounds=bounds, loads=loads,
                                 counter=None if order.get("static") else counter,
                                 section=order.get("section"), **rope)
        plain = "score" not in cell and "left" not in cell
        if not args.no_peers and plain:
            for peer, backend in (("cudnn", SDPBackend.CUDNN_ATTENTION),
                                  ("flash2", SDPBackend.FLASH_ATTENTION)):
                if peer == "flash2" and v_dim != cell["dim"]:
                    continue

                def call(backend=backend):
                    with sdpa_kernel(backend):
                        torch.nn.functional.scaled_dot_product_attention(
                            q, k, v, is_causal=cell["causal"], enable_gqa=kv_heads != cell["heads"])
                try:
                    call()
                    runs[peer] = call
                except RuntimeError:
                    pass
        if "rope" in cell and not args.no_flex:
            mark(name + " rope")
            runs = {w: r for w, r in runs.items() if w not in ("cudnn", "flash2")}
            runs["rope_cudnn"] = rope_then_cudnn(q, k, v, *rope["rope"][:2])
        if not args.no_flex and not plain:
            mark(name + " flex")
            runs["flex"] = flex_call(cell, q, k, v)
        times = interleaved_milliseconds(runs, args.rounds)
        for who, ms in times.items():
            rows.append(dict(cell=name, who=who, ms=ms, teraflops=teraflops(cell, ms)))
        peers = [ms for who, ms in times.items() if who in ("cudnn", "flash2", "flex", "rope_cudnn")]
        best = f"{min(peers) / times['heddle']:.2f}x" if peers and "heddle" in times else ""
        print(f"{name:22s} {best:6s} " + "  ".join(
            f"{who} {teraflops(cell, ms):.0f}" for who, ms in sorted(times.items(), key=lambda x: x[1])),
            flush=True)
        del q, k, v, o, stats, runs
    if args.out:
        pathlib.Path(args.out).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
