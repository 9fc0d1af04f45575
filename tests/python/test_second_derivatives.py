"""Derivatives of gradients, whose attention lies in a loop and in what the loop's state is made of."""

import heddle.jax
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

B, H, Q, K, D = 2, 2, 5, 12, 16


def attend(q, k, v, sink, keep):
    v = v.reshape(B, K, H, D)
    s = (jnp.transpose(q, (0, 2, 1, 3))[:, :, :, None, :] * jnp.transpose(k, (0, 2, 1, 3))[:, :, None, :, :]).sum(-1)
    s = (s / 2.5).astype(jnp.bfloat16)
    m = lax.stop_gradient(jnp.maximum(s.max(-1, keepdims=True), sink[:, None, None]))
    e = jnp.exp(s - m)
    p = e / (e.sum(-1, keepdims=True) + jnp.exp(sink[:, None, None] - m)) * keep / 0.75
    return jnp.einsum("bhqk,bkhv->bhvq", p, v).astype(jnp.float16)


def like(o, x):
    return jnp.resize(o.astype(jnp.float32).ravel(), x.size).reshape(x.shape).astype(x.dtype)


def second_derivative(q, k, v, sink, keep):
    def loss(k, v, sink):
        o = lax.fori_loop(0, 1, lambda i, x: x + 0.1 * like(attend(x, k, v, sink, keep), x), q)
        return jnp.sum(o.astype(jnp.float32) * jnp.cos(jnp.arange(o.size) * 1.7).reshape(o.shape))

    return jax.grad(lambda *x: sum(jnp.sum(g * g) for g in jax.grad(loss, (0, 1, 2))(*x)), (0, 1, 2))(k, v, sink)


def test_through_a_loop():
    """Whatever of it is fused or not: the process lives, and the results are XLA's own as far as bf16 goes."""
    rng = np.random.default_rng(0)
    q, k = (jnp.asarray(rng.standard_normal((B, n, H, D)), jnp.bfloat16) for n in (Q, K))
    v = jnp.asarray(rng.standard_normal((B, K, H * D)), jnp.bfloat16)
    sink = jnp.asarray(rng.standard_normal(H), jnp.float32)
    keep = jnp.asarray(rng.random((B, H, Q, K)) < 0.75, jnp.float32)
    made = jax.jit(heddle.jax.fuse(second_derivative))(q, k, v, sink, keep)
    true = jax.jit(second_derivative)(q, k, v, sink, keep)
    for a, b in zip(made, true, strict=True):
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        assert np.abs(a - b).max() <= 5e-2 * np.abs(b).max()
