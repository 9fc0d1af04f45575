"""Several terms added to the scores."""

import jax
import jax.numpy as jnp
import numpy as np

from traps.trap import B, H, K, Q, heads, normal, scores, trap, weighed


def terms(random):
    whole = (random.random((B, K)) < 0.6).astype(np.int32)
    whole[1] = 0  # all of an entry's keys are hidden
    return [*heads(random), normal(random, 1, H, Q, K), normal(random, B, 1, Q, 1), whole]


def hidden_by(mask, by=1e9):
    return (1.0 - mask[:, None, None, :].astype(jnp.float32)) * by


@trap(terms, grad=(0, 1, 2, 3))
def bias_and_mask_of_numbers(q, k, v, bias, gate, mask):
    return weighed(scores(q, k) + (bias - hidden_by(mask)), v)


@trap(terms, grad=(0, 1, 2, 3, 4))
def gated_bias_and_mask_of_numbers(q, k, v, bias, gate, mask):
    return weighed(scores(q, k) + bias * gate - hidden_by(mask, 1e30), v)


@trap(terms, grad=(0, 1, 2))
def scaled_with_bias_and_mask_of_numbers(q, k, v, bias, gate, mask):
    return weighed((scores(q, k) + bias - hidden_by(mask)) * 0.5 + bias * bias, v)


@trap(terms, grad=(0, 1, 2))
def terms_beside_a_mask(q, k, v, bias, gate, mask):
    s = jnp.where(mask[:, None, None, :] != 0, scores(q, k) - bias, -1e30)
    return weighed(s - bias * gate, v)


@trap(terms, grad=(0, 1, 2))
def terms_beneath_a_mask_and_a_cap(q, k, v, bias, gate, mask):
    s = 5 * jnp.tanh(scores(q, k)) - 2 * bias + gate * bias
    return weighed(jnp.where(mask[:, None, None, :] != 0, s, -1e30), v)


# Of several terms the call gives the gradient of one, which need not be that of most axes.

@trap(lambda r: [*heads(r), normal(r, H, 1, K), normal(r, B, 1, Q, K)], grad=(0, 1, 2, 3))
def bias_trained_beside_a_larger_term(q, k, v, bias, windows):
    return weighed(scores(q, k) + bias + windows, v)


@trap(lambda r: [*heads(r), normal(r, H, 1, K), normal(r, B, 1, Q, K)], grad=(0, 1, 2, 3, 4))
def two_biases_trained(q, k, v, bias, windows):
    return weighed(scores(q, k) + bias + windows, v)


@trap(lambda r: [*heads(r), normal(r, H, 1, K), normal(r, K)], grad=(0, 1, 2, 4))
def bias_of_keys_trained_beside_one_of_heads(q, k, v, bias, of_keys):
    return weighed(scores(q, k) + bias + of_keys, v)


@trap(terms, grad=(0, 1, 2, 3))
def bias_trained_in_two_terms(q, k, v, bias, gate, mask):
    return weighed((scores(q, k) + bias) * gate - 3.0 * bias - hidden_by(mask), v)


@trap(terms, grad=(0, 1, 2, 4))
def gate_trained_of_scores_and_bias(q, k, v, bias, gate, mask):
    return weighed((scores(q, k) + bias) * gate + gate, v)


@trap(terms, grad=(0, 2, 4))
def divisor_trained_beside_a_mask(q, k, v, bias, gate, mask):
    s = (scores(q, k) - bias) / (1.0 + gate * gate)
    return weighed(jnp.where(mask[:, None, None, :] != 0, s, -1e30), v)


@trap(terms, grad=(1, 4))
def gate_trained_of_a_fill_within_reach(q, k, v, bias, gate, mask):
    s = scores(q, k) * gate + 0.5 * bias * gate
    return weighed(jnp.where(mask[:, None, None, :] != 0, s, -100.0), v)


@trap(terms, grad=(0, 1, 2, 3))
def bias_of_two_layers(q, k, v, bias, gate, mask):
    """Its gradients by both layers are added before they are summed over the batch."""
    term = bias - hidden_by(mask)
    o = weighed(scores(q, k) + term, v)
    return o + weighed(scores(q + o[..., :8], k) + term, v)


