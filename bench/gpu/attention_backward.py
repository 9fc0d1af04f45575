"""Checks and times attention backward kernels from cubins, beside cuDNN and FlashAttention-2.

A cubin holds any number of variants made by attention_backward.cu: NAME_prepare, NAME_main,
NAME_finish and the integers NAME_meta. Run on a machine with a Hopper GPU, torch and libcuda:

    python3 attention_backward.py check FILE.cubin variant ... [FILE.cubin variant ...]
    python3 attention_backward.py time FILE.cubin variant ... [length ...] [fa2] [nopeers] [split]
"""
import ctypes as c
import json
import math
import sys

import numpy as np
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from timing import interleaved_milliseconds

cuda = c.CDLL("libcuda.so.1")


def ok(code):
    if code:
        text = c.c_char_p()
        cuda.cuGetErrorString(code, c.byref(text))
        raise RuntimeError(f"CUDA {code}: {text.value}")


class Tensor(c.Structure):  # kernels/attention/parameters.h
    _fields_ = [("data", c.c_void_p), ("stride", c.c_int64 * 4), ("offsets", c.c_void_p),
                ("multiplier", c.c_int64), ("offsets_are_64_bit", c.c_int)]

    @classmethod
    def of(cls, t):
        stride = [0 if n == 1 else s for n, s in zip(t.shape, t.stride())]
        return cls(t.data_ptr(), (c.c_int64 * 4)(*stride), None, 1, 0)


class Lengths(c.Structure):
    _fields_ = [("data", c.c_void_p), ("full", c.c_int), ("is_64_bit", c.c_int),
                ("cumulative", c.c_int)]


class Bound(c.Structure):
    _fields_ = [("anchor", c.c_int), ("upper", c.c_int), ("constant", c.c_int64),
                ("operand", Tensor)]


class Scalar(c.Structure):
    _fields_ = [("data", c.c_void_p), ("value", c.c_int64), ("is_64_bit", c.c_int)]


class ForwardParameters(c.Structure):
    _fields_ = (
        [(n, Tensor) for n in ("q", "k", "v", "o", "stats", "max", "sum_exp")]
        + [("loads", Tensor * 6)]
        + [(n, Tensor) for n in ("dropout_streams", "dropout_mask", "dropout_dump", "block_mask", "page_table_k",
                                 "page_table_v")]
        + [("q_lengths", Lengths), ("kv_lengths", Lengths), ("bounds", Bound * 6)]
        + [(n, c.c_int) for n in ("bound_count", "batch", "q_heads", "k_heads", "v_heads",
                                  "q_length", "kv_length", "page_size_k", "page_size_v")]
        + [("scale", c.c_float), ("scale_operand", c.c_void_p), ("sink", c.c_void_p),
           ("stats_log2", c.c_int), ("seed", Scalar), ("offset", Scalar),
           ("dropout_threshold", c.c_uint64), ("keep_scale", c.c_float),
           ("keep_scale_operand", c.c_void_p), ("threefry_stride", c.c_int64 * 4)]
    )


class BackwardParameters(c.Structure):
    _fields_ = (
        [("forward", ForwardParameters)]
        + [(n, Tensor) for n in ("d_o", "d_q", "d_k", "d_v")]
        + [("delta", c.c_void_p), ("d_sink", c.c_void_p), ("d_load", Tensor),
           ("d_load_dims", c.c_int * 4)]
    )


class F16Pairs(c.Structure):  # kernels/sm90/f16_pairs_arguments.h
    _fields_ = [("units", c.c_void_p), ("norms", c.c_void_p), ("heads", c.c_int)]


