"""Gradients of sums and means of O, fused forward and backward, beside the originals in XLA and beside f64: dO is a
number, or the same along some of its axes, under masks, biases, dropout and shared key heads."""

import heddle.jax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

try:
    from jax import enable_x64
except ImportError:  # as older versions have it
    from jax.experimental import enable_x64

B, G, R, Q, K, D, V = 2, 2, 3, 10, 14, 8, 16
H = G * R
CAUSAL = np.tril(np.ones((Q, K), bool))


def random(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def attend(q, k, v, mask=None, bias=None, key=None):
    k, v = (jnp.repeat(x, q.shape[2] // x.shape[2], axis=2) for x in (k, v))
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) * D**-0.5
    if bias is not None:
        s = s + bias
    if mask is not None:
        s = jnp.where(mask, s, -1e30)
    p = jax.nn.softmax(s, axis=-1)
    if key is not None:
        p = jnp.where(jax.random.bernoulli(jax.random.wrap_key_data(key), np.float32(0.75), p.shape), p / 0.75, 0)
    return jnp.einsum("bhqk,bkhd->bqhd", p, v)


HIDDEN = np.random.default_rng(3).random((B, 1, 1, K)) < 0.6
HIDDEN[0] = False  # an entry hidden whole
ATTENTIONS = {
    "plain": (H, {}),
    "causal": (H, {"mask": CAUSAL}),
    "causal in groups": (G, {"mask": CAUSAL}),
    "one key head": (1, {}),
    "padding": (H, {"mask": HIDDEN}),
    "padding in groups": (G, {"mask": HIDDEN}),
    "bias": (H, {"bias": random(B, H, Q, K, seed=5)}),
    "dropout": (H, {"key": np.asarray([7, 9], np.uint32)}),
    "dropout beside causal in groups": (G, {"mask": CAUSAL, "key": np.asarray([7, 9], np.uint32)}),
}
LOSSES = {
    "sum": (lambda o, w: o.sum(), ()),
    "mean": (lambda o, w: o.mean(), ()),
    "sum times a number": (lambda o, w: (w * o).sum(), ()),
    "square of a sum": (lambda o, w: (o + 1).sum() ** 2, ()),
    "sums over columns": (lambda o, w: (w * o.sum(3)).sum(), (B, Q, H)),
    "sums over rows": (lambda o, w: (w * o.sum(1)).sum(), (B, H, V)),
    "by head": (lambda o, w: (w[:, None] * o).sum(), (H,)),
    "by row": (lambda o, w: (w[:, None, None] * o).sum(), (Q,)),
    "by column": (lambda o, w: (w * o).mean(), (V,)),
    "by entry": (lambda o, w: (w[:, None, None, None] * o).sum(), (B,)),
}


def step(loss, value):
    """A function of q, k, v, the mask or what else the attention is given, and what weighs its loss."""
    def f(q, k, v, given, w):
        return LOSSES[loss][0](attend(q, k, v, **given), w)

    return (jax.value_and_grad if value else jax.grad)(f, (0, 1, 2))


def distance(found, expected):
    """Relative; but a loss, whose terms cancel, is of size 1 at least."""
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    return np.linalg.norm(found - expected) / max(np.linalg.norm(expected), 1.0 if expected.ndim == 0 else 1e-30)


CASES = [("causal in groups", loss, value) for loss in LOSSES for value in (False, True)]
CASES += [(attention, "mean", True) for attention in ATTENTIONS if attention != "causal in groups"]
CASES += [(attention, "by row", False) for attention in ATTENTIONS if attention != "causal in groups"]


@pytest.mark.parametrize("attention, loss, value", CASES)
def test_gradients_of_a_sum_are_fused_and_right(attention, loss, value):
    heads, given = ATTENTIONS[attention]
    inputs = [random(B, Q, H, D, seed=1), random(B, K, heads, D, seed=2), random(B, K, heads, V, seed=3), given,
              np.float32(2) + random(*LOSSES[loss][1], seed=4)]
    f = step(loss, value)
    fused = heddle.jax.fuse(f)
    assert fused.lower(*inputs).as_text().count("stablehlo.custom_call @heddle") == 2
    with enable_x64(True):
        wide = lambda x: jnp.asarray(x, jnp.float64 if x.dtype == np.float32 else x.dtype)
        exact = jax.tree.map(np.asarray, jax.jit(f)(*jax.tree.map(wide, inputs)))
    assert all(x.dtype == np.float64 for x in jax.tree.leaves(exact))
    for e, o, g in zip(*map(jax.tree.leaves, (exact, jax.jit(f)(*inputs), fused(*inputs))), strict=True):
        assert np.linalg.norm(e) > 0
        assert distance(g, e) <= 2 * distance(o, e) + 2e-6
