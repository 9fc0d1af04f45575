"""What differs along an axis along which something else is shared: entry 0's or head 0's must not serve for all."""

import jax
import jax.numpy as jnp
from jax import lax

from forms.form import B, D, FORMS, G, H, K, KB, KG, OB, Q, QB, R, V, VB, VG, both, form, shape, softmax
from forms.heads import grouped_by_repeat

Q1, K1 = shape(Q, H, D), shape(K, H, D)
SCORES = "qhd,khd->hqk"


def rotated(x, angle):
    """x [B, S, H, D] by angles [B or 1, S, H or 1, D/2]."""
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    a, b = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def angles(positions):
    return positions[..., None, None].astype(jnp.float32) / 10.0 ** (jnp.arange(0, D, 2) / D)


@both(QB, KG, VG, shape(B, Q, dtype=jnp.int32), shape(B, K, dtype=jnp.int32), out=OB)
def rope_by_positions_of_entries(q, k, v, of_rows, of_keys):
    return grouped_by_repeat(rotated(q, angles(of_rows % 50)), rotated(k, angles(of_keys % 50)), v)


@both(QB, KG, VG, shape(B, K, dtype=jnp.int32), out=OB)
def rope_of_keys_by_entries(q, k, v, of_keys):
    return grouped_by_repeat(rotated(q, angles(jnp.arange(Q)[None])), rotated(k, angles(of_keys % 50)), v)


@both(QB, KB, VB, shape(H), out=OB)
def rope_by_heads(q, k, v, speed):
    turn = lambda x: rotated(x, angles(jnp.arange(x.shape[1])[None]) * lax.stop_gradient(speed)[:, None])
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(jnp.einsum("bqhd,bkhd->bhqk", turn(q), turn(k))), v)


@form(Q1, K1, VB, shape(B, H, Q, K))
def shared_scores_and_bias(q, k, v, bias):
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(jnp.einsum(SCORES, q, k)[None] + bias), v)


@form(Q1, K1, VB, shape(B, K, dtype=jnp.bool_))
def shared_scores_and_padding(q, k, v, mask):
    s = jnp.where(mask[:, None, None], jnp.einsum(SCORES, q, k)[None], -1e30)
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(s), v)


@form(Q1, K1, VB, shape(B, H))
def shared_scores_and_slopes(q, k, v, slopes):
    s = jnp.einsum(SCORES, q, k)[None] + slopes[:, :, None, None] * jnp.arange(K, dtype=jnp.float32)
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(s), v)


@form(Q1, K1, VB, shape(B, H, Q, K, dtype=jnp.bool_))
def shared_scores_and_dropout(q, k, v, keep):
    p = jnp.where(keep, softmax(jnp.einsum(SCORES, q, k))[None] / 0.75, 0.0)
    return jnp.einsum("bhqk,bkhd->bqhd", p, v)


@form(shape(B, Q, D), shape(B, K, D), VB, shape(H, Q, K))
def heads_share_scores_but_biases(q, k, v, bias):
    s = jnp.einsum("bqd,bkd->bqk", q, k)[:, None] + bias
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(s), v)


@form(Q1, K1, VB)
def shared_scores(q, k, v):
    """Nothing differs but the values: their entries stand beside one another."""
    return jnp.einsum("hqk,bkhd->bqhd", softmax(jnp.einsum(SCORES, q, k)), v)


def with_bias_of_key_heads(q, k, v, bias):
    """A trained bias that the query heads of a key head share."""
    s = jnp.einsum("bqgrd,bkgd->bgrqk", q.reshape(B, Q, G, R, D), k) + bias[:, None]
    return jnp.einsum("bgrqk,bkgd->bqgrd", softmax(s), v).reshape(B, Q, H, V)


both(QB, KG, VG, shape(G, Q, K), out=OB)(with_bias_of_key_heads)


@both(QB, KG, VG, shape(B, G, Q, K, dtype=jnp.bfloat16), out=OB)
def bias_of_key_heads_in_bf16(q, k, v, bias):
    return with_bias_of_key_heads(q, k, v, bias[0].astype(jnp.float32) + bias[1])


def layers_beside(what):
    """A scan over layers whose scores hold a term, in 16 bits outside of the loop and widened before it."""

    def loss(x, weights, term):
        term = what(term.astype(jnp.float32))

        def layer(x, w):
            q, k, v = ((x @ w[i]).reshape(B, Q, H, D) for i in range(3))
            s = jnp.einsum("bqhd,bkhd->bhqk", q, k) * D**-0.5 + term
            return x + jnp.tanh(jnp.einsum("bhqk,bkhd->bqhd", softmax(s), v).reshape(x.shape) @ w[3]), None

        return jnp.sum(lax.scan(layer, x, weights)[0] ** 2)

    return jax.value_and_grad(loss, (0, 1))


LAYERS = shape(B, Q, H * D), shape(3, 4, H * D, H * D)
FORMS["scan_with_widened_bias"] = (layers_beside(lambda x: x), (*LAYERS, shape(H, Q, Q, dtype=jnp.bfloat16)))
FORMS["scan_with_widened_slopes"] = (layers_beside(lambda x: x[:, None, None] * jnp.arange(Q, dtype=jnp.float32)),
                                     (*LAYERS, shape(H, dtype=jnp.float16)))


# Queries that no batch entry has of its own, as learned ones are; nothing is broadcast.

@both(shape(Q, H, D), KB, VB, shape(B, K, dtype=jnp.bool_), out=OB)
def queries_of_all_entries(q, k, v, mask):
    s = jnp.where(mask[:, None, None], jnp.einsum("qhd,bkhd->bhqk", q, k) * D**-0.5, -1e30)
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(s), v)


@both(shape(Q, D), shape(B, K, D), shape(B, K, V), out=shape(B, Q, V))
def queries_mapped_over_none(q, k, v):
    return jax.vmap(lambda q, k, v: softmax(q @ k.T) @ v, (None, 0, 0))(q, k, v)


@both(shape(H, D), KB, VB, out=shape(B, H, V))
def one_query_of_all_entries(q, k, v):
    return jnp.einsum("bhk,bkhd->bhd", softmax(jnp.einsum("hd,bkhd->bhk", q, k)), v)


# Nor values that no entry, or no head, has of its own; nor keys.

@both(QB, KB, shape(K, V), shape(B, Q, K, dtype=jnp.bool_), out=OB)
def values_of_all_heads_and_entries(q, k, v, mask):
    s = jnp.where(mask[:, None], jnp.einsum("bqhd,bkhd->bhqk", q, k), -1e30)
    return jnp.einsum("bhqk,kd->bqhd", softmax(s), v)


@both(QB, K1, VB, out=OB)
def keys_of_all_entries(q, k, v):
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(jnp.einsum("bqhd,khd->bhqk", q, k)), v)


@both(shape(Q, H, D), KB, shape(K, H, V), out=OB)
def keys_alone_of_each_entry(q, k, v):
    return jnp.einsum("bhqk,khd->bqhd", softmax(jnp.einsum("qhd,bkhd->bhqk", q, k)), v)
