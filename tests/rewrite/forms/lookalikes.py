"""Programs that look like attention and are not, or must be left alone."""

import jax
import jax.numpy as jnp
import numpy as np

from forms.form import OB, B, D, H, K, KB, Q, QB, VB, both, causal, form, shape, softmax


@form(QB, KB, VB)
def probabilities_returned(q, k, v):
    p = softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k))
    return jnp.einsum("bhqk,bkhd->bqhd", p, v), p


@form(QB, KB, VB, VB)
def values_of_parts_of_the_keys(q, k, v, w):
    """Each part alone is no softmax."""
    p = softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k))
    return tuple(jnp.einsum("bhqk,bkhd->bqhd", p[..., keys], x[:, keys]) for x, keys in ((v, slice(None, 4)), (w, slice(4, None))))


@form(QB, KB, shape(B, K, 4, D))
def weights_of_heads_used_twice(q, k, v):
    p = softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k))
    return jnp.einsum("bhqk,bkhd->bqhd", p[:, :4] - 0.3 * p[:, 2:], v)


@form(QB, KB, VB)
def not_normalised(q, k, v):
    return jnp.einsum("bhqk,bkhd->bqhd", jnp.exp(jnp.einsum("bqhd,bkhd->bhqk", q, k)), v)


@form(QB, KB, VB)
def normalised_over_queries(q, k, v):
    p = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k), axis=-2)
    return jnp.einsum("bhqk,bkhd->bqhd", p, v)


@form(QB, KB, VB)
def rows_without_keys(q, k, v):
    s = jnp.where(causal(offset=-2), jnp.einsum("bqhd,bkhd->bhqk", q, k), -1e30)
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(s), v)


@form(QB, KB, VB, shape(B, Q, dtype=jnp.bool_))
def weights_of_other_rows_a_half(q, k, v, rows):
    p = softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k))
    return jnp.einsum("bhqk,bkhd->bqhd", jnp.where(rows[:, None, :, None], p, 0.5), v)


@form(QB, KB, VB)
def weights_of_rows_by_their_scores(q, k, v):
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k)
    return jnp.einsum("bhqk,bkhd->bqhd", jnp.where(s.max(-1, keepdims=True) > 0.5, softmax(s), 0.0), v)


@form(QB, KB, VB, shape(H, 1, 1))
def weights_of_scores_divided_by_nothing_dropped(q, k, v, temperatures):
    """A divisor of 0 makes rows that see keys no numbers, too."""
    p = softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k) / temperatures)
    return jnp.einsum("bhqk,bkhd->bqhd", jnp.where(jnp.isnan(p), 0, p), v)


@form(QB, KB, VB, shape(B, 1, Q, K, dtype=jnp.bool_))
def weights_that_are_no_numbers_a_half(q, k, v, mask):
    p = softmax(jnp.where(mask, jnp.einsum("bqhd,bkhd->bhqk", q, k), -jnp.inf))
    return jnp.einsum("bhqk,bkhd->bqhd", jnp.where(jnp.isnan(p), 0.5, p), v)


@form(QB, KB, VB)
def masked_after_softmax(q, k, v):
    p = jnp.where(causal(), softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k)), 0.0)
    return jnp.einsum("bhqk,bkhd->bqhd", p, v)


@both(QB, KB, VB, shape(B, H, Q, K, dtype=jnp.bool_), out=OB)
def dropped_by_a_part(q, k, v, drop):
    """A third of what is dropped is kept."""
    p = softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k)) * (1.5 - drop.astype(q.dtype))
    return jnp.einsum("bhqk,bkhd->bqhd", p, v)


@both(QB, KB, VB, shape(B, H, Q, K, dtype=jnp.bool_), out=OB)
def dropped_to_a_number(q, k, v, drop):
    p = softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k))
    return jnp.einsum("bhqk,bkhd->bqhd", jnp.where(drop, 1e-3, p / 0.75), v)


