"""Gradients of sums of O: dO is one number, or the same along some of its axes."""

import jax
import jax.numpy as jnp

from forms.dropout import dropped
from forms.form import B, D, G, H, K, KB, KG, Q, QB, R, V, VB, VG, causal, form, shape, softmax
from forms.heads import normalised_late


def attention(q, k, v, of_scores=lambda s: s, of_weights=lambda p: p, scale=D**-0.5):
    s = of_scores(jnp.einsum("bqhd,bkhd->bhqk", q, k) * scale)
    return jnp.einsum("bhqk,bkhd->bqhd", of_weights(softmax(s)), v)


def in_groups(q, k, v):
    s = jnp.einsum("bqgrd,bkgd->bgrqk", q.reshape(B, Q, G, R, D), k) * D**-0.5
    return jnp.einsum("bgrqk,bkgd->bqgrd", softmax(jnp.where(causal(), s, -1e30)), v).reshape(B, Q, H, V)


def gradients(loss, *arguments):
    return jax.grad(loss, (0, 1, 2))(*arguments)


def value_and_gradients(loss, *arguments):
    return jax.value_and_grad(loss, (0, 1, 2))(*arguments)


@form(QB, KB, VB)
def sum_of_output(q, k, v):
    return gradients(lambda *x: attention(*x).sum(), q, k, v)


@form(QB, KG, VG)
def mean_of_output_in_groups(q, k, v):
    return value_and_gradients(lambda *x: in_groups(*x).mean(), q, k, v)


@form(shape(B, 1, H, D), KB, VB)
def sum_of_output_of_one_row(q, k, v):
    return gradients(lambda *x: attention(*x).sum(), q, k, v)


@form(QB, KB, VB, shape())
def sum_of_output_times_a_number(q, k, v, w):
    return jax.value_and_grad(lambda q, k, v, w: (w * attention(q, k, v)).sum(), (0, 1, 2, 3))(q, k, v, w)


@form(QB, KB, VB, shape(B, K, dtype=jnp.bool_), shape(Q))
def sum_of_output_by_row(q, k, v, mask, w):
    """Of entries that are hidden whole, too."""
    masked = lambda s: jnp.where(mask[:, None, None], s, -1e30)
    return value_and_gradients(lambda *x: (w[:, None, None] * attention(*x, masked)).sum(), q, k, v)


@form(QB, KG, VG, shape(H))
def sum_of_output_by_head(q, k, v, w):
    return gradients(lambda *x: (w[:, None] * in_groups(*x)).sum(), q, k, v)


@form(QB, KB, VB, shape(V))
def sum_of_output_by_column(q, k, v, w):
    return gradients(lambda *x: (w * attention(*x)).sum(), q, k, v)


@form(QB, KB, VB, shape(B, Q, H, 4))
def sum_of_output_by_quarter(q, k, v, w):
    """The columns of a quarter have one dO."""
    return gradients(lambda *x: (w * attention(*x).reshape(B, Q, H, 4, V // 4).sum(4)).sum(), q, k, v)


@form(QB, KB, VB, shape(1, H, Q, K))
def sum_of_output_with_bias(q, k, v, bias):
    loss = lambda q, k, v, bias: attention(q, k, v, lambda s: s + bias).mean()
    return jax.grad(loss, (0, 1, 2, 3))(q, k, v, bias)


@form(QB, KB, VB, shape(2, dtype=jnp.uint32))
def mean_of_output_dropped_out(q, k, v, key):
    """What dropout multiplies by is not told from dO by the gradients."""
    drop = lambda p: dropped(p, jax.random.wrap_key_data(key), p.shape)
    return value_and_gradients(lambda *x: attention(*x, of_weights=drop).mean(), q, k, v)


@form(QB, KB, VB, shape(2, dtype=jnp.uint32))
def mean_of_output_dropped_out_alone(q, k, v, key):
    """Nor is it told by a forward, where only gradients are wanted."""
    drop = lambda p: dropped(p, jax.random.wrap_key_data(key), p.shape)
    return gradients(lambda *x: attention(*x, of_weights=drop).mean(), q, k, v)


@form(QB, KB, VB)
def mean_of_output_normalised_late(q, k, v):
    return value_and_gradients(lambda *x: normalised_late(*x).mean(), q, k, v)


@form(QB, KB, VB, shape())
def sum_of_output_scaled_by_a_parameter(q, k, v, scale):
    """A number beside the sum of V's columns that is no dO."""
    loss = lambda q, k, v, scale: attention(q, k, v, lambda s: s * scale, scale=1).sum()
    return jax.grad(loss, (0, 1, 2, 3))(q, k, v, scale)


@jax.custom_vjp
def clipped_backwards(p):
    return p


clipped_backwards.defvjp(lambda p: (p, None), lambda _, d_p: (jnp.clip(d_p, -1, 1),))


@form(QB, KB, VB)
def sum_of_output_clipped_backwards(q, k, v):
    return gradients(lambda *x: attention(*x, of_weights=clipped_backwards).sum(), q, k, v)
