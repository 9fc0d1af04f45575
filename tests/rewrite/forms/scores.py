"""What is done to scores: biases, ALiBi, soft cap."""

import jax.numpy as jnp
from jax import lax

from forms.form import B, D, G, H, K, KB, OB, Q, QB, R, V, VB, both, causal, shape, softmax


@both(QB, KB, VB, shape(H, Q, K), out=OB)
def bias_per_head(q, k, v, bias):
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) * D**-0.5 + bias
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(s), v)


@both(QB, KB, VB, shape(B, H, Q, K), out=OB)
def bias_full(q, k, v, bias):
    s = jnp.where(causal(), jnp.einsum("bqhd,bkhd->bhqk", q, k) * D**-0.5 + bias, -jnp.inf)
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(s), v)


def distances(dtype=jnp.int32):
    return jnp.arange(K, dtype=dtype)[None, :] - jnp.arange(Q, dtype=dtype)[:, None]


@both(QB, KB, VB, shape(H), out=OB)
def alibi(q, k, v, slopes):
    bias = lax.stop_gradient(slopes)[:, None, None] * distances().astype(jnp.float32)
    s = jnp.where(causal(offset=4), jnp.einsum("bqhd,bkhd->bhqk", q, k) * D**-0.5 + bias, -1e30)
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(s), v)


@both(shape(1, Q, H, D), shape(1, K, G, D), shape(1, K, G, V), out=shape(1, Q, H, V))
def alibi_of_constants(q, k, v):
    """One batch entry, slopes of the head's number, and distances without a sign."""
    slopes = 2.0 ** (-8.0 * (jnp.arange(H, dtype=jnp.float32) + 1) / H)
    s = jnp.einsum("bqgrd,bkgd->bgrqk", q.reshape(1, Q, G, R, D), k)
    s -= slopes.reshape(G, R)[:, :, None, None] * jnp.abs(distances(jnp.float32))
    return jnp.einsum("bgrqk,bkgd->bqgrd", softmax(s), v).reshape(1, Q, H, V)


@both(QB, KB, VB, shape(H), shape(B, H, Q, K), out=OB)
def alibi_and_bias(q, k, v, slopes, bias):
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) + bias
    s += lax.stop_gradient(slopes)[:, None, None] * jnp.arange(K, dtype=jnp.float32)
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(jnp.where(causal(offset=4), s, -1e30)), v)


@both(QB, KB, VB, shape(H), out=OB)
def alibi_trained(q, k, v, slopes):
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) + slopes[:, None, None] * distances().astype(jnp.float32)
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(s), v)


@both(QB, KB, VB, out=OB)
def soft_capped(q, k, v):
    s = 20.0 * jnp.tanh(jnp.einsum("bqhd,bkhd->bhqk", q, k) * (D**-0.5 / 20.0))
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(jnp.where(causal(), s, -1e30)), v)
