"""Dropout of the probabilities."""

import jax
import jax.numpy as jnp

from forms.form import B, H, K, KB, OB, Q, QB, VB, both, causal, shape, softmax


def dropped(p, key, shape, probability=0.75):
    return jnp.where(jax.random.bernoulli(key, probability, shape), p / probability, 0)


@both(QB, KB, VB, shape(B, 1, Q, K, dtype=jnp.bool_), shape(2, dtype=jnp.uint32), out=OB)
def mask_is_data_and_dropout(q, k, v, mask, key):
    s = jnp.where(mask, jnp.einsum("bqhd,bkhd->bhqk", q, k), -1e30)
    p = softmax(s)
    return jnp.einsum("bhqk,bkhd->bqhd", dropped(p, jax.random.wrap_key_data(key), p.shape), v)


@both(QB, KB, VB, shape(B, 1, Q, K, dtype=jnp.bool_), shape(2, dtype=jnp.uint32), out=OB)
def mask_is_data_twice_and_dropout(q, k, v, mask, key):
    s = jnp.where(mask, jnp.einsum("bqhd,bkhd->bhqk", q, k), -1e9)
    p = jnp.where(mask, softmax(s), 0.0)
    return jnp.einsum("bhqk,bkhd->bqhd", dropped(p, jax.random.wrap_key_data(key), p.shape), v)


@both(QB, KB, VB, shape(H, Q, K), shape(B, 1, 1, K), shape(2, dtype=jnp.uint32), out=OB)
def biases_and_dropout(q, k, v, of_heads, of_entries, key):
    """Both biases trained, each of which has a call."""
    p = softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k) + of_heads + of_entries)
    return jnp.einsum("bhqk,bkhd->bqhd", dropped(p, jax.random.wrap_key_data(key), p.shape), v)


@both(QB, KB, VB, shape(2, dtype=jnp.uint32), out=OB)
def dropped_out(q, k, v, key):
    p = softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k))
    keep = jax.random.bernoulli(jax.random.wrap_key_data(key), 0.75, p.shape)
    return jnp.einsum("bhqk,bkhd->bqhd", jnp.where(keep, p / 0.75, 0), v)


@both(*(shape(*each.shape, dtype=jnp.bfloat16) for each in (QB, KB, VB)), shape(2, dtype=jnp.uint32),
      out=shape(*OB.shape, dtype=jnp.bfloat16))
def dropped_in_bf16(q, k, v, key):
    """What is kept is divided by 0.9 rounded to bf16: 1.3e-3 more than the share that is kept says."""
    p = softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k))
    return jnp.einsum("bhqk,bkhd->bqhd", dropped(p, jax.random.wrap_key_data(key), p.shape, 0.9).astype(v.dtype), v)


@both(QB, KB, VB, shape(2, dtype=jnp.uint32), out=OB)
def dropped_by_fold_in(q, k, v, key):
    p = softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k))
    key = jax.random.split(jax.random.fold_in(jax.random.wrap_key_data(key), 7))[1]
    return jnp.einsum("bhqk,bkhd->bqhd", dropped(p, key, p.shape, 0.9), v)


@both(QB, KB, VB, shape(2, dtype=jnp.uint32), out=OB)
def dropped_by_keys_of_keys(q, k, v, key):
    """As deep as layers of models hand keys on. Once XLA has inlined it, a key is a sum of keys before it, each several
    times: written out, a power of the depth."""
    key = jax.random.wrap_key_data(key)
    for layer in range(7):
        key = jax.random.fold_in(jax.random.split(key)[layer % 2], layer)
    p = softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k))
    return jnp.einsum("bhqk,bkhd->bqhd", dropped(p, key, p.shape), v)


@both(QB, KB, VB, shape(2, dtype=jnp.uint32), out=OB)
def dropped_for_all_heads(q, k, v, key):
    p = softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k))
    return jnp.einsum("bhqk,bkhd->bqhd", dropped(p, jax.random.wrap_key_data(key), (B, 1, Q, K)), v)


@both(QB, KB, VB, shape(2, dtype=jnp.uint32), out=OB)
def dropped_transposed(q, k, v, key):
    p = softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k)).transpose(1, 0, 3, 2)
    p = dropped(p, jax.random.wrap_key_data(key), p.shape)
    return jnp.einsum("hbkq,bkhd->bqhd", p, v)


@both(QB, KB, VB, shape(2, dtype=jnp.uint32), out=OB)
def dropped_with_scaled_queries(q, k, v, key):
    p = softmax(jnp.einsum("bqhd,bkhd->bhqk", q * 0.3, k))
    keep = jax.random.bernoulli(jax.random.wrap_key_data(key), 0.9, p.shape)
    return jnp.einsum("bhqk,bkhd->bqhd", p * (keep / 0.9), v)


@both(QB, KB, VB, shape(4, dtype=jnp.uint32), out=OB)
def dropped_by_generator(q, k, v, key):
    p = softmax(jnp.where(causal(offset=4), jnp.einsum("bqhd,bkhd->bhqk", q, k), -1e30))
    p = dropped(p, jax.random.wrap_key_data(key, impl="rbg"), p.shape)
    return jnp.einsum("bhqk,bkhd->bqhd", p, v)


@both(QB, KB, VB, shape(2, dtype=jnp.uint32), out=OB)
def drawn_to_be_dropped(q, k, v, key):
    """What is not below the share that is kept: uniform numbers are never NaN, so that the rest is below it."""
    p = softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k))
    drop = jax.random.uniform(jax.random.wrap_key_data(key), p.shape) >= 0.75
    return jnp.einsum("bhqk,bkhd->bqhd", jnp.where(drop, 0, p / 0.75), v)


@both(QB, KB, VB, shape(2, dtype=jnp.uint32), out=OB)
def dropped_by_a_draw_of_the_rate(q, k, v, key):
    """Numbers below the rate are dropped: a call, which keeps those below a share, draws another mask of the same bits."""
    p = softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k))
    drop = jax.random.bernoulli(jax.random.wrap_key_data(key), 0.25, p.shape)
    return jnp.einsum("bhqk,bkhd->bqhd", p * ~drop / 0.75, v)


@both(QB, KB, VB, shape(B, 1, Q, K, dtype=jnp.bool_), shape(B, H, Q, K, dtype=jnp.bool_), out=OB)
def given_to_be_dropped_and_masked_twice(q, k, v, mask, drop):
    """Divided by a power of two, which f32 holds as it is: what is kept of large numbers is as large, and its gradient nearly 0."""
    p = softmax(jnp.where(mask, jnp.einsum("bqhd,bkhd->bhqk", q, k), -1e9))
    p = jnp.where(mask, p, 0.0) * (1 - drop.astype(jnp.uint8)).astype(p.dtype)
    return jnp.einsum("bhqk,bkhd->bqhd", p / 0.5, v)
