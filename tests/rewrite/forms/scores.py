"""What is done to scores: biases, ALiBi, soft cap."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from forms.form import B, D, G, H, K, KB, OB, Q, QB, R, V, VB, both, causal, form, gradient, shape, softmax


@both(QB, KB, VB, shape(H, Q, K), out=OB)
def bias_per_head(q, k, v, bias):
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) * D**-0.5 + bias
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(s), v)


@both(QB, KB, VB, shape(B, H, Q, K), out=OB)
def bias_full(q, k, v, bias):
    s = jnp.where(causal(), jnp.einsum("bqhd,bkhd->bhqk", q, k) * D**-0.5 + bias, -jnp.inf)
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(s), v)


@both(QB, KB, VB, shape(B, H, Q, K - 1), out=OB)
def bias_of_all_keys_but_the_first(q, k, v, bias):
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) + jnp.pad(bias, ((0, 0), (0, 0), (0, 0), (1, 0)))
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(s), v)


@both(QB, KB, VB, shape(B, H, Q - 1, K), shape(B, H, 1, K), out=OB)
def bias_of_rows_and_of_the_last(q, k, v, of_rows, of_last):
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) + jnp.concatenate([of_rows, of_last], 2)
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(s), v)


@both(QB, KB, VB, shape(B, H, Q, K), out=OB)
def bias_of_the_head_before(q, k, v, bias):
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) + jnp.roll(bias, 1, 1)
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(s), v)


def distances(dtype=jnp.int32):
    return jnp.arange(K, dtype=dtype)[None, :] - jnp.arange(Q, dtype=dtype)[:, None]


@both(QB, KB, VB, shape(H), out=OB)
def alibi(q, k, v, slopes):
    bias = lax.stop_gradient(slopes)[:, None, None] * distances().astype(jnp.float32)
    s = jnp.where(causal(offset=4), jnp.einsum("bqhd,bkhd->bhqk", q, k) * D**-0.5 + bias, -1e30)
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(s), v)


@both(shape(1, Q, H, D), shape(1, K, G, D), shape(1, K, G, V), out=shape(1, Q, H, V))
def alibi_of_constants(q, k, v):
    """One batch entry, slopes of the head's number, and distances without a sign."""
    slopes = 2.0 ** (-8.0 * (jnp.arange(H, dtype=jnp.float32) + 1) / H)
    s = jnp.einsum("bqgrd,bkgd->bgrqk", q.reshape(1, Q, G, R, D), k)
    s -= slopes.reshape(G, R)[:, :, None, None] * jnp.abs(distances(jnp.float32))
    return jnp.einsum("bgrqk,bkgd->bqgrd", softmax(s), v).reshape(1, Q, H, V)


@both(QB, KB, VB, shape(H), shape(B, H, Q, K), out=OB)
def alibi_and_bias(q, k, v, slopes, bias):
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) + bias
    s += lax.stop_gradient(slopes)[:, None, None] * jnp.arange(K, dtype=jnp.float32)
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(jnp.where(causal(offset=4), s, -1e30)), v)


@both(QB, KB, VB, shape(H), out=OB)
def alibi_trained(q, k, v, slopes):
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) + slopes[:, None, None] * distances().astype(jnp.float32)
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(s), v)


@both(QB, KB, VB, out=OB)
def soft_capped(q, k, v):
    s = 20.0 * jnp.tanh(jnp.einsum("bqhd,bkhd->bhqk", q, k) * (D**-0.5 / 20.0))
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(jnp.where(causal(), s, -1e30)), v)


@both(QB, KB, VB, shape(1, H, Q, K), shape(H), shape(B, K, dtype=jnp.bool_), out=OB)
def soft_capped_with_terms(q, k, v, bias, slopes, mask):
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) * D**-0.5 + bias
    s += lax.stop_gradient(slopes)[:, None, None] * distances().astype(jnp.float32)
    s = jnp.where(mask[:, None, None], 5.0 * jnp.tanh(s / 5.0), -1e9)
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(s), v)


BIAS = shape(1, H, Q, K)


@form(QB, KB, VB, BIAS, shape(B, 1, 1, K))
def two_biases(q, k, v, first, second):
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) + (first + second)
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(s), v)


@form(QB, KB, VB, BIAS)
def scaled_with_bias(q, k, v, bias):
    s = (jnp.einsum("bqhd,bkhd->bhqk", q, k) + bias) * 0.5
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(s), v)


@both(QB, KB, VB, shape(), out=OB)
def scaled_by_a_parameter(q, k, v, scale):
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) * scale
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(jnp.where(causal(offset=4), s, -1e30)), v)


@both(QB, KB, VB, shape(H), out=OB)
def scaled_by_head(q, k, v, scale):
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) * scale[:, None, None]
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(s), v)


