"""Masks, by arithmetic on indices and by data."""

import jax
import jax.numpy as jnp
import numpy as np

from forms.form import B, D, G, H, K, KB, KG, OB, Q, QB, R, V, VB, VG, both, causal, form, shape, softmax


@both(QB, KB, VB, out=OB)
def window(q, k, v):
    i, j = jnp.arange(Q)[:, None], jnp.arange(K)[None, :]
    s = jnp.where((j <= i + 4) & (j > i - 2), jnp.einsum("bqhd,bkhd->bhqk", q, k), -jnp.inf)
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(s), v)


@both(QB, KB, VB, out=OB)
def nested_selects(q, k, v):
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) * D**-0.5
    s = jnp.where(causal(offset=4), s, -1e30)
    s = jnp.where(jnp.arange(Q)[:, None] - jnp.arange(K)[None, :] < 3, s, -1e30)
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(s), v)


@both(QB, KB, VB, out=OB)
def additive_mask(q, k, v):
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) * D**-0.5 + (1.0 - causal().astype(jnp.float32)) * -1e10
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(s), v)


@both(QB, KB, VB, out=OB)
def causal_by_cumsum(q, k, v):
    i, j = jnp.cumsum(jnp.ones(Q, jnp.int32)), jnp.cumsum(jnp.ones(K, jnp.int32))
    s = jnp.where(i[:, None] >= j[None, :], jnp.einsum("bqhd,bkhd->bhqk", q, k), -1e30)
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(s), v)


@both(QB, KB, VB, out=OB)
def masked_twice(q, k, v):
    m = causal()
    s = jnp.where(m, jnp.einsum("bqhd,bkhd->bhqk", q, k), -1e9)
    return jnp.einsum("bhqk,bkhd->bqhd", jnp.where(m, softmax(s), 0.0), v)


INTS = dict(dtype=jnp.int32)


def small(x, size):
    """Whole numbers below `size`, whatever they were; small enough for rows that see no key."""
    return jnp.abs(x) % size


@both(QB, KB, VB, shape(Q, K, dtype=jnp.bool_), out=OB)
def mask_is_data(q, k, v, mask):
    s = jnp.where(mask, jnp.einsum("bqhd,bkhd->bhqk", q, k), -1e30)
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(s), v)


@both(QB, KB, VB, shape(B, 1, Q, K, dtype=jnp.bool_), out=OB)
def mask_of_softmax(q, k, v, mask):
    """Scores, the sum of their weights and these: each masked by itself."""
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) * D**-0.5
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s, axis=-1, where=mask), v)


@both(QB, KB, VB, out=OB)
def causal_by_softmax(q, k, v):
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) * D**-0.5
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s, axis=-1, where=causal(offset=4)), v)


@both(QB, KB, VB, shape(B, 1, 1, K, dtype=jnp.bool_), out=OB)
def mask_of_keys(q, k, v, mask):
    s = jnp.where(mask & causal(offset=4), jnp.einsum("bqhd,bkhd->bhqk", q, k), -1e30)
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(s), v)


@both(QB, KB, VB, shape(Q, K, dtype=jnp.bool_), shape(B, K, dtype=jnp.bool_), out=OB)
def mask_of_either(q, k, v, pairs, keys):
    m = pairs[None] | keys[:, None, :] & causal(offset=4)
    s = jnp.where(m[:, None], jnp.einsum("bqhd,bkhd->bhqk", q, k), -1e30)
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(s), v)


@both(QB, KB, VB, shape(B, **INTS), out=OB)
def lengths_are_data(q, k, v, lengths):
    m = jnp.arange(K)[None, :] < small(lengths, K + 2)[:, None]
    s = jnp.where(m[:, None, None, :], jnp.einsum("bqhd,bkhd->bhqk", q, k), -1e30)
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(s), v)


