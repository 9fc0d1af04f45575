"""The Hopper forward kernel against f64: shapes, strides, dtypes, masks, score edits, lengths.

Every case: outputs poisoned with NaN, error at most twice the naive computation's in the same
precision, two runs bitwise equal, gaps and rows past ragged ends untouched.
"""

import argparse
import math
import os
import random
import sys
import threading
import time

import torch

from attention_forward import Bound, Call, causal_bounds, configure, source
from compile import compile_all, flaws
from driver import Kernel

NAN = float("nan")
_progress = [time.time(), "start"]


def watch(limit_s):
    def loop():
        while time.time() - _progress[0] < limit_s:
            time.sleep(1)
        print("HUNG in", _progress[1], flush=True)
        os._exit(3)

    threading.Thread(target=loop, daemon=True).start()


def mark(what):
    _progress[:] = [time.time(), what]


SOFT_CAP = ("return 20.f * attention::tanh(cell.dot * 0.05f);",
            lambda s, i, j, loads: 20 * torch.tanh(s / 20))
ALIBI = ("return cell.dot + attention::load<float, false, false>(cell.loads[0], cell.batch, cell.head, "
         "cell.row, cell.column) * static_cast<float>(cell.column - cell.row);",
         lambda s, i, j, loads: s + loads[0] * (j - i))
BIAS = ("return cell.dot + attention::load<bf16>(cell.loads[0], cell.batch, cell.head, cell.row, "
        "cell.column);", lambda s, i, j, loads: s + loads[0])


def case(**options):
    defaults = dict(b=2, hq=4, hk=2, hv=None, sq=300, skv=400, dqk=128, dv=128, dtype="bf16", scale=None,
                    causal=None, left=None, score=None, sink=False, row_max=False, lengths=False,
                    ragged=False, dropout=None, layout="bshd", key_from=0, rope=None, config={})
    defaults.update(options)
    return defaults


def cases():
    yield "plain", case()
    yield "causal", case(causal="tl")
    yield "causal_br", case(causal="br")
    yield "causal_br_tall", case(causal="br", sq=400, skv=300)
    yield "window", case(causal="tl", left=100)
    yield "window_br", case(causal="br", left=70, sq=500, skv=600)
    yield "window_long", case(causal="tl", left=257, sq=1500, skv=1500, b=1)
    yield "key_from", case(key_from=150)
    yield "one_row", case(sq=1, skv=777)
    yield "one_key", case(sq=130, skv=1)
    yield "one_one", case(sq=1, skv=1)
    yield "s64", case(sq=192, skv=192, causal="tl")
    yield "f16", case(dtype="f16", causal="tl")
    yield "gqa8", case(hq=16, hk=2, causal="tl")
    yield "mqa_split", case(hq=6, hk=2, hv=3)
    yield "bhsd", case(layout="bhsd")
    yield "gaps", case(layout="gaps", causal="tl")
    yield "sbhd", case(layout="sbhd")
    yield "negative_scale", case(scale=-0.3)
    yield "zero_scale", case(scale=0.0, causal="tl")
    yield "long3", case(b=1, hq=2, hk=1, sq=4500, skv=4400, causal="br")
    for d in (8, 16, 24, 40, 48, 64, 72, 80, 96, 104, 112, 120, 136, 160, 176, 192, 200, 224, 248, 256):
        yield f"d{d}", case(dqk=d, dv=d, causal="tl" if d % 16 else None, hq=2, hk=2)
    yield "d192_128", case(dqk=192, dv=128, causal="br")
    yield "d128_64", case(dqk=128, dv=64)
    yield "d64_128", case(dqk=64, dv=128)
    yield "d64_256", case(dqk=64, dv=256)
    yield "soft_cap", case(score=SOFT_CAP, causal="tl", scale=1.0)
    yield "soft_cap_d64", case(score=SOFT_CAP, dqk=64, dv=64)
    yield "soft_cap_d256", case(score=SOFT_CAP, dqk=256, dv=256, causal="tl")
    yield "alibi", case(score=ALIBI, causal="tl")
    yield "bias", case(score=BIAS)
    yield "bias_causal_d64", case(score=BIAS, causal="br", dqk=64, dv=64)
    yield "sink", case(sink=True, causal="tl")
    yield "sink_empty_rows", case(sink=True, causal="br", sq=400, skv=130)
    yield "row_max", case(row_max=True, causal="tl")
    yield "row_max_sink", case(row_max=True, sink=True)
    yield "lengths", case(lengths=True, b=4)
    yield "lengths_causal_br", case(lengths=True, b=4, causal="br")
    yield "lengths_window", case(lengths=True, b=4, causal="br", left=90)
    yield "lengths_d64", case(lengths=True, b=4, dqk=64, dv=64)
    yield "lengths_d256", case(lengths=True, b=4, dqk=256, dv=256, causal="tl")
    yield "lengths_bias", case(lengths=True, b=4, score=BIAS)
    yield "ragged", case(ragged=True, b=5)
    yield "ragged_causal", case(ragged=True, b=5, causal="br")
    yield "rope", case(rope=("halves", 128, 1.0), causal="tl")
    yield "rope_d64", case(rope=("halves", 64, 1.0), dqk=64, dv=64)
    yield "rope_d256", case(rope=("halves", 256, 1.0), dqk=256, dv=256, causal="br")
    yield "rope_trailing", case(rope=("halves", 64, 0.5), dqk=96, dv=96)
    yield "rope_interleaved", case(rope=("interleaved", 64, 1.5), dqk=192, dv=128, causal="tl")
    yield "rope_steps", case(rope=("halves", 128, 1.5), causal="tl", b=1, sq=1500, skv=1500)
    yield "rope_window", case(rope=("interleaved", 96, 1.0), causal="br", left=300, b=1, sq=900, skv=1500)
    yield "rope_long3", case(rope=("halves", 128, 1.0), b=1, hq=2, hk=1, sq=2500, skv=2500)
    yield "dropout_philox", case(dropout=0.3, causal="tl")
    yield "dropout_d64", case(dropout=0.1, dqk=64, dv=64)