@form(QB, KB, VB, shape(H), BIAS)
def scaled_by_head_with_bias(q, k, v, scale, bias):
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) * scale[:, None, None] + bias
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(s), v)


@both(QB, KB, VB, shape(), out=OB)
def divided_by_a_parameter(q, k, v, temperature):
    """One that is not trained."""
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) / lax.stop_gradient(temperature)
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(s), v)


@both(QB, KB, VB, shape(H, 1, 1), out=OB)
def divided_by_trained_numbers(q, k, v, temperatures):
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) / temperatures
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(s), v)


@both(QB, KB, VB, shape(), out=OB)
def scaled_by_a_square(q, k, v, scale):
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) * scale**2
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(s), v)


@both(QB, KB, VB, shape(), shape(H, Q, K), out=OB)
def scaled_and_biased_by_trained_numbers(q, k, v, scale, bias):
    """Two gradients, each by a call of its own."""
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) * scale + bias
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(s), v)


@both(QB, KB, VB, BIAS, shape(H, 1, 1), out=OB)
def biased_then_scaled(q, k, v, bias, scale):
    """The trained factor is the bias's too, and the scores' own sum holds it."""
    s = (jnp.einsum("bqhd,bkhd->bhqk", q, k) + lax.stop_gradient(bias) + 1.0) * scale
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(jnp.where(causal(offset=4), s, -1e30)), v)


@both(QB, KB, VB, BIAS, shape(B, 1, Q, 1), out=OB)
def biased_then_divided(q, k, v, bias, temperature):
    s = (jnp.einsum("bqhd,bkhd->bhqk", q, k) - lax.stop_gradient(bias)) / (1.0 + temperature**2)
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(s), v)


@both(QB, KB, VB, BIAS, shape(B, H, Q, 1), out=OB)
def bias_trained_behind_a_gate(q, k, v, bias, gate):
    s = 0.5 * (jnp.einsum("bqhd,bkhd->bhqk", q, k) + bias * jax.nn.sigmoid(lax.stop_gradient(gate)))
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(s), v)


@both(QB, KB, VB, BIAS, shape(), out=OB)
def biased_then_scaled_by_trained_numbers(q, k, v, bias, scale):
    """Two gradients, each by a call of its own."""
    s = (jnp.einsum("bqhd,bkhd->bhqk", q, k) + bias) * scale
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(s), v)


@both(QB, KB, VB, shape(H, Q, K), shape(B, 1, 1, K), shape(B, 1, Q, K, dtype=jnp.bool_), out=OB)
def biases_of_heads_and_of_entries(q, k, v, of_heads, of_entries, mask):
    """Both trained; neither's gradient is a sum of the other's."""
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) * D**-0.5 + of_heads + of_entries
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(jnp.where(mask, s, -1e30)), v)


def trained_by_five_numbers(q, k, v, a, b, c, of_heads, of_entries):
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) * of_heads * of_entries + a + b + c
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(s), v)


gradient(trained_by_five_numbers, QB, KB, VB, shape(H, Q, K), shape(B, 1, Q, K), shape(B, H, 1, K), shape(H, 1, 1),
         shape(B, 1, 1, 1), out=OB)


@both(QB, KB, VB, shape(H, 1, K), shape(B, 1, Q, K), out=OB)
def bias_trained_beside_a_larger_term(q, k, v, bias, windows):
    """As Swin's shifted windows: the larger term has no gradient."""
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) * 0.5 + bias + lax.stop_gradient(windows)
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(s), v)


@form(QB, KB, VB, BIAS)
def subtracted_bias(q, k, v, bias):
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) - bias
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(s), v)


@form(QB, KB, VB, BIAS, shape(B, H, Q, 1))
def gated_bias(q, k, v, bias, gate):
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) + bias * jax.nn.sigmoid(gate)
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(s), v)


@both(QB, KB, VB, BIAS, shape(B, K, dtype=jnp.int32), out=OB)
def bias_and_mask_of_numbers(q, k, v, bias, mask):
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) + bias
    s = s + (1.0 - mask[:, None, None, :].astype(jnp.float32)) * -1e9
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(s), v)


@both(QB, KB, VB, shape(B, K, dtype=jnp.int32), out=OB)
def mask_of_numbers_subtracted(q, k, v, mask):
    s = jnp.einsum("bqhd,bkhd->bhqk", q * 0.3, k)
    s = s - 1e30 * (1.0 - mask[:, None, None, :].astype(jnp.float32))
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(s), v)


@both(QB, KB, VB, shape(B, H, Q, K, dtype=jnp.int32), out=OB)
def shifted_by_numbers(q, k, v, shown):
    """A mask of whole numbers, multiplied by a number within reach of the scores."""
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) * 0.3 + (1.0 - shown.astype(jnp.float32)) * -10000.0
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(s), v)