class Arguments(c.Structure):  # kernels/sm90/backward_arguments.h
    _fields_ = (
        [(n, c.c_ubyte * 128) for n in ("q", "k", "v", "d_o")]
        + [("tiled", c.c_ubyte * 128), ("tiled_dims", c.c_ubyte * 128),
           ("sequence_maps", c.c_void_p)]
        + [(n, F16Pairs) for n in ("q_pairs", "k_pairs", "v_pairs", "d_o_pairs")]
        + [(n, c.c_void_p) for n in ("head_units", "negative_lse2", "delta", "d_q_sum", "turns")]
        + [("q_rounded", c.c_int), ("section", c.c_int), ("problem", BackwardParameters)]
    )


class SequenceMapArguments(c.Structure):  # kernels/sm90/forward_arguments.h
    _fields_ = [("base", c.c_ubyte * 128 * 4), ("maps", c.c_void_p), ("element_bytes", c.c_int),
                ("whole_o", c.c_bool), ("problem", ForwardParameters)]


def aligned(value):
    """A copy on 128 bytes, and its address."""
    buffer = (c.c_ubyte * (c.sizeof(value) + 256))()
    address = (c.addressof(buffer) + 127) // 128 * 128
    c.memmove(address, c.addressof(value), c.sizeof(value))
    return buffer, address


class Launch(c.Structure):
    _fields_ = [(n, c.c_uint) for n in ("gx", "gy", "gz", "bx", "by", "bz", "shared")] + [
        ("stream", c.c_void_p), ("attributes", c.c_void_p), ("count", c.c_uint)]


class Attribute(c.Structure):
    _fields_ = [("id", c.c_int), ("pad", c.c_int), ("value", c.c_int), ("rest", c.c_ubyte * 60)]


def tensor_map(t, rows):
    """4-D map (column, row, head, batch) of a [batch, head, row, column] tensor, boxes of 64 x rows."""
    b, h, s, d = t.shape
    raw = (c.c_ubyte * 256)()
    address = (c.addressof(raw) + 127) // 128 * 128
    es = t.element_size()
    dims = (c.c_uint64 * 4)(d, s, h, b)
    strides = (c.c_uint64 * 3)(t.stride(2) * es, t.stride(1) * es, t.stride(0) * es)
    box = (c.c_uint32 * 4)(64, rows, 1, 1)
    ones = (c.c_uint32 * 4)(1, 1, 1, 1)
    kind = 9 if t.dtype == torch.bfloat16 else 6
    ok(cuda.cuTensorMapEncodeTiled(c.c_void_p(address), kind, 4, c.c_void_p(t.data_ptr()), dims,
                                   strides, box, ones, 0, 3, 2, 0))
    return (c.c_ubyte * 128).from_buffer_copy((c.c_ubyte * 128).from_address(address))