# What hides is a product of a sum: taken apart, each part of it swallows the scores.

def masks_of_cells(random):
    """Numbers of whole scores, 1 where a key is seen; each row sees its first."""
    one, other = ((random.random((B, H, Q, K)) < 0.7).astype(np.float32) for _ in range(2))
    one[..., 0] = other[..., 0] = 1
    return [*heads(random), one, other, np.float32(-1e9), normal(random, Q, 1) - np.float32(9e3)]


@trap(masks_of_cells, grad=(0, 1, 2))
def mask_of_numbers_times_a_parameter(q, k, v, one, other, fill, fills):
    return weighed(scores(q, k) + (1.0 - one) * fill, v)


@trap(masks_of_cells, grad=(0, 1, 2))
def mask_of_numbers_times_those_of_rows(q, k, v, one, other, fill, fills):
    return weighed(scores(q, k) + (1.0 - one) * fills, v)


@trap(masks_of_cells, grad=(0, 1, 2))
def masks_of_numbers_subtracted(q, k, v, one, other, fill, fills):
    return weighed(scores(q, k) + (jnp.maximum(one, other) - one) * -1e9, v)


@trap(masks_of_cells, grad=(0, 1, 2))
def mask_of_numbers_times_what_the_text_makes(q, k, v, one, other, fill, fills):
    return weighed(scores(q, k) - (1.0 - one) * jnp.exp(jnp.full((), 9.0)), v)


@trap(masks_of_cells, grad=(0, 1, 2))
def mask_of_numbers_times_a_thousand(q, k, v, one, other, fill, fills):
    return weighed(scores(q, k) + (1.0 - one) * -5000.0, v)


# What is added within a soft cap.

@trap(terms, grad=(0, 1, 2, 3))
def bias_within_a_cap_and_a_mask(q, k, v, bias, gate, mask):
    s = 5 * jnp.tanh((scores(q, k) + bias) / 5)
    return weighed(jnp.where(mask[:, None, None, :] != 0, s, -1e9), v)


@trap(terms, grad=(0, 1, 2, 3, 4))
def terms_within_a_cap_and_beside_it(q, k, v, bias, gate, mask):
    return weighed(3 * jnp.tanh(scores(q, k) + 2 * bias * gate) - bias, v)


@trap(lambda r: [*heads(r), np.where(r.random((B, 1, 1, K)) < 0.5, -1e9, 0).astype(np.float32)], grad=(0, 1, 2))
def fill_within_a_cap_is_within_reach(q, k, v, fills):
    return weighed(5 * jnp.tanh((scores(q, k) + fills) / 5), v)


def _capped(q, k, v, bias):
    return weighed(5 * jnp.tanh((scores(q, k) + bias) / 5), v)


@jax.custom_vjp
def capped_with_gradients_of_another_cap(*x):
    return _capped(*x)


def _backward_of_another_cap(kept, d_o):
    q, k, v, bias = kept
    p = jax.nn.softmax(5 * jnp.tanh((scores(q, k) + bias) / 5))
    d_p = jnp.einsum("bqhd,bkhd->bhqk", d_o, v)
    slope = 1 - jnp.tanh(scores(q, k) / 5)**2
    d_s = p * (d_p - jnp.sum(p * d_p, -1, keepdims=True)) * slope
    return (jnp.einsum("bhqk,bkhd->bqhd", d_s, k) * q.shape[-1]**-0.5, jnp.einsum("bhqk,bqhd->bkhd", d_s, q) * q.shape[-1]**-0.5,
            jnp.einsum("bhqk,bqhd->bkhd", p, d_o), jnp.sum(d_s, 0, keepdims=True))


capped_with_gradients_of_another_cap.defvjp(lambda *x: (_capped(*x), x), _backward_of_another_cap)


@trap(lambda r: [*heads(r), normal(r, 1, H, Q, K)], grad=(0, 1, 2, 3))
def bias_within_a_cap_and_beside_its_slope(q, k, v, bias):
    """Its backward leaves the bias out of the slope."""
    return capped_with_gradients_of_another_cap(q, k, v, bias)
