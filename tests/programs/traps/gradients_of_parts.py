"""Gradients of a part of the keys, by numbers that the program has of whole rows."""

import jax.numpy as jnp
import numpy as np

from traps.trap import B, H, K, Q, heads, normal, scores, trap


def gradients(s, q, k, v, d_o, number, mean):
    """dQ, dK and dV of scores `s` for exponentials less a number of each row."""
    p = jnp.exp(s - number[..., None])
    d_p = jnp.einsum("bqhd,bkhd->bhqk", d_o, v)
    d_s = p * (d_p - mean[..., None]) * q.shape[-1]**-0.5
    return (jnp.einsum("bhqk,bkhd->bqhd", d_s, k), jnp.einsum("bhqk,bqhd->bkhd", d_s, q), jnp.einsum("bhqk,bqhd->bkhd", p, d_o))


def given(random, dtype=np.float32):
    """Numbers about as large as a log-sum-exp of these keys and as many others; any means."""
    q, k, v = heads(random)
    d_o = normal(random, *q.shape[:3], v.shape[-1])
    return [*(x.astype(dtype) for x in (q, k, v, d_o)), normal(random, B, H, Q) + np.float32(np.log(2 * K)), normal(random, B, H, Q)]


def given_and_shown(random):
    """One row sees nothing of this part, in one entry its first key alone."""
    shown = random.random((B, 1, Q, K)) < 0.6
    shown[:, :, 3], shown[0, :, 4] = False, np.arange(K) == 0
    return [*given(random), shown]


@trap(given)
def part_of_all_its_rows(q, k, v, d_o, number, mean):
    return gradients(scores(q, k), q, k, v, d_o, number, mean)


@trap(lambda random: given(random, "bfloat16"))
def part_in_bf16(q, k, v, d_o, number, mean):
    return gradients(scores(q, k).astype(jnp.float32), q, k, v, d_o, number, mean)


@trap(given)
def part_of_larger_weights(q, k, v, d_o, number, mean):
    """Up to e^25: no number of all keys is so small."""
    return gradients(scores(q, k), q, k, v, d_o, number - 25, mean)


@trap(given)
def part_of_hardly_any_weight(q, k, v, d_o, number, mean):
    return gradients(scores(q, k), q, k, v, d_o, number + 60, mean)


@trap(given)
def part_of_a_band(q, k, v, d_o, number, mean):
    s = jnp.where(jnp.arange(K) <= jnp.arange(Q)[:, None] + 2, scores(q, k), -jnp.inf)
    return gradients(s, q, k, v, d_o, number, mean)


@trap(given)
def part_of_a_band_by_a_fill(q, k, v, d_o, number, mean):
    s = jnp.where(jnp.arange(K) <= jnp.arange(Q)[:, None] + 2, scores(q, k), -1e30)
    return gradients(s, q, k, v, d_o, number, mean)


@trap(given_and_shown)
def part_hidden_by_an_infinity(q, k, v, d_o, number, mean, shown):
    return gradients(jnp.where(shown, scores(q, k), -jnp.inf), q, k, v, d_o, number, mean)


@trap(given_and_shown)
def part_hidden_by_a_fill_that_is_taken_off(q, k, v, d_o, number, mean, shown):
    """Of a row at the fill, whose number is it, all keys weigh 1."""
    number = jnp.where(jnp.arange(Q) == 3, -1e9, number)
    return gradients(jnp.where(shown, scores(q, k), -1e9), q, k, v, d_o, number, mean)


@trap(given_and_shown)
def part_hidden_by_an_added_fill(q, k, v, d_o, number, mean, shown):
    number = jnp.where(jnp.arange(Q) == 3, -1e9, number)
    return gradients(scores(q, k) + jnp.where(shown, 0, -1e9), q, k, v, d_o, number, mean)


@trap(given_and_shown)
def part_of_rows_whose_infinity_is_replaced(q, k, v, d_o, number, mean, shown):
    number = jnp.where(jnp.arange(Q) == 3, -jnp.inf, number)
    number = jnp.where(jnp.isinf(number), 0, number)
    return gradients(jnp.where(shown, scores(q, k), -jnp.inf), q, k, v, d_o, number, mean)


@trap(lambda random: [*given(random), normal(random, H, Q, K)])
def part_with_a_bias(q, k, v, d_o, number, mean, bias):
    return gradients(scores(q, k) + bias, q, k, v, d_o, number, mean)


@trap(given)
def part_whose_mean_is_scaled(q, k, v, d_o, number, mean):
    return gradients(scores(q, k), q, k, v, d_o, number, -3.0 * mean)


@trap(given)
def part_by_two_means(q, k, v, d_o, number, mean):
    return gradients(scores(q, k), q, k, v, d_o, number, mean + number[:, ::-1])


@trap(given)
def part_whose_mean_is_made_of_dv(q, k, v, d_o, number, mean):
    """It cannot be there before the call that gives dV."""
    p = jnp.exp(scores(q, k) - number[..., None])
    d_v = jnp.einsum("bhqk,bqhd->bkhd", p, d_o)
    return gradients(scores(q, k), q, k, v, d_o, number, mean + d_v.mean())


@trap(given)
def part_of_other_rows_numbers(q, k, v, d_o, number, mean):
    return gradients(scores(q, k), q, k, v, d_o, number[:, :, ::-1], mean[::-1])


@trap(given)
def part_that_takes_the_mean_off_twice(q, k, v, d_o, number, mean):
    p = jnp.exp(scores(q, k) - number[..., None])
    d_s = p * (jnp.einsum("bqhd,bkhd->bhqk", d_o, v) - mean[..., None]) - p * mean[..., None]
    return jnp.einsum("bhqk,bkhd->bqhd", d_s, k)


@trap(given)
def part_that_takes_off_no_weights(q, k, v, d_o, number, mean):
    p = jnp.exp(scores(q, k) - number[..., None])
    d_s = p * jnp.einsum("bqhd,bkhd->bhqk", d_o, v) - mean[..., None]
    return jnp.einsum("bhqk,bkhd->bqhd", d_s, k)
