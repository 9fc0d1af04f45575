"""Gradients of a part of the keys, written with a log-sum-exp of all of them: each block of a backward fused, beside f64."""

import re

import heddle.jax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

try:
    from jax import enable_x64
except ImportError:  # before JAX 0.8
    from jax.experimental import enable_x64

B, H, G, Q, K, N, D, V = 2, 4, 2, 6, 12, 4, 8, 16  # blocks of N keys
SCALE = D**-0.5


def drawn(dtype=np.float32, seed=1):
    random = np.random.default_rng(seed)
    shapes = [(B, Q, H, D), (B, K, G, D), (B, K, G, V), (B, Q, H, V)]
    q, k, v, d_o = (random.standard_normal(shape).astype(np.float32) for shape in shapes)
    return [jnp.asarray(x, dtype) for x in (2 * q, k, v, d_o)]


def in_groups(x):
    return x.reshape(B, Q, G, H // G, -1)


def shown(first):
    """By causality, and by a pattern that leaves some rows nothing of a block."""
    keys = first + jnp.arange(N)
    return (keys <= 2 * jnp.arange(Q)[:, None]) & ((keys % 5 != 3) | (jnp.arange(Q)[:, None] % 2 == 0))


def scores(q, k, mask):
    s = jnp.einsum("btghd,bsgd->bghts", in_groups(q), k, preferred_element_type=jnp.float32) * SCALE
    return s if mask is None else jnp.where(mask, s, -jnp.inf)


def gradients(q, k, v, d_o, number, mean, mask=None):
    """dQ, dK and dV of one block, whose weights are exponentials less a number of each row."""
    p = jnp.exp(scores(q, k, mask) - number[..., None])
    d_v = jnp.einsum("bghts,btghd->bsgd", p.astype(d_o.dtype), in_groups(d_o), preferred_element_type=jnp.float32)
    d_p = jnp.einsum("btghd,bsgd->bghts", in_groups(d_o), v, preferred_element_type=jnp.float32)
    d_s = (p * (d_p - mean[..., None]) * SCALE).astype(q.dtype)
    d_q = jnp.einsum("bghts,bsgd->btghd", d_s, k, preferred_element_type=jnp.float32).reshape(q.shape)
    return d_q, jnp.einsum("bghts,btghd->bsgd", d_s, in_groups(q), preferred_element_type=jnp.float32), d_v


def blocks(x):
    return jnp.moveaxis(x.reshape(B, K // N, N, *x.shape[2:]), 1, 0)


def whole(x):
    return jnp.moveaxis(x, 0, 1).reshape(B, K, *x.shape[3:])


def blockwise(is_causal, unrolled):
    """Attention whose forward and backward go over blocks of keys, the latter by what the former kept."""
    def mask(first):
        return shown(first) if is_causal else None

    def forward(q, k, v):
        def one(state, x):
            o, m, l = state
            k, v, first = x
            s = scores(q, k, mask(first))
            largest = jnp.maximum(m, s.max(-1, keepdims=True))
            p, share = jnp.exp(s - largest), jnp.exp(m - largest)
            product = jnp.einsum("bghts,bsgd->bghtd", p.astype(v.dtype), v, preferred_element_type=jnp.float32)
            return (o * share + product, largest, l * share + p.sum(-1, keepdims=True)), None

        rows = (B, G, H // G, Q)
        start = jnp.zeros((*rows, V)), jnp.full((*rows, 1), -1e30), jnp.zeros((*rows, 1))
        (o, m, l), _ = lax.scan(one, start, (blocks(k), blocks(v), jnp.arange(0, K, N)))
        return jnp.moveaxis(o / l, 3, 1).reshape(B, Q, H, V), (m + jnp.log(l))[..., 0]

    @jax.custom_vjp
    def attend(q, k, v):
        return forward(q, k, v)[0]

    def kept(q, k, v):
        o, number = forward(q, k, v)
        return o, (q, k, v, o, number)

    def backward(kept, d_o):
        q, k, v, o, number = kept
        mean = jnp.einsum("btghd,btghd->bght", in_groups(o), in_groups(d_o.astype(jnp.float32)))
        d_o = d_o.astype(q.dtype)

        def one(d_q, x):
            k, v, first = x
            more, d_k, d_v = gradients(q, k, v, d_o, number, mean, mask(first))
            return d_q + more, (d_k, d_v)

        start, each = jnp.zeros(q.shape, jnp.float32), (blocks(k), blocks(v), jnp.arange(0, K, N))
        d_q, (d_k, d_v) = lax.scan(one, start, each, unroll=K // N if unrolled else 1)
        return tuple(d.astype(x.dtype) for d, x in zip((d_q, whole(d_k), whole(d_v)), (q, k, v), strict=True))

    attend.defvjp(kept, backward)
    return attend


def expected(q, k, v, d_o, number=None, mean=None, mask=None):
    """dQ, dK and dV in f64; of all keys where no numbers are given."""
    q, k, v, d_o = (np.asarray(x, np.float64) for x in (q, k, v, d_o))
    q, d_o = in_groups(q), in_groups(d_o)
    s = np.einsum("btghd,bsgd->bghts", q, k) * SCALE
    s = s if mask is None else np.where(mask, s, -np.inf)
    if number is None:
        number = np.log(np.exp(s).sum(-1))
    p = np.exp(s - np.asarray(number, np.float64)[..., None])
    if mean is None:
        mean = np.einsum("bghts,bsgd,btghd->bght", p, v, d_o)
    d_s = p * (np.einsum("btghd,bsgd->bghts", d_o, v) - np.asarray(mean, np.float64)[..., None]) * SCALE
    return (np.einsum("bghts,bsgd->btghd", d_s, k).reshape(B, Q, H, D), np.einsum("bghts,btghd->bsgd", d_s, q),
            np.einsum("bghts,btghd->bsgd", p, d_o))


def calls(fused, *arrays):
    return fused.lower(*arrays).as_text("hlo").count('custom_call_target="heddle"')


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize("unrolled", [False, True], ids=["scan", "unrolled"])
@pytest.mark.parametrize("is_causal", [False, True], ids=["all keys", "causal"])
def test_blocks_of_keys(is_causal, unrolled, dtype):
    attend = blockwise(is_causal, unrolled)
    arrays = drawn(dtype)

    def pulled_back(q, k, v, d_o):
        return jax.vjp(attend, q, k, v)[1](d_o.astype(jnp.float32))

    fused = heddle.jax.fuse(pulled_back)
    text, original = (f.lower(*arrays).as_text("hlo") for f in (fused, jax.jit(pulled_back)))
    # A forward of each block; and one with its gradient.
    assert text.count('custom_call_target="heddle"') == (1 + 2 * 3 if unrolled else 1 + 2)
    weights = re.compile(rf",{N}\]\S* exponential\(")
    assert weights.search(original) and not weights.search(text)
    mask = np.concatenate([np.asarray(shown(i)) for i in range(0, K, N)], -1) if is_causal else None
    for found, exact in zip(fused(*arrays), expected(*arrays, mask=mask), strict=True):
        error = np.linalg.norm(np.asarray(found, np.float64) - exact) / np.linalg.norm(exact)
        assert error < (2e-6 if dtype == jnp.float32 else 1e-2)


@pytest.mark.parametrize("above", [-60.0, -5.0, 0.0, 5.0, 60.0, 1e30])
def test_whatever_the_numbers_are(above):
    """Weights may be larger than 1, and the mean any other: no log-sum-exp and no rowsum(dO * O) is assumed."""
    q, k, v, d_o = drawn()
    k, v = k[:, :N], v[:, :N]
    random = np.random.default_rng(3)
    number = jnp.asarray(above + random.standard_normal((B, G, H // G, Q)), jnp.float32)
    mean = jnp.asarray(random.standard_normal((B, G, H // G, Q)), jnp.float32)
    fused = heddle.jax.fuse(gradients)
    assert calls(fused, q, k, v, d_o, number, mean) == 2
    for found, exact in zip(fused(q, k, v, d_o, number, mean), expected(q, k, v, d_o, number, mean), strict=True):
        np.testing.assert_allclose(found, exact, rtol=1e-4, atol=2e-5 * np.abs(exact).max())


def test_rows_that_see_none_of_the_keys():
    """Their weights are 0, less -inf too, where the program has NaN in all that sums them."""
    q, k, v, d_o = drawn()
    k, v = k[:, :N], v[:, :N]
    number, mean = np.random.default_rng(3).standard_normal((2, B, G, H // G, Q)).astype(np.float32)
    mask = np.ones((Q, N), bool)
    mask[2] = False
    masked = heddle.jax.fuse(lambda *x: gradients(*x, mask=mask))
    given = heddle.jax.fuse(lambda *x: gradients(*x[:-1], mask=x[-1]))
    assert calls(given, q, k, v, d_o, number, mean, mask) == 2
    infinite = number.copy()
    infinite[..., 2] = -np.inf
    for found in (masked(q, k, v, d_o, number, mean), given(q, k, v, d_o, number, mean, mask),
                  masked(q, k, v, d_o, infinite, mean), given(q, k, v, d_o, infinite, mean, mask)):
        for x, exact in zip(found, expected(q, k, v, d_o, number, mean, mask), strict=True):
            np.testing.assert_allclose(x, exact, rtol=1e-4, atol=2e-5 * np.abs(exact).max())


def mean_of_these_keys(q, k, v, d_o, number, mean):
    p = jnp.exp(scores(q, k, None) - number[..., None])
    d_p = jnp.einsum("btghd,bsgd->bghts", in_groups(d_o), v)
    return jnp.einsum("bghts,bsgd->btghd", p * (d_p - (p * d_p).sum(-1, keepdims=True)), k)


def mean_of_keys(q, k, v, d_o, number, mean):
    p = jnp.exp(scores(q, k, None) - number[..., None])
    d_p = jnp.einsum("btghd,bsgd->bghts", in_groups(d_o), v)
    return jnp.einsum("bghts,bsgd->btghd", p * (d_p - k[..., 0].swapaxes(1, 2)[:, :, None, None]), k)


def nothing_taken_off(q, k, v, d_o, number, mean):
    p = jnp.exp(scores(q, k, None) - number[..., None])
    return jnp.einsum("bghts,bsgd->btghd", p * jnp.einsum("btghd,bsgd->bghts", in_groups(d_o), v), k)


def weights_of_another_number(q, k, v, d_o, number, mean):
    """Those of dV beside those of dQ."""
    s = scores(q, k, None)
    d_p = jnp.einsum("btghd,bsgd->bghts", in_groups(d_o), v)
    d_s = jnp.exp(s - number[..., None]) * (d_p - mean[..., None])
    return jnp.einsum("bghts,bsgd->btghd", d_s * jnp.exp(s - mean[..., None]), k)


def weights_returned(q, k, v, d_o, number, mean):
    return *gradients(q, k, v, d_o, number, mean), jnp.exp(scores(q, k, None) - number[..., None])


@pytest.mark.parametrize("program", [mean_of_these_keys, mean_of_keys, nothing_taken_off, weights_of_another_number, weights_returned])
def test_what_looks_like_it_is_left_alone(program):
    q, k, v, d_o = drawn()
    numbers = jnp.asarray(np.random.default_rng(3).standard_normal((2, B, G, H // G, Q)), jnp.float32)
    arrays = q, k[:, :N], v[:, :N], d_o, *numbers
    fused = heddle.jax.fuse(program)
    assert calls(fused, *arrays) == 0
    for found, original in zip(jax.tree.leaves(fused(*arrays)), jax.tree.leaves(jax.jit(program)(*arrays)), strict=True):
        np.testing.assert_array_equal(found, original)


@pytest.mark.parametrize("of", [4, 5], ids=["number", "mean"])
def test_numbers_wider_than_a_calls_are_left_alone(of):
    with enable_x64(True):
        q, k, v, d_o = drawn(jnp.float32)
        numbers = jnp.zeros((2, B, G, H // G, Q), jnp.float32)
        arrays = [q, k[:, :N], v[:, :N], d_o, *numbers]
        arrays[of] = arrays[of].astype(jnp.float64)
        assert calls(heddle.jax.fuse(gradients), *arrays) == 0


def test_in_f16_it_is_left_alone():
    q, k, v, d_o = drawn(jnp.float16)
    numbers = jnp.zeros((2, B, G, H // G, Q), jnp.float32)
    assert calls(heddle.jax.fuse(gradients), q, k[:, :N], v[:, :N], d_o, *numbers) == 0
