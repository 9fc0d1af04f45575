"""What hides by its size: huge numbers added to scores, fills within their reach, rows hidden whole."""

import jax
import jax.numpy as jnp
import numpy as np

from traps.terms import terms
from traps.trap import B, H, K, Q, heads, normal, scores, trap, weighed

# Huge finite additive terms; rows hidden whole.

def float_mask(random, q=Q, k=K):
    mask = (random.random((B, k)) < 0.6).astype(np.float32)
    mask[0] = 0
    return [*heads(random, q=q, k=k), mask]


@trap(float_mask, grad=(0, 1, 2))
def float_mask_times_a_huge_fill(q, k, v, mask):
    return weighed(scores(q, k) + (1 - mask)[:, None, None, :] * -1e9, v)


@trap(float_mask, grad=(0, 1, 2))
def lifted_by_a_huge_number(q, k, v, mask):
    return weighed(scores(q, k) + (1 - mask)[:, None, None, :] * 4e9, v)


@trap(lambda r: [*heads(r), np.array([[0] * K, [0] + [1] * (K - 1)], np.int32)], grad=(0, 1, 2))
def integer_mask_times_lowest(q, k, v, mask):
    hidden = (1 - mask)[:, None, None, :].astype(jnp.float32)
    return weighed(scores(q, k) + hidden * jnp.finfo(jnp.float32).min, v)


@trap(lambda r: [*heads(r), np.where(np.arange(K) < [[K], [3]], np.finfo("f").min, np.float32(0))], grad=(0, 1, 2))
def lowest_added_hides_an_entry(q, k, v, padding):
    return weighed(scores(q, k) + padding[:, None, None, :], v)


@trap(lambda r: [*heads(r, q=K), np.where(np.arange(K) < [[4], [0]], np.finfo("f").min, np.float32(0))], grad=(0, 1, 2))
def left_padding_under_a_causal_select(q, k, v, padding):
    s = scores(q, k) + padding[:, None, None, :]
    return weighed(jnp.where(jnp.tril(jnp.ones((K, K), bool)), s, jnp.finfo(jnp.float32).min), v)


@trap(lambda r: [*heads(r, q=K), np.where(np.arange(K) < [[4], [0]], -np.inf, np.float32(0)).astype("f")], grad=(0, 1, 2))
def infinite_padding_under_a_causal_select(q, k, v, padding):
    s = scores(q, k) + padding[:, None, None, :]
    return weighed(jnp.where(jnp.tril(jnp.ones((K, K), bool)), s, -1e30), v)


@trap(lambda r: [*heads(r), r.random((B, 1, Q, K)) < [[[[0.0]]], [[[0.6]]]], np.array([-np.inf, 0.5, -np.inf], np.float32)],
      grad=(0, 1, 2))
def sink_of_nothing_and_a_hidden_row(q, k, v, mask, sinks):
    s = jnp.where(mask, scores(q, k), -1e30)
    s = jnp.concatenate([s, jnp.broadcast_to(sinks[:, None, None], (B, H, Q, 1))], -1)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s)[..., :-1], v)


@trap(lambda r: [*heads(r), r.random((B, 1, Q, K)) < [[[[0.0]]], [[[0.6]]]], normal(r, H, 1, K)], grad=(0, 1, 2))
def terms_added_to_what_the_maximum_is_taken_from(q, k, v, mask, terms):
    s = jnp.where(mask, scores(q, k), -1e30)
    e = jnp.exp(s - jax.lax.stop_gradient(s.max(-1, keepdims=True)) + terms)
    return jnp.einsum("bhqk,bkhd->bqhd", e / e.sum(-1, keepdims=True), v)


@trap(lambda r: [*heads(r), r.random((B, 1, Q, K)) < [[[[0.0]]], [[[0.6]]]]], grad=(0, 1, 2))
def scores_less_the_log_of_their_sum(q, k, v, mask):
    """Beside a huge finite number that log is lost: of a row hidden whole the weights are 1 each."""
    s = jnp.where(mask, scores(q, k), -1e30)
    return jnp.einsum("bhqk,bkhd->bqhd", jnp.exp(s - jax.nn.logsumexp(s, -1, keepdims=True)), v)


@trap(lambda r: [x * np.float32(18) for x in heads(r)], grad=(0, 1, 2))
def large_logits(q, k, v):
    return weighed(jnp.einsum("bqhd,bkhd->bhqk", q, k), v)


