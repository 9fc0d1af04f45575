"""Softmaxes over parts of the keys, put together by the program from each part's rows: fused, beside f64.

So do decoders whose prompt and whose tokens lie in caches of their own, and attention that goes over blocks of keys.
"""

import heddle.jax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

B, H, G, Q, D = 2, 4, 2, 5, 8
LOWEST = -0.7 * float(np.finfo(np.float32).max)


def random(*shape, seed, dtype=jnp.float32):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), dtype)


def masks(keys, seed, hidden=()):
    mask = np.random.default_rng(seed).random((B, keys)) < 0.6
    mask[:, 0] = True
    mask[list(hidden)] = False
    return jnp.asarray(mask)


def part(q, k, v, mask):
    """As a decoder with grouped heads has it: exponentials times values, and the maximum and the sum of each row."""
    s = jnp.einsum("btkgd,bskd->bkgts", q.reshape(B, -1, G, H // G, D), k, preferred_element_type=jnp.float32)
    s = jnp.where(mask[:, None, None, None], s, LOWEST)
    m = s.max(-1, keepdims=True)
    e = jnp.exp(s - m)
    of_rows = lambda x: jnp.moveaxis(x, 3, 1).reshape(B, -1, H, 1)
    return jnp.einsum("bkgts,bskd->btkgd", e, v).reshape(B, -1, H, D), of_rows(m), of_rows(e.sum(-1, keepdims=True))


def two_caches(q, k, v, k2, v2, first, second):
    (o, m, total), (o2, m2, total2) = part(q, k, v, first), part(q, k2, v2, second)
    most = jnp.maximum(m, m2)
    shares = jnp.exp(m - most), jnp.exp(m2 - most)
    return (shares[0] * o + shares[1] * o2) / (shares[0] * total + shares[1] * total2)


def expected(q, k, v, k2, v2, first, second):
    q, k, v, k2, v2 = (np.asarray(x, np.float64) for x in (q, k, v, k2, v2))
    k, v = (np.repeat(np.concatenate(x, 1), H // G, 2) for x in ((k, k2), (v, v2)))
    shown = np.concatenate([first, second], 1)[:, None, None]
    s = np.where(shown | ~shown.any(-1, keepdims=True), np.einsum("bqhd,bkhd->bhqk", q, k), -np.inf)
    s = np.where(shown.any(-1, keepdims=True), s, 0)  # of a row of fills alone all keys are alike
    e = np.exp(s - s.max(-1, keepdims=True))
    return np.einsum("bhqk,bkhd->bqhd", e / e.sum(-1, keepdims=True), v)


# Entries that the first cache, the second and both hide whole.
HIDDEN = {"none": ((), ()), "first": ((0,), ()), "second": ((), (1,)), "both": ((1,), (1,)), "each": ((0,), (1,))}


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize("rows", [1, Q])
@pytest.mark.parametrize("hidden", HIDDEN)
def test_two_caches(hidden, rows, dtype):
    sizes = [(rows, H), (9, G), (9, G), (70, G), (70, G)]
    arrays = [random(B, n, heads, D, seed=i, dtype=dtype) for i, (n, heads) in enumerate(sizes)]
    arrays += [masks(n, 7 + n, of) for n, of in zip((9, 70), HIDDEN[hidden], strict=True)]
    fused = heddle.jax.fuse(two_caches)
    text, scores = fused.lower(*arrays).as_text("hlo"), f"f32[{B},{G},{H // G},{rows},70]"
    assert text.count('custom_call_target="heddle"') == 2
    assert scores not in text and scores in jax.jit(two_caches).lower(*arrays).as_text("hlo")
    np.testing.assert_allclose(fused(*arrays), expected(*arrays), rtol=1e-5, atol=5e-6 if dtype == jnp.float32 else 2e-2)


def test_blocks_of_keys_in_a_loop():
    q, k, v = random(B, Q, H, D, seed=1), random(B, 12, G, D, seed=2), random(B, 12, G, D, seed=3)
    mask = masks(12, 4)

    def attend(q, k, v, mask):
        blocks = [jnp.moveaxis(x.reshape(B, 3, 4, *x.shape[2:]), 1, 0) for x in (k, v, mask)]
        o, m, total = lax.map(lambda x: part(q, *x), tuple(blocks))
        share = jnp.exp(m - m.max(0))
        return (share * o).sum(0) / (share * total).sum(0)

    fused = heddle.jax.fuse(attend)
    assert fused.lower(q, k, v, mask).as_text("hlo").count('custom_call_target="heddle"') == 1
    halves = [half for x in (k, v) for half in (x[:, :5], x[:, 5:])]
    truth = expected(q, halves[0], halves[2], halves[1], halves[3], mask[:, :5], mask[:, 5:])
    np.testing.assert_allclose(fused(q, k, v, mask), truth, rtol=1e-5, atol=5e-6)


def test_maximum_in_a_narrow_type_stays():
    """There it is another number than a call has, and so is the sum of what is left of the scores."""
    def attend(q, k, v):
        s = jnp.einsum("bqhd,bkhd->bhqk", q, k)
        m = s.max(-1, keepdims=True)
        e = jnp.exp(s - m)
        return jnp.einsum("bhqk,bkhd->bqhd", e, v), m, e.sum(-1)

    arrays = [random(B, Q, H, D, seed=i, dtype=jnp.bfloat16) for i in range(3)]
    assert 'custom_call_target="heddle"' not in heddle.jax.fuse(attend).lower(*arrays).as_text("hlo")
    assert jax.tree.all(jax.tree.map(lambda a, b: (a == b).all(), heddle.jax.fuse(attend)(*arrays), jax.jit(attend)(*arrays)))