@form(QB, KB, VB, shape(Q, K, dtype=jnp.bool_))
def summed_where_others_are_shown(q, k, v, mask):
    """The weights of hidden keys are left out of the sum and kept beside it."""
    e = jnp.exp(jnp.einsum("bqhd,bkhd->bhqk", q, k))
    return jnp.einsum("bhqk,bkhd->bqhd", e / jnp.sum(e, -1, keepdims=True, where=mask), v)


@form(QB, KB, VB)
def relu_of_scores(q, k, v):
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k)
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(jnp.where(s > 0, s, -1e30)), v)


@form(QB, KB, VB)
def capped_after_mask(q, k, v):
    s = jnp.where(causal(), jnp.einsum("bqhd,bkhd->bhqk", q, k), -1e30)
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(5.0 * jnp.tanh(s / 5.0)), v)


@form(QB, KB, VB, shape(Q, K, dtype=jnp.bool_))
def by_log_sum_exp_of_hidden_rows(q, k, v, mask):
    """Beside the fill a log-sum-exp holds no sum: of a row that sees no key all weights are 1."""
    s = jnp.where(mask, jnp.einsum("bqhd,bkhd->bhqk", q, k), -1e30)
    return jnp.einsum("bhqk,bkhd->bqhd", jnp.exp(s - jax.nn.logsumexp(s, -1, keepdims=True)), v)


@form(QB, KB, VB)
def entries_without_keys(q, k, v):
    mask = (np.arange(K) < np.array([0, K])[:, None])[:, None, None, :]
    s = jnp.where(mask, jnp.einsum("bqhd,bkhd->bhqk", q, k), -1e30)
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(s), v)


@form(shape(2, Q, 2, 8), shape(2, K, 4), shape(2, K, 2, 16))
def keys_repeated_within_a_head(q, k, v):
    """Repeated before heads are split: not one head of keys for all, but each number of it beside itself."""
    k = jnp.repeat(k, 4, axis=-1).reshape(2, K, 2, 8)
    p = softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k))
    return jnp.einsum("bhqk,bkhd->bqhd", p, v)


@both(QB, KB, VB, out=OB)
def epsilon_beside_the_sum(q, k, v):
    """A sink of each row: no head has one logit for it."""
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k)
    e = jnp.exp(s - jax.lax.stop_gradient(s.max(-1, keepdims=True)))
    return jnp.einsum("bhqk,bkhd->bqhd", e / (e.sum(-1, keepdims=True) + 1e-6), v)


@both(QB, KB, VB, shape(B, 1, 1, K), out=OB)
def masked_and_renormalised(q, k, v, mask):
    p = softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k)) * mask
    return jnp.einsum("bhqk,bkhd->bqhd", p / (p.sum(-1, keepdims=True) + 1e-6), v)


@form(QB, KB, VB, OB)
def nearly_the_gradient(q, k, v, d_o):
    """What is taken off each row is more than its own by five millionths."""
    p = softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k))
    d_p = jnp.einsum("bqhd,bkhd->bhqk", d_o, v)
    d_s = p * (d_p - jnp.float32(1 + 5e-6) * jnp.sum(p * d_p, -1, keepdims=True))
    return jnp.einsum("bhqk,bkhd->bqhd", p, v), jnp.einsum("bhqk,bkhd->bqhd", d_s, k)


@form(QB, KB, VB, shape(Q, K, dtype=jnp.bool_), shape(Q, K, dtype=jnp.bool_))
def shown_with_two_numbers(q, k, v, mask, other):
    """Scores that masks let through have 8 added, or more by four millionths of it."""
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k)
    s = jnp.where(mask, s + 8.0, jnp.where(other, s + 8.00003, -jnp.inf))
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(s), v)


@form(QB, KB, VB)
def fills_of_rows(q, k, v):
    """Each row has a fill of its own, that the text makes of its index."""
    s = jnp.where(causal(), jnp.einsum("bqhd,bkhd->bhqk", q, k), -1e9 - jnp.arange(Q, dtype=jnp.float32)[:, None])
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(s), v)