# What is added to the scores within their reach: rounded as the program adds it, hidden by nothing.

def numbers_and_rows_without_any(random):
    shown = (random.random((B, H, Q, K)) < 0.6).astype(np.int32)
    shown[0, :, 2] = 0
    shown[1, 1] = 0
    return [*heads(random), shown]


@trap(numbers_and_rows_without_any, grad=(0, 1, 2))
def shift_by_numbers_of_all_cells(q, k, v, shown):
    return weighed(scores(q, k) + (1.0 - shown.astype(jnp.float32)) * -10000.0, v)


@trap(lambda r: [*numbers_and_rows_without_any(r)[:3], r.random((B, H, Q, K)).astype(np.float32)], grad=(0, 1, 2, 3))
def trained_shift_by_numbers_of_all_cells(q, k, v, shown):
    return weighed(scores(q, k) - (1.0 - shown) * 100.0, v)


@trap(numbers_and_rows_without_any, grad=(0, 1, 2))
def shift_by_a_mask_within_reach(q, k, v, shown):
    return weighed(scores(q, k) + jnp.where(shown[:, :1, :1] != 0, 0.0, -10000.0), v)


@trap(numbers_and_rows_without_any, grad=(0, 1, 2))
def shift_by_a_little(q, k, v, shown):
    return weighed(scores(q, k) * 2 + jnp.where(shown != 0, 1.0, -2.0), v)


@trap(numbers_and_rows_without_any, grad=(0, 1, 2))
def filled_within_reach(q, k, v, shown):
    return weighed(jnp.where(shown != 0, scores(q, k), -3.0), v)


@trap(numbers_and_rows_without_any, grad=(0, 1, 2))
def filled_with_zeros_and_causal(q, k, v, shown):
    causal = np.arange(K) <= np.arange(Q)[:, None] - 2  # two rows see no key
    return weighed(jnp.where((shown != 0) & causal, scores(q, k), 0.0), v)


@trap(heads, grad=(0, 1, 2))
def causal_filled_within_reach(q, k, v):
    return weighed(jnp.where(np.arange(K) <= np.arange(Q)[:, None] - 2, scores(q, k), -1.5), v)


@trap(numbers_and_rows_without_any, grad=(0, 1, 2))
def filled_within_reach_twice(q, k, v, shown):
    return weighed(jnp.where(shown != 0, jnp.where(shown[:, :, :1] != 0, scores(q, k), -1.0), -2.0), v)


@trap(numbers_and_rows_without_any, grad=(0, 1, 2))
def filled_within_reach_and_masked_again(q, k, v, shown):
    p = jax.nn.softmax(jnp.where(shown != 0, scores(q, k), -1.0))
    return jnp.einsum("bhqk,bkhd->bqhd", jnp.where(shown != 0, p, 0.0), v)


@trap(numbers_and_rows_without_any, grad=(0, 1, 2))
def filled_within_reach_and_not_shifted(q, k, v, shown):
    e = jnp.exp(jnp.where(shown != 0, scores(q, k), -1.0))
    return jnp.einsum("bhqk,bkhd->bqhd", e / e.sum(-1, keepdims=True), v)


@trap(lambda r: [*(x * 8 for x in heads(r)), *numbers_and_rows_without_any(r)[3:], normal(r, H)], grad=(0, 1, 2, 4))
def filled_within_reach_beside_a_sink(q, k, v, shown, sink):
    q, k, v, sink = (x.astype(jnp.bfloat16) for x in (q, k, v, sink))
    s = jnp.where(shown != 0, scores(q, k), jnp.bfloat16(-9984))
    s = jnp.concatenate([s, jnp.broadcast_to(sink[None, :, None, None] * 9000, (B, H, Q, 1))], -1)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s)[..., :-1], v)


# What is added to hidden scores alone.

def numbers_of_shown_cells(random):
    shown = random.random((B, H, Q, K)) < 0.6
    return [*heads(random), shown, np.where(shown, normal(random, B, H, Q, K), np.nan), normal(random, B, H, Q, K)]


@trap(numbers_of_shown_cells, grad=(0, 1, 2))
def bias_that_is_no_number_where_it_is_hidden(q, k, v, shown, bias, _):
    return weighed(jnp.where(shown, scores(q, k) + bias, -jnp.inf), v)


