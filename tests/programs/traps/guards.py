"""The sum of a row's weights kept from being 0, or too small to divide by: in rows that see no key, and in others."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from traps.trap import B, H, K, Q, heads, normal, scores, trap


def some_rows(random, size=1.0):
    """Rows that see no key, one key, and some; an entry of the batch that sees none; scores of all sizes."""
    mask = random.random((B, Q, K)) < 0.5
    mask[:, 1] = False
    mask[:, 3] = np.arange(K) == 4
    mask[1, 4:] = False
    q, k, v = heads(random)
    q *= size * np.array([1, 1, 30, 1, 0.01, 3, 1], np.float32)[:, None, None]
    return [q, k, v, mask[:, None]]


def in_bf16(random):
    return [x.astype(jnp.bfloat16) if x.dtype == np.float32 else x for x in some_rows(random)]


def shifted(q, k, mask, fill=-jnp.inf):
    """Exponentials with the row's maximum taken off; 0 where nothing is seen."""
    s = jnp.where(mask, scores(q, k), fill)
    m = lax.stop_gradient(s.max(-1, keepdims=True))
    return jnp.exp(s - jnp.where(jnp.isfinite(m), m, 0))


def total(e):
    return e.sum(-1, keepdims=True)


def times(p, v):
    return jnp.einsum("bhqk,bkhd->bqhd", p, v)


def late(e, divisor, v):
    return times(e, v) / divisor.swapaxes(1, 2)


def unless_zero(x, instead=1.0):
    return jnp.where(x == 0, instead, x)


@trap(some_rows, grad=(0, 1, 2))
def sum_that_is_not_zero(q, k, v, mask):
    e = shifted(q, k, mask)
    return times(e / unless_zero(total(e)), v)


@trap(some_rows, grad=(0, 1, 2))
def sum_that_is_not_zero_late(q, k, v, mask):
    e = shifted(q, k, mask)
    return late(e, unless_zero(total(e)), v)


@trap(some_rows, grad=(0, 1, 2))
def sum_above_zero(q, k, v, mask):
    e = shifted(q, k, mask)
    return times(e / jnp.where(total(e) > 0, total(e), 1.0), v)


@trap(some_rows, grad=(0, 1, 2))
def sum_above_zero_of_zeros(q, k, v, mask):
    e = shifted(q, k, mask)
    return times(jnp.where(total(e) > 0, e / unless_zero(total(e)), 0.0), v)


@trap(some_rows, grad=(0, 1, 2))
def sum_above_zero_of_zeros_late(q, k, v, mask):
    e = shifted(q, k, mask)
    return jnp.where(total(e).swapaxes(1, 2) > 0, late(e, unless_zero(total(e)), v), 0.0)


@trap(some_rows, grad=(0, 1, 2))
def sum_no_smaller_than(q, k, v, mask):
    e = shifted(q, k, mask)
    return times(e / jnp.maximum(total(e), 1e-9), v)


@trap(some_rows, grad=(0, 1, 2))
def sum_no_smaller_than_late(q, k, v, mask):
    e = shifted(q, k, mask)
    return late(e, jnp.maximum(total(e), jnp.finfo(jnp.float32).tiny), v)


@trap(some_rows, grad=(0, 1, 2))
def sum_no_smaller_than_clipped(q, k, v, mask):
    e = shifted(q, k, mask)
    return times(e * (1 / jnp.clip(total(e), 1e-6, None)), v)


@trap(some_rows, grad=(0, 1, 2))
def sum_and_less_than_its_rounding(q, k, v, mask):
    e = shifted(q, k, mask)
    return times(e / (total(e) + 1e-10), v)


@trap(some_rows, grad=(0, 1, 2))
def sum_and_less_than_its_rounding_late(q, k, v, mask):
    e = shifted(q, k, mask)
    return late(e, 1e-20 + total(e), v)


@trap(some_rows, grad=(0, 1, 2))
def sum_guarded_twice(q, k, v, mask):
    e = shifted(q, k, mask)
    return late(e, unless_zero(jnp.maximum(total(e), 1e-9) + 1e-12), v)


