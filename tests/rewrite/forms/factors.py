"""Factors between the weights and the values: masks of heads, gates of rows and of keys."""

import jax
import jax.numpy as jnp

from forms.dropout import dropped
from forms.form import B, D, FORMS, G, H, K, KB, KG, KH, OB, OH, Q, QB, QH, R, V, VB, VG, VH, both, causal, shape, softmax


def weights(q, k):
    return softmax(jnp.where(causal(), jnp.einsum("bqhd,bkhd->bhqk", q, k) * D**-0.5, -1e30))


def weighed(p, v):
    return jnp.einsum("bhqk,bkhd->bqhd", p, v)


@both(QB, KB, VB, shape(H), out=OB)
def weighed_by_heads(q, k, v, of_heads):
    """As BERT's mask of heads is written in Flax."""
    return weighed(jnp.einsum("...hqk,h->...hqk", weights(q, k), of_heads), v)


@both(QB, KB, VB, shape(1, H, 1, 1), out=OB)
def weights_times_heads(q, k, v, of_heads):
    return weighed(weights(q, k) * of_heads, v)


@both(QB, KG, VG, shape(H), out=OB)
def weighed_by_heads_in_groups(q, k, v, of_heads):
    p = weights(q, jnp.repeat(k, R, 2)) * of_heads[:, None, None]
    return weighed(p, jnp.repeat(v, R, 2))


@both(QB, KG, VG, shape(G, R), out=OB)
def weighed_by_heads_of_groups(q, k, v, of_heads):
    s = jnp.einsum("bqgrd,bkgd->bgrqk", q.reshape(B, Q, G, R, D), k)
    return jnp.einsum("bgrqk,bkgd->bqgrd", softmax(s) * of_heads[..., None, None], v).reshape(B, Q, H, V)


@both(QH, KH, VH, shape(B, H, Q, 1), out=OH)
def weighed_by_rows(q, k, v, of_rows):
    return (softmax(q @ k.swapaxes(-1, -2)) * of_rows) @ v


@both(QB, KB, VB, shape(B, H, 1, K), out=OB)
def weighed_by_keys(q, k, v, of_keys):
    return weighed(weights(q, k) * of_keys, v)


@both(QB, KB, VB, shape(K), out=OB)
def weighed_by_keys_of_all(q, k, v, of_keys):
    return weighed(of_keys * weights(q, k), v)


@both(QB, KB, VB, shape(), out=OB)
def weighed_by_a_number(q, k, v, number):
    return weighed(weights(q, k) * number, v)


@both(QB, KB, VB, shape(B, H, Q), shape(B, K), out=OB)
def weighed_by_rows_and_keys(q, k, v, of_rows, of_keys):
    return weighed(weights(q, k) * of_rows[..., None] * of_keys[:, None, None], v)


@both(QB, KB, VB, shape(B, H), out=OB)
def weights_divided_by_heads(q, k, v, of_heads):
    return weighed(weights(q, k) / jnp.exp(of_heads)[..., None, None], v)


@both(QB, KB, VB, shape(H), shape(2, dtype=jnp.uint32), out=OB)
def dropped_and_weighed_by_heads(q, k, v, of_heads, key):
    p = weights(q, k)
    p = dropped(p, jax.random.wrap_key_data(key), p.shape)
    return weighed(jnp.einsum("...hqk,h->...hqk", p, of_heads), v)


@both(QB, KB, VB, shape(H), shape(2, dtype=jnp.uint32), out=OB)
def weighed_by_heads_and_dropped(q, k, v, of_heads, key):
    p = weights(q, k) * of_heads[:, None, None]
    return weighed(dropped(p, jax.random.wrap_key_data(key), p.shape), v)


@both(QB, KB, VB, shape(B, 1, 1, K), shape(2, dtype=jnp.uint32), out=OB)
def weighed_by_keys_and_dropped(q, k, v, of_keys, key):
    p = weights(q, k) * of_keys
    return weighed(dropped(p, jax.random.wrap_key_data(key), p.shape), v)