def config_of(c):
    heavy = c["score"] is BIAS or c["dropout"] is not None
    cells = "heavy" if heavy else "edited" if c["score"] else "plain"
    config = configure(c["dqk"], c["dv"], min(c["sq"], c["skv"]), c["causal"] is not None, cells)
    config.update(kQkDim=c["dqk"], kVDim=c["dv"], Element=c["dtype"])
    config.update(kUpperVaries=c["causal"] is not None, kLowerVaries=c["left"] is not None,
                  kPositiveScale=c["scale"] is None or c["scale"] > 0, kSink=c["sink"],
                  kSequenceMaps=c["lengths"] or c["ragged"], kRowMax=c["row_max"],
                  kSlack=0 if c["row_max"] else 8)
    if c["rope"]:
        config.update(kRopePairing=c["rope"][0], kRopeDim=c["rope"][1])
    if c["dropout"] is not None:
        config["kDropout"] = "philox"
    config.update(c["config"])
    return config


def allocate(layout, b, h, s, d, dtype, fill=None):
    """A (b, h, s, d) view in the layout, of random values, and its whole storage (gaps are NaN)."""
    order = {"bshd": (0, 2, 1), "bhsd": (0, 1, 2), "sbhd": (2, 0, 1), "gaps": (0, 2, 1)}[layout]
    sizes = [(b, h, s)[i] for i in order]
    width = d + (24 if layout == "gaps" else 0)
    storage = torch.full((*sizes, width), NAN, device="cuda", dtype=dtype)
    view = storage[..., :d].permute(*[order.index(i) for i in range(3)], 3)
    view.copy_(torch.randn(b, h, s, d, device="cuda") if fill is None else torch.tensor(fill))
    return view, storage


