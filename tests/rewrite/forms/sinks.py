"""Sinks, and what looks like some."""

import jax
import jax.numpy as jnp
from jax import lax

from forms.dropout import dropped
from forms.form import (B, D, FORMS, G, H, K, KB, KG, OB, OH, Q, QB, QH, R, V, VB, VG, both, causal, form, shape,
                        softmax)

SINKS = shape(H)


def beside_sinks(s, sinks):
    """Scores [B, H, Q, K] and a column of each head's sink."""
    return jnp.concatenate([s, jnp.broadcast_to(sinks[None, :, None, None], (*s.shape[:-1], 1))], -1)


@both(QB, KB, VB, SINKS, out=OB)
def sink_column(q, k, v, sinks):
    s = jnp.where(causal(offset=4), jnp.einsum("bqhd,bkhd->bhqk", q, k) * D**-0.5, -1e30)
    p = softmax(beside_sinks(s, sinks))[..., :-1]
    return jnp.einsum("bhqk,bkhd->bqhd", p, v)


@both(QB, KG, VG, shape(G, R, dtype=jnp.bfloat16), out=OB)
def sink_column_in_groups(q, k, v, sinks):
    s = jnp.einsum("bqgrd,bkgd->bgrqk", q.reshape(B, Q, G, R, D), k)
    sinks = jnp.broadcast_to(sinks[None, :, :, None, None], (B, G, R, Q, 1)).astype(s.dtype)
    s = jnp.concatenate([sinks, s], -1)
    p = softmax(s)[..., 1:]
    return jnp.einsum("bgrqk,bkgd->bqgrd", p, v).reshape(B, Q, H, V)


@both(QB, KB, VB, SINKS, out=OB)
def sink_below_a_maximum(q, k, v, sinks):
    """The maximum of scores and sink is taken off with its gradient, which is 0: all weights add up to 1."""
    s = jnp.where(causal(offset=4), jnp.einsum("bqhd,bkhd->bhqk", q, k) * D**-0.5, -1e30)
    s = beside_sinks(s, sinks)
    p = softmax(s - s.max(-1, keepdims=True))[..., :-1]
    return jnp.einsum("bhqk,bkhd->bqhd", p, v)


@both(QB, KG, VG, shape(G, R), out=OB)
def sink_below_a_maximum_by_hand(q, k, v, sinks):
    s = jnp.einsum("bqgrd,bkgd->bgrqk", q.reshape(B, Q, G, R, D), k)
    s = jnp.concatenate([jnp.broadcast_to(sinks[None, :, :, None, None], (B, G, R, Q, 1)), s], -1)
    e = jnp.exp(s - s.max(-1, keepdims=True))
    p = (e / e.sum(-1, keepdims=True))[..., 1:]
    return jnp.einsum("bgrqk,bkgd->bqgrd", p, v).reshape(B, Q, H, V)


@both(QB, KB, VB, SINKS, out=OB)
def sink_by_hand(q, k, v, sinks):
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) * D**-0.5
    sinks = sinks[:, None, None]
    m = lax.stop_gradient(jnp.maximum(s.max(-1, keepdims=True), sinks))
    e = jnp.exp(s - m)
    p = e / (e.sum(-1, keepdims=True) + jnp.exp(sinks - m))
    return jnp.einsum("bhqk,bkhd->bqhd", p, v)


@both(QB, KB, VB, out=OB)
def sink_of_one(q, k, v):
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) * D**-0.5
    m = lax.stop_gradient(jnp.maximum(s.max(-1, keepdims=True), 0))
    e = jnp.exp(s - m)
    return jnp.einsum("bhqk,bkhd->bqhd", e / (e.sum(-1, keepdims=True) + jnp.exp(-m)), v)


@both(QB, KB, VB, out=OB)
def sink_padded(q, k, v):
    s = jnp.pad(jnp.einsum("bqhd,bkhd->bhqk", q, k), ((0, 0), (0, 0), (0, 0), (0, 1)))
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(s)[..., :K], v)


@both(QB, KB, VB, SINKS, shape(B, 1, Q, K, dtype=jnp.bool_), out=OB)
def sink_and_mask(q, k, v, sinks, mask):
    s = jnp.where(mask, jnp.einsum("bqhd,bkhd->bhqk", q, k), -1e30)
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(beside_sinks(s, sinks))[..., :K], v)