@trap(numbers_of_shown_cells, grad=(0, 1, 2))
def bias_that_is_no_number_in_other_segments(q, k, v, shown, bias, _):
    of_rows, of_keys = shown[:, 0, :, 0].astype(jnp.int32), shown[:, 0, 0].astype(jnp.int32)
    same = of_rows[:, :, None] == of_keys[:, None]
    return weighed(jnp.where(same[:, None], scores(q, k) + jnp.where(same, 1.0, bias[:, 0])[:, None], -jnp.inf), v)


@trap(numbers_of_shown_cells, grad=(0, 1, 2))
def hidden_by_infinity_and_numbers_of_other_cells(q, k, v, shown, _, more):
    return weighed(jnp.where(shown, scores(q, k), -jnp.inf + jnp.where(more > 0, more, 0)), v)


# Numbers of data that multiply or divide the scores until they are lower than the fill: hidden keys have all the weight.

def low_scores(random):
    q, k, v = heads(random)
    return [-np.abs(q), np.abs(k), v, random.random((B, 1, Q, K)) < 0.6]


@trap(lambda r: [*low_scores(r), np.array([0, 1, 1e-12], np.float32)], grad=(0, 1, 2))
def divided_by_nothing_of_a_head(q, k, v, shown, by):
    return weighed(jnp.where(shown, scores(q, k) / by[:, None, None], -1e9), v)


@trap(lambda r: [*low_scores(r), np.zeros(3, np.float32)])
def divided_by_the_length_of_nothing(q, k, v, _, by):
    return weighed(jnp.where(np.arange(K) < 5, scores(q, k) * jax.lax.rsqrt(jnp.sum(by * by)), -1e30), v)


@trap(lambda r: [*low_scores(r), np.zeros(1, np.float32)])
def multiplied_by_the_inverse_of_nothing_in_a_loop(q, k, v, shown, by):
    by = 1 / by[0]
    return jax.lax.scan(lambda v, _: (weighed(jnp.where(shown[:, :, :1], scores(q[:, :1], k) * by, -1e30), v) + v, None), v, None, length=2)[0]


@trap(lambda r: [*low_scores(r), np.float32(1e9)], grad=(0, 1, 2, 4))
def multiplied_beyond_the_fill(q, k, v, shown, by):
    return weighed(jnp.where(np.arange(K) < 5, scores(q, k) * by, -1e9), v)


@trap(lambda r: [*low_scores(r), np.float32(1e9)], grad=(0, 1, 2))
def multiplied_beyond_the_fill_and_masked_again(q, k, v, shown, by):
    p = jax.nn.softmax(jnp.where(shown, scores(q, k) * by, -1e9))
    return jnp.einsum("bhqk,bkhd->bqhd", jnp.where(shown, p, 0.0), v)


@trap(lambda r: [*low_scores(r), np.array([0, 1, 1], np.float32)])
def divided_by_nothing_less_a_log_sum_exp(q, k, v, shown, by):
    s = jnp.where(np.arange(K) < 5, scores(q, k) / by[:, None, None], -1e9)
    return jnp.einsum("bhqk,bkhd->bqhd", jnp.exp(s - jax.nn.logsumexp(s, -1, keepdims=True)), v)


@trap(lambda r: [*low_scores(r), np.array([0, 1, 1e-12], np.float32)])
def queries_divided_by_nothing_of_a_head(q, k, v, shown, by):
    return weighed(jnp.where(shown, scores(q / by[:, None], k), -1e9), v)


@trap(lambda r: [*low_scores(r), np.array([1, 2, 1e-12], np.float32)], grad=(0, 1, 2))
def keys_divided_by_next_to_nothing_of_a_head(q, k, v, shown, by):
    return weighed(jnp.where(shown, scores(q, k / by[:, None]), -1e9), v)


@trap(lambda r: [*low_scores(r), np.array([[1e-12, 1], [1, 1], [2, 3]], np.float32), np.ones((K, 2), np.float32)], grad=(0, 1, 2))
def inverses_of_next_to_nothing_multiplied_and_added(q, k, v, shown, by, of_keys):
    return weighed(jnp.where(shown, scores(q, k) - (1 / by @ of_keys.T)[:, None], -1e9), v)


@trap(lambda r: [*low_scores(r), np.array([0, 1, 1e-12], np.float32)], grad=(0, 1, 2))
def queries_divided_by_an_epsilon_of_a_head(q, k, v, shown, by):
    return weighed(jnp.where(shown, scores(q / (by * by + 1e-10)[:, None], k), -1e9), v)