class Variant:
    META = ("shared", "threads", "key_tile", "query_tile", "turns", "qk", "width", "upper",
            "lower", "bottom_right", "deterministic", "f16", "lengths", "vd", "dropout")

    def __init__(self, module, name):
        self.name = name
        self.kernels = []
        for part in (f"{name}_prepare", f"{name}_main", f"{name}_finish", "sequence_maps"):
            f = c.c_void_p()
            ok(cuda.cuModuleGetFunction(c.byref(f), module, part.encode()))
            self.kernels.append(f)
        where, size = c.c_uint64(), c.c_size_t()
        ok(cuda.cuModuleGetGlobal_v2(c.byref(where), c.byref(size), module, f"{name}_meta".encode()))
        values = (c.c_int * len(self.META))()
        ok(cuda.cuMemcpyDtoH_v2(values, where, c.sizeof(values)))
        for key, value in zip(self.META, values):
            setattr(self, key, value)
        ok(cuda.cuFuncSetAttribute(self.kernels[1], 8, self.shared))

    def plan(self, q, k, v, o, d_o, stats, dq, dk, dv, scale, upper=0, lower=0, q_lengths=None,
             kv_lengths=None, poison=False, section=0, bottom_right=0):
        b, h, s, d = q.shape
        hk, skv = k.shape[1], k.shape[2]
        rounded = -(-s // self.query_tile) * self.query_tile
        p = Arguments()
        for n, t, rows in (("q", q, self.query_tile), ("k", k, self.key_tile),
                           ("v", v, self.key_tile), ("d_o", d_o, self.query_tile)):
            setattr(p, n, tensor_map(t, rows))
        f = p.problem.forward
        for n, t in (("q", q), ("k", k), ("v", v), ("o", o), ("stats", stats)):
            setattr(f, n, Tensor.of(t))
        for n, t in (("d_o", d_o), ("d_q", dq), ("d_k", dk), ("d_v", dv)):
            setattr(p.problem, n, Tensor.of(t))
        slopes = 2.0 ** (-8.0 * torch.arange(1, h + 1, device="cuda", dtype=torch.float32) / h)
        f.loads[0] = Tensor.of(slopes.reshape(1, h, 1, 1))
        fill = float("nan") if poison else 0.0
        self.hold = [torch.full((b * h * rounded,), fill, device="cuda") for _ in range(2)]
        self.hold.append(torch.full((b * h * rounded * self.width,), fill, device="cuda"))
        self.hold.append(torch.full((b * h * rounded // self.query_tile * self.turns,), 77,
                                    dtype=torch.int32, device="cuda"))
        p.negative_lse2, p.delta, p.d_q_sum, p.turns = [t.data_ptr() for t in self.hold]
        self.hold.append(slopes)
        f.q_lengths, f.kv_lengths = Lengths(None, s), Lengths(None, skv)
        if q_lengths is not None:
            f.q_lengths.data, f.kv_lengths.data = q_lengths.data_ptr(), kv_lengths.data_ptr()
        anchor = 3 if bottom_right else 2
        for is_upper, constant in ((1, upper), (0, lower)):
            if self.upper if is_upper else self.lower:
                f.bounds[f.bound_count] = Bound(anchor, is_upper, constant)
                f.bound_count += 1
        p.section, p.q_rounded = min(section or b * hk, b * hk), rounded
        f.batch, f.q_heads, f.k_heads, f.v_heads = b, h, hk, hk
        f.q_length, f.kv_length, f.scale = s, skv, scale
        if self.dropout:
            self.hold.append(torch.tensor(SEED, dtype=torch.int64, device="cuda").to(torch.int32))
            f.keep_scale = 1 / (1 - DROP)
            if self.dropout == PHILOX:
                f.seed, f.offset = Scalar(None, SEED[0]), Scalar(None, SEED[1])
                f.dropout_threshold = math.floor(DROP * 2**32)
            else:
                f.seed = Scalar(self.hold[-1].data_ptr())
                f.dropout_threshold = math.ceil((1 - DROP) * 2**23)
                f.threefry_stride = (c.c_int64 * 4)(h * s * skv, s * skv, skv, 1)
        maps = SequenceMapArguments(element_bytes=2, whole_o=False, problem=f)
        if self.lengths:
            self.hold.append(torch.empty(4 * b * 128, dtype=torch.uint8, device="cuda"))
            p.sequence_maps = maps.maps = self.hold[-1].data_ptr()
            maps.problem.o = p.problem.d_o
            for n, name in enumerate(("q", "k", "v", "d_o")):
                maps.base[n] = getattr(p, name)
        buffers, addresses = zip(*(aligned(value) for value in (p, maps)))
        pointers = [(c.c_void_p * 1)(address) for address in addresses]
        grids = ((rounded // 64, h, b, 256, 0),
                 (-(-skv // self.key_tile) * hk * b, 1, 1, self.threads, self.shared),
                 (rounded // self.query_tile, h, b, 256, 0), (-(-4 * b // 128), 1, 1, 128, 0))
        stream = torch.cuda.current_stream().cuda_stream
        attribute = Attribute(6, 0, 1)  # programmatic stream serialisation
        launches = [Launch(g[0], g[1], g[2], g[3], 1, 1, g[4], stream,
                           c.addressof(attribute), 1 if i in (1, 2) else 0) for i, g in enumerate(grids)]

        def run(parts=(3, 0, 1, 2) if self.lengths else (0, 1, 2)):
            for i in parts:
                ok(cuda.cuLaunchKernelEx(c.byref(launches[i]), self.kernels[i], pointers[i == 3], None))

        run.keep = (buffers, attribute)
        return run


def visible(s, skv, upper, lower, device="cuda"):
    i = torch.arange(s, device=device)[:, None]
    j = torch.arange(skv, device=device)[None]
    keep = torch.ones(s, skv, dtype=torch.bool, device=device)
    if upper is not None:
        keep &= j < i + upper
    if lower is not None:
        keep &= j >= i + lower
    return keep


def edit(x, name, h):
    """The score edits of the variants, in x's precision."""
    if name.startswith("cap"):
        return 30 * torch.tanh(x / 30)
    if name.startswith("ali"):
        slope = 2.0 ** (-8.0 * torch.arange(1, h + 1, device=x.device, dtype=torch.float64) / h)
        i, j = (torch.arange(n, device=x.device) for n in x.shape[-2:])
        return x + (slope[:, None, None] * (j[None] - i[:, None])).to(x.dtype)
    return x


DROP, SEED, PHILOX, THREEFRY = 0.2, (0x12345678, 0x9ABCDE), 1, 2


def drawn(kind, b, h, s, skv):
    """Which weights dropout keeps, times the factor on them: src/core/dropout_bits.h."""
    u = lambda x: np.asarray(x, np.uint64)
    batch, head, row, column = np.ix_(*(np.arange(n, dtype=np.uint64) for n in (b, h, s, skv)))
    low = u(0xFFFFFFFF)
    if kind == PHILOX:
        x = [column // u(4) + u(0) * row, row + u(0) * column, batch * u(h) + head, u(SEED[1])]
        key = [u(SEED[0] & 0xFFFFFFFF), u(SEED[0] >> 32 ^ SEED[1] >> 32)]
        for _ in range(10):
            p, q = u(0xD2511F53) * x[0], u(0xCD9E8D57) * x[2]
            x = [(q >> u(32)) ^ x[1] ^ key[0], q & low, (p >> u(32)) ^ x[3] ^ key[1], p & low]
            key = [key[0] + u(0x9E3779B9) & low, key[1] + u(0xBB67AE85) & low]
        shape = (b, h, s, skv)
        words = np.stack([np.broadcast_to(w, shape) for w in x])
        word = np.take_along_axis(words, np.broadcast_to((column % u(4)).astype(np.int64), shape)[None], 0)[0]
        kept = word >= u(math.floor(DROP * 2**32))
    else:
        index = ((batch * u(h) + head) * u(s) + row) * u(skv) + column
        keys = [u(SEED[0]), u(SEED[1]), u(SEED[0] ^ SEED[1] ^ 0x1BD11BDA)]
        x0, x1 = (index >> u(32)) + keys[0] & low, (index & low) + keys[1] & low
        for group in range(5):
            for r in ((13, 15, 26, 6), (17, 29, 16, 24))[group % 2]:
                x0 = x0 + x1 & low
                x1 = ((x1 << u(r) | x1 >> u(32 - r)) & low) ^ x0
            x0 = x0 + keys[(group + 1) % 3] & low
            x1 = x1 + keys[(group + 2) % 3] + u(group + 1) & low
        kept = (x0 ^ x1) >> u(9) < u(math.ceil((1 - DROP) * 2**23))
    return torch.from_numpy(kept).cuda().double() / (1 - DROP)


def naive(q, k, v, d_o, scale, keep, dtype, name="", dropped=1):
    """(o, log-sum-exp, dq, dk, dv) by autograd in `dtype`; rows without a key give zeros."""
    g = q.shape[1] // k.shape[1]
    q, k, v = (x.detach().to(dtype).requires_grad_() for x in (q, k, v))
    kk, vv = (x.repeat_interleave(g, 1) for x in (k, v))
    x = edit((q @ kk.transpose(-1, -2)) * scale, name, q.shape[1])
    x = x.masked_fill(~keep, float("-inf"))
    stats = torch.logsumexp(x.float() if dtype != torch.float64 else x, -1)
    some = keep.any(-1, keepdim=True)
    x = torch.where(some, x, torch.zeros_like(x))
    prob = torch.softmax(x, -1) * some * keep * dropped
    o = prob.to(dtype) @ vv
    grads = torch.autograd.grad(o, (q, k, v), d_o.to(dtype))
    return (o.detach(), stats.detach(), *[x.detach() for x in grads])


def rel(a, b):
    return ((a.double() - b.double()).norm() / b.double().norm().clamp_min(1e-30)).item()


def make(b, h, s, d, dtype, layout="bhsd", pad=0):
    if layout == "bhsd":
        base = torch.randn(b, h, s, d + pad, device="cuda", dtype=torch.float32).to(dtype)
        return base[..., :d]
    base = torch.randn(b, s, h, d + pad, device="cuda", dtype=torch.float32).to(dtype)
    return base[..., :d].transpose(1, 2)


def check(v, shape, layout="bhsd", pad=0, repeat=3):
    b, h, hk, s, skv, d, dv_dim = shape
    d, dv_dim = v.qk, v.vd
    dtype = torch.float16 if v.f16 else torch.bfloat16
    upper = (1 if v.upper else None)
    lower = (-100 if v.lower else None)
    shift = skv - s if v.bottom_right else 0
    q, k = make(b, h, s, d, dtype, layout, pad), make(b, hk, skv, d, dtype, layout, pad)
    vv, d_o = make(b, hk, skv, dv_dim, dtype, layout, pad), make(b, h, s, dv_dim, dtype, layout, pad)
    scale = d ** -0.5
    keep = visible(s, skv, None if upper is None else upper + shift,
                   None if lower is None else lower + shift)
    lengths = [None, None]
    if v.lengths:  # keys and queries past a length are NaN and must not leak
        lengths = [torch.randint(0, n + 1, (b,), dtype=torch.int32, device="cuda") for n in (s, skv)]
        rows = torch.arange(s, device="cuda")[None] < lengths[0][:, None]
        columns = torch.arange(skv, device="cuda")[None] < lengths[1][:, None]
        keep = keep & rows[:, None, :, None] & columns[:, None, None, :]
        for x, inside in ((q, rows), (d_o, rows), (k, columns), (vv, columns)):
            x.masked_fill_(~inside[:, None, :, None], 0)
    dropped = drawn(v.dropout, b, h, s, skv) if v.dropout else 1
    edited = v.name.removeprefix("p")
    truth = naive(q, k, vv, d_o, scale, keep, torch.float64, edited, dropped)
    low = naive(q, k, vv, d_o, scale, keep, dtype, edited, dropped)
    if v.lengths:
        for x, inside in ((q, rows), (d_o, rows), (k, columns), (vv, columns)):
            x.masked_fill_(~inside[:, None, :, None], float("nan"))
    o, stats = truth[0].to(dtype), truth[1].float().contiguous()[..., None]
    outs = [torch.full_like(x, float("nan")) for x in (q, k, vv)]
    gaps = []
    for i, x in enumerate((q, k, vv)):  # same strides, poisoned gaps
        shape_ = list(x.shape)
        shape_[-1] = x.shape[-1] + pad
        base = torch.full([shape_[0], shape_[2], shape_[1], shape_[3]] if layout == "bshd" else shape_,
                          float("nan"), device="cuda", dtype=dtype)
        gaps.append(base)
        view = base[..., :x.shape[-1]]
        outs[i] = view.transpose(1, 2) if layout == "bshd" else view
    run = v.plan(q, k, vv, o, d_o, stats, *outs, scale, upper or 0, lower or 0, *lengths,
                 poison=True)
    first, same = None, True
    for _ in range(repeat):
        for x in outs:
            x.fill_(float("nan"))
        run()
        torch.cuda.synchronize()
        now = [x.clone() for x in outs]
        if first is None:
            first = now
        else:
            same &= all(torch.equal(a, b_) for a, b_ in zip(first, now))
    line, good = [], True
    for name, mine, ref, lo in zip(("dq", "dk", "dv"), outs, truth[2:], low[2:]):
        e, e_low = rel(mine, ref), rel(lo, ref)
        # Where the truth is zero the naive computation may be exact: compare with the terms' size.
        if ref.abs().max() < 1e-6:
            e = mine.double().norm().item() / mine.numel() ** 0.5
        fine = e <= 2 * e_low + 1e-5 and bool(torch.isfinite(mine).all())
        good &= fine
        line.append(f"{name} {e:.2e}/{e_low:.2e}{'' if fine else ' BAD'}")
    if pad:
        good &= all(bool(x[..., -pad:].isnan().all()) for x in gaps)
    if v.deterministic:
        good &= same
    print(f"  {'ok ' if good else 'BAD'} {v.label} {shape} {layout} pad {pad}: {'  '.join(line)}"
          f"  rerun {'equal' if same else 'differs'}", flush=True)
    return good


CHECKS = {
    64: [(1, 1, 1, 128, 128, 64, 64), (2, 3, 3, 1000, 777, 64, 64), (1, 4, 2, 333, 1111, 64, 64),
         (1, 2, 1, 65, 1, 64, 64), (1, 2, 2, 1, 200, 64, 64), (2, 2, 2, 320, 448, 48, 40)],
    128: [(1, 1, 1, 128, 128, 128, 128), (2, 3, 3, 1000, 777, 128, 128),
          (1, 4, 2, 333, 1111, 128, 128), (1, 2, 1, 65, 1, 128, 128), (1, 2, 2, 1, 200, 128, 128),
          (2, 2, 2, 320, 448, 96, 80), (1, 8, 1, 512, 512, 128, 128)],
    256: [(1, 1, 1, 128, 128, 256, 256), (2, 3, 3, 1000, 777, 256, 256),
          (1, 4, 2, 333, 1111, 256, 256), (1, 2, 1, 65, 1, 256, 256), (1, 2, 2, 320, 448, 192, 128)],
}


def peers(q, k, v, d_o, causal):
    """name -> a backward pass of torch's."""
    runs = {}
    for name, backend in (("cudnn", SDPBackend.CUDNN_ATTENTION), ("fa2", SDPBackend.FLASH_ATTENTION)):
        if name == "fa2" and "fa2" not in sys.argv:
            continue
        try:
            args = [x.detach().requires_grad_() for x in (q, k, v)]
            with sdpa_kernel(backend):
                o = F.scaled_dot_product_attention(*args, is_causal=causal,
                                                   enable_gqa=q.shape[1] != k.shape[1])
            run = lambda o=o, args=args: torch.autograd.grad(o, args, d_o, retain_graph=True)
            run()
            runs[name] = run
        except RuntimeError as e:
            print(f"{name}: {e}", flush=True)
    return runs


CELLS = {64: [(32, 32, 32, 512), (8, 32, 32, 2048), (2, 32, 32, 8192), (1, 32, 32, 16384)],
         128: [(32, 16, 16, 512), (8, 16, 16, 2048), (2, 16, 16, 8192), (1, 16, 16, 16384),
               (8, 32, 8, 2048), (2, 32, 8, 8192)],
         192: [(8, 16, 16, 2048), (2, 16, 16, 8192)],
         256: [(32, 8, 8, 512), (8, 8, 8, 2048), (2, 8, 8, 8192), (1, 8, 8, 16384)]}


WINDOW = 1024


def sections(v, b, hk, s):
    """The block orders worth a look: heads one after the other, or several side by side."""
    if not v.upper and not v.deterministic:
        return (1,)
    wave = max(1, 132 // -(-s // v.key_tile))  # heads that a wave of blocks holds
    return sorted({n for n in (1, 8, wave) if n <= b * hk})


def timing(variants, lengths=None):
    rows = []
    for d, dv_dim, upper, lower in sorted({(v.qk, v.vd, v.upper, v.lower) for v in variants}):
        for b, h, hk, s in CELLS[d if d in CELLS else 256]:
            if lengths and s not in lengths:
                continue
            if h != hk and not upper:
                continue
            q, k = make(b, h, s, d, torch.bfloat16, "bshd"), make(b, hk, s, d, torch.bfloat16, "bshd")
            v_, d_o = (make(b, n, s, dv_dim, torch.bfloat16, "bshd") for n in (hk, h))
            cells = s * s / 2 if upper else s * s
            if lower:  # the last WINDOW keys: the band's cells
                cells = sum(min(i + 1, WINDOW) for i in range(s))
            flops = 4 * b * h * cells * (1.5 * d + dv_dim)
            runs, result = {}, {}
            if "nopeers" not in sys.argv and not lower:
                runs = peers(q, k, v_, d_o, bool(upper))
            with torch.no_grad(), sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                o, stats = torch.ops.aten._scaled_dot_product_cudnn_attention(
                    q, k.repeat_interleave(h // hk, 1), v_.repeat_interleave(h // hk, 1), None, True,
                    0.0, bool(upper), False)[:2]
            stats = stats.reshape(b, h, s, 1).float().contiguous()
            outs = [torch.empty_like(x) for x in (q, k, v_)]
            hold = []
            for v in variants:
                if (v.qk, v.vd, v.upper, v.lower) != (d, dv_dim, upper, lower):
                    continue
                for section in sections(v, b, hk, s):
                    run = v.plan(q, k, v_, o, d_o, stats, *outs, d ** -0.5, 1, 1 - WINDOW,
                                 section=section)
                    hold.append(v.hold)
                    runs[f"{v.label}/{section}"] = run
                if "split" in sys.argv:
                    for i, part in enumerate(("prepare", "main", "finish")):
                        runs[f"{v.label}.{part}"] = lambda i=i, run=run: run((i,))
            result = interleaved_milliseconds(runs, 9)
            print(f"d{d} {'window' if lower else 'causal' if upper else 'full'} b{b} h{h}/{hk} s{s}: " + "  ".join(
                f"{n} {t:.4f}ms {flops / t / 1e9:.0f}TF" for n, t in result.items()), flush=True)
            rows.append(dict(d=d, dv=dv_dim, causal=upper, window=lower, b=b, h=h, hk=hk, s=s, ms=result))
            hold = runs = None
            torch.cuda.empty_cache()
    return rows


def load(arguments):
    """The variants named after each FILE.cubin."""
    variants, module = [], None
    for a in arguments:
        if a.endswith(".cubin"):
            module, stem = c.c_void_p(), a[:-len(".cubin")]
            ok(cuda.cuModuleLoad(c.byref(module), a.encode()))
        elif not a.isdigit() and a not in ("split", "fa2", "nopeers"):
            variants.append(Variant(module, a))
            variants[-1].label = f"{stem}:{a}"
    return variants


def main():
    torch.cuda.init()
    torch.zeros(1, device="cuda")
    torch.manual_seed(int.from_bytes(open("/dev/urandom", "rb").read(4), "little"))
    variants = load(sys.argv[2:])
    if sys.argv[1] == "check":
        bad = 0
        for v in variants:
            shapes = CHECKS[64 if v.qk <= 64 else 128 if v.qk <= 128 else 256]
            for shape in shapes:
                bad += not check(v, shape)
            bad += not check(v, shapes[1], "bshd", 8, 2)
        print("all good" if not bad else f"{bad} BAD")
        sys.exit(bad != 0)
    print(json.dumps(timing(variants, [int(a) for a in sys.argv[2:] if a.isdigit()])))


if __name__ == "__main__":
    main()