@trap(some_rows, grad=(0, 1, 2))
def sum_that_is_not_zero_of_masked(q, k, v, mask):
    """Weights masked after a finite fill."""
    s = jnp.where(mask, scores(q, k), -1e9)
    e = jnp.where(mask, jnp.exp(s - lax.stop_gradient(s.max(-1, keepdims=True))), 0.0)
    return times(e / unless_zero(total(e)), v)


@trap(some_rows, grad=(0, 1, 2))
def sum_no_smaller_than_of_masked_by_numbers(q, k, v, mask):
    s = jnp.where(mask, scores(q, k), -1e9)
    e = jnp.exp(s - lax.stop_gradient(s.max(-1, keepdims=True))) * mask.astype(jnp.float32)
    return times(e / jnp.maximum(total(e), 1e-9), v)


@trap(some_rows, grad=(0, 1, 2))
def sum_that_is_not_zero_of_finite_fills(q, k, v, mask):
    """A row that sees nothing has the mean of all values: its sum is no zero."""
    e = shifted(q, k, mask, -1e9)
    return times(e / unless_zero(total(e)), v)


@trap(some_rows, grad=(0, 1, 2))
def sum_that_is_not_zero_of_added_fills(q, k, v, mask):
    s = scores(q, k) + jnp.where(mask, 0.0, -jnp.inf)
    m = lax.stop_gradient(s.max(-1, keepdims=True))
    e = jnp.exp(s - jnp.maximum(m, jnp.finfo(jnp.float32).min))
    return times(e / unless_zero(total(e)), v)


@trap(some_rows, grad=(0, 1, 2))
def sum_that_is_not_zero_with_gradient_of_maximum(q, k, v, mask):
    s = jnp.where(mask, scores(q, k), -jnp.inf)
    m = s.max(-1, keepdims=True)
    e = jnp.exp(s - jnp.where(m == -jnp.inf, 0.0, m))
    return times(e / unless_zero(total(e)), v)


@trap(in_bf16, grad=(0, 1, 2))
def sum_that_is_not_zero_in_bf16(q, k, v, mask):
    e = shifted(q, k, mask)
    return late(e, unless_zero(total(e)), v)


@trap(in_bf16, grad=(0, 1, 2))
def sum_and_less_than_its_rounding_in_bf16(q, k, v, mask):
    e = shifted(q, k, mask)
    return times(e / (total(e) + 1e-3), v)


@trap(in_bf16, grad=(0, 1, 2))
def sum_no_smaller_than_in_f32_of_bf16(q, k, v, mask):
    e = shifted(q.astype(jnp.float32), k.astype(jnp.float32), mask)
    return times((e / jnp.maximum(total(e), 1e-20)).astype(jnp.bfloat16), v)


def in_groups(random):
    q, k, v, mask = some_rows(random)
    return [q.reshape(B, Q, 1, H, -1), k[:, :, :1], v[:, :, :1], mask[:, None]]


@trap(in_groups, grad=(0, 1, 2))
def sum_that_is_not_zero_in_groups(q, k, v, mask):
    s = jnp.where(mask, 20 * jnp.tanh(jnp.einsum("bqgrd,bkgd->bgrqk", q, k) / 20), -jnp.inf)
    m = lax.stop_gradient(s.max(-1, keepdims=True))
    e = jnp.exp(s - jnp.where(jnp.isfinite(m), m, 0))
    o = jnp.einsum("bgrqk,bkgd->bqgrd", e, v)
    return o / unless_zero(e.sum(-1)).transpose(0, 3, 1, 2)[..., None]


@trap(lambda r: [*some_rows(r), normal(r, H, Q, K)], grad=(0, 1, 2, 4))
def sum_no_smaller_than_beside_a_bias(q, k, v, mask, bias):
    s = jnp.where(mask, scores(q, k) + bias, -jnp.inf)
    m = lax.stop_gradient(s.max(-1, keepdims=True))
    e = jnp.exp(s - jnp.where(jnp.isfinite(m), m, 0))
    return times(e / jnp.maximum(total(e), 1e-9), v)


