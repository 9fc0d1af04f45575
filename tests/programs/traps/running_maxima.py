"""Blocks of keys whose exponentials have the largest score so far taken off, and the row's numbers that only look like it."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from traps.trap import B, H, K, Q, heads, normal, scores, trap

LOWEST = -0.7 * float(np.finfo(np.float32).max)


def before(random):
    """A block, what the blocks before it gave of each row, and a mask. Of some rows the largest score before is far higher,
    of some it is lower than any, or they had no key; of some no key is shown here, and of one here or before."""
    q, k, v = heads(random)
    m = normal(random, B, H, Q)
    m[:, :, 1], m[0, :, 2], m[1, :, 3], m[:, 1, 4], m[:, 2, 5] = -np.inf, 30, 60, -300, -1e30
    mask = random.random((B, 1, Q, K)) < 0.6
    mask[:, :, 0] = mask[0, :, 1] = mask[1, :, 5] = False
    return [2 * q, k, v, normal(random, B, Q, H, v.shape[-1]), m, random.random((B, H, Q)).astype(np.float32), mask]


def block(s, v, m, largest=None, add=lambda e: e.sum(-1)):
    """Exponentials times values, their sum, and what is taken off."""
    x = jnp.maximum(m, s.max(-1)) if largest is None else largest(m, s)
    e = jnp.exp(s - x[..., None])
    return jnp.einsum("bhqk,bkhd->bqhd", e, v), add(e), x


def after(o, m, l, part):
    """What the blocks up to this one give."""
    new, total, x = part
    share = jnp.exp(m - x)
    return share.swapaxes(1, 2)[..., None] * o + new, x, share * l + total


@trap(before)
def the_largest_so_far(q, k, v, o, m, l, mask):
    return block(scores(q, k), v, m), after(o, m, l, block(scores(q, k), v, m))


@trap(before)
def the_largest_so_far_of_selected_fills(q, k, v, o, m, l, mask):
    return block(jnp.where(mask, scores(q, k), LOWEST), v, m), block(jnp.where(mask, scores(q, k), -1e9), v, m)


@trap(before)
def the_largest_so_far_of_added_fills(q, k, v, o, m, l, mask):
    return block(scores(q, k) + jnp.where(mask, 0.0, -1e9), v, m)


@trap(before)
def the_largest_so_far_of_fills_among_the_scores(q, k, v, o, m, l, mask):
    return block(jnp.where(mask, scores(q, k), -2.0), v, m)


@trap(before)
def the_largest_so_far_of_what_an_infinity_hides(q, k, v, o, m, l, mask):
    # No figures only where no key was shown before either.
    return block(jnp.where(mask, scores(q, k), -jnp.inf), v, m)


@trap(before)
def the_largest_so_far_of_a_causal_block(q, k, v, o, m, l, mask):
    causal = np.arange(K) <= np.arange(Q)[:, None] - 2  # two rows see no key
    return [block(jnp.where(causal, scores(q, k), fill), v, m) for fill in (LOWEST, -1e30, -jnp.inf)]


def stood_in(how):
    def f(q, k, v, o, m, l, mask):
        s = jnp.where(mask, scores(q, k), -jnp.inf)
        return block(s, v, m, lambda m, s: how(jnp.maximum(m, s.max(-1))))

    return f


@trap(before)
def zero_for_the_largest_of_none_by_is_finite(*x):
    return stood_in(lambda x: jnp.where(jnp.isfinite(x), x, 0))(*x)


@trap(before)
def zero_for_the_largest_of_none_by_equality(*x):
    return stood_in(lambda x: jnp.where(x == -jnp.inf, 0, x))(*x)


@trap(before)
def zero_for_the_largest_of_none_by_order(*x):
    return stood_in(lambda x: jnp.where(x > -jnp.inf, x, 0))(*x)


@trap(before)
def the_lowest_for_the_largest_of_none(*x):
    return stood_in(lambda x: jnp.maximum(x, LOWEST))(*x)


@trap(before)
def the_largest_and_a_number(*x):
    return stood_in(lambda x: jnp.maximum(x, 1.5))(*x)


@trap(before)
def another_number_for_large_ones(*x):
    return stood_in(lambda x: jnp.where(x > 1, 1, x))(*x)


@trap(before)
def another_number_for_the_largest(*x):
    return stood_in(lambda x: jnp.where(x < 1, x, 0))(*x)


@trap(lambda r: [*before(r), np.float32(0.7), np.array([True, False, True])])
def the_largest_beside_more(q, k, v, o, m, l, mask, number, chosen):
    s = jnp.where(mask, scores(q, k), LOWEST)
    return block(s, v, m, lambda m, s: jnp.maximum(jnp.maximum(number, m), jnp.maximum(s.max(-1), l))), \
        block(s, v, m, lambda m, s: jnp.where(chosen[:, None], jnp.maximum(m, s.max(-1)), m + l))


@trap(lambda r: [*before(r), normal(r, B, 5, H, 8)])
def the_largest_of_these_and_of_other_keys(q, k, v, o, m, l, mask, others):
    s = jnp.where(mask, scores(q, k), LOWEST)
    return block(s, v, scores(q, others).max(-1)), block(s, v, scores(q, others[:, :, ::-1]).max(-1))


@trap(before)
def the_largest_of_each_head_or_entry(q, k, v, o, m, l, mask):
    s = jnp.where(mask, scores(q, k), LOWEST)
    return block(s, v, m, lambda m, s: jnp.maximum(jnp.arange(H, dtype=jnp.float32)[:, None], s.max(-1))), \
        block(s, v, m, lambda m, s: jnp.maximum(m[:1], s.max(-1)))


@trap(lambda r: [*before(r), 40 * normal(r, Q, 1)])
def the_largest_of_scores_and_a_number_of_the_row(q, k, v, o, m, l, mask, more):
    s = scores(q, k) + more
    return block(s, v, m), block(jnp.where(mask, s, LOWEST), v, m), block(scores(q, k) + 2.5, v, m)


# What is taken off has something else in it than the largest of these scores, all of them.

def other(largest):
    def f(q, k, v, o, m, l, mask):
        return block(jnp.where(mask, scores(q, k), LOWEST), v, jnp.maximum(m, -20), largest)

    return f


@trap(before)
def the_largest_before_alone(*x):
    return other(lambda m, s: m)(*x)


@trap(before)
def the_largest_of_the_row_before(*x):
    return other(lambda m, s: jnp.maximum(m, jnp.roll(s.max(-1), 1, -1)))(*x)


@trap(before)
def the_largest_of_another_head(*x):
    return other(lambda m, s: jnp.maximum(m, jnp.roll(s.max(-1), 1, 1)))(*x)


@trap(before)
def the_largest_of_another_entry(*x):
    return other(lambda m, s: jnp.maximum(m, s.max(-1)[::-1]))(*x)


@trap(before)
def the_largest_of_all_heads(*x):
    return other(lambda m, s: jnp.maximum(m, s.max((1, 3))[:, None]))(*x)


@trap(before)
def the_largest_of_all_rows(*x):
    return other(lambda m, s: jnp.maximum(m, s.max((2, 3))[..., None]))(*x)


@trap(before)
def the_largest_of_some_keys(*x):
    return other(lambda m, s: jnp.maximum(m, s[..., :K // 2].max(-1)))(*x)


@trap(before)
def the_largest_of_magnitudes(*x):
    return other(lambda m, s: jnp.maximum(m, jnp.abs(s).max(-1)))(*x)


@trap(before)
def the_largest_of_other_scores(*x):
    return other(lambda m, s: jnp.maximum(m, (1.25 * s).max(-1)))(*x)


@trap(before)
def the_smaller_of_two(*x):
    return other(lambda m, s: jnp.minimum(m, s.max(-1)))(*x)


@trap(before)
def more_than_the_largest(*x):
    return other(lambda m, s: jnp.maximum(m, s.max(-1)) + 0.5)(*x)


@trap(before)
def a_multiple_of_the_largest(*x):
    return other(lambda m, s: 0.5 * jnp.maximum(m, s.max(-1)))(*x)


@trap(before)
def the_largest_rounded(*x):
    return other(lambda m, s: jnp.maximum(m, s.max(-1)).astype(jnp.bfloat16).astype(jnp.float32))(*x)


@trap(before)
def the_largest_beside_others_of_the_same_scores(*x):
    return other(lambda m, s: jnp.maximum(s.max((2, 3))[..., None], s.max(-1)))(*x)


@trap(before)
def other_sums_beside_the_largest_so_far(q, k, v, o, m, l, mask):
    s = jnp.where(mask, scores(q, k), LOWEST)
    x, own = jnp.maximum(m, s.max(-1))[..., None], s.max(-1, keepdims=True)
    e, of_own, before = jnp.exp(s - x), jnp.exp(s - own), jnp.exp(jnp.minimum(s - m[..., None], 3.0))
    o = jnp.einsum("bhqk,bkhd->bqhd", e, v)
    return o, of_own.sum(-1), before.sum(-1), (e * e).sum(-1), e.sum((1, 3)), e.sum((2, 3)), e.sum(2), e.max(-1)


@trap(before)
def the_sum_of_one_and_the_product_of_another(q, k, v, o, m, l, mask):
    s = jnp.where(mask, scores(q, k), LOWEST)
    x = jnp.maximum(m, s.max(-1))[..., None]
    y = jnp.maximum(x, 0.25)
    return jnp.einsum("bhqk,bkhd->bqhd", jnp.exp(s - x), v), jnp.exp(s - y).sum(-1)


@trap(before)
def multiples_of_a_block(q, k, v, o, m, l, mask):
    o, total, x = block(jnp.where(mask, scores(q, k), LOWEST), v, jnp.maximum(m, -9))
    return 3 * o, 2 * total, x - 1, o / (total + 1).swapaxes(1, 2)[..., None]


@trap(before)
def a_block_masked_again(q, k, v, o, m, l, mask):
    s = jnp.where(mask, scores(q, k), -1e30)
    x = jnp.maximum(m, s.max(-1))
    e = jnp.where(mask, jnp.exp(s - x[..., None]), 0)
    return jnp.einsum("bhqk,bkhd->bqhd", e, v), e.sum(-1), x


@trap(before)
def a_block_masked_again_after_its_sum(q, k, v, o, m, l, mask):
    s = scores(q, k)
    x = jnp.maximum(m, s.max(-1))
    e = jnp.exp(s - x[..., None])
    return jnp.einsum("bhqk,bkhd->bqhd", jnp.where(mask, e, 0), v), e.sum(-1), x


@trap(before)
def values_made_of_what_is_taken_off(q, k, v, o, m, l, mask):
    s = scores(q, k)
    x = jnp.maximum(m, s.max(-1))
    e = jnp.exp(s - x[..., None])
    return jnp.einsum("bhqk,bkhd->bqhd", e, v + x.mean()), e.sum(-1)


def narrow(dtype):
    return lambda r: [x if x.dtype == bool else x.astype(dtype) for x in before(r)]


@trap(narrow(jnp.bfloat16))
def the_largest_so_far_in_bf16(q, k, v, o, m, l, mask):
    return block(scores(q, k), v, m)


@trap(narrow(jnp.bfloat16))
def the_largest_so_far_of_bf16_operands(q, k, v, o, m, l, mask):
    s = jnp.where(mask, jnp.einsum("bqhd,bkhd->bhqk", q, k, preferred_element_type=jnp.float32) * 0.25, LOWEST)
    x = jnp.maximum(m.astype(jnp.float32), s.max(-1))
    e = jnp.exp(s - x[..., None])
    return jnp.einsum("bhqk,bkhd->bqhd", e.astype(v.dtype), v, preferred_element_type=jnp.float32), e.sum(-1), x


@trap(narrow(jnp.float16))
def the_largest_so_far_of_f16_operands(q, k, v, o, m, l, mask):
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k, preferred_element_type=jnp.float32)
    x = jnp.maximum(m.astype(jnp.float32), s.max(-1))
    e = jnp.exp(s - x[..., None])
    return jnp.einsum("bhqk,bkhd->bqhd", e.astype(v.dtype), v), e.sum(-1), x


# Whole programs, in loops over the blocks.

def blocks(x):
    return jnp.moveaxis(x[:, :9].reshape(B, 3, 3, *x.shape[2:]), 1, 0)


def start(v):
    return jnp.zeros((B, Q, H, v.shape[-1])), jnp.full((B, H, Q), -jnp.inf), jnp.zeros((B, H, Q))


def end(o, m, l):
    return o / jnp.where(l == 0, 1, l).swapaxes(1, 2)[..., None]


@trap(before, grad=(0, 1, 2))
def blocks_in_a_loop(q, k, v, o, m, l, mask):
    def one(state, x):
        i, k, v = x
        shown = i * 3 + jnp.arange(3) <= jnp.arange(Q)[:, None]
        s = jnp.where(shown, jnp.tanh(scores(q, k) / 5) * 5, -1e30)
        return after(*state, block(s, v, state[1], lambda m, s: lax.stop_gradient(jnp.maximum(m, s.max(-1))))), None

    return end(*lax.scan(jax.checkpoint(one), start(v), (jnp.arange(3), blocks(k), blocks(v)))[0])


@trap(before)
def blocks_passed_over(q, k, v, o, m, l, mask):
    masks = jnp.moveaxis(mask.reshape(B, 1, Q, 3, 3), 3, 0)

    def one(i, state):
        def seen(state):
            s = jnp.where(masks[i], scores(q, blocks(k)[i]), LOWEST)
            return after(*state, block(s, blocks(v)[i], state[1]))

        return lax.cond(i == 1, lambda state: state, seen, state)

    return end(*lax.fori_loop(0, 3, one, start(v)))


@trap(before)
def blocks_of_rows_and_of_keys(q, k, v, o, m, l, mask):
    def of_rows(q):
        def one(state):
            i, *state = state
            k_, v_ = (lax.dynamic_slice_in_dim(x, i * 3, 3, 1) for x in (k, v))
            return i + 1, *after(*state, block(scores(q[:, None], k_), v_, state[1]))

        first = [x[:, :1] if x.ndim == 4 else x[..., :1] for x in start(v)]
        return end(*lax.while_loop(lambda state: state[0] < 3, one, (0, *first))[1:])[:, 0]

    return lax.map(of_rows, q.swapaxes(0, 1))
