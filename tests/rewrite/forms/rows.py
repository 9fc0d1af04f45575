"""Products that are not one dot each: as XLA writes dots of one row, and some that share an operand."""

import jax
import jax.numpy as jnp

from forms.form import B, D, G, H, K, KB, KG, OB, Q, QB, R, V, VB, VG, both, causal, form, shape, softmax

ROW, ROW_OUT = shape(B, H, D), shape(B, H, V)


@form(ROW, KB, VB)
def one_row_by_dots(q, k, v):
    p = softmax(jnp.einsum("bhd,bkhd->bhk", q, k) * D**-0.5)
    return jnp.einsum("bhk,bkhd->bhd", p, v)


@both(ROW, KB, VB, out=ROW_OUT)
def one_row_multiplied(q, k, v):
    p = jax.nn.softmax((q[:, None] * k).sum(-1) * D**-0.5, axis=1)
    return (p[..., None] * v).sum(1)


@both(ROW, KB, VB, shape(B, K, dtype=jnp.bool_), out=ROW_OUT)
def one_row_multiplied_of_scaled_queries(q, k, v, mask):
    s = ((q * D**-0.5)[:, None] * k).sum(-1)
    p = jax.nn.softmax(jnp.where(mask[:, :, None], s, -1e30), axis=1)
    values = v.transpose(0, 2, 3, 1)
    return (values * p.transpose(0, 2, 1)[:, :, None]).sum(-1)


@both(shape(B, G, R, D), KG, VG, out=shape(B, G, R, V))
def one_row_multiplied_in_groups(q, k, v):
    p = softmax((q[:, :, :, None] * k.swapaxes(1, 2)[:, :, None]).sum(-1))
    return (p[..., None] * v.swapaxes(1, 2)[:, :, None]).sum(-2)


@form(shape(B, H, D, dtype=jnp.bfloat16), shape(B, K, H, D, dtype=jnp.bfloat16), shape(B, K, H, V, dtype=jnp.bfloat16),
      shape(dtype=jnp.int32))
def one_row_multiplied_in_bf16(q, k, v, step):
    """A step of decoding: sums in f32 of products in bf16."""
    s = jnp.where((jnp.arange(K) <= step)[None, :, None], (q[:, None] * k).sum(-1), jnp.finfo(jnp.bfloat16).min)
    return (jax.nn.softmax(s, axis=1)[..., None] * v).sum(1)


@both(QB, KB, VB, out=OB)
def rows_multiplied(q, k, v):
    s = jnp.where(causal(offset=K - Q), (q.swapaxes(1, 2)[:, :, :, None] * k.swapaxes(1, 2)[:, :, None]).sum(-1), -1e30)
    o = (softmax(s)[..., None] * v.swapaxes(1, 2)[:, :, None]).sum(-2)
    return o.swapaxes(1, 2)


@form(shape(B, H, 4, D), shape(B, H, 7, D), KB, VB)
def dots_merged(first, second, k, v):
    """Two attentions that share keys and values, as XLA merges their products."""
    s = jnp.einsum("bhqd,bkhd->bhqk", jnp.concatenate([first, second], 2), k)
    p = [softmax(x * D**-0.5) for x in (s[:, :, :4], s[:, :, 4:])]
    o = jnp.einsum("bkhd,bhqk->bhdq", v, jnp.concatenate(p, 2))
    return o[..., :4], o[..., 4:]


@form(ROW, KB, VB, shape(B, K, H))
def one_row_multiplied_by_gated_keys(q, k, v, gates):
    """A query times a number of each key's is a query of each key's own: no row."""
    p = jax.nn.softmax((q[:, None] * gates[..., None] * k).sum(-1), axis=1)
    return (p[..., None] * v).sum(1)


@form(ROW, KB, VB)
def one_row_of_largest_products(q, k, v):
    p = jax.nn.softmax((q[:, None] * k).max(-1), axis=1)
    return (p[..., None] * v).sum(1)