def flash(guard, of_none):
    """Attention with a backward by hand, from a log-sum-exp of guarded sums."""

    @jax.custom_vjp
    def attend(q, k, v, mask):
        return forward(q, k, v, mask)[0]

    def forward(q, k, v, mask):
        s = jnp.where(mask, scores(q, k), -jnp.inf)
        m = s.max(-1, keepdims=True)
        m = jnp.where(jnp.isfinite(m), m, 0)
        e = jnp.exp(s - m)
        guarded = guard(total(e))
        o = late(e, guarded, v)
        return o, (q, k, v, mask, o, of_none(m + jnp.log(guarded), total(e)))

    def backward(kept, d_o):
        q, k, v, mask, o, lse = kept
        p = jnp.exp(jnp.where(mask, scores(q, k), -jnp.inf) - lse)
        delta = jnp.einsum("bqhd,bqhd->bhq", o, d_o)[..., None]
        d_s = p * (jnp.einsum("bqhd,bkhd->bhqk", d_o, v) - delta) * q.shape[-1]**-0.5
        return (jnp.einsum("bhqk,bkhd->bqhd", d_s, k), jnp.einsum("bhqk,bqhd->bkhd", d_s, q),
                jnp.einsum("bhqk,bqhd->bkhd", p, d_o), None)

    attend.defvjp(forward, backward)
    return attend


@trap(some_rows, grad=(0, 1, 2))
def log_of_sum_that_is_not_zero(q, k, v, mask):
    return flash(unless_zero, lambda lse, _: lse)(q, k, v, mask)


@trap(some_rows, grad=(0, 1, 2))
def log_of_sum_no_smaller_than(q, k, v, mask):
    return flash(lambda l: jnp.maximum(l, 1e-20), lambda lse, _: lse)(q, k, v, mask)


@trap(some_rows, grad=(0, 1, 2))
def log_of_sum_that_is_infinite_where_it_is_zero(q, k, v, mask):
    return flash(unless_zero, lambda lse, l: jnp.where(l == 0, jnp.inf, lse))(q, k, v, mask)


@trap(lambda r: [*some_rows(r), normal(r, H, Q, K) - np.float32(3e38) * (np.arange(Q) % 2)[:, None]], grad=(0, 1, 2))
def sum_that_is_not_zero_of_masked_beside_a_bias(q, k, v, mask, bias):
    """No score is lower than the fill, whatever the bias is."""
    s = jnp.where(mask, scores(q, k) + bias, jnp.finfo(jnp.float32).min)
    e = jnp.where(mask, jnp.exp(s - lax.stop_gradient(s.max(-1, keepdims=True))), 0.0)
    return times(e / unless_zero(total(e)), v)


@trap(lambda r: [*some_rows(r), r.random((B, 1, Q, K)) < 0.6], grad=(0, 1, 2))
def sum_that_is_not_zero_of_masked_by_one_of_two(q, k, v, mask, other):
    s = jnp.where(mask & other, scores(q, k), -jnp.inf)
    m = lax.stop_gradient(s.max(-1, keepdims=True))
    e = jnp.where(mask, jnp.exp(s - jnp.where(jnp.isfinite(m), m, 0)), 0.0)
    return times(e / unless_zero(total(e)), v)


# Guards that change what they guard.

@trap(some_rows, grad=(0, 1, 2))
def sum_that_is_not_one(q, k, v, mask):
    e = shifted(q, k, mask)
    return times(e / jnp.where(total(e) == 1, 3.0, total(e)), v)


@trap(some_rows, grad=(0, 1, 2))
def sum_no_smaller_than_two(q, k, v, mask):
    e = shifted(q, k, mask)
    return times(e / jnp.maximum(total(e), 2.0), v)


@trap(some_rows, grad=(0, 1, 2))
def sum_no_smaller_than_one(q, k, v, mask):
    """As it is; but of a row that sees one key half the gradient of the sum is lost."""
    e = shifted(q, k, mask)
    return times(e / jnp.maximum(total(e), 1.0), v)


@trap(some_rows, grad=(0, 1, 2))
def sum_and_a_thousandth(q, k, v, mask):
    e = shifted(q, k, mask)
    return times(e / (total(e) + 1e-3), v)


@trap(some_rows, grad=(0, 1, 2))
def sum_and_a_tenth_late(q, k, v, mask):
    e = shifted(q, k, mask)
    return late(e, total(e) + 0.1, v)


