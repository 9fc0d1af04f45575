"""Numbers as the program's types hold them: wrapped, truncated, rounded."""

import jax
import jax.numpy as jnp

from forms.form import D, KB, OB, K, Q, QB, VB, both, causal, form, shape, softmax


def rows(dtype=jnp.int32, size=Q):
    return jnp.arange(size, dtype=dtype)[:, None]


def keys(dtype=jnp.int32, size=K):
    return jnp.arange(size, dtype=dtype)[None, :]


def scores(q, k):
    return jnp.einsum("bqhd,bkhd->bhqk", q, k)


def attend(s, v):
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(s), v)


def masked(q, k, v, mask, fill=-jnp.inf):
    return attend(jnp.where(mask, scores(q, k), fill), v)


# What wraps and is a band.


@both(QB, KB, VB, out=OB)
def window_by_one_comparison(q, k, v):
    return masked(q, k, v, (rows() + 2 - keys()).astype(jnp.uint32) < 4)


@both(QB, KB, VB, out=OB)
def window_of_unsigned(q, k, v):
    return masked(q, k, v, rows(jnp.uint8) + 2 - keys(jnp.uint8) < 5)


@both(QB, KB, VB, out=OB)
def doubled_indices(q, k, v):
    i, j = rows(), keys()
    for _ in range(26):
        i, j = i + i, j + j
    return masked(q, k, v, i >= j, -1e30)


@both(QB, KB, VB, out=OB)
def shifted_indices(q, k, v):
    return masked(q, k, v, (rows() << 1) + 4 >= keys() << 1, -1e30)


@both(QB, KB, VB, out=OB)
def clamped_indices(q, k, v):
    i = jnp.clip(rows(), 0, Q - 1)
    distance = jnp.abs(jnp.minimum(i, Q) - keys())
    return masked(q, k, v, jnp.where(distance > 3, False, jnp.maximum(i, 0) >= keys() - 1))


@both(QB, KB, VB, out=OB)
def halves_of_distances(q, k, v):
    return masked(q, k, v, jnp.abs(rows() - keys()).astype(jnp.float32) / 2 <= 2.5)


@both(QB, KB, VB, out=OB)
def truncated_mask(q, k, v):
    """Half of a mask's 1 is 0 as an integer: nothing is hidden."""
    hidden = 1.0 - causal().astype(jnp.float32)
    return attend(scores(q, k) + (hidden * 0.5).astype(jnp.int32).astype(jnp.float32) * -1e9, v)


@both(QB, KB, VB, *[shape(Q, K, dtype=jnp.bool_)] * 24, out=OB)
def mask_of_many(q, k, v, *masks):
    m = masks[0] & masks[1] & masks[2]
    for other in masks[3:]:
        m = m | other & masks[0]
    return masked(q, k, v, m | causal(), -1e30)


# What wraps and is none.


@form(QB, KB, VB)
def bytes_that_wrap(q, k, v):
    return masked(q, k, v, rows(jnp.int8) * 16 >= keys(jnp.int8) * 16, -1e30)


@form(QB, KB, VB)
def words_that_wrap(q, k, v):
    return masked(q, k, v, rows() + (2**31 - 8) >= keys())


@form(QB, KB, VB)
def doubled_until_they_wrap(q, k, v):
    i, j = rows(), keys()
    for _ in range(29):
        i, j = i + i, j + j
    return masked(q, k, v, i >= j, -1e30)


@form(QB, KB, VB)
def distances_in_thirds(q, k, v):
    return masked(q, k, v, jnp.abs(rows() - keys()).astype(jnp.float32) / 3 <= 1)


@form(QB, KB, VB)
def mask_below_zero(q, k, v):
    """As a byte without a sign 0 - 1 is 255: what is masked has the largest scores."""
    return attend(scores(q, k) + (causal().astype(jnp.uint8) - 1).astype(jnp.float32) * 1e9, v)


@form(QB, KB, VB)
def mask_times_infinity(q, k, v):
    """0 times infinity is NaN: every score is."""
    return attend(scores(q, k) + (1.0 - causal().astype(jnp.float32)) * -jnp.inf, v)


LONG = shape(1, 320, 2, D)


@form(LONG, LONG, LONG)
def positions_in_bfloat16(q, k, v):
    return masked(q, k, v, rows(jnp.bfloat16, 320) >= keys(jnp.bfloat16, 320), -1e30)


@form(LONG, LONG, LONG)
def positions_rounded_to_bfloat16(q, k, v):
    i, j = rows(size=320).astype(jnp.bfloat16), keys(size=320).astype(jnp.bfloat16)
    return masked(q, k, v, i >= j, -1e30)


@form(QB, KB, VB)
def scores_in_eight_bits(q, k, v):
    return attend(scores(q, k).astype(jnp.float8_e5m2).astype(jnp.float32), v)


@form(QB, KB, VB)
def weights_in_eight_bits(q, k, v):
    s = scores(q, k)
    p = jnp.exp(s - jax.lax.stop_gradient(s.max(-1, keepdims=True))).astype(jnp.float8_e5m2).astype(jnp.float32)
    return jnp.einsum("bhqk,bkhd->bqhd", p / p.sum(-1, keepdims=True), v)


@form(QB, KB, VB)
def scores_as_integers(q, k, v):
    return attend(scores(q, k).astype(jnp.int32).astype(jnp.float32), v)


@form(QB, KB, VB)
def scores_of_few_digits(q, k, v):
    return attend(jax.lax.reduce_precision(scores(q, k), exponent_bits=5, mantissa_bits=2), v)


@form(QB, KB, VB, shape(Q, K, dtype=jnp.bool_))
def weights_divided_by_a_mask(q, k, v, mask):
    s = scores(q, k)
    p = jnp.exp(s - s.max(-1, keepdims=True)) / mask.astype(jnp.float32)
    return jnp.einsum("bhqk,bkhd->bqhd", p / p.sum(-1, keepdims=True), v)


@form(QB, KB, VB, shape(Q, K, dtype=jnp.bool_))
def probabilities_divided_by_a_mask(q, k, v, mask):
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(scores(q, k)) / mask.astype(jnp.float32), v)
