"""Weights masked a second time, after the softmax."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from traps.trap import B, D, H, K, Q, heads, normal, scores, trap, weighed

# Weights masked a second time, after the softmax: a row that sees no key has 0 then, not the mean of all values.

def rows_without_keys(random):
    mask = random.random((B, Q, K)) < 0.6
    mask[:, 2] = False
    mask[1] = False
    return [*heads(random), mask, random.random((B, K)) < 0.6, np.array([3, 5], np.uint32)]


def masked_and_masked(q, k, v, first, second, key=None):
    p = jnp.where(second, jax.nn.softmax(jnp.where(first, scores(q, k), -1e9)), 0.0)
    if key is not None:
        p = jnp.where(jax.random.bernoulli(jax.random.wrap_key_data(key), 0.7, p.shape), p / 0.7, 0)
    return jnp.einsum("bhqk,bkhd->bqhd", p, v)


@trap(rows_without_keys, grad=(0, 1, 2))
def masked_twice(q, k, v, mask, padding, key):
    mask = mask[:, None] & padding[:, None, None, :]
    return masked_and_masked(q, k, v, mask, mask)


@trap(rows_without_keys, grad=(0, 1, 2))
def masked_twice_and_dropped(q, k, v, mask, padding, key):
    mask = mask[:, None] & padding[:, None, None, :]
    return masked_and_masked(q, k, v, mask, mask, key)


@trap(rows_without_keys, grad=(0, 1, 2))
def masked_twice_by_either(q, k, v, mask, padding, key):
    before = jnp.tril(jnp.ones((Q, K), bool)) & (jnp.arange(Q) != 2)[:, None]
    mask = mask[:, None] | (before & padding[:, None, None, :])
    return masked_and_masked(q, k, v, mask, mask, key)


@trap(rows_without_keys, grad=(0, 1, 2))
def masked_again_by_both_of_either(q, k, v, mask, padding, key):
    mask, padding = mask[:, None], padding[:, None, None, :]
    return masked_and_masked(q, k, v, mask | padding, mask & padding)


@trap(rows_without_keys, grad=(0, 1, 2))
def masked_again_by_another(q, k, v, mask, padding, key):
    return masked_and_masked(q, k, v, mask[:, None], mask[:, None] & padding[:, None, None, :])


@trap(rows_without_keys, grad=(0, 1, 2))
def masked_again_by_less(q, k, v, mask, padding, key):
    return masked_and_masked(q, k, v, mask[:, None] & padding[:, None, None, :], mask[:, None])


@trap(lambda r: [*rows_without_keys(r), normal(r, B, 1, 1, K) - 1e9], grad=(0, 1, 2))
def masked_twice_beside_a_huge_bias(q, k, v, mask, padding, key, bias):
    mask = mask[:, None]
    return weights_of_masked(scores(q, k) + bias, mask, v)


def weights_of_masked(s, mask, v):
    return jnp.einsum("bhqk,bkhd->bqhd", jnp.where(mask, jax.nn.softmax(jnp.where(mask, s, -1e9)), 0.0), v)


@trap(rows_without_keys, grad=(0, 1, 2))
def masked_twice_in_the_values_alone(q, k, v, mask, padding, key):
    # The gradient of the scores is that of the weights that are not masked again.
    @jax.custom_vjp
    def attend(q, k, v):
        return masked_and_masked(q, k, v, mask[:, None], mask[:, None])

    def forward(q, k, v):
        return attend(q, k, v), (q, k, v)

    def backward(kept, d_o):
        return jax.vjp(lambda q, k, v: weighed(jnp.where(mask[:, None], scores(q, k), -1e9), v), *kept)[1](d_o)

    attend.defvjp(forward, backward)
    return attend(q, k, v)


# Terms that are products with queries or keys, and weights masked a second time beside them.

def positions_and_mask(random):
    shown = random.random((B, K)) < 0.6
    shown[1] = False
    return [*heads(random), normal(random, 2 * K, H, D), shown]


def shifted(x, keys):
    """Each row one further to the left than the one before, by the shape alone, as XLNet does it."""
    b, h, rows, columns = x.shape
    x = lax.slice_in_dim(x.reshape(b, h, columns, rows), 1, columns, axis=2)
    return lax.slice_in_dim(x.reshape(b, h, rows, columns - 1), 0, keys, axis=3)


def by_distance(q, k, r):
    of_rows = jnp.einsum("bqhd,rhd->bhqr", q, r)
    of_keys = jnp.einsum("bkhd,rhd->bhkr", k, r)
    return shifted(of_rows, K) + jnp.swapaxes(shifted(of_keys, Q), 2, 3)


def weighed_twice(s, shown, v):
    p = jax.nn.softmax(jnp.where(shown, s, -1e9))
    return jnp.einsum("bhqk,bkhd->bqhd", jnp.where(shown, p, 0.0), v)


@trap(positions_and_mask, grad=(0, 1, 2, 3))
def positions_by_content(q, k, v, r, shown):
    return weighed(scores(q, k) + by_distance(q, k, r), v)


@trap(positions_and_mask, grad=(0, 1, 2, 3))
def positions_by_content_masked_twice(q, k, v, r, shown):
    return weighed_twice(scores(q, k) + by_distance(q, k, r), shown[:, None, None], v)


@trap(lambda r: [*(x * 8 for x in positions_and_mask(r)[:4]), positions_and_mask(r)[4]], grad=(0, 1, 2, 3))
def large_positions_by_content_masked_twice(q, k, v, r, shown):
    return weighed_twice(scores(q, k) + by_distance(q, k, r), shown[:, None, None], v)


@trap(positions_and_mask, grad=(0, 1, 2, 3))
def chosen_terms_masked_twice(q, k, v, r, shown):
    of = jnp.einsum("bqhd,rhd->bhqr", q, r)
    same = shown[:, None, :Q, None] == shown[:, None, None]
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) + jnp.where(same, of[..., :1], of[..., 1:2])
    return weighed_twice(s * 0.3, shown[:, None, None], v)


@trap(lambda r: [*positions_and_mask(r)[:3], np.where(r.random((B, H, Q, K)) < 0.5, -1e9, 0).astype(np.float32),
                 positions_and_mask(r)[4]], grad=(0, 1, 2))
def masked_twice_beside_fills(q, k, v, bias, shown):
    low = jnp.where(jnp.arange(Q)[:, None] < 3, -1e9, bias)  # every score of these rows is as low as the fill
    return weighed_twice(scores(q, k) + low, shown[:, None, None], v)


@trap(lambda r: [*positions_and_mask(r)[:3], np.full((B, H, Q, K), 2**31 - 64, np.int32), positions_and_mask(r)[4]],
      grad=(0, 1, 2))
def masked_twice_beside_whole_numbers(q, k, v, number, shown):
    return weighed_twice(scores(q, k) - number.astype(jnp.float32) * 0.5, shown[:, None, None], v)


@trap(lambda r: [*positions_and_mask(r)[:3], np.ones((B, H, Q, 1), np.float32), np.full((K, 1), -1e9, np.float32),
                 positions_and_mask(r)[4]], grad=(0, 1, 2))
def masked_twice_beside_numbers_spread_by_a_product(q, k, v, rows, keys, shown):
    """A product that only spreads a fill: each of its sums is one number."""
    return weighed_twice(scores(q, k) + jnp.einsum("bhqr,kr->bhqk", rows, keys), shown[:, None, None], v)


# Exponentials masked before they are summed, by what hides no score.

def some_keys(random):
    return [*heads(random), random.random((B, K)) < 0.6]


def exponentials(q, k):
    s = scores(q, k)
    return jnp.exp(s - s.max(-1, keepdims=True))


@trap(some_keys, grad=(0, 1, 2))
def exponentials_masked(q, k, v, mask):
    e = jnp.where(mask[:, None, None], exponentials(q, k), 0)
    return jnp.einsum("bhqk,bkhd->bqhd", e / e.sum(-1, keepdims=True), v)


@trap(some_keys, grad=(0, 1, 2))
def exponentials_times_what_is_no_bit(q, k, v, mask):
    e = exponentials(q, k) * (mask + mask[:, ::-1])[:, None, None].astype(jnp.float32) * 2
    return jnp.einsum("bhqk,bkhd->bqhd", e / e.sum(-1, keepdims=True), v)


@trap(some_keys, grad=(0, 1, 2))
def exponentials_masked_and_weights_of_all(q, k, v, mask):
    e = exponentials(q, k)
    return jnp.einsum("bhqk,bkhd->bqhd", e / (e * mask[:, None, None]).sum(-1, keepdims=True), v)


@trap(some_keys, grad=(0, 1, 2))
def exponentials_masked_by_two(q, k, v, mask):
    e = exponentials(q, k)
    total = (e * mask[:, None, None]).sum(-1, keepdims=True)
    return jnp.einsum("bhqk,bkhd->bqhd", e * (mask[:, None, None, ::-1] / total), v)


@trap(lambda r: [*some_keys(r), r.random((B, H, Q, K)).astype(np.float32)], grad=(0, 1, 2))
def exponentials_masked_beside_others(q, k, v, mask, of_cells):
    e = exponentials(q, k)
    shown = e * mask[:, None, None]
    return jnp.einsum("bhqk,bkhd->bqhd", shown / shown.sum(-1, keepdims=True), v), (e * of_cells).sum(-1)


@trap(lambda r: [*heads(r), np.arange(K) < np.array([0, 4])[:, None]])
def exponentials_masked_left_alone_beside_a_fused_softmax(q, k, v, mask):
    """The first entry sees no key: what is taken off its scores is -inf, and its exponentials are zeros by the mask alone."""
    mask = mask[:, None, None]
    s = scores(q, k)
    e = jnp.where(mask, jnp.exp(s - jnp.where(mask, s, -jnp.inf).max(-1, keepdims=True)), 0.0)
    total = e.sum(-1, keepdims=True)
    return weighed(scores(q, k * 0.5), v), jnp.sort(e / jnp.where(total == 0, 1.0, total))
