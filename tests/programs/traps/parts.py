"""Softmaxes in parts: exponentials times values, with the maximum and the sum of each row, which the program puts together."""

import jax.numpy as jnp
import numpy as np
from jax import lax

from traps.trap import B, H, K, Q, heads, normal, scores, trap

LOWEST = -0.7 * float(np.finfo(np.float32).max)


def part(s, v, maximum=None):
    """What a part of the keys gives: exponentials times values, and of each row the maximum and the sum."""
    m = s.max(-1, keepdims=True) if maximum is None else maximum(s)
    e = jnp.exp(s - m)
    return jnp.einsum("bhqk,bkhd->bqhd", e, v), jnp.swapaxes(m, 1, 2), jnp.swapaxes(e.sum(-1, keepdims=True), 1, 2)


def together(*parts):
    most = jnp.max(jnp.stack([m for _, m, _ in parts]), 0)
    total = sum(jnp.exp(m - most) * total for _, m, total in parts)
    return sum(jnp.exp(m - most) * o / total for o, m, _ in parts)


def two_parts(random, dtype=np.float32):
    """Of the first entry one part has no keys; of the second one row has none at all."""
    q, k, v = heads(random)
    more = heads(random, k=5)[1:]
    first, second = random.random((B, Q, K)) < 0.6, random.random((B, Q, 5)) < 0.6
    second[0] = False
    first[:, 2] = False
    return [x.astype(dtype) for x in (2 * q, k, v, *more)] + [first[:, None], second[:, None]]


@trap(two_parts, grad=(0, 1, 2, 3, 4))
def parts_of_selected_fills(q, k, v, k2, v2, first, second):
    return together(part(jnp.where(first, scores(q, k), LOWEST), v), part(jnp.where(second, scores(q, k2), LOWEST), v2))


@trap(two_parts)
def parts_of_added_fills(q, k, v, k2, v2, first, second):
    added = [jnp.where(mask, 0.0, -1e9) for mask in (first, second)]
    return together(part(scores(q, k) + added[0], v), part(scores(q, k2) + added[1], v2))


@trap(two_parts)
def parts_of_fills_among_the_scores(q, k, v, k2, v2, first, second):
    return together(part(jnp.where(first, scores(q, k), -3.0), v), part(jnp.where(second, scores(q, k2), -3.0), v2))


@trap(two_parts)
def parts_that_an_infinity_hides(q, k, v, k2, v2, first, second):
    # No figures where a row is hidden whole, but where the program puts others in their stead.
    parts = [part(jnp.where(mask, scores(q, keys), -jnp.inf), values) for keys, values, mask in ((k, v, first), (k2, v2, second))]
    o, m, total = parts[1]
    shown = jnp.isfinite(m)
    return together(parts[0], (jnp.where(shown, o, 0), jnp.where(shown, m, LOWEST), jnp.where(shown, total, 0)))


def seen(o, m, total):
    """A part with its maximum where that is no fill, beside which other rows' would not be looked at."""
    return o, jnp.maximum(m, -99.0), m < -99, total


@trap(two_parts)
def statistics_of_a_part(q, k, v, k2, v2, first, second):
    return seen(*part(jnp.where(first, scores(q, k), LOWEST), v))


@trap(two_parts)
def statistics_of_a_causal_part(q, k, v, k2, v2, first, second):
    causal = jnp.tril(jnp.ones((Q, K), bool))
    return seen(*part(jnp.where(causal, scores(q, k), LOWEST), v)), seen(*part(jnp.where(causal & first, scores(q, k), -1e30), v))


@trap(two_parts)
def statistics_of_rows_without_keys(q, k, v, k2, v2, first, second):
    before = jnp.tril(jnp.ones((Q, K), bool), -2)
    return seen(*part(jnp.where(before, scores(q, k), LOWEST), v)), seen(*part(jnp.where(before, scores(q, k), -4.0), v))


@trap(lambda r: [*two_parts(r), np.array([3, 0], np.int32)])
def statistics_of_keys_below_lengths(q, k, v, k2, v2, first, second, lengths):
    shown = jnp.arange(K) < lengths[:, None, None, None]
    return seen(*part(jnp.where(shown, scores(q, k), LOWEST), v))


@trap(lambda r: two_parts(r, np.float16))
def statistics_of_a_part_in_f16(q, k, v, k2, v2, first, second):
    return part(jnp.where(first, scores(q, k), -1e4), v)


@trap(lambda r: two_parts(r, jnp.bfloat16))
def statistics_of_a_part_of_bf16_scores(q, k, v, k2, v2, first, second):
    s = jnp.where(first, scores(q, k), jnp.finfo(jnp.bfloat16).min)
    assert s.dtype == jnp.bfloat16
    return part(s, v)