@both(QB, KB, VB, shape(H), shape(B, 1, 1, K, dtype=jnp.bool_), out=OB)
def weighed_by_heads_and_masked_twice(q, k, v, of_heads, mask):
    s = jnp.where(mask, jnp.einsum("bqhd,bkhd->bhqk", q, k), -1e30)
    return weighed(jnp.where(mask, softmax(s) * of_heads[:, None, None], 0), v)


@both(*(shape(*each.shape, dtype=jnp.bfloat16) for each in (QB, KB, VB)), shape(H, dtype=jnp.bfloat16),
      out=shape(*OB.shape, dtype=jnp.bfloat16))
def weighed_by_heads_in_bf16(q, k, v, of_heads):
    p = softmax((jnp.einsum("bqhd,bkhd->bhqk", q, k)).astype(jnp.float32)).astype(jnp.bfloat16)
    return weighed(jnp.einsum("...hqk,h->...hqk", p, of_heads), v)


def layers_weighed_by_heads(x, weights, of_heads):
    """Each layer its own mask of heads."""
    def layer(x, per_layer):
        w, mask = per_layer
        q, k, v = ((x @ w[i]).reshape(B, Q, H, D) for i in range(3))
        p = softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k) * D**-0.5)
        o = weighed(jnp.einsum("...hqk,h->...hqk", p, mask), v)
        return x + jnp.tanh(o.reshape(x.shape) @ w[3]), None

    return jnp.sum(jax.lax.scan(layer, x, (weights, of_heads))[0] ** 2)


SCANNED = shape(B, Q, H * D), shape(3, 4, H * D, H * D), shape(3, H)
FORMS["scan_weighed_by_heads"] = (jax.grad(layers_weighed_by_heads, (0, 1, 2)), SCANNED)


def shown(mask, p, otherwise=0.0):
    """Weights of rows that see a key."""
    return jnp.where(mask.any(-1, keepdims=True), p, otherwise)


@both(QB, KB, VB, shape(B, 1, Q, K, dtype=jnp.bool_), out=OB)
def weights_of_rows_without_keys_dropped(q, k, v, mask):
    return weighed(shown(mask, softmax(jnp.where(mask, jnp.einsum("bqhd,bkhd->bhqk", q, k), -jnp.inf))), v)


@both(QB, KB, VB, shape(B, 1, Q, K, dtype=jnp.bool_), shape(H), shape(2, dtype=jnp.uint32), out=OB)
def weights_of_filled_rows_dropped_and_weighed(q, k, v, mask, of_heads, key):
    p = shown(mask, softmax(jnp.where(mask, jnp.einsum("bqhd,bkhd->bhqk", q, k), -1e30)))
    return weighed(dropped(p, jax.random.wrap_key_data(key), p.shape) * of_heads[:, None, None], v)


@both(QB, KB, VB, shape(B, Q, dtype=jnp.bool_), out=OB)
def weights_of_chosen_rows(q, k, v, rows):
    return weighed(jnp.where(rows[:, None, :, None], weights(q, k), 0.0), v)


@both(QB, KB, VB, shape(B, 1, Q, K, dtype=jnp.bool_), out=OB)
def weights_that_are_no_numbers_dropped(q, k, v, mask):
    p = softmax(jnp.where(mask, jnp.einsum("bqhd,bkhd->bhqk", q, k), -jnp.inf))
    return weighed(jnp.where(jnp.isnan(p), 0, p), v)


@both(QB, KB, VB, shape(B, 1, Q, K, dtype=jnp.bool_), out=OB)
def weights_and_scores_made_numbers(q, k, v, mask):
    s = jnp.nan_to_num(jnp.einsum("bqhd,bkhd->bhqk", q * D**-0.5, k))
    return weighed(jnp.nan_to_num(softmax(jnp.where(mask, s, -jnp.inf))), v)