@both(QB, KB, VB, shape(B, **INTS), out=OB)
def lengths_and_causal(q, k, v, lengths):
    m = (small(lengths, K) >= jnp.arange(K)[:, None]).T
    m = m[:, None, :] & causal(offset=K - Q)
    s = jnp.where(m[:, None], jnp.einsum("bqhd,bkhd->bhqk", q, k) * D**-0.5, -jnp.inf)
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(s), v)


@both(QB, KG, VG, shape(B, **INTS), shape(B, **INTS), out=OB)
def lengths_of_both(q, k, v, q_lengths, kv_lengths):
    q_lengths, kv_lengths = small(q_lengths, Q), small(kv_lengths, K)
    return jax.nn.dot_product_attention(
        q, k, v[..., :D], query_seq_lengths=q_lengths, key_value_seq_lengths=kv_lengths, is_causal=True
    ).repeat(2, -1)


@both(QB, KB, VB, shape(B, Q, **INTS), shape(B, K, **INTS), out=OB)
def segments(q, k, v, of_rows, of_keys):
    m = small(of_rows, 3)[:, :, None] == small(of_keys, 3)[:, None, :]
    s = jnp.where((m & causal())[:, None], jnp.einsum("bqhd,bkhd->bhqk", q, k), -1e30)
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(s), v)


@both(QB, KG, VG, shape(B, Q, K, dtype=jnp.bool_), out=OB)
def mask_in_groups(q, k, v, mask):
    q = q.reshape(B, Q, G, R, D)
    s = jnp.where(mask[:, None, None], jnp.einsum("bqgrd,bkgd->bgrqk", q, k), -1e9)
    return jnp.einsum("bgrqk,bkgd->bqgrd", softmax(s), v).reshape(B, Q, H, V)


@both(QB, KB, VB, shape(B, K, dtype=jnp.bool_), out=OB)
def padding_is_added(q, k, v, mask):
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) + jnp.where(mask, 0, -1e10)[:, None, None, :]
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(s), v)


@both(QB, KB, VB, shape(B, 1, Q, K, dtype=jnp.bool_), out=OB)
def mask_is_data_twice(q, k, v, mask):
    s = jnp.where(mask, jnp.einsum("bqhd,bkhd->bhqk", q, k), -1e9)
    return jnp.einsum("bhqk,bkhd->bqhd", jnp.where(mask, softmax(s), 0.0), v)


@both(QB, KB, VB, out=OB)
def causal_of_entries(q, k, v):
    """Made for each batch entry, from positions that all have in common."""
    i = jnp.broadcast_to(jnp.arange(Q), (B, Q))
    j = jnp.broadcast_to(jnp.arange(K), (B, K))
    mask = (i[:, None, :, None] >= j[:, None, None, :]).astype(jnp.float32)
    s = jnp.where(mask != 0, jnp.einsum("bqhd,bkhd->bhqk", q, k), -1e30)
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(s), v)


def masked(q, k, v, mask, fill=-1e30):
    s = jnp.where(mask, jnp.einsum("bqhd,bkhd->bhqk", q, k), fill)
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(s), v)


@both(QB, KB, VB, out=OB)
def fixed_lengths_of_entries(q, k, v):
    return masked(q, k, v, (np.arange(K) < np.array([9, K])[:, None])[:, None, None, :])


@both(QB, KB, VB, out=OB)
def fixed_pattern_of_heads(q, k, v):
    i, j, h = np.arange(Q)[:, None], np.arange(K), np.arange(H)[:, None, None]
    return masked(q, k, v, (i - j) % (h + 1) == 0)


@both(QB, KB, VB, out=OB)
def prefix(q, k, v):
    return masked(q, k, v, causal() | (jnp.arange(K)[None, :] < 5))


@both(QB, KB, VB, out=OB)
def window_and_first_keys(q, k, v):
    i, j = jnp.arange(Q)[:, None], jnp.arange(K)[None, :]
    return masked(q, k, v, (j <= i) & ((i - j < 3) | (j < 2)), -jnp.inf)