@trap(some_rows, grad=(0, 1, 2))
def ones_where_the_sum_is_zero(q, k, v, mask):
    e = shifted(q, k, mask)
    return jnp.where(total(e).swapaxes(1, 2) == 0, 1.0, late(e, unless_zero(total(e)), v))


@trap(some_rows, grad=(0, 1, 2))
def means_where_the_sum_is_zero(q, k, v, mask):
    e = shifted(q, k, mask)
    return times(jnp.where(total(e) == 0, 1 / K, e / unless_zero(total(e))), v)


@trap(some_rows, grad=(0, 1, 2))
def one_more_where_the_sum_is_zero(q, k, v, mask):
    e = shifted(q, k, mask)
    return late(e, unless_zero(total(e)), v) + jnp.where(total(e).swapaxes(1, 2) == 0, 2.0, 1.0) - 1.0


@trap(some_rows, grad=(0, 1, 2))
def zeros_where_the_sum_is_not(q, k, v, mask):
    e = shifted(q, k, mask)
    return late(e, jnp.where(total(e) == 0, total(e), 2.0), v)


@trap(lambda r: [*some_rows(r), (r.random((B, H, Q, 1)) < 0.5).astype(np.float32)], grad=(0, 1, 2))
def sum_where_another_is_not_zero(q, k, v, mask, other):
    e = shifted(q, k, mask)
    return times(e / jnp.where(other == 0, 1.0, total(e)), v)


@trap(some_rows, grad=(0, 1, 2))
def sum_where_that_of_others_is_not_zero(q, k, v, mask):
    e = shifted(q, k, mask)
    others = jnp.where(mask[..., ::-1, :], e, 0.0)
    return times(e / jnp.where(total(others) == 0, 1.0, total(e)), v)


@trap(lambda r: [*some_rows(r), (r.random((B, H, Q, 1)) < 0.5).astype(np.float32)], grad=(0, 1, 2))
def sum_guarded_behind_another_guard(q, k, v, mask, other):
    e = shifted(q, k, mask)
    return times(e / jnp.maximum(jnp.where(other == 0, 1.0, total(e)), 1e-9), v)


@trap(some_rows, grad=(0, 1, 2))
def sum_no_larger_than_one(q, k, v, mask):
    e = shifted(q, k, mask)
    return times(e / jnp.where(total(e) <= 1, total(e), 7.0), v)


# Sums that may be less than 1.

@trap(lambda r: some_rows(r, 8.0), grad=(0, 1, 2))
def sum_of_unshifted_no_smaller_than(q, k, v, mask):
    e = jnp.where(mask, jnp.exp(scores(q, k)), 0.0)
    return times(e / jnp.maximum(total(e), 1e-2), v)


@trap(lambda r: some_rows(r, 8.0), grad=(0, 1, 2))
def sum_beside_hidden_maximum_no_smaller_than(q, k, v, mask):
    """The maximum may be of a key that is hidden: little is left of the others."""
    s = scores(q, k)
    e = jnp.where(mask, jnp.exp(s - lax.stop_gradient(s.max(-1, keepdims=True))), 0.0)
    return times(e / jnp.maximum(total(e), 1e-2), v)


@trap(lambda r: some_rows(r, 8.0), grad=(0, 1, 2))
def sum_beside_hidden_maximum_and_a_number(q, k, v, mask):
    s = scores(q, k)
    e = jnp.where(mask, jnp.exp(s - lax.stop_gradient(s.max(-1, keepdims=True))), 0.0)
    return times(e / (total(e) + 1e-8), v)


@trap(lambda r: some_rows(r, 8.0), grad=(0, 1, 2))
def sum_beside_maximum_of_heads(q, k, v, mask):
    s = jnp.where(mask, scores(q, k), -jnp.inf)
    m = lax.stop_gradient(s.max((1, 3), keepdims=True))
    e = jnp.exp(s - jnp.where(jnp.isfinite(m), m, 0))
    return times(e / jnp.maximum(total(e), 1e-2), v)