@both(QB, KB, VB, shape(B, 1, 1, K, dtype=jnp.bool_), out=OB)
def shifted_by_a_mask(q, k, v, mask):
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) + jnp.where(mask, 0.0, -10000.0)
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(s), v)


def positions_by_content(q, k, r):
    """The products of queries and keys with vectors of the 7 distances that are told apart."""
    r *= 0.1
    at = np.clip(np.arange(Q)[:, None] - np.arange(K) + 3, 0, 6)
    of_rows = jnp.take_along_axis(jnp.einsum("bqhd,rhd->bhqr", q, r), jnp.asarray(at)[None, None], axis=-1)
    of_keys = jnp.einsum("bkhd,rhd->bhkr", k, r)[:, :, np.arange(K)[:, None], at.T]
    return jnp.einsum("bqhd,bkhd->bhqk", q * 0.3, k) + (of_rows + jnp.swapaxes(of_keys, 2, 3))


@both(QB, KB, VB, shape(7, H, D), out=OB)
def by_content_and_position(q, k, v, r):
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(positions_by_content(q, k, r)), v)


@both(QB, KB, VB, shape(7, H, D), shape(B, 1, 1, K, dtype=jnp.bool_), out=OB)
def by_content_and_position_masked_twice(q, k, v, r, mask):
    p = softmax(jnp.where(mask, positions_by_content(q, k, r), -1e9))
    return jnp.einsum("bhqk,bkhd->bqhd", jnp.where(mask, p, 0.0), v)


@both(QB, KB, VB, shape(H, D), shape(H, D), shape(K, H, D), out=OB)
def keys_of_content_and_of_positions(q, k, v, of_content, of_positions, r):
    """Transformer-XL's four terms, as two products."""
    s = jnp.einsum("bqhd,bkhd->bhqk", q + of_content, k) + jnp.einsum("bqhd,khd->bhqk", q + of_positions, r)
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(jnp.where(causal(), s * 0.3, -1e30)), v)


@both(QB, KB, VB, shape(Q, K, D), out=OB)
def vector_of_each_pair_of_positions(q, k, v, r):
    """Shaw et al., 2018."""
    s = (jnp.einsum("bqhd,bkhd->bhqk", q, k) + jnp.einsum("bqhd,qkd->bhqk", q, r)) * 0.3
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(s), v)


@both(QB, KB, VB, QB, KB, shape(B, 1, 1, K, dtype=jnp.bool_), out=OB)
def products_of_two_pairs(q, k, v, p, l, mask):
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) * 0.3 - jnp.einsum("bqhd,bkhd->bhqk", p, l) * 0.2
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(jnp.where(mask, s, -1e9)), v)


@both(QB, KB, VB, out=OB)
def fill_within_reach(q, k, v):
    s = jnp.where(causal(), jnp.einsum("bqhd,bkhd->bhqk", q, k), -100.0)
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(s), v)


@both(QB, KB, VB, shape(B, 1, Q, K, dtype=jnp.bool_), out=OB)
def fill_within_reach_by_data(q, k, v, mask):
    s = jnp.where(mask & causal(), jnp.einsum("bqhd,bkhd->bhqk", q, k), -100.0)
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(s), v)


@both(QB, KB, VB, out=OB)
def fill_added_within_reach(q, k, v):
    """The first three rows see no key: all of their scores are lower by as much."""
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) + jnp.where(causal(offset=-3), 0.0, -20.0)
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(s), v)


@both(*(shape(*each.shape, dtype=jnp.bfloat16) for each in (QB, KB, VB)), out=shape(*OB.shape, dtype=jnp.bfloat16))
def fill_added_within_reach_in_bf16(q, k, v):
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) + jnp.where(causal(), 0, -9984).astype(jnp.bfloat16)
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(s), v)


@both(QB, KB, VB, shape(B, 1, 1, K, dtype=jnp.bool_), out=OB)
def fills_added_within_reach(q, k, v, mask):
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) + (jnp.where(causal(), 0.0, -30.0) + jnp.where(mask, 0.0, -20.0))
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(s), v)


@both(QB, KB, VB, shape(H, Q, K), out=OB)
def fill_added_beside_a_bias(q, k, v, bias):
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) + bias + jnp.where(causal(offset=-3), 0.0, -20.0)
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(s), v)


@both(QB, KB, VB, out=OB)
def weights_by_equal_heads(q, k, v):
    """A factor for each head that is 1 for all, as an einsum."""
    p = jnp.einsum("h,bhqk->bhqk", jnp.ones(H), softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k)))
    return jnp.einsum("bhqk,bkhd->bqhd", p, v)
