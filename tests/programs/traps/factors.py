"""Factors of scores, weights and gradients, and where the program applies them."""

import jax
import jax.numpy as jnp
import numpy as np

from traps.trap import B, H, K, Q, heads, normal, scores, trap, weighed

# Gradients that are multiples of one another by constants that the program applies where it likes.

def keys_drawn(random):
    return [*heads(random), np.array([3, 5], np.uint32)]


@trap(keys_drawn, grad=(0, 1, 2))
def dropout_of_scaled_queries(q, k, v, key):
    keep = jax.random.bernoulli(jax.random.wrap_key_data(key), 0.9, (B, H, Q, K))
    p = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q * 0.3, k))
    return jnp.einsum("bhqk,bkhd->bqhd", p * keep / 0.9, v)


@jax.custom_vjp
def dropped_by_two_factors(q, k, v, keep):
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores(q, k)) * keep / 0.7, v)


def _forward_by_two_factors(q, k, v, keep):
    return dropped_by_two_factors(q, k, v, keep), (q, k, v, keep)


def _backward_by_two_factors(kept, d_o):
    q, k, v, keep = kept
    p = jax.nn.softmax(scores(q, k))
    d_p = jnp.einsum("bqhd,bkhd->bhqk", d_o, v) * keep * 3.0
    d_s = p * (d_p - jnp.sum(p * d_p, -1, keepdims=True))
    return (jnp.einsum("bhqk,bkhd->bqhd", d_s, k), jnp.einsum("bhqk,bqhd->bkhd", d_s, q) * 0.25,
            jnp.einsum("bhqk,bqhd->bkhd", p * keep / 0.7, d_o), jnp.zeros_like(keep))


dropped_by_two_factors.defvjp(_forward_by_two_factors, _backward_by_two_factors)


@trap(keys_drawn, grad=(0, 1, 2))
def dropout_by_two_factors(q, k, v, key):
    keep = jax.random.bernoulli(jax.random.wrap_key_data(key), 0.7, (B, H, Q, K)).astype(jnp.float32)
    return dropped_by_two_factors(q, k, v, keep)


# A factor for each head between the weights and the values.

@trap(lambda r: [*heads(r), normal(r, H)], grad=(0, 1, 2))
def weights_by_heads(q, k, v, of_heads):
    p = jnp.einsum("h,bhqk->bhqk", of_heads, jax.nn.softmax(scores(q, k)))
    return jnp.einsum("bhqk,bkhd->bqhd", p, v)


@trap(lambda r: heads(r), grad=(0, 1, 2))
def weights_by_equal_heads(q, k, v):
    p = jnp.einsum("h,bhqk->hbqk", jnp.full(H, 0.5), jax.nn.softmax(scores(q, k)))
    return jnp.einsum("hbqk,bkhd->bqhd", p, v)


def numbers_lower_than_a_fill(random):
    low = np.where(random.random((B, 1, Q, K)) < 0.7, -4e9, 0).astype(np.float32)
    return [*heads(random), low, random.random((B, K)) < 0.6]


@trap(numbers_lower_than_a_fill, grad=(0, 1, 2))
def lowest_of_numbers_and_nothing_times_them(q, k, v, low, shown):
    """Nothing times what may be anything is no bound of it."""
    term = jnp.minimum(low * 0.0, low)
    return weighed(jnp.where(shown[:, None, None], scores(q, k) + term, -1e9), v)


def numbers_and_their_places(random):
    """Every key's number belongs to one of a few places, of which some hold nothing."""
    holds = np.ones((B, Q, 4), np.float32)
    holds[0] = 0
    holds[1, :3, :2] = 0
    return [*heads(random), holds, np.eye(4, dtype=np.float32)[random.integers(0, 4, K)], random.random((B, K)) < 0.6]


@trap(numbers_and_their_places, grad=(0, 1, 2))
def fill_made_before_a_product_spreads_it(q, k, v, holds, places, shown):
    """What the text multiplies a product's factors by is in the product too."""
    term = jnp.einsum("bqr,kr->bqk", (1 - holds) * -4e9, places)[:, None]
    return weighed(jnp.where(shown[:, None, None], scores(q, k) + term, -1e9), v)


# Numbers of data that the scores are multiplied by.

@trap(lambda r: [*heads(r), normal(r)], grad=(0, 1, 2, 3))
def scaled_by_the_mean_score(q, k, v, scale):
    s = scores(q, k)
    return weighed(s * (scale * jnp.mean(s)), v)


@trap(lambda r: [*heads(r), np.float32(-3)], grad=(0, 1, 2, 3))
def scaled_by_a_negative_number(q, k, v, scale):
    return weighed(scores(q, k) * scale, v)


@trap(lambda r: [*heads(r), np.float32(0)], grad=(0, 1, 2, 3))
def scaled_by_nothing(q, k, v, scale):
    return weighed(jnp.where(jnp.arange(K) < 5, scores(q, k) * scale, -jnp.inf), v)