# Fills that the program adds in 16 bits, in rows hidden whole: nothing within millions is left beside them.

def hidden_in_bf16(random):
    shown = random.random((B, 1, Q, K)) < 0.5
    shown[0, 0, 2] = shown[1] = False
    return [*(x.astype(jnp.bfloat16) for x in heads(random)), shown, (normal(random, H, Q, K) * 100).astype(jnp.bfloat16)]


@trap(hidden_in_bf16, grad=(0, 1, 2))
def bias_added_to_fills_of_bf16(q, k, v, shown, bias):
    return weighed(jnp.where(shown, scores(q, k), jnp.bfloat16(-1e9)) + bias, v)


@trap(hidden_in_bf16, grad=(0, 1, 2))
def fills_of_bf16_added_beside_distances(q, k, v, shown, _):
    """The call can be told what is lost."""
    distances = (jnp.arange(K)[None] - jnp.arange(Q)[:, None]).astype(jnp.bfloat16) * jnp.bfloat16(20)
    return weighed(scores(q, k) + distances + jnp.where(shown, 0.0, -1e9).astype(jnp.bfloat16), v)


@trap(hidden_in_bf16, grad=(0, 1, 2))
def fills_of_f32_added_to_scores_of_bf16(q, k, v, shown, bias):
    s = scores(q, k).astype(jnp.float32) + bias
    return weighed(s + jnp.where(shown, 0.0, -1e9), v.astype(jnp.float32))


# Fills of two masks, added up before the scores are: what they come to together tells more cells apart than one fill does.

def masks_of_keys(random):
    """Rows that see no key at all, some hidden by one mask alone, some by both."""
    shown = (np.arange(K) < [[K], [4]]) & (np.arange(K) >= [[0], [2]])
    other = random.random((B, 1, Q, K)) < 0.6
    other[0, 0, 3] = False
    return [*heads(random), shown, other]


def both_fills(fill, other_fill, shown, other):
    return jnp.where(other, 0.0, other_fill) + jnp.where(shown[:, None, None, :], 0.0, fill)


@trap(masks_of_keys, grad=(0, 1, 2))
def lowest_fills_of_two_masks_are_an_infinity(q, k, v, shown, other):
    lowest = jnp.finfo(jnp.float32).min
    return weighed(scores(q, k) + both_fills(lowest, lowest, shown, other), v)


@trap(masks_of_keys, grad=(0, 1, 2))
def lowest_fills_of_a_mask_and_a_causal_one(q, k, v, shown, _):
    lowest = jnp.finfo(jnp.float32).min
    return weighed(scores(q, k) + both_fills(lowest, lowest, shown, jnp.tril(jnp.ones((Q, K), bool))), v)


@trap(masks_of_keys, grad=(0, 1, 2))
def infinity_and_a_fill_of_two_masks(q, k, v, shown, other):
    return weighed(scores(q, k) + both_fills(-jnp.inf, -1e9, shown, other), v)


@trap(masks_of_keys, grad=(0, 1, 2))
def a_fill_beside_one_that_it_is_lost_in(q, k, v, shown, other):
    return weighed(scores(q, k) + both_fills(-100.0, -1e9, shown, other), v)


@trap(masks_of_keys, grad=(0, 1, 2))
def fills_of_two_masks_far_apart(q, k, v, shown, other):
    return weighed(scores(q, k) + both_fills(-1e30, -1e9, shown, other), v)


@trap(lambda r: [*masks_of_keys(r), normal(r, 1, H, Q, K)], grad=(0, 1, 2, 5))
def fills_of_two_masks_beside_a_trained_bias(q, k, v, shown, other, bias):
    s = scores(q, k) + bias + jnp.where(other, 0.0, -1e9)
    return weighed(s + (1.0 - shown[:, None, None, :].astype(jnp.float32)) * -1e9, v)


@trap(masks_of_keys, grad=(0, 1, 2))
def fills_of_two_masks_beside_large_scores(q, k, v, shown, other):
    """Beside -1e9 an f32 keeps multiples of 64: of scores in the hundreds something is left."""
    s = scores(q * 40, k * 8) + jnp.where(other, 0.0, -1e9)
    return weighed(s + jnp.where(shown[:, None, None, :], 0.0, -1e9), v)


