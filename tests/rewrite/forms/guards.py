"""Sums of weights that are kept from being 0, for rows that see no key; and such as are changed by it."""

import jax.numpy as jnp
from jax import lax

from forms.form import OB, B, G, H, K, KB, KG, Q, QB, R, VB, VG, both, shape

MASK = shape(B, 1, Q, K, dtype=jnp.bool_)


def exponentials(q, k, mask):
    s = jnp.where(mask, jnp.einsum("bqhd,bkhd->bhqk", q, k), -jnp.inf)
    m = lax.stop_gradient(s.max(-1, keepdims=True))
    return jnp.exp(s - jnp.where(jnp.isfinite(m), m, 0))


def total(e):
    return e.sum(-1, keepdims=True)


def times(p, v):
    return jnp.einsum("bhqk,bkhd->bqhd", p, v)


def unless_zero(x):
    return jnp.where(x == 0, 1.0, x)


@both(QB, KB, VB, MASK, out=OB)
def sum_guarded_by_one(q, k, v, mask):
    e = exponentials(q, k, mask)
    return times(e / unless_zero(total(e)), v)


@both(QB, KB, VB, MASK, out=OB)
def sum_guarded_by_one_late(q, k, v, mask):
    e = exponentials(q, k, mask)
    return times(e, v) / unless_zero(total(e)).swapaxes(1, 2)


@both(QB, KB, VB, MASK, out=OB)
def sum_guarded_by_a_bound(q, k, v, mask):
    e = exponentials(q, k, mask)
    return times(e / jnp.maximum(total(e), 1e-9), v)


@both(QB, KB, VB, MASK, out=OB)
def sum_guarded_by_an_epsilon_late(q, k, v, mask):
    e = exponentials(q, k, mask)
    return times(e, v) / (total(e) + 1e-10).swapaxes(1, 2)


@both(QB, KB, VB, MASK, out=OB)
def sum_guarded_beside_zeros(q, k, v, mask):
    e = exponentials(q, k, mask)
    return jnp.where((total(e) > 0).swapaxes(1, 2), times(e, v) / unless_zero(total(e)).swapaxes(1, 2), 0.0)


@both(QB, KB, VB, MASK, out=OB)
def sum_guarded_of_masked_exponentials(q, k, v, mask):
    s = jnp.where(mask, jnp.einsum("bqhd,bkhd->bhqk", q, k), jnp.finfo(jnp.float32).min)
    e = jnp.where(mask, jnp.exp(s - lax.stop_gradient(s.max(-1, keepdims=True))), 0.0)
    return times(e / jnp.maximum(total(e), jnp.finfo(jnp.float32).tiny), v)


@both(shape(B, Q, G, R, 8, dtype=jnp.bfloat16), KG.update(dtype=jnp.bfloat16), VG.update(dtype=jnp.bfloat16),
      shape(B, 1, 1, Q, K, dtype=jnp.bool_), out=shape(B, Q, G, R, 16))
def sum_guarded_in_groups(q, k, v, mask):
    s = jnp.einsum("bqgrd,bkgd->bgrqk", q, k, preferred_element_type=jnp.float32)
    s = jnp.where(mask, s, -jnp.inf)
    m = s.max(-1, keepdims=True)
    e = jnp.exp(s - jnp.where(m == -jnp.inf, 0.0, m))
    o = jnp.einsum("bgrqk,bkgd->bqgrd", e.astype(v.dtype), v, preferred_element_type=jnp.float32)
    return o / jnp.moveaxis(unless_zero(e.sum(-1)), 3, 1)[..., None]


@both(QB, KB, VB, MASK, shape(H, Q, K), out=OB)
def sum_guarded_beside_a_bias(q, k, v, mask, bias):
    s = jnp.where(mask, jnp.einsum("bqhd,bkhd->bhqk", q, k) + bias, -jnp.inf)
    e = jnp.exp(s - jnp.maximum(lax.stop_gradient(s.max(-1, keepdims=True)), jnp.finfo(jnp.float32).min))
    return times(e / unless_zero(total(e)), v)


# Left alone.

@both(QB, KB, VB, MASK, out=OB)
def sum_no_less_than_two(q, k, v, mask):
    e = exponentials(q, k, mask)
    return times(e / jnp.maximum(total(e), 2.0), v)


@both(QB, KB, VB, MASK, out=OB)
def sum_of_unshifted_exponentials_guarded(q, k, v, mask):
    e = jnp.where(mask, jnp.exp(jnp.einsum("bqhd,bkhd->bhqk", q, k)), 0.0)
    return times(e / jnp.maximum(total(e), 1e-9), v)


@both(QB, KB, VB, MASK, out=OB)
def sum_of_shown_exponentials_guarded(q, k, v, mask):
    """The largest score may be of a key that is hidden."""
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k)
    e = jnp.where(mask, jnp.exp(s - lax.stop_gradient(s.max(-1, keepdims=True))), 0.0)
    return times(e / unless_zero(total(e)), v)


@both(QB, KB, VB, MASK, out=OB)
def ones_of_rows_without_sum(q, k, v, mask):
    e = exponentials(q, k, mask)
    return times(jnp.where(total(e) == 0, 1.0, e / unless_zero(total(e))), v)


@both(QB, KB, VB, MASK, shape(B, H, Q, 1), out=OB)
def sum_guarded_by_another(q, k, v, mask, other):
    e = exponentials(q, k, mask)
    return times(e / jnp.where(other == 0, 1.0, total(e)), v)
