"""Forward kernels beside cuDNN and FlashAttention-2 in the same run: correctness, then time.

usage: compare_forward.py CUBIN_FOLDER [--out results.json] [--only REGEX] [--cells D:mask:S,...]

A cubin's name says what it is: d<head_dim><f|c>[other]_<variant>.cubin (f full, c causal).
"""

import argparse
import json
import os
import pathlib
import re
import threading
import time

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from attention_forward import Forward, make_bounds, naive, reference
from driver import Kernel, interleaved_milliseconds

_SHAPES = [  # batch, q heads, kv heads, q length, kv length
    (1, 2, 2, 128, 128), (2, 4, 2, 257, 391), (1, 1, 1, 1, 1), (1, 2, 1, 64, 1000),
    (2, 3, 3, 500, 500), (1, 2, 2, 333, 100),
]
_progress = [time.time(), "start"]


def watch(limit_s):
    def loop():
        while True:
            time.sleep(1)
            if time.time() - _progress[0] > limit_s:
                print("HUNG in", _progress[1], flush=True)
                os._exit(3)

    threading.Thread(target=loop, daemon=True).start()


def mark(what):
    _progress[:] = [time.time(), what]


def strided(batch, heads, length, dim, dtype):
    """Random values in BSHD order, seen as (batch, head, row, column)."""
    return torch.randn(batch, length, heads, dim, device="cuda", dtype=dtype).transpose(1, 2)


def check(kernel, name, dim, causal, dtype):
    worst = (0, "")
    for batch, heads, kv_heads, sq, skv in _SHAPES:
        for bottom_right in (False, True) if causal else (False,):
            q = strided(batch, heads, sq, dim, dtype)
            k = strided(batch, kv_heads, skv, dim, dtype)
            v = strided(batch, kv_heads, skv, dim, dtype)
            outs = []
            for _ in range(2):
                o = torch.full((batch, sq, heads, dim), float("nan"), device="cuda", dtype=dtype)
                o = o.transpose(1, 2)
                lse = torch.full((batch, heads, sq, 1), float("nan"), device="cuda")
                bounds = make_bounds(right=0 if causal else None, bottom_right=bottom_right)
                Forward(kernel, q, k, v, o, lse, bounds=bounds)()
                outs.append((o, lse))
            torch.cuda.synchronize()
            shift = skv - sq if bottom_right else 0
            visible = (lambda i, j: j <= i + shift) if causal else None
            want, want_lse = reference(q, k, v, dim**-0.5, visible)
            plain = naive(q, k, v, dim**-0.5, visible)
            scale = want.norm() + 1e-30
            error = float((outs[0][0].double() - want).norm() / scale)
            bar = float((plain.double() - want).norm() / scale)
            finite = ~want_lse.isinf()
            lse_error = float((outs[0][1][..., 0].double() - want_lse)[finite].abs().max())
            same_inf = bool((outs[0][1][..., 0].isinf() == want_lse.isinf()).all())
            same = torch.equal(outs[0][0], outs[1][0]) and torch.equal(outs[0][1], outs[1][1])
            ratio = error / (bar + 1e-6)
            good = ratio <= 2 and lse_error < 1e-3 and same and same_inf
            if not good or ratio != ratio:
                ratio = max(ratio, 99) if ratio == ratio else 999
            text = f"{(batch, heads, kv_heads, sq, skv)} br={bottom_right} err={error:.2e} bar={bar:.2e} lse={lse_error:.1e} same={same} inf={same_inf}"
            if ratio >= worst[0]:
                worst = (ratio, text)
    return worst


def cell_tensors(dim, length, kv_heads=None):
    batch, heads = 16384 // length, 2048 // dim
    make = lambda h: torch.randn(batch, h, length, dim, device="cuda", dtype=torch.bfloat16)
    return make(heads), make(kv_heads or heads), make(kv_heads or heads)


def teraflops(dim, length, causal, ms):
    return 4 * 16384 * 2048 * length * (0.5 if causal else 1) / ms / 1e9


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--out")
    parser.add_argument("--only", default=".")
    parser.add_argument("--lengths", default="512,2048,8192,16384")
    parser.add_argument("--orders", default="dyn,sta")
    parser.add_argument("--section-mib", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--no-check", action="store_true")
    args = parser.parse_args()
    watch(25)
    torch.manual_seed(time.time_ns() % 2**31)
    kernels = {}
    for path in sorted(args.folder.glob("*.cubin")):
        if re.search(args.only, path.stem):
            kernels[path.stem] = Kernel(path.read_bytes(), "attention_forward")
    rows = []
    parsed = {n: re.match(r"d(\d+)([fc])", n) for n in kernels}
    broken = set()
    if not args.no_check:
        for name, kernel in kernels.items():
            mark(name)
            m = parsed[name]
            dtype = torch.float16 if "f16" in name else torch.bfloat16
            ratio, text = check(kernel, name, int(m[1]), m[2] == "c", dtype)
            if ratio >= 2:
                broken.add(name)
            print(f"check {name:28s} ratio {ratio:.2f} {text if ratio >= 2 else ''}", flush=True)
    lengths = [int(x) for x in args.lengths.split(",")]
    counter = torch.zeros(2, device="cuda", dtype=torch.int32)
    for dim in sorted({int(m[1]) for m in parsed.values()}):
        for causal in (False, True):
            names = [n for n in kernels if int(parsed[n][1]) == dim and (parsed[n][2] == "c") == causal]
            names = [n for n in names if "f16" not in n]
            if not names:
                continue
            for length in lengths:
                q, k, v = cell_tensors(dim, length)
                o = torch.full_like(q, float("nan"))
                lse = torch.empty(*q.shape[:3], 1, device="cuda")
                runs = {}
                if not args.no_peers:
                    for peer, backend in (("cudnn", SDPBackend.CUDNN_ATTENTION),
                                          ("flash2", SDPBackend.FLASH_ATTENTION)):
                        def call(backend=backend):
                            with sdpa_kernel(backend):
                                torch.nn.functional.scaled_dot_product_attention(
                                    q, k, v, is_causal=causal)
                        runs[peer] = call
                flat_heads = q.shape[0] * q.shape[1]
                fit = max(1, min(flat_heads, (args.section_mib << 20) // (length * dim * 4)))
                for name in names:
                    orders = {"dyn": dict(section=fit if causal else 1, counter=counter),
                              "sta": dict(section=1)}
                    if causal:
                        orders["snk"] = dict(section=fit, snake=1)
                        orders["sn1"] = dict(section=1, snake=1)
                    for tag in args.orders.split(","):
                        if tag in orders:
                            runs[f"{name}/{tag}"] = Forward(
                                kernels[name], q, k, v, o, lse,
                                bounds=make_bounds(right=0 if causal else None), **orders[tag])
                mark(f"d{dim} {causal} {length}")
                line = list(interleaved_milliseconds(runs, args.rounds).items())
                for who, ms in line:
                    rows.append(dict(dim=dim, causal=causal, length=length, who=who, ms=ms,
                                     teraflops=teraflops(dim, length, causal, ms)))
                line.sort(key=lambda x: x[1])
                print(f"d{dim} {'causal' if causal else 'full'} S={length}: " + "  ".join(
                    f"{w}{'!' if w.split('/')[0] in broken else ''} {teraflops(dim, length, causal, ms):.0f}"
                    for w, ms in line), flush=True)
                del q, k, v, o, lse
    if args.out:
        pathlib.Path(args.out).write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
