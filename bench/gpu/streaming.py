"""Checks the streaming kernels of streaming.cu against f64 and times them beside torch and XLA.

    python3 streaming.py FILE.cubin
"""
import ctypes as c
import sys

import torch

from driver import _cuda, check
from timing import interleaved_milliseconds


DIMS = 7


class Tensor(c.Structure):
    _fields_ = [("data", c.c_void_p), ("row_stride", c.c_int64 * DIMS), ("column_stride", c.c_int64 * DIMS)]


class Extents(c.Structure):
    _fields_ = [("rows", c.c_int * DIMS), ("columns", c.c_int * DIMS)]


class Real(c.Structure):
    _fields_ = [("wide", c.c_double), ("narrow", c.c_float)]


class Norm(c.Structure):
    _fields_ = ([("extents", Extents)]
                + [(n, Tensor) for n in ("x", "weight", "bias", "y", "inv_rms")]
                + [("rows", c.c_int), ("columns", c.c_int), ("per_column", Real), ("epsilon", Real),
                   ("epsilon_operand", c.c_void_p), ("epsilon_is_64_bit", c.c_int)])


class NormBackward(c.Structure):
    _fields_ = ([("extents", Extents)]
                + [(n, Tensor) for n in ("dy", "x", "weight", "inv_rms", "dx", "d_weight", "d_bias")]
                + [("partial", c.c_void_p), ("means", c.c_void_p), ("rows", c.c_int),
                   ("columns", c.c_int), ("per_column", Real), ("blocks", c.c_int)])


class Rope(c.Structure):
    _fields_ = ([("x", c.c_void_p), ("y", c.c_void_p), ("x_stride", c.c_int64 * 3),
                 ("y_stride", c.c_int64 * 3)]
                + [(n, c.c_void_p) for n in ("x_offsets", "y_offsets")]
                + [(n, c.c_int64) for n in ("x_multiplier", "y_multiplier")]
                + [(n, c.c_int) for n in ("x_offsets_are_64_bit", "y_offsets_are_64_bit")]
                + [(n, c.c_void_p) for n in ("angles", "cosines", "sines")]
                + [("first_stride", c.c_int64 * 2), ("second_stride", c.c_int64 * 2),
                   ("table_rows", c.c_int64), ("first_row", c.c_int64), ("positions", c.c_void_p),
                   ("position_batch_stride", c.c_int64), ("position_row_stride", c.c_int64)]
                + [(n, c.c_int) for n in ("positions_are_64_bit", "heads", "length", "head_dim",
                                          "rope_dim", "heads_per_block", "blocks")]
                + [("scale", Real)])


torch.zeros(1, device="cuda")
module = c.c_void_p()
check(_cuda.cuModuleLoad(c.byref(module), sys.argv[1].encode()), "load")


def kernel(name, threads):
    function = c.c_void_p()
    check(_cuda.cuModuleGetFunction(c.byref(function), module, name.encode()), name)

    def launch(grid, args):
        pointers = (c.c_void_p * 1)(c.cast(c.pointer(args), c.c_void_p))
        check(_cuda.cuLaunchKernel(function, *grid, threads, 1, 1, 0,
                                   c.c_void_p(torch.cuda.current_stream().cuda_stream), pointers,
                                   None), name)

    return launch


def tensor(t):
    """Rows of a matrix, or a vector of columns or of statistics: dense."""
    if t is None:
        return Tensor()
    step = (c.c_int64 * DIMS)(t.stride(0) if t.dim() == 2 else 1)
    return Tensor(t.data_ptr(), step, (c.c_int64 * DIMS)(1))


def extents(x):
    return Extents((c.c_int * DIMS)(x.shape[0]), (c.c_int * DIMS)(x.shape[1]))


def rel(a, b):
    return ((a.double() - b).norm() / b.norm()).item()


def threads_of(name):
    return int(name.split("_")[1].split("x")[0]) if "x" in name else 256


