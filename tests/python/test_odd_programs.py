"""Programs of every kind of operation beside an attention: all are compiled, and compute what XLA computes of them."""

import logging

import heddle.jax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from heddle.jax import _faults
from jax import lax

AXIS = 16


def random(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), jnp.float32)


def attend(q, k, v):
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1]**-0.5
    weights = jax.nn.softmax(scores, axis=-1)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v)


def symmetric(x):
    return x @ x.T + AXIS * jnp.eye(x.shape[0])


def triangles(x):
    spd = symmetric(x)
    lower = jnp.tril(spd)
    return [
        jnp.linalg.cholesky(spd),
        lax.linalg.cholesky(spd.T),
        lax.linalg.triangular_solve(lower, x, left_side=True, lower=True),
        lax.linalg.triangular_solve(lower, x, left_side=True, lower=True, transpose_a=True),
        lax.linalg.triangular_solve(lower, x, left_side=True, lower=True, unit_diagonal=True),
    ]


def transforms(x):
    z = x.astype(jnp.complex64) * (1 + 2j)
    return [
        jnp.fft.fft(z), jnp.fft.ifft(z), jnp.fft.rfft(x), jnp.fft.fft2(z), jnp.fft.irfft(jnp.fft.rfft(x)),
        jnp.fft.fft(z, axis=0)
    ]


def complex_numbers(x):
    z = lax.complex(x, jnp.flip(x, 0))
    return [z @ z.T, jnp.conj(z), jnp.abs(z), jnp.angle(z), jnp.exp(z), z / (1 + z), jnp.real(z), jnp.imag(z), z**2]


def chosen(pick):
    """A reduction by a comparison, of values and their places."""

    def combine(a, b):
        better = pick(a[0], b[0])
        return lax.select(better, a[0], b[0]), lax.select(better, a[1], b[1])

    def reduced(x):
        places = lax.broadcasted_iota(jnp.int32, x.shape, 1)
        return lax.reduce((x, places), (x[0, 0], jnp.int32(0)), combine, (1,))

    return reduced


def reductions(x):
    return [
        *chosen(lax.ge)(x), *chosen(lax.le)(x), jnp.argmax(x, 1), jnp.argmin(x, 1), jnp.all(x > -9, 1), jnp.any(x > 9, 1),
        jnp.prod(x, 0), jnp.var(x, 1), jnp.median(x, 1), lax.reduce_and(x > 0, (0,)), lax.reduce_xor(
            (x > 0).astype(jnp.int32), (0,))
    ]


def sorts(x):
    places = lax.broadcasted_iota(jnp.int32, x.shape, 1)
    return [
        jnp.sort(x, 1), jnp.sort(x, 1, descending=True), *lax.sort((x, places), num_keys=1), *lax.sort(
            (jnp.round(x), x, places), num_keys=2, dimension=1), *lax.top_k(x, 3), jnp.argsort(x, 0), jnp.unique(
                jnp.round(x), size=4), lax.sort(x, is_stable=False)
    ]


def sums(x):
    return [
        jnp.cumsum(x, 1), jnp.cumprod(x, 1), lax.cummax(x), lax.cummin(x, reverse=True), lax.cumlogsumexp(x, axis=1),
        lax.associative_scan(lambda a, b: a * 0.5 + b, x), lax.associative_scan(jnp.maximum, x, reverse=True)
    ]