@trap(lambda r: some_rows(r, 8.0), grad=(0, 1, 2))
def sum_beside_maximum_of_other_rows(q, k, v, mask):
    s = jnp.where(mask, scores(q, k), -jnp.inf)
    m = lax.stop_gradient(s.max(-1, keepdims=True))[:, :, ::-1]
    e = jnp.exp(s - jnp.where(jnp.isfinite(m), m, 0))
    return times(e / jnp.maximum(total(e), 1e-2), v)


@trap(lambda r: heads(r, q=H), grad=(0, 1, 2))
def sum_beside_maximum_of_rows_for_heads(q, k, v):
    """As many rows as heads: the maximum of row 1 of head 0 is taken off row 0 of head 1."""
    s = scores(q * 8, k)
    e = jnp.exp(s - lax.stop_gradient(s.max(-1)).swapaxes(1, 2)[..., None])
    return times(e / jnp.maximum(total(e), 0.5), v)


@trap(lambda r: some_rows(r, 8.0), grad=(0, 1, 2))
def sum_beside_maximum_of_halves(q, k, v, mask):
    s = scores(q, k)
    m = lax.stop_gradient(jnp.where(mask, s, -jnp.inf).max(-1, keepdims=True))
    e = jnp.where(mask, jnp.exp(2 * s - jnp.where(jnp.isfinite(m), m, 0)), 0.0)
    return times(e / jnp.maximum(total(e), 0.5), v)


@trap(lambda r: [*some_rows(r, 8.0), np.where(r.random((B, H, Q, 1)) < 0.5, -np.inf, 0).astype(np.float32)], grad=(0, 1, 2))
def sum_beside_maximum_of_some_rows(q, k, v, mask, other):
    s = jnp.where(mask, scores(q, k), -jnp.inf)
    m = lax.stop_gradient(s.max(-1, keepdims=True))
    e = jnp.exp(s - jnp.where(other == -jnp.inf, 0.0, m))
    return times(e / jnp.maximum(total(e), 0.5), v)


@trap(lambda r: [*some_rows(r), normal(r, H, Q, K) - np.float32(2e9) * (np.arange(Q) % 2)[:, None]], grad=(0, 1, 2))
def sum_beside_fills_above_scores(q, k, v, mask, bias):
    """Of some rows the largest score is that of hidden keys."""
    s = jnp.where(mask, scores(q, k) + bias, -1e9)
    e = jnp.where(mask, jnp.exp(s - lax.stop_gradient(s.max(-1, keepdims=True))), 0.0)
    return times(e / unless_zero(total(e)), v)


@trap(lambda r: [*some_rows(r), r.random((B, 1, Q, K)) < 0.6], grad=(0, 1, 2))
def sum_masked_by_one_of_two_more(q, k, v, mask, other):
    """The maximum may be of a key whose exponential is hidden."""
    s = jnp.where(other, scores(q, k) * 8, -jnp.inf)
    m = lax.stop_gradient(s.max(-1, keepdims=True))
    e = jnp.where(mask & other, jnp.exp(s - jnp.where(jnp.isfinite(m), m, 0)), 0.0)
    return times(e / jnp.maximum(total(e), 0.5), v)


@trap(lambda r: [*some_rows(r), normal(r, H, Q, K) - np.float32(3e38) * (np.arange(Q) % 2)[:, None]], grad=(0, 1, 2))
def sum_beside_lowest_fills_added(q, k, v, mask, bias):
    s = scores(q, k) + bias + jnp.where(mask, 0.0, jnp.float32(-2e38))
    m = lax.stop_gradient(s.max(-1, keepdims=True))
    e = jnp.where(mask, jnp.exp(s - m), 0.0)
    return times(e / unless_zero(total(e)), v)


@trap(lambda r: [x[:, :Q] for x in heads(r)], grad=(0, 1, 2))
def sum_beside_maximum_of_keys(q, k, v):
    """As many rows as keys: the maximum is each key's, of the rows."""
    s = scores(q * 4, k)
    m = lax.stop_gradient(s.max(-2))[..., None]
    e = jnp.exp(s - m)
    return times(e / jnp.maximum(total(e), 1e-2), v)


@trap(lambda r: some_rows(r, 8.0), grad=(0, 1, 2))
def sum_beside_maximum_of_others(q, k, v, mask):
    s = jnp.where(mask, scores(q, k), -jnp.inf)
    m = lax.stop_gradient(scores(k[:, :Q], k).max(-1, keepdims=True)) * 9
    e = jnp.exp(s - m)
    return times(e / jnp.maximum(total(e), 1e-2), v)