@trap(lambda r: two_parts(r, jnp.bfloat16))
def statistics_of_a_part_of_bf16_operands(q, k, v, k2, v2, first, second):
    return seen(*part(jnp.where(first, scores(q, k).astype(jnp.float32), LOWEST), v))


# The maximum of something else: what is taken off is no part of what a call gives.

def taken_off(maximum):
    def f(q, k, v, k2, v2, first, second):
        return seen(*part(jnp.where(first, scores(q, k), LOWEST), v, maximum))

    return f


def by_rows(s, axes):
    return jnp.broadcast_to(s.max(axes, keepdims=True), (*s.shape[:3], 1))


@trap(two_parts)
def a_part_less_the_maximum_of_its_heads(*x):
    return taken_off(lambda s: by_rows(s, (1, 3)))(*x)


@trap(two_parts)
def a_part_less_the_maximum_of_all(*x):
    return taken_off(lambda s: by_rows(s, (1, 2, 3)))(*x)


@trap(two_parts)
def a_part_less_its_minimum(q, k, v, k2, v2, first, second):
    return part(scores(q, k), v, lambda s: s.min(-1, keepdims=True))


@trap(two_parts)
def a_part_less_no_less_than_a_number(*x):
    return taken_off(lambda s: jnp.max(s, -1, keepdims=True, initial=0.5))(*x)


@trap(two_parts)
def a_part_less_no_less_than_the_lowest(q, k, v, k2, v2, first, second):
    # So that a row hidden whole is one of zeros.
    lowest = jnp.finfo(jnp.float32).min
    maximum = lambda s: lax.reduce(s, lowest, lax.max, (3,))[..., None]
    o, m, total = part(jnp.where(first, scores(q, k), -jnp.inf), v, maximum)
    return *seen(o, m, total), jnp.isinf(m)


@trap(two_parts)
def a_part_less_more_than_its_maximum(*x):
    return taken_off(lambda s: s.max(-1, keepdims=True) + 1)(*x)


@trap(two_parts)
def a_part_less_the_maximum_of_other_scores(*x):
    return taken_off(lambda s: (1.5 * s).max(-1, keepdims=True))(*x)


# Of numbers that all scores of a row have a softmax knows nothing, but its maximum does.

@trap(lambda r: [*two_parts(r), 40 * normal(r, Q, 1)])
def a_part_with_a_number_of_the_row(q, k, v, k2, v2, first, second, more):
    return part(scores(q, k) + more, v), seen(*part(jnp.where(first, scores(q, k) + more, LOWEST), v))


@trap(two_parts)
def a_part_with_a_number(q, k, v, k2, v2, first, second):
    return part(scores(q, k) + 2.5, v), part(jnp.where(first, scores(q, k), -30.0) + 2.5, v)


@trap(two_parts)
def a_part_with_a_number_of_its_place(q, k, v, k2, v2, first, second):
    return part(scores(q, k) + 3 * jnp.arange(Q, dtype=jnp.float32)[:, None], v)


# Other sums of its exponentials.

@trap(two_parts)
def sums_of_other_exponentials(q, k, v, k2, v2, first, second):
    s = jnp.where(first, scores(q, k), LOWEST)
    m = s.max(-1, keepdims=True)
    e, halved = jnp.exp(s - m), jnp.exp(s - m / 2)
    o = jnp.einsum("bhqk,bkhd->bqhd", e, v)
    return o, e.sum(-1), (e * e).sum(-1), e.max(-1), halved.sum(-1)


@trap(two_parts)
def multiples_of_a_part(q, k, v, k2, v2, first, second):
    o, m, total = part(jnp.where(first, scores(q, k), LOWEST), v)
    return 3 * o, jnp.maximum(m, -99) - 1, 2 * total, o / jnp.maximum(total, 5), o / jnp.sqrt(total + 1)


@trap(two_parts)
def a_part_over_its_sum_and_a_number(q, k, v, k2, v2, first, second):
    o, _, total = part(jnp.where(first, scores(q, k), LOWEST), v)
    return o / (total + 1), total + 1


@trap(two_parts)
def parts_in_a_loop(q, k, v, k2, v2, first, second):
    def one(x):
        keys, values, mask = x
        return part(jnp.where(mask, scores(q, keys), LOWEST), values)

    blocks = [x[:, :K // 3 * 3].reshape(B, 3, K // 3, H, -1).swapaxes(0, 1) for x in (k, v)]
    masks = first[..., :K // 3 * 3].reshape(B, 1, Q, 3, K // 3).transpose(3, 0, 1, 2, 4)
    o, m, total = lax.map(one, (*blocks, masks))
    return together(*zip(o, m, total, strict=True))
