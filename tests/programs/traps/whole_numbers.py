"""Masks made of whole numbers and narrow floats, which are no real numbers."""

import jax
import jax.numpy as jnp
import numpy as np

from traps.trap import B, K, Q, heads, scores, trap, weighed


def masked_by(f, q=Q, k=K, **sizes):
    """A trap whose mask [q, k] (or [b, 1, q, k]) is f of the row and the key."""

    def add(rows, keys):
        def program(query, key, v):
            return weighed(jnp.where(f(rows(), keys()), scores(query, key), -1e30), v)

        program.__name__ = f.__name__
        trap(lambda r: heads(r, q=q, k=k, **sizes), grad=(0, 1, 2))(program)

    return add


def window_by_one_comparison(i, j):
    return (i - j).astype(jnp.uint32) < 4


def window_by_unsigned_difference(i, j):
    return i - j < 4


def positions_times_four_wrap(i, j):
    return i * 4 >= j * 4


def causal_in_bf16(i, j):
    return i >= j


masked_by(window_by_one_comparison)(lambda: jnp.arange(Q)[:, None], lambda: jnp.arange(K)[None])
masked_by(window_by_unsigned_difference)(lambda: jnp.arange(Q, dtype=jnp.uint8)[:, None],
                                         lambda: jnp.arange(K, dtype=jnp.uint8)[None])
masked_by(positions_times_four_wrap, q=40, k=41, b=1, h=1)(
    lambda: jnp.arange(40, dtype=jnp.int8)[:, None], lambda: jnp.arange(41, dtype=jnp.int8)[None])
masked_by(causal_in_bf16, q=320, k=320, b=1, h=1)(
    lambda: jnp.arange(320, dtype=jnp.bfloat16)[:, None], lambda: jnp.arange(320, dtype=jnp.bfloat16)[None])


@trap(lambda r: heads(r, q=4, k=620, b=1, h=1), grad=(0, 1, 2))
def distances_rounded_to_bf16(q, k, v):
    distances = (jnp.arange(620) - jnp.arange(4)[:, None]).astype(jnp.bfloat16)
    return weighed(scores(q, k) + (distances * jnp.bfloat16(0.25)).astype(jnp.float32), v)


@trap(lambda r: heads(r, q=4, k=620, b=1, h=1), grad=(0, 1, 2))
def distances_of_floats_rounded_to_bf16(q, k, v):
    distances = (jnp.arange(620) - jnp.arange(4)[:, None]).astype(jnp.float32).astype(jnp.bfloat16)
    return weighed(scores(q, k) + distances.astype(jnp.float32) * 0.25, v)


@trap(lambda r: heads(r, q=4, k=620, b=1, h=1), grad=(0, 1, 2))
def products_of_distances_rounded_to_bf16(q, k, v):
    distances = (jnp.arange(620) - jnp.arange(4)[:, None]).astype(jnp.float32)
    return weighed(scores(q, k) + (distances * 0.3).astype(jnp.bfloat16).astype(jnp.float32), v)


@trap(lambda r: heads(r, q=4, k=200, b=1, h=1), grad=(0, 1, 2))
def distances_multiplied_in_bf16(q, k, v):
    distances = (jnp.arange(200) - jnp.arange(4)[:, None]).astype(jnp.bfloat16)
    return weighed(scores(q, k) + (distances * jnp.bfloat16(0.7)).astype(jnp.float32), v)


@trap(lambda r: heads(r, q=4, k=200, b=1, h=1), grad=(0, 1, 2))
def distances_divided_in_bf16(q, k, v):
    distances = (jnp.arange(200) - jnp.arange(4)[:, None]).astype(jnp.bfloat16)
    return weighed(scores(q, k) + (distances / jnp.bfloat16(1.43)).astype(jnp.float32), v)


@trap(lambda r: [*heads(r, q=4, k=200, b=1, h=2), np.array([0.31, 0.7], np.float32)], grad=(0, 1, 2))
def distances_times_slopes_in_bf16(q, k, v, slopes):
    distances = (jnp.arange(200) - jnp.arange(4)[:, None]).astype(jnp.bfloat16)
    slopes = jnp.exp2(-slopes).astype(jnp.bfloat16)[:, None, None]
    return weighed(scores(q, k) + (distances * slopes).astype(jnp.float32), v)


@trap(lambda r: [*heads(r), (np.array([3, 7]) - 2**31).astype(np.int32)], grad=(0, 1, 2))
def lengths_counted_from_the_lowest_number(q, k, v, lengths):
    seen = jnp.arange(K) + np.int32(-2**31) < lengths[:, None]
    return weighed(jnp.where(seen[:, None, None], scores(q, k), -1e30), v)


@trap(lambda r: [*heads(r), np.array([2**31 - 1, 4], np.int32)], grad=(0, 1, 2))
def lengths_up_to_the_highest_number(q, k, v, last):
    seen = jnp.arange(K) <= last[:, None]
    return weighed(jnp.where(seen[:, None, None], scores(q, k), -1e30), v)


@trap(lambda r: [*heads(r), r.integers(0, 2, (B, K)).astype(np.int32)], grad=(0, 1, 2))
def unsigned_mask_less_one(q, k, v, mask):
    bias = (mask.astype(jnp.uint8) - 1).astype(jnp.float32) * 1e9
    return weighed(scores(q, k) + bias[:, None, None, :], v)


@trap(heads, grad=(0, 1, 2))
def half_a_mask_as_an_integer(q, k, v):
    hidden = (jnp.arange(K) > 4).astype(jnp.float32)
    return weighed(jnp.where((hidden * 0.5).astype(jnp.int32) > 0, -1e30, scores(q, k)), v)


@trap(lambda r: heads(r, q=K))
def truncated_numbers_on_the_way(q, k, v):
    far = (jnp.arange(K) * 0.3).astype(jnp.int32).astype(jnp.float32)
    return weighed(jnp.where(far[:, None] >= far[None], scores(q, k), -1e30), v)


@trap(heads, grad=(0, 1, 2))
def scores_rounded_to_eight_bits(q, k, v):
    s = scores(q, k)
    return weighed(s.astype(jnp.float8_e5m2).astype(jnp.float32), v)


@trap(lambda r: [*heads(r), r.random((B, 1, Q, K)) < 0.9])
def weights_divided_by_a_mask(q, k, v, mask):
    p = jax.nn.softmax(scores(q, k))
    return jnp.einsum("bhqk,bkhd->bqhd", p / mask, v)


@trap(lambda r: [*heads(r), r.random((B, 1, Q, K)) < 0.8])
def weights_divided_by_a_mask_of_two_numbers(q, k, v, mask):
    p = jax.nn.softmax(scores(q, k))
    return jnp.einsum("bhqk,bkhd->bqhd", p / (mask.astype(jnp.float32) + 1), v)