def philox_keep(seed, offset, probability, b, h, sq, skv):
    """src/core/dropout_bits.h over all cells, in int64 arithmetic."""
    mask = 0xFFFFFFFF
    quad = torch.arange((skv + 3) // 4, device="cuda")[None, None, :]
    row = torch.arange(sq, device="cuda")[None, :, None]
    bh = torch.arange(b * h, device="cuda")[:, None, None]
    c = [x.expand(b * h, sq, quad.shape[-1]).clone() for x in (quad, row, bh)]
    c.append(torch.full_like(c[0], offset & mask))
    k = [seed & mask, ((seed >> 32) ^ (offset >> 32)) & mask]

    def product(constant, x):  # 32 x 32 -> (high, low) without overflowing int64
        low16, high16 = x & 0xFFFF, x >> 16
        a, bb = low16 * constant, high16 * constant
        low = (a + ((bb & 0xFFFF) << 16)) & ((1 << 49) - 1)
        total_high = (bb >> 16) + ((a + ((bb & 0xFFFF) << 16)) >> 32)
        return total_high & mask, low & mask

    for _ in range(10):
        h0, l0 = product(0xD2511F53, c[0])
        h1, l1 = product(0xCD9E8D57, c[2])
        c = [h1 ^ c[1] ^ k[0], l1, h0 ^ c[3] ^ k[1], l0]
        k = [(k[0] + 0x9E3779B9) & mask, (k[1] + 0xBB67AE85) & mask]
    words = torch.stack(c, -1).reshape(b * h, sq, -1)[..., :skv]
    return (words >= int(probability * 2**32)).reshape(b, h, sq, skv)


def rotate(x, c, cosines, sines):
    """R(angle) on the trailing columns and the scale on all, in f64, rounded to x's dtype."""
    pairing, dim, scale = c["rope"]
    rows = x.shape[2]
    wide = x.double().clone()
    tail = wide[..., -dim:]
    cos, sin = cosines[:rows].double(), sines[:rows].double()
    if pairing == "halves":
        a, b = tail[..., :dim // 2].clone(), tail[..., dim // 2:].clone()
        tail[..., :dim // 2], tail[..., dim // 2:] = a * cos - b * sin, b * cos + a * sin
    else:
        a, b = tail[..., 0::2].clone(), tail[..., 1::2].clone()
        tail[..., 0::2], tail[..., 1::2] = a * cos - b * sin, b * cos + a * sin
    return (wide * scale).to(x.dtype)


def attention(q, k, v, c, scale, visible, loads, sink, keep, dtype):
    """Operation by operation in `dtype`: O, and in f64 also max, sum and log-sum-exp."""
    q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    v = v.repeat_interleave(q.shape[1] // v.shape[1], 1)
    s = (q @ k.transpose(-1, -2)) * scale
    i = torch.arange(s.shape[-2], device="cuda")[:, None]
    j = torch.arange(s.shape[-1], device="cuda")[None, :]
    if c["score"] is not None:
        s = c["score"][1](s, i, j, [x.to(dtype) for x in loads]).to(dtype)
    s = s.masked_fill(~visible, -math.inf)
    if sink is not None:
        s = torch.cat([s, sink.to(dtype)[None, :, None, None].expand(*s.shape[:3], 1)], -1)
    top = s.max(-1, keepdim=True).values
    e = torch.exp(s - torch.where(top.isinf(), torch.zeros_like(top), top))
    total = e.sum(-1, keepdim=True)
    p = torch.where(total > 0, e / total, torch.zeros_like(e))
    if sink is not None:
        p = p[..., :-1]
    if keep is not None:
        p = p * keep / (1 - c["dropout"])
    v = torch.where(visible.any(-2)[..., None].expand(*v.shape[:3], 1), v, torch.zeros_like(v))
    return p.to(dtype) @ v, top[..., 0], total[..., 0]


def visible_cells(c, b, lens_q, lens_kv, sq, skv):
    i = torch.arange(sq, device="cuda")[None, :, None]
    j = torch.arange(skv, device="cuda")[None, None, :]
    lq, lkv = lens_q[:, None, None], lens_kv[:, None, None]
    seen = (i < lq) & (j < lkv) & (j >= c["key_from"])
    if c["causal"]:
        shift = lkv - lq if c["causal"] == "br" else 0
        seen = seen & (j <= i + shift)
        if c["left"] is not None:
            seen = seen & (j > i + shift - c["left"])
    return seen[:, None]


def run(name, c, kernel):
    dtype = torch.float16 if c["dtype"] == "f16" else torch.bfloat16
    b, hq, hk, hv = c["b"], c["hq"], c["hk"], c["hv"] or c["hk"]
    sq, skv, dqk, dv = c["sq"], c["skv"], c["dqk"], c["dv"]
    scale = dqk**-0.5 if c["scale"] is None else c["scale"]
    lens_q = torch.full((b,), sq, device="cuda", dtype=torch.int32)
    lens_kv = torch.full((b,), skv, device="cuda", dtype=torch.int32)
    if c["lengths"] or c["ragged"]:
        lens_q = torch.randint(1, sq + 1, (b,), device="cuda", dtype=torch.int32)
        lens_kv = torch.randint(1, skv + 1, (b,), device="cuda", dtype=torch.int32)
        lens_q[0], lens_kv[1] = sq, skv
        lens_kv[-1] = 0
        if not c["ragged"]:
            lens_q[1] = 0
    offsets = {}
    if c["ragged"]:
        gap = 7
        starts_q = torch.cat([torch.zeros(1, device="cuda", dtype=torch.int32), (lens_q + gap).cumsum(0)]).int()
        starts_kv = torch.cat([torch.zeros(1, device="cuda", dtype=torch.int32), (lens_kv + gap).cumsum(0)]).int()
        shapes = (1, int(starts_q[-1]) + 3), (1, int(starts_kv[-1]) + 3)
        offsets = dict(q_offsets=starts_q, kv_offsets=starts_kv)
    else:
        shapes = (b, sq), (b, skv)
    q, _ = allocate(c["layout"], shapes[0][0], hq, shapes[0][1], dqk, dtype)
    k, _ = allocate(c["layout"], shapes[1][0], hk, shapes[1][1], dqk, dtype)
    v, _ = allocate(c["layout"], shapes[1][0], hv, shapes[1][1], dv, dtype)

    def padded(x, lens, starts, length):
        """(B, H, length, D) with zeros past each length, from a dense or ragged tensor."""
        out = torch.zeros(b, x.shape[1], length, x.shape[3], device="cuda", dtype=x.dtype)
        for n in range(b):
            rows = int(lens[n])
            start = int(starts[n]) if c["ragged"] else 0
            out[n, :, :rows] = x[0 if c["ragged"] else n, :, start:start + rows]
        return out

    starts = (offsets.get("q_offsets"), offsets.get("kv_offsets"))
    dense = [padded(q, lens_q, starts[0], sq), padded(k, lens_kv, starts[1], skv),
             padded(v, lens_kv, starts[1], skv)]
    if c["lengths"]:  # what lies past the lengths must not leak
        for n in range(b):
            q[n, :, int(lens_q[n]):] = NAN
            k[n, :, int(lens_kv[n]):] = NAN
            v[n, :, int(lens_kv[n]):] = NAN
    loads = []
    if c["score"] is ALIBI:
        loads = [torch.tensor([2.0 ** -(h + 1) for h in range(hq)], device="cuda").reshape(1, hq, 1, 1)]
    if c["score"] is BIAS:
        loads = [torch.randn(1, hq, sq, skv, device="cuda", dtype=torch.bfloat16)]
    sink = torch.randn(hq, device="cuda") if c["sink"] else None
    bounds = causal_bounds(c["causal"] == "br", c["left"]) if c["causal"] else []
    if c["key_from"]:
        bounds.append(Bound(Bound.START, 0, c["key_from"]))
    rope, rotated_k = None, None
    if c["rope"]:
        angles = torch.rand(max(sq, skv) + 5, c["rope"][1] // 2, device="cuda") * 100
        rope = (angles.cos(), angles.sin(), c["rope"][2])
        rotated_k = torch.full_like(k, NAN)
        dense[0], dense[1] = rotate(dense[0], c, *rope[:2]), rotate(dense[1], c, *rope[:2])
    seed, offset = 0x123456789ABCD, 77
    counter = torch.zeros(1, device="cuda", dtype=torch.int32)
    outs = []
    for attempt in range(2):
        o, storage = allocate(c["layout"], shapes[0][0], hq, shapes[0][1], dv, dtype, NAN)
        rows = [torch.full((*shapes[0][:1], hq, shapes[0][1], 1), NAN, device="cuda") for _ in range(3)]
        Call(kernel, q, k, v, o, stats=rows[0], max=rows[1] if c["row_max"] else None,
             sum_exp=rows[2] if c["row_max"] else None, scale=scale, bounds=tuple(bounds),
             loads=tuple(loads), sink=sink, rope=rope, rotated_k=rotated_k,
             q_lengths=lens_q if c["lengths"] or c["ragged"] else None,
             kv_lengths=lens_kv if c["lengths"] or c["ragged"] else None, **offsets,
             dropout=None if c["dropout"] is None else (c["dropout"], seed, offset),
             counter=counter if attempt else None)()
        torch.cuda.synchronize()
        outs.append((o, storage, rows))
    problems = []
    if int(counter[0]) != 0:
        problems.append(f"counter left at {int(counter[0])}")
    o, storage, rows = outs[0]
    same = torch.equal(torch.nan_to_num(storage.float(), nan=7e7), torch.nan_to_num(outs[1][1].float(), nan=7e7))
    same &= torch.equal(torch.nan_to_num(rows[0], nan=7e7), torch.nan_to_num(outs[1][2][0], nan=7e7))
    if not same:
        problems.append("two runs differ")
    if c["layout"] == "gaps" and not storage[..., dv:].isnan().all():
        problems.append("gaps written")
    if c["ragged"]:
        inside = torch.zeros(shapes[0][1], device="cuda", dtype=torch.bool)
        for n in range(b):
            inside[int(starts[0][n]):int(starts[0][n]) + int(lens_q[n])] = True
        if not o[0, :, ~inside].isnan().all() or not rows[0][0, :, ~inside].isnan().all():
            problems.append("written outside a sequence")
        got = padded(o, lens_q, starts[0], sq)
        got_rows = [padded(r, lens_q, starts[0], sq)[..., 0] for r in rows]
    else:
        got, got_rows = o, [r[..., 0] for r in rows]
    keep = None if c["dropout"] is None else philox_keep(seed, offset, c["dropout"], b, hq, sq, skv)
    visible = visible_cells(c, b, lens_q, lens_kv, sq, skv)
    want, top, total = attention(*dense, c, scale, visible, loads, sink, keep, torch.float64)
    plain, _, _ = attention(*dense, c, scale, visible, loads, sink, keep, dtype)
    live = (torch.arange(sq, device="cuda")[None, :] < lens_q[:, None])[:, None, :]
    want = torch.where(live[..., None], want, torch.zeros_like(want))
    lse = torch.where(total > 0, torch.where(top.isinf(), 0.0, top) + total.log(), -math.inf)
    lse = torch.where(live, lse, torch.full_like(lse, -math.inf))
    norm = want.norm() + 1e-20
    error = float((got.double() - want).norm() / norm)
    bar = float((torch.where(live[..., None], plain, torch.zeros_like(plain)).double() - want).norm() / norm)
    if not error <= 2 * bar + 1e-6:
        problems.append(f"error {error:.2e}, naive {bar:.2e}")
    compare = live.expand_as(lse) if c["ragged"] else torch.ones_like(lse, dtype=torch.bool)
    got_lse = got_rows[0].double()
    if not torch.equal(got_lse.isinf()[compare], lse.isinf()[compare]):
        problems.append("log-sum-exp is -inf elsewhere")
    finite = ~lse.isinf() & compare
    if finite.any():
        off = float((got_lse - lse)[finite].abs().max())
        # A rotated value may round the other way than the f64 one does, and move its row's scores.
        if not off < (1e-2 if c["rope"] else 2e-3):
            problems.append(f"log-sum-exp off by {off:.1e}")
        if c["row_max"]:
            off = float((got_rows[1].double() - top)[finite].abs().max())
            off_sum = float(((got_rows[2].double() - total) / total)[finite].abs().max())
            if not (off < 2e-3 and off_sum < 5e-3):
                problems.append(f"max off by {off:.1e}, sum by {off_sum:.1e}")
    return error / (bar + 1e-12), problems


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    watch(120)
    torch.manual_seed(random.randrange(2**31))
    todo = {n: c for n, c in cases() if args.only in n}
    start = time.time()
    built = compile_all({n: source(config_of(c), c["score"][0] if c["score"] else "")
                         for n, c in todo.items()})
    times = [r[2] for r in built.values() if not isinstance(r, Exception)]
    print(f"{len(built)} kernels in {time.time() - start:.1f} s, slowest {max(times):.2f} s")
    bad = 0
    for name, c in todo.items():
        mark(name)
        if isinstance(built[name], Exception):
            print(f"FAIL {name}: does not compile: {str(built[name])[:600]}")
            bad += 1
            continue
        cubin, report, seconds = built[name]
        notes = flaws(report)
        try:
            ratio, problems = run(name, c, Kernel(cubin, "attention_forward"))
        except RuntimeError as error:
            print(f"FAIL {name}: {error}", flush=True)
            bad += 1
            if "memory access" in str(error) or "launch" in str(error):
                os._exit(4)
            continue
        bad += bool(problems)
        print(f"{'FAIL' if problems else 'ok  '} {name:22s} {ratio:.2f} of naive, compiled in {seconds:.2f} s"
              f" {'; '.join(problems)} {'; '.join(notes)}", flush=True)
    print(f"{len(todo) - bad} of {len(todo)} right")
    sys.exit(bad != 0)


if __name__ == "__main__":
    main()