@trap(lambda r: [*heads(r), np.float32(1e9)])
def scaled_up_to_the_fill(q, k, v, scale):
    return weighed(jnp.where(jnp.arange(K) < 5, scores(q, k) * scale, -1e9), v)


@trap(lambda r: [*heads(r), normal(r, K), np.float32(0.7)], grad=(0, 1, 2, 3, 4))
def scaled_by_keys_and_squared(q, k, v, of_keys, scale):
    return weighed(scores(q, k) * of_keys * scale**2 * jnp.cos(scale), v)


@trap(lambda r: [*heads(r), np.float32(0.7)], grad=(0, 1, 2, 3))
def scaled_and_added(q, k, v, scale):
    return weighed((scores(q, k) + jnp.arange(K) / 4) * scale, v)


@trap(lambda r: [*heads(r), np.abs(normal(r, H)) + 0.5], grad=(0, 1, 2, 3))
def divided_by_trained_numbers_of_heads(q, k, v, temperatures):
    return weighed(scores(q, k) / temperatures[:, None, None], v)


@trap(lambda r: [*heads(r), np.float32(0.7), normal(r, H, Q, K)], grad=(0, 1, 2, 3, 4))
def scaled_and_biased_by_trained_numbers(q, k, v, scale, bias):
    return weighed(scores(q, k) * scale + bias, v)


@trap(lambda r: [*heads(r), np.float32(0.7), np.float32(0.9)], grad=(0, 1, 2, 3, 4))
def scaled_and_divided_by_trained_numbers(q, k, v, scale, temperature):
    return weighed(scores(q, k) * scale / temperature, v)


def _divided(q, k, v, temperature, _):
    return weighed(scores(q, k) / temperature, v)


@jax.custom_vjp
def divided_with_gradients_of_its_own(*x):
    return _divided(*x)


def _backward_by_another(kept, d_o):
    """The divisor's gradient is divided by another number in the place of one of its two divisors."""
    d_q, d_k, d_v, d_t, d_other = jax.vjp(_divided, *kept)[1](d_o)
    q, k, v, temperature, other = kept
    p = jax.nn.softmax(scores(q, k) / temperature)
    d_p = jnp.einsum("bqhd,bkhd->bhqk", d_o, v)
    d_s = p * (d_p - jnp.sum(p * d_p, -1, keepdims=True))
    return d_q, d_k, d_v, -jnp.sum(d_s * scores(q, k) * (1 / (temperature * other))), d_other


divided_with_gradients_of_its_own.defvjp(lambda *x: (_divided(*x), x), _backward_by_another)


@trap(lambda r: [*heads(r), np.float32(0.7), np.float32(1.6)], grad=(0, 1, 2, 3))
def divided_by_a_number_and_its_gradient_by_another(q, k, v, temperature, other):
    return divided_with_gradients_of_its_own(q, k, v, temperature, other)


@trap(lambda r: [*heads(r), np.float32(0.7)], grad=(0, 1, 2, 3))
def divided_by_a_trained_number(q, k, v, temperature):
    return weighed(scores(q, k) / temperature, v)


# Weights of two softmaxes, added up before they weigh.

def two_pairs(random):
    return [*heads(random), *heads(random)[:2], normal(random, H)]


@trap(two_pairs, grad=(0, 1, 2, 3, 4, 5))
def differential(q, k, v, q2, k2, share):
    p = jax.nn.softmax(scores(q, k)) - share[:, None, None] * jax.nn.softmax(scores(q2, k2))
    return jnp.einsum("bhqk,bkhd->bqhd", p, v)


@trap(two_pairs, grad=(0, 1, 2))
def differential_of_nearly_equal_weights(q, k, v, *_):
    q, k, v = (x.astype(jnp.bfloat16) for x in (q, k, v))
    p = jax.nn.softmax(scores(q, k)) - jax.nn.softmax(scores(q, k * jnp.bfloat16(1.05)))
    return jnp.einsum("bhqk,bkhd->bqhd", p, v)


@trap(lambda r: [*two_pairs(r), r.random((B, H, Q, K)).astype(np.float32)], grad=(0, 1, 2, 3, 4, 6))
def differential_of_cells(q, k, v, q2, k2, _, share):
    p = jax.nn.softmax(scores(q, k)) - share * jax.nn.softmax(scores(q2, k2))
    return jnp.einsum("bhqk,bkhd->bqhd", p, v)


# Heads of one product in two parts, the weights of one taken off the other's.

def heads_of_parts(random):
    return [normal(random, B, Q, 2 * H, 8), normal(random, B, K, 2 * H, 8), normal(random, B, K, H, 16), normal(random, H),
            random.random((B, 2 * H, Q, K)) < 0.6, normal(random, 2 * H)]


@trap(heads_of_parts, grad=(0, 1, 2, 3))
def differential_of_one_product(q, k, v, share, mask, _):
    p = jax.nn.softmax(jnp.where(mask, scores(q, k), -1e30))
    return jnp.einsum("bhqk,bkhd->bqhd", p[:, :H] - share[:, None, None] * p[:, H:], v)