def forward(name, x, w, bias, y, inv):
    per_row = threads_of(name)
    threads = max(128, per_row)
    args = Norm(extents(x), tensor(x), tensor(w), tensor(bias), tensor(y), tensor(inv), x.shape[0],
                x.shape[1], Real(1 / x.shape[1], 1 / x.shape[1]), Real(1e-5, 1e-5), None, 0)
    launch = kernel(name, threads)
    grid = (-(-x.shape[0] // (threads // per_row)), 1, 1)
    return lambda: launch(grid, args)


def backward(name, dy, x, w, inv, dx, dw, db, blocks=132):
    partial = torch.full((2, blocks, x.shape[1]), float("nan"), device="cuda")
    args = NormBackward(extents(x), tensor(dy), tensor(x), tensor(w), tensor(inv), tensor(dx),
                        tensor(dw), tensor(db), partial.data_ptr(), None, x.shape[0], x.shape[1],
                        Real(1 / x.shape[1], 1 / x.shape[1]), blocks)
    main, combine = kernel(name, 512), kernel(name + "_combine", 256)

    def run(keep=partial):
        main((blocks, 1, 1), args)
        combine((-(-x.shape[1] // 32), 2, 1), args)

    return run


def norm_case(rows, columns, forwards, backwards, x_type=torch.bfloat16, io=torch.bfloat16, timed=True):
    x = (torch.randn(rows, columns + 8, device="cuda") * 3).to(x_type)[:, :columns]
    w = torch.randn(columns, device="cuda").to(torch.bfloat16)
    dy = torch.randn(rows, columns, device="cuda").to(io)
    if timed:
        x = x.contiguous()
    scalar = "scalar" in forwards[0]
    bias = torch.randn(columns, device="cuda").to(torch.bfloat16) if scalar else None
    few = slice(None) if not timed else slice(0, 512)
    xd, wd, dyd = x[few].double(), w.double(), dy[few].double()
    inv64 = (xd.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
    y64 = xd * inv64 * wd + (bias.double() if scalar else 0)
    runs = {}
    for name in forwards:
        y = torch.full((rows, columns), float("nan"), device="cuda", dtype=io)
        inv = torch.full((rows,), float("nan"), device="cuda")
        runs[name] = forward(name, x, w, bias, y, inv)
        runs[name]()
        low = rel(y64.to(io), y64)
        e = rel(y[few], y64)
        bad = not (e <= 2 * low and torch.isfinite(y).all() and rel(inv[few], inv64[:, 0]) < 1e-6)
        print(f"  {'BAD' if bad else 'ok '} {name} {rows}x{columns} y {e:.1e}/{low:.1e}", flush=True)
    inv = (x.double().square().mean(-1) + 1e-5).rsqrt().float() if rows * columns < 3e8 else inv
    hat = xd * inv64
    g = dyd * wd
    dx64 = inv64 * (g - hat * (g * hat).mean(-1, keepdim=True))
    dw64 = sum((dy[i:i + 2048].double() * x[i:i + 2048].double() * inv[i:i + 2048, None]).sum(0)
               for i in range(0, rows, 2048))
    for name in backwards:
        dx = torch.full((rows, columns), float("nan"), device="cuda", dtype=x_type)
        dw = torch.full((columns,), float("nan"), device="cuda", dtype=torch.bfloat16)
        db = torch.full_like(dw, float("nan")) if scalar else None
        runs[name] = backward(name, dy, x, w, inv, dx, dw, db)
        runs[name]()
        first = dw.clone()
        runs[name]()
        low = max(rel(dx64.to(x_type), dx64), 1e-6)
        e, ew, lw = rel(dx[few], dx64), rel(dw, dw64), rel(dw64.to(torch.bfloat16), dw64)
        bad = not (e <= 2 * low and ew <= 2 * lw and torch.equal(first, dw) and
                   torch.isfinite(dx).all())
        if scalar:
            bad |= rel(db, dy.double().sum(0)) > 2 * lw
        print(f"  {'BAD' if bad else 'ok '} {name} {rows}x{columns} dx {e:.1e}/{low:.1e} dw {ew:.1e}/{lw:.1e}",
              flush=True)
    if timed:
        runs["torch forward"] = lambda: torch.nn.functional.rms_norm(x, (columns,), w, 1e-5)
        copy = torch.empty_like(x)
        runs["torch copy, forward's bytes"] = lambda: copy.copy_(x)
        times = interleaved_milliseconds(runs)
        if (rows, columns) == (16384, 4096):
            times |= xla_milliseconds(rows, columns)
        for name, ms in times.items():
            passes = 2 if "forward" in name else 3
            print(f"{name} {rows}x{columns}: {ms:.4f} ms {passes * 2 * rows * columns / ms / 1e6:.0f} GB/s",
                  flush=True)


def xla_milliseconds(rows, columns, chained=16):
    """XLA's own fusions, forward and backward, as many one after the other in a program as hide its launch."""
    try:
        import jax
        import jax.numpy as jnp
        jax.devices("cuda")
    except (ImportError, RuntimeError) as reason:
        print(f"XLA is not timed: {reason}")
        return {}

    def norm(x, w):
        wide = x.astype(jnp.float32)
        inv = jax.lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-5)
        return (wide * inv * w.astype(jnp.float32)).astype(x.dtype)

    def forward(x, w):
        for _ in range(chained):
            x = jax.lax.optimization_barrier(norm(x, w))
        return x

    def backward(x, w, inv, dy):
        sums = jnp.zeros_like(w)
        for _ in range(chained):
            wide, g = x.astype(jnp.float32), dy.astype(jnp.float32)
            hat, gw = wide * inv, g * w.astype(jnp.float32)
            dx = (inv * (gw - hat * jnp.mean(gw * hat, -1, keepdims=True))).astype(x.dtype)
            dy, dw = jax.lax.optimization_barrier((dx, (g * hat).sum(0).astype(w.dtype)))
            sums += dw
        return dy, sums

    import statistics
    import time
    keys = jax.random.split(jax.random.key(0), 3)
    x, dy = (jax.random.normal(k, (rows, columns), jnp.bfloat16) for k in keys[:2])
    w = jax.random.normal(keys[2], (columns,), jnp.bfloat16)
    inv = jax.lax.rsqrt(jnp.mean(jnp.square(x.astype(jnp.float32)), -1, keepdims=True) + 1e-5)
    found = {}
    for name, function, operands in (("XLA forward", forward, (x, w)), ("XLA backward", backward, (x, w, inv, dy))):
        run = jax.jit(function)
        jax.block_until_ready(run(*operands))
        times = []
        for _ in range(15):
            start = time.perf_counter()
            jax.block_until_ready(run(*operands))
            times.append(time.perf_counter() - start)
        found[name] = statistics.median(times) * 1e3 / chained
    return found


def rope_case(name, b, h, s, d, rope_dim, interleaved, tables, inverse, timed=False):
    x = torch.randn(b, h, s, d, device="cuda").to(torch.bfloat16)
    y = torch.full_like(x, float("nan"))
    half = rope_dim // 2
    angle = (torch.arange(s, device="cuda")[:, None].double()
             * 10000.0 ** (-torch.arange(half, device="cuda").double() / half)).float()
    angles = torch.cat((angle, angle), 1).contiguous()
    cosines, sines = angle.cos(), angle.sin()
    table = (c.c_int64 * 2)(half if tables else rope_dim, 1)
    args = Rope(x.data_ptr(), y.data_ptr(), (c.c_int64 * 3)(*x.stride()[:3]),
                (c.c_int64 * 3)(*y.stride()[:3]), None, None, 1, 1, 0, 0, angles.data_ptr(),
                cosines.data_ptr(), sines.data_ptr(), table, table, s, 0, None, 0, 0, 0, h, s, d,
                rope_dim, 0, 0, Real(1.5, 1.5))
    pairs, run = (4, 8) if interleaved else (8, 8)
    units = rope_dim // (2 * pairs) + (d - rope_dim) // run
    launch = kernel(name, 256)
    runs = {}
    for each in (4, 8, 16, 32):
        a = Rope.from_buffer_copy(args)
        a.heads_per_block = each
        a.blocks = -(-s * units // 256)
        runs[each] = lambda a=a, each=each: launch((b * a.blocks, -(-h // each), 1), a)
    runs[8]()
    ad = angle.double()
    co, si = ad.cos(), ad.sin() * (-1 if inverse else 1)
    z = x[:, :4].double()
    rest, rot = z[..., :d - rope_dim], z[..., d - rope_dim:]
    if interleaved:
        p, q = rot[..., 0::2], rot[..., 1::2]
        out = torch.stack((p * co - q * si, q * co + p * si), -1).flatten(-2)
    else:
        p, q = rot[..., :half], rot[..., half:]
        out = torch.cat((p * co - q * si, q * co + p * si), -1)
    truth = 1.5 * torch.cat((rest, out), -1)
    e, low = rel(y[:, :4], truth), rel(truth.to(torch.bfloat16), truth)
    bad = not (e <= 2 * low and torch.isfinite(y).all())
    print(f"  {'BAD' if bad else 'ok '} {name} {tuple(x.shape)} rope {rope_dim}: {e:.2e}/{low:.2e}")
    if timed:
        for each, ms in interleaved_milliseconds(runs).items():
            print(f"{name} heads_per_block {each}: {ms:.4f} ms {2 * 2 * x.numel() / ms / 1e6:.0f} GB/s")


norm_case(777, 4000, ["forward_64x8", "forward_128x4"], ["backward_256x2", "backward_512x1"], timed=False)
norm_case(37, 72, ["forward_8x2"], ["backward_64x2"], timed=False)
norm_case(333, 1001, ["forward_scalar"], ["backward_scalar"], torch.float32, torch.float16, timed=False)
norm_case(16384, 4096, ["forward_64x8", "forward_128x4", "forward_256x2", "forward_512x1"],
          ["backward_128x4", "backward_256x2"])
norm_case(65536, 1024, ["forward_32x4", "forward_64x2", "forward_128x1"], ["backward_64x2"])
norm_case(32768, 2048, ["forward_32x8", "forward_64x4", "forward_128x2"], ["backward_128x4", "backward_64x4"])
norm_case(16384, 8192, ["forward_128x8", "forward_256x4", "forward_512x2"], ["backward_256x4"])
norm_case(8192, 16384, ["forward_256x8", "forward_512x4", "forward_1024x2"], ["backward_512x4"])
rope_case("rope_halves", 2, 5, 333, 128, 128, False, False, False)
rope_case("rope_halves", 2, 5, 333, 128, 64, False, False, False)
rope_case("rope_interleaved", 2, 5, 333, 128, 96, True, True, True)
rope_case("rope_halves", 4, 32, 4096, 128, 128, False, False, False, True)
rope_case("rope_interleaved", 4, 32, 4096, 128, 128, True, True, True, True)