def windows(x):
    image = x.reshape(1, AXIS, AXIS, 1)
    return [
        lax.reduce_window(image, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"),
        lax.reduce_window(image, 0., lax.add, (1, 3, 3, 1), (1, 1, 1, 1), "SAME"),
        jax.grad(lambda y: lax.reduce_window(y, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID").sum())(image),
    ]


def convolutions(x):
    image, filters = x.reshape(1, 4, 8, 8), random(6, 2, 3, 3, seed=9)
    return [
        lax.conv_general_dilated(image, filters, (1, 1), "SAME", feature_group_count=2),
        lax.conv_general_dilated(image, random(6, 4, 3, 3), (2, 1), ((0, 1), (2, 0)), lhs_dilation=(2, 1), rhs_dilation=(1, 2)),
        lax.conv_general_dilated(image.astype(jnp.bfloat16), random(6, 4, 3, 3).astype(jnp.bfloat16), (1, 1), "SAME",
                                 preferred_element_type=jnp.float32),
        lax.conv_transpose(jnp.moveaxis(image, 1, -1), random(3, 3, 4, 2), (2, 2), "SAME"),
        jax.grad(lambda f: lax.conv_general_dilated(image, f, (1, 1), "SAME", batch_group_count=1).sum())(
            random(6, 4, 3, 3)),
    ]


def scatters(x):
    at = jnp.asarray([3, 1, 3])
    return [
        x.at[at].set(1.0), x.at[at].add(2.0), x.at[at, :2].max(0.5), x.at[at].mul(3.0), x.at[:, at].min(-1.0),
        x.at[at].apply(jnp.sin), jax.ops.segment_sum(x, jnp.arange(AXIS) // 3, num_segments=6),
        x.at[at].set(7.0, mode="drop", unique_indices=False),
        x.astype(jnp.bfloat16).at[at].add(x[:3].astype(jnp.bfloat16))
    ]


def gathers(x):
    at = jnp.asarray([[5, 200], [-3, 1]])
    return [
        x[at], jnp.take(x, at, axis=1, mode="clip"), jnp.take(x, at, axis=0, mode="fill"),
        jnp.take_along_axis(x, jnp.argsort(x, 1), 1), x[::-2, 1:9:3], jnp.roll(x, 3, 1),
        lax.dynamic_slice(x, (2, 9), (4, 4)), lax.dynamic_update_slice(x, x[:2, :2], (15, 15)), jax.vmap(
            lambda row, i: row[i])(x, jnp.arange(AXIS) % 5), jnp.searchsorted(jnp.sort(x[0]), x[1])
    ]


def branches(x):
    i = (jnp.abs(x[0, 0]) * 10).astype(jnp.int32) % 3
    return [
        lax.cond(x[0, 0] > 0, jnp.sin, jnp.cos, x),
        lax.cond(x[0, 0] > 0, lambda: (x, 1), lambda: (x * 2, 2))[0],
        lax.switch(i, [jnp.sin, jnp.cos, jnp.tanh], x),
        lax.while_loop(lambda s: s[0] < 5, lambda s: (s[0] + 1, (s[1][0] * 2, s[1][1] + s[0])), (0, (x, 0)))[1][0],
        lax.fori_loop(0, i + 3, lambda n, y: y * 0.5 + n, x),
        lax.scan(lambda c, row: (c + row, c * row), x[0], x, reverse=True)[1],
        lax.map(jnp.sin, x),
    ]


@jax.custom_vjp
def clipped(x):
    return jnp.sin(x)


clipped.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (jnp.clip(g, -1, 1) * jnp.cos(x),))


@jax.custom_jvp
def tangled(x):
    return x * x


tangled.defjvp(lambda primals, tangents: (tangled(*primals), 3 * primals[0] * tangents[0]))


def derivatives(x):
    return [
        jax.grad(lambda y: clipped(y).sum())(x), jax.grad(lambda y: tangled(y).sum())(x), jax.jvp(tangled, (x,), (x,))[1],
        jax.grad(jax.checkpoint(lambda y: jnp.sin(jnp.sin(y)).sum()))(x), jax.hessian(lambda y: (y**3).sum())(x[0])
    ]


def random_bits(x):
    bits = lax.rng_bit_generator(jnp.zeros(4, jnp.uint32), (4, 4), dtype=jnp.uint32)[1]
    key = jax.random.key(3)
    return [
        bits * 0, jax.random.normal(key, (3, 3)) + x[:3, :3], jax.random.permutation(key, AXIS),
        jax.random.categorical(key, x), jax.random.bits(key, (5,), jnp.uint16), jax.random.gamma(key, 2.0, (3,)),
        jax.random.fold_in(key, 3) == jax.random.fold_in(key, 4)
    ]


def narrow_numbers(x):
    a, b = jnp.round(x * 20).astype(jnp.int8), jnp.round(x.T * 20).astype(jnp.int8)
    small = jnp.clip(jnp.round(x * 3), -8, 7).astype(jnp.int4)
    e4m3 = x.astype(jnp.float8_e4m3fn)
    return [
        jnp.dot(a, b, preferred_element_type=jnp.float32), jnp.dot(a, b, preferred_element_type=jnp.int32), a @ b,
        jnp.dot(small.astype(jnp.int8), b, preferred_element_type=jnp.int32), small.astype(jnp.int32) + 1,
        jnp.dot(e4m3, e4m3.T, preferred_element_type=jnp.float32), x.astype(jnp.float8_e5m2).astype(jnp.float32),
        jnp.dot(x.astype(jnp.bfloat16), x.T.astype(jnp.bfloat16), preferred_element_type=jnp.float32),
        jnp.dot(x.astype(jnp.float16), x.T.astype(jnp.float16)).astype(jnp.float32),
        lax.dot(x > 0, x > 1), lax.dot_general(a.astype(jnp.uint8), b, (((1,), (0,)), ((), ())),
                                               preferred_element_type=jnp.int32)
    ]


def bits(x):
    whole = lax.bitcast_convert_type(x, jnp.int32)
    return [
        whole & 255, whole ^ 7, whole << 3, lax.shift_right_logical(whole, 2), lax.population_count(whole), lax.clz(whole),
        lax.bitcast_convert_type(x, jnp.uint8), lax.bitcast_convert_type(lax.bitcast_convert_type(x, jnp.uint16),
                                                                         jnp.float32),
        lax.reduce_precision(x, 5, 10), jnp.signbit(x), lax.nextafter(x, x + 1), jnp.packbits(x > 0, axis=1)
    ]


def functions(x):
    return [
        lax.erf(x), lax.erf_inv(jnp.tanh(x)), lax.lgamma(jnp.abs(x) + 1), lax.digamma(jnp.abs(x) + 1), jnp.expm1(x),
        jnp.log1p(jnp.abs(x)), jnp.cbrt(x), lax.rem(x, x + 3), jnp.arctan2(x, x + 1), lax.integer_pow(x, -3),
        jnp.nan_to_num(x / 0), jnp.float_power(jnp.abs(x), 0.3), lax.clamp(-0.5, x, 0.5), lax.round(x), lax.tan(x),
        lax.acosh(jnp.abs(x) + 1), lax.igamma(jnp.abs(x) + 1, jnp.abs(x)), jax.scipy.special.i0(x)
    ]


def products(x):
    sizes = jnp.asarray([5, 4, 7], jnp.int32)
    return [
        lax.ragged_dot(x, random(3, AXIS, 8), sizes), jnp.einsum("ij,kj,lj->ikl", x, x, x[:3]),
        jnp.einsum("bii->bi", x.reshape(1, AXIS, AXIS)),
        lax.dot_general(x, x, (((1,), (1,)), ((), ())), precision=lax.Precision.HIGHEST),
        lax.dot_general(x, x, (((0, 1), (0, 1)), ((), ()))), jnp.kron(x[:2, :2], x), jnp.outer(x[0], x[1])
    ]


def decompositions(x):
    spd = symmetric(x)
    q, r = jnp.linalg.qr(x)
    return [
        jnp.linalg.eigh(spd)[0], jnp.linalg.svd(x, compute_uv=False), q @ r, jnp.linalg.inv(spd), jnp.linalg.det(spd / AXIS),
        jnp.linalg.solve(spd, x), jax.scipy.linalg.expm(x / 9)
    ]


def on_a_mesh(x):
    mesh = jax.sharding.Mesh(np.asarray(jax.devices()[:1]), ("device",))
    spec = jax.sharding.PartitionSpec("device")
    inner = jax.shard_map(lambda y: lax.psum(jnp.sin(y), "device"), mesh=mesh, in_specs=spec,
                          out_specs=jax.sharding.PartitionSpec(), check_vma=False)
    return [inner(x)]


def shapes(x):
    return [
        jnp.pad(x, ((1, 2), (0, 3)), mode="reflect"), lax.pad(x, 0.0, ((1, -1, 2), (-2, 0, 0))), jnp.flip(x, (0, 1)),
        lax.rev(x, (0,)), jnp.zeros((0, 4)) + x[:0, :4], lax.concatenate([x, x], 1), lax.expand_dims(x, (0, 3)),
        jnp.tile(x, (2, 3)), lax.optimization_barrier((x, x + 1))[1], jnp.triu(x), lax.select_n(x > 0, x, -x), x.astype(
            bool).astype(jnp.int8), jnp.where(x > 0, jnp.nan, x), lax.squeeze(x.reshape(1, AXIS, 1, AXIS), (0, 2))
    ]


KINDS = [
    triangles, transforms, complex_numbers, reductions, sorts, sums, windows, convolutions, scatters, gathers, branches,
    derivatives, random_bits, narrow_numbers, bits, functions, products, decompositions, on_a_mesh, shapes
]


@pytest.fixture
def faults(caplog):
    """The reasons for which programs were compiled as written instead."""
    _faults.forget()
    caplog.set_level(logging.WARNING, logger="heddle")
    return lambda: [record.getMessage() for record in caplog.records if record.name == "heddle"]


def same(found, expected):
    for got, want in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert got.dtype == want.dtype and got.shape == want.shape
        got, want = (np.asarray(x).astype(np.complex128 if jnp.iscomplexobj(x) else np.float64) for x in (got, want))
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_beside_attention(kind, faults):
    q, k, v = (random(2, 24, 2, 16, seed=i) for i in range(3))
    x = random(AXIS, AXIS, seed=5)

    def program(q, k, v, x):
        return attend(q, k, v), kind(x), kind(x.T)

    fused = heddle.jax.fuse(program)
    assert fused.lower(q, k, v, x).as_text().count("stablehlo.custom_call @heddle") == 1
    same(fused(q, k, v, x), jax.jit(program)(q, k, v, x))
    assert not faults()