@trap(heads_of_parts, grad=(0, 1, 2, 3, 5))
def differential_of_pairs_beside_sinks(q, k, v, share, mask, sinks):
    s = jnp.where(mask, scores(q, k), -1e30)
    p = jax.nn.softmax(jnp.concatenate([s, jnp.broadcast_to(sinks[:, None, None], (B, 2 * H, Q, 1))], -1))[..., :-1]
    p = p.reshape(B, H, 2, Q, K)
    return jnp.einsum("bhqk,bkhd->bqhd", p[:, :, 0] - share[:, None, None] * p[:, :, 1], v)


@trap(heads_of_parts, grad=(0, 1, 2, 3))
def differential_of_parts_returned(q, k, v, share, mask, _):
    p = jax.nn.softmax(jnp.where(mask, scores(q, k), -1e30))
    return jnp.einsum("bhqk,bkhd->bqhd", p[:, ::2] - share[:, None, None] * p[:, 1::2], v), p.sum(-2)


# Rows whose weights are dropped whole.

def rows_dropped(random):
    q, k, v = heads(random)
    mask = random.random((B, 1, Q, K)) < 0.6
    mask[0, 0, 2] = mask[1, 0, 4] = False
    return [q, k, v, mask, random.random((B, Q)) < 0.6]


@trap(rows_dropped, grad=(0, 1, 2))
def weights_of_rows_without_keys_dropped(q, k, v, mask, _):
    p = jax.nn.softmax(jnp.where(mask, scores(q, k), -jnp.inf))
    return jnp.einsum("bhqk,bkhd->bqhd", jnp.where(mask.any(-1, keepdims=True), p, 0.0), v)


@trap(rows_dropped, grad=(0, 1, 2))
def weights_of_filled_rows_dropped(q, k, v, mask, rows):
    p = jax.nn.softmax(jnp.where(mask, scores(q, k), -1e30))
    return jnp.einsum("bhqk,bkhd->bqhd", jnp.where(rows[:, None, :, None], p, 0.0), v)


@trap(rows_dropped, grad=(0, 1, 2))
def weights_of_other_rows_a_half(q, k, v, mask, rows):
    p = jax.nn.softmax(jnp.where(mask, scores(q, k), -1e30))
    return jnp.einsum("bhqk,bkhd->bqhd", jnp.where(rows[:, None, :, None], p, 0.5), v)


@trap(rows_dropped)
def unread_rows_of_no_numbers(q, k, v, mask, rows):
    q = jnp.where(rows[..., None, None], q, jnp.nan)
    p = jax.nn.softmax(jnp.where(mask, scores(q, k), -1e30))
    return jnp.einsum("bhqk,bkhd->bqhd", jnp.where(rows[:, None, :, None], p, 0.0), v)


@trap(rows_dropped, grad=(0, 1, 2))
def weights_made_numbers(q, k, v, mask, _):
    p = jax.nn.softmax(jnp.where(mask, scores(q, k), -jnp.inf))
    return jnp.einsum("bhqk,bkhd->bqhd", jnp.nan_to_num(p), v)


@trap(lambda r: [*rows_dropped(r), np.array([0, 1, 0.5], np.float32)], grad=(0, 1, 2))
def weights_of_scores_less_the_log_of_nothing_made_numbers(q, k, v, mask, _, of_heads):
    p = jax.nn.softmax(jnp.where(mask, scores(q, k) - jnp.log(of_heads)[:, None, None] * (jnp.arange(K) % 2), -jnp.inf))
    return jnp.einsum("bhqk,bkhd->bqhd", jnp.nan_to_num(p), v)


@trap(lambda r: [*rows_dropped(r), np.array([0, 1, 0.5], np.float32)], grad=(0, 1, 2))
def weights_of_scores_divided_by_nothing_made_numbers(q, k, v, mask, _, temperatures):
    p = jax.nn.softmax(jnp.where(mask, scores(q, k) / temperatures[:, None, None], -jnp.inf))
    return 1 + jnp.einsum("bhqk,bkhd->bqhd", jnp.where(jnp.isnan(p), 0.0, p), v)


def of_length_one(x):
    return x / jnp.linalg.norm(x, axis=-1, keepdims=True)


def vectors_of_zeros(random):
    q, k, v = heads(random)
    q[0, 2] = 0
    k[1, 3] = 0
    return [q, k, v]


@trap(vectors_of_zeros)
def scores_of_no_direction_made_zeros(q, k, v):
    s = scores(of_length_one(q), of_length_one(k))
    return weighed(jnp.where(jnp.isnan(s), 0.0, s), v)


@trap(vectors_of_zeros)
def weights_of_no_direction_made_zeros(q, k, v):
    p = jax.nn.softmax(scores(of_length_one(q), of_length_one(k)))
    return 1 + jnp.einsum("bhqk,bkhd->bqhd", jnp.nan_to_num(p), v)


@trap(vectors_of_zeros, grad=(0, 1, 2))
def scores_of_nearly_no_direction_made_zeros(q, k, v):
    """An epsilon keeps them numbers."""
    q, k = (x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) for x in (q, k))
    return weighed(jnp.nan_to_num(scores(q, k)), v)