@trap(lambda r: some_rows(r, 8.0), grad=(0, 1, 2))
def sum_beside_maximum_above_zero(q, k, v, mask):
    s = jnp.where(mask, scores(q, k), -jnp.inf)
    m = lax.stop_gradient(s.max(-1, keepdims=True))
    e = jnp.exp(s - jnp.maximum(m, 0))
    return times(e / (total(e) + 1e-9), v)


@trap(lambda r: some_rows(r, 8.0), grad=(0, 1, 2))
def sum_beside_maximum_from_zero_on(q, k, v, mask):
    s = jnp.where(mask, scores(q, k), -jnp.inf)
    m = lax.reduce(lax.stop_gradient(s), np.float32(0), lax.max, (3,))[..., None]
    e = jnp.exp(s - m)
    return times(e / jnp.maximum(total(e), 0.5), v)


@trap(lambda r: some_rows(r, 8.0), grad=(0, 1, 2))
def sum_beside_half_the_maximum(q, k, v, mask):
    s = jnp.where(mask, scores(q, k), -jnp.inf)
    m = lax.stop_gradient(s.max(-1, keepdims=True))
    e = jnp.exp(s - jnp.where(m < -4, -4.0, m))
    return times(e / jnp.maximum(total(e), 0.5), v)


@trap(some_rows, grad=(0, 1, 2))
def sum_beside_fills_that_are_zeros(q, k, v, mask):
    """What stands in for a maximum at the fill makes weights of 0 of a row that the fill hides."""
    s = jnp.where(mask, scores(q, k), -1e9)
    m = lax.stop_gradient(s.max(-1, keepdims=True))
    e = jnp.exp(s - jnp.where(m <= -1e8, 0.0, m))
    return times(e / unless_zero(total(e)), v)


def without_maximum_of_fills(s, v):
    m = lax.stop_gradient(s.max(-1, keepdims=True))
    e = jnp.exp(s - jnp.maximum(m, jnp.finfo(jnp.float32).min))
    return times(e / unless_zero(total(e)), v)


def rounded_to_f16(q, k, mask):
    """The fill is an infinity there."""
    s = scores(q, k)
    return (s + (mask.astype(jnp.int32) - 1).astype(s.dtype) * 1e9).astype(jnp.float16).astype(jnp.float32)


@trap(in_bf16, grad=(0, 1, 2))
def sum_of_fills_beyond_f16(q, k, v, mask):
    return without_maximum_of_fills(rounded_to_f16(q, k, mask), v)


@trap(lambda r: [*some_rows(r), r.random((B, 1, Q, K)) < 0.5], grad=(0, 1, 2))
def sum_of_fills_beyond_f32_together(q, k, v, mask, other):
    s = scores(q, k)
    for x in (mask, other & mask):
        s = s + jnp.where(x, 0, jnp.finfo(jnp.float32).min)
    return without_maximum_of_fills(s, v)


@trap(in_bf16, grad=(0, 1, 2))
def numbers_of_fills_beyond_f16(q, k, v, mask):
    return times(jnp.nan_to_num(jax.nn.softmax(rounded_to_f16(q, k, mask))), v)


@trap(in_bf16, grad=(0, 1, 2))
def weights_that_are_numbers_of_fills_beyond_f16(q, k, v, mask):
    p = jax.nn.softmax(rounded_to_f16(q, k, mask))
    return times(jnp.where(jnp.isnan(p), 0.0, p), v)


@trap(some_rows, grad=(0, 1, 2))
def sum_of_dropped(q, k, v, mask):
    e = shifted(q, k, mask) * (jnp.arange(K) % 3 > 0)
    return times(e / unless_zero(total(e)), v)


@trap(lambda r: [*some_rows(r), r.random((B, H, Q, K)) < 0.2], grad=(0, 1, 2))
def sum_of_few(q, k, v, mask, keep):
    e = jnp.where(keep, shifted(q, k, mask), 0.0)
    return times(e / jnp.maximum(total(e), 0.3), v)
