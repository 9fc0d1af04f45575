"""How heads, scale and softmax are written."""

import jax
import jax.numpy as jnp
from jax import lax

from forms.form import B, D, G, H, K, KB, KG, KH, OB, OH, Q, QB, QH, R, V, VB, VG, VH, both, causal, shape, softmax


@both(QH, KH, VH, out=OH)
def heads_first(q, k, v):
    return softmax(q @ k.swapaxes(-1, -2) * D**-0.5) @ v


@both(shape(Q, D), shape(K, D), shape(K, V), out=shape(Q, V))
def one_head(q, k, v):
    return softmax(q @ k.T / D**0.5) @ v


@both(shape(H, Q, D), shape(H, K, D), shape(H, K, V), out=shape(H, Q, V))
def no_batch(q, k, v):
    return softmax(jnp.einsum("hqd,hkd->hqk", q, k)) @ v


@both(QB, KB, VB, out=OB)
def scaled_queries(q, k, v):
    s = jnp.einsum("bqhd,bkhd->bhqk", q * D**-0.5, k)
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(jnp.where(causal(offset=K - Q), s, -1e9)), v)


@both(QB, KB, VB, out=OB)
def scaled_twice(q, k, v):
    s = jnp.einsum("bqhd,bkhd->bhqk", q * 3.0, k / 7.0) / 2.0
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(s), v)


@both(QB, KB, VB, out=OB)
def no_maximum(q, k, v):
    e = jnp.exp(jnp.einsum("bqhd,bkhd->bhqk", q, k) * D**-0.5)
    return jnp.einsum("bhqk,bkhd->bqhd", e / e.sum(-1, keepdims=True), v)


@both(QB, KB, VB, out=OB)
def gradient_through_maximum(q, k, v):
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) * D**-0.5
    e = jnp.exp(s - s.max(-1, keepdims=True))
    return jnp.einsum("bhqk,bkhd->bqhd", e / e.sum(-1, keepdims=True), v)


@both(QB, KB, VB, out=OB)
def by_logarithm(q, k, v):
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) * D**-0.5
    return jnp.einsum("bhqk,bkhd->bqhd", jnp.exp(jax.nn.log_softmax(s)), v)


@both(QB, KB, VB, out=OB)
def normalised_late(q, k, v):
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) * D**-0.5
    e = jnp.exp(s - lax.stop_gradient(s.max(-1, keepdims=True)))
    o = jnp.einsum("bhqk,bkhd->bqhd", e, v)
    return o / jnp.einsum("bhqo->bqho", e.sum(-1, keepdims=True))


@both(QB, KB, VB, out=OB)
def renormalised(q, k, v):
    """By a sum that is 1, and an epsilon."""
    p = softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k))
    return jnp.einsum("bhqk,bkhd->bqhd", p / (p.sum(-1, keepdims=True) + 1e-6), v)


@both(QB, KG, VG, out=OB)
def grouped_by_repeat(q, k, v):
    k, v = jnp.repeat(k, R, 2), jnp.repeat(v, R, 2)
    s = jnp.where(causal(), jnp.einsum("bqhd,bkhd->bhqk", q, k), -1e30)
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(s), v)


@both(QB, KG, VG, out=OB)
def grouped_by_tile(q, k, v):
    k, v = jnp.tile(k, (1, 1, R, 1)), jnp.tile(v, (1, 1, R, 1))
    s = jnp.where(causal(), jnp.einsum("bqhd,bkhd->bhqk", q, k), -1e30)
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(s), v)


@both(QB, KG, VG, out=OB)
def grouped_by_einsum(q, k, v):
    q = q.reshape(B, Q, G, R, D)
    s = jnp.where(causal(), jnp.einsum("bqgrd,bkgd->bgrqk", q, k), -1e30)
    return jnp.einsum("bgrqk,bkgd->bqgrd", softmax(s), v).reshape(B, Q, H, V)


@both(QB, shape(B, K, D), shape(B, K, V), out=OB)
def one_key_head(q, k, v):
    s = jnp.where(causal(), jnp.einsum("bqhd,bkd->bhqk", q, k), -1e30)
    return jnp.einsum("bhqk,bkd->bqhd", softmax(s), v)


@both(shape(B, Q, H, D), shape(B, 64, H, D), shape(B, 64, H, V), shape(Q, 2, 2, 2, 2, 2, 2), out=OB)
def keys_of_many_digits(q, k, v, bias):
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) + bias.transpose(0, 6, 5, 4, 3, 2, 1).reshape(Q, 64)
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(s), v)


@both(shape(B, Q, H, 5), shape(B, K, G, 5), shape(B, K, G, 12), out=shape(B, Q, H, 12))
def odd_depths(q, k, v):
    return grouped_by_repeat(q, k, v)


@both(QB, KB, shape(B, K, H, 3), shape(B, 1, Q, K, dtype=jnp.bool_), out=shape(B, Q, H, 3))
def odd_value_depth_and_mask(q, k, v, mask):
    s = jnp.where(mask, jnp.einsum("bqhd,bkhd->bhqk", q, k), -1e9)
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(s), v)