@both(QB, KB, VB, SINKS, shape(2, dtype=jnp.uint32), out=OB)
def sink_and_dropout(q, k, v, sinks, key):
    p = softmax(beside_sinks(jnp.einsum("bqhd,bkhd->bhqk", q, k), sinks))[..., :K]
    return jnp.einsum("bhqk,bkhd->bqhd", dropped(p, jax.random.wrap_key_data(key), p.shape), v)


def layers_with_sinks(checkpoint):
    def loss(x, weights, sinks):
        def layer(x, per_layer):
            w, sinks = per_layer
            q, k, v = ((x @ w[i]).reshape(B, Q, H, D) for i in range(3))
            s = jnp.where(causal(Q, Q), jnp.einsum("bqhd,bkhd->bhqk", q, k) * D**-0.5, -1e30)
            p = softmax(beside_sinks(s, sinks))[..., :-1]
            return x + jnp.tanh(jnp.einsum("bhqk,bkhd->bqhd", p, v).reshape(x.shape) @ w[3]), None

        layer = jax.checkpoint(layer) if checkpoint else layer
        return jnp.sum(lax.scan(layer, x, (weights, sinks))[0] ** 2)

    return jax.value_and_grad(loss, (0, 1, 2))


LAYERS_WITH_SINKS = shape(B, Q, H * D), shape(3, 4, H * D, H * D), shape(3, H)
FORMS["scan_with_sinks"] = (layers_with_sinks(False), LAYERS_WITH_SINKS)
FORMS["scan_with_sinks_checkpoint"] = (layers_with_sinks(True), LAYERS_WITH_SINKS)


@both(QB, KB, VB, shape(H, Q), out=OB)
def sink_of_each_row(q, k, v, sinks):
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k)
    s = jnp.concatenate([s, jnp.broadcast_to(sinks[None, :, :, None], (B, H, Q, 1))], -1)
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(s)[..., :-1], v)


@form(QB, KB, VB, SINKS)
def sink_returned(q, k, v, sinks):
    p = softmax(beside_sinks(jnp.einsum("bqhd,bkhd->bhqk", q, k), sinks))
    return jnp.einsum("bhqk,bkhd->bqhd", p[..., :-1], v), p[..., -1]


@form(QB, KB, VB, SINKS)
def sink_not_dropped(q, k, v, sinks):
    p = softmax(beside_sinks(jnp.einsum("bqhd,bkhd->bhqk", q, k), sinks))[..., 1:]
    return jnp.einsum("bhqk,bkhd->bqhd", p, v)


@both(QB, KB, VB, SINKS, out=OB)
def sink_beside_padded_values(q, k, v, sinks):
    p = softmax(beside_sinks(jnp.einsum("bqhd,bkhd->bhqk", q, k), sinks))
    return jnp.einsum("bhqk,bkhd->bqhd", p, jnp.pad(v, ((0, 0), (0, 1), (0, 0), (0, 0))))


@both(QH, shape(B, G, K, D), shape(B, G, K, V), SINKS, out=OH)
def sink_before_zeros_in_groups(q, k, v, sinks):
    k, v = jnp.repeat(k, R, 1), jnp.repeat(v, R, 1)
    s = jnp.concatenate([jnp.broadcast_to(sinks[:, None, None], (B, H, Q, 1)), q @ k.swapaxes(-1, -2)], -1)
    return softmax(s) @ jnp.concatenate([jnp.zeros_like(v[:, :, :1]), v], 2)


@form(QB, KB, VB, SINKS)
def sink_beside_padded_values_of_key_heads(q, k, v, sinks):
    s = jnp.einsum("bqhd,bkhd->bhqk", q, jnp.repeat(k[:, :, :G], R, 2))
    v = jnp.repeat(jnp.pad(v[:, :, :G], ((0, 0), (0, 1), (0, 0), (0, 0))), R, 2)
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(beside_sinks(s, sinks)), v)


@form(QB, KB, VB, SINKS)
def sink_beside_values_of_its_own(q, k, v, sinks):
    p = softmax(beside_sinks(jnp.einsum("bqhd,bkhd->bhqk", q, k), sinks))
    return jnp.einsum("bhqk,bkhd->bqhd", p, jnp.pad(v, ((0, 0), (0, 1), (0, 0), (0, 0)), constant_values=0.5))


@form(QB, KB, VB, SINKS)
def sink_beside_zeros_of_a_key(q, k, v, sinks):
    p = softmax(beside_sinks(jnp.einsum("bqhd,bkhd->bhqk", q, k), sinks))
    return jnp.einsum("bhqk,bkhd->bqhd", p, jnp.pad(v, ((0, 0), (1, 0), (0, 0), (0, 0))))