@both(QB, KB, VB, shape(B, Q, dtype=jnp.int32), shape(B, K, dtype=jnp.bool_), out=OB)
def causal_or_shown_twice(q, k, v, rows, shown):
    """As of an image's tokens before text: what is later and what belongs together."""
    mask = (causal() & (rows != 3)[..., None] | shown[:, None, :])[:, None]
    s = jnp.where(mask, jnp.einsum("bqhd,bkhd->bhqk", q, k), -1e9)
    return jnp.einsum("bhqk,bkhd->bqhd", jnp.where(mask, softmax(s), 0.0), v)


@both(shape(B, K, H, D), shape(B, Q, H, D), shape(B, Q, H, V), out=shape(B, K, H, V))
def window_of_fewer_keys(q, k, v):
    """More rows than keys, of which each row sees some."""
    ahead = jnp.arange(K)[:, None] - jnp.arange(Q)[None, :]
    s = jnp.where((ahead >= 0) & (ahead < 6), jnp.einsum("bqhd,bkhd->bhqk", q, k), -1e30)
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(s), v)


@both(QB, KB, VB, shape(B, 1, 1, K, dtype=jnp.bool_), out=OB)
def largest_by_cells(q, k, v, mask):
    """What is taken off is no maximum to the rewriter, and as low as the fill where a row sees no key."""
    s = jnp.where(mask, jnp.einsum("bqhd,bkhd->bhqk", q, k), -1e30)
    largest = jax.lax.stop_gradient(jnp.broadcast_to(s.max(-1, keepdims=True), s.shape))
    e = jnp.exp(s - jnp.minimum(largest, 1e5))
    return jnp.einsum("bhqk,bkhd->bqhd", e / e.sum(-1, keepdims=True), v)


def exponentials(q, k, largest=lambda s: s.max(-1, keepdims=True)):
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) * D**-0.5
    return jnp.exp(s - largest(s))


@both(QB, KB, VB, shape(B, 1, 1, K, dtype=jnp.bool_), out=OB)
def exponentials_masked(q, k, v, mask):
    """After the maximum of all scores is taken off them, and before they are summed."""
    e = jnp.where(mask, exponentials(q, k), 0)
    return jnp.einsum("bhqk,bkhd->bqhd", e / e.sum(-1, keepdims=True), v)


@both(QB, KB, VB, shape(B, K), out=OB)
def exponentials_times_bits(q, k, v, policy):
    """In the gradient the largest score is a number."""
    bits = (policy > -0.5).astype(jnp.float32)[:, None, None]
    e = exponentials(q, k, lambda s: jax.lax.stop_gradient(s.max(-1, keepdims=True))) * (1 - bits)
    return jnp.einsum("bhqk,bkhd->bqhd", e, v) / e.sum(-1).transpose(0, 2, 1)[..., None]


@both(QB, KB, VB, out=OB)
def exponentials_times_a_triangle(q, k, v):
    e = exponentials(q, k) * jnp.tril(jnp.ones((Q, K)), 4)
    return jnp.einsum("bhqk,bkhd->bqhd", e / e.sum(-1, keepdims=True), v)


@form(QB, KB, VB, shape(B, 1, 1, K, dtype=jnp.bool_))
def exponentials_of_both_kinds(q, k, v, mask):
    """What the mask hides weighs too, by the sum of what it shows."""
    e = exponentials(q, k)
    total = jnp.where(mask, e, 0).sum(-1, keepdims=True)
    return jnp.einsum("bhqk,bkhd->bqhd", jnp.where(mask, e, 0) / total + jnp.where(mask, 0, e) / total, v)


@form(QB, KB, VB, shape(B, 1, 1, K, dtype=jnp.bool_))
def exponentials_times_two_numbers(q, k, v, mask):
    """Twice the weight is no mask."""
    e = exponentials(q, k) * jnp.where(mask, 2.0, 1.0)
    return jnp.einsum("bhqk,bkhd->bqhd", e / e.sum(-1, keepdims=True), v)