@trap(masks_of_keys, grad=(0, 1, 2))
def fills_of_two_masks_in_bf16(q, k, v, shown, other):
    q, k, v = (x.astype(jnp.bfloat16) for x in (q, k, v))
    s = scores(q * 9, k) + jnp.where(other, 0.0, -1e9).astype(jnp.bfloat16)
    return weighed(s + jnp.where(shown[:, None, None, :], 0.0, -1e9).astype(jnp.bfloat16), v)


@trap(masks_of_keys, grad=(0, 1, 2))
def fills_of_two_masks_of_sixteen_bits_widened(q, k, v, shown, other):
    q, k, v = (x.astype(jnp.bfloat16) for x in (q, k, v))
    fills = both_fills(-1e9, -1e9, shown, other).astype(jnp.bfloat16)
    return weighed(scores(q, k).astype(jnp.float32) + fills.astype(jnp.float32), v.astype(jnp.float32))


@trap(masks_of_keys, grad=(0, 1, 2))
def fills_of_two_masks_in_f16(q, k, v, shown, other):
    q, k, v = (x.astype(jnp.float16) for x in (q, k, v))
    return weighed(scores(q, k) + both_fills(-6e4, -6e4, shown, other).astype(jnp.float16), v)


@trap(masks_of_keys, grad=(0, 1, 2))
def fills_of_two_masks_and_weights_masked_again(q, k, v, shown, other):
    p = jax.nn.softmax(scores(q, k) + both_fills(-1e9, -1e9, shown, other))
    return jnp.einsum("bhqk,bkhd->bqhd", jnp.where(other, p, 0.0), v)


@trap(masks_of_keys, grad=(0, 1, 2))
def infinite_fills_of_two_masks_and_rows_of_no_number_at_zero(q, k, v, shown, other):
    lowest = jnp.finfo(jnp.float32).min
    p = jax.nn.softmax(scores(q, k) + both_fills(lowest, lowest, shown, other))
    return jnp.einsum("bhqk,bkhd->bqhd", jnp.where(jnp.isnan(p), 0.0, p), v)


@trap(lambda r: [*masks_of_keys(r), np.array([-1e9, 0.5, -2.5e9], np.float32)], grad=(0, 1, 2))
def fills_of_two_masks_beside_a_sink_as_low(q, k, v, shown, other, sinks):
    s = scores(q, k) + both_fills(-1e9, -1e9, shown, other)
    s = jnp.concatenate([s, jnp.broadcast_to(sinks[:, None, None], (B, H, Q, 1))], -1)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s)[..., :-1], v)


@trap(lambda r: [*masks_of_keys(r), r.random((B, H, Q, K)) < 0.8], grad=(0, 1, 2))
def fills_of_two_masks_beneath_dropout(q, k, v, shown, other, kept):
    p = jax.nn.softmax(scores(q, k) + both_fills(-1e9, -1e9, shown, other))
    return jnp.einsum("bhqk,bkhd->bqhd", jnp.where(kept, p / 0.8, 0.0), v)


@trap(masks_of_keys, grad=(0, 1, 2))
def fills_of_two_masks_beneath_a_third(q, k, v, shown, other):
    s = scores(q, k) + both_fills(-1e9, -2e9, shown, other)
    return weighed(jnp.where(jnp.tril(jnp.ones((Q, K), bool)), s, -1.5e9), v)


@trap(masks_of_keys)
def fills_of_two_masks_less_a_log_sum_exp(q, k, v, shown, other):
    s = scores(q, k) + both_fills(-1e9, -1e9, shown, other)
    return jnp.einsum("bhqk,bkhd->bqhd", jnp.exp(s - jax.nn.logsumexp(s, -1, keepdims=True)), v)


@trap(masks_of_keys, grad=(0, 1, 2))
def fills_of_two_masks_without_a_maximum(q, k, v, shown, other):
    e = jnp.exp(scores(q, k) + both_fills(-1e9, -1e9, shown, other))
    return jnp.einsum("bhqk,bkhd->bqhd", e / e.sum(-1, keepdims=True), v)


@trap(masks_of_keys, grad=(0, 1, 2))
def a_fill_chosen_by_one_mask_of_two(q, k, v, shown, other):
    """Chosen, not added: no number stands beside the scores."""
    s = jnp.where(shown[:, None, None, :], jnp.where(other, scores(q, k), -1e9), -2e9)
    return weighed(s, v)
