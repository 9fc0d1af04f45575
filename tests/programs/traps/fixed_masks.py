"""Masks that the text decides, by literals and by indices."""

import jax
import jax.numpy as jnp
import numpy as np

from traps.trap import B, H, K, Q, heads, normal, scores, trap, weighed

# Masks of literals; one row or one batch entry, so that what varies along it varies along nothing.

KEYS_SEEN = np.arange(K) % 2 == 0
ROWS_SEEN = np.abs(np.arange(Q) - Q // 2) > 1


@jax.jit  # what a function that is fused closes over is an operand of it, what one inside closes over a literal
def of_seen_keys(s):
    return jnp.where(KEYS_SEEN, s, -1e30)


@jax.jit
def of_seen_rows(s):
    return jnp.where(ROWS_SEEN[:, None], s, -1e30)


@trap(heads, grad=(0, 1, 2))
def literal_mask_of_keys(q, k, v):
    return weighed(of_seen_keys(scores(q, k)), v)


@trap(heads, grad=(0, 1, 2))
def literal_mask_of_rows(q, k, v):
    return weighed(of_seen_rows(scores(q, k)), v)


@trap(lambda r: [*heads(r), normal(r, K)], grad=(0, 1, 2))
def literal_mask_of_keys_and_bias(q, k, v, bias):
    return weighed(of_seen_keys(scores(q, k) + bias), v)


@trap(lambda r: heads(r, q=1), grad=(0, 1, 2))
def causal_of_one_row(q, k, v):
    i, j = jnp.cumsum(jnp.ones(1, jnp.int32)), jnp.cumsum(jnp.ones(K, jnp.int32))
    return weighed(jnp.where(i[:, None] >= j, scores(q, k), -jnp.inf), v)


@trap(lambda r: [*heads(r, b=1, h=1), r.random((1, K)) < 0.5, np.full(1, -1e30, np.float32)], grad=(0, 1, 2))
def padding_bias_of_one_entry(q, k, v, mask, bias):
    s = jnp.where(mask[:, None, None, :], scores(q, k), -1e30)
    return weighed(s + bias[:, None, None, None], v)


@trap(heads, grad=(0, 1, 2))
def rows_lifted(q, k, v):
    return weighed(scores(q, k) + (jnp.arange(Q) != 2)[:, None] * 1e9, v)


@trap(heads, grad=(0, 1, 2))
def scores_lifted(q, k, v):
    return weighed(scores(q, k) + 1e9, v)


@trap(lambda r: [*heads(r), r.random((B, K)) < 0.6, r.integers(0, 2, (B, K))], grad=(0, 1, 2))
def fills_of_two_sizes_added(q, k, v, padding, segments):
    s = scores(q, k) + jnp.where(padding[:, None, None, :], 0.0, -2.38e38)
    return weighed(s + (segments[:, None, None, :].astype(bool).astype(jnp.int32) - 1).astype(s.dtype) * 1e9, v)


@trap(lambda r: [*heads(r), r.random((B, K)) < 0.6], grad=(0, 1, 2))
def fixed_shift_beside_a_fill(q, k, v, mask):
    e = jnp.exp(jnp.where(mask[:, None, None, :], scores(q, k), -1e30) - 1.5)
    return jnp.einsum("bhqk,bkhd->bqhd", e / e.sum(-1, keepdims=True), v)


@trap(lambda r: [*heads(r), np.array([[True] * 4 + [False] * 3] * B)])
def sink_as_low_as_the_fill(q, k, v, rows):
    s = jnp.where(rows[:, None, :, None], scores(q, k), -1e30)
    s = jnp.concatenate([s, jnp.full((B, H, Q, 1), -1e30)], -1)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s)[..., :-1], v)


@trap(lambda r: [*heads(r), np.array([[True] * 4 + [False] * 3] * B)])
def unshifted_rows_without_keys(q, k, v, rows):
    e = jnp.exp(jnp.where(rows[:, None, :, None], scores(q, k), -1e30))
    o = jnp.einsum("bhqk,bkhd->bqhd", e / e.sum(-1, keepdims=True), v)
    return jnp.where(o > 0, o, 0.0)


# Masks that the text decides, and that are no band.

def blocks_of_heads(i, j, h):
    return ((i // 2 + j // 3 + h) % 3 != 1) & ((i != 4) | (h != 1))  # the second head's fifth row sees no key


@trap(heads, grad=(0, 1, 2))
def fixed_mask_of_heads(q, k, v):
    mask = ((np.arange(Q)[:, None] // 2 + np.arange(K) // 3 + np.arange(H)[:, None, None]) % 3 != 1)
    return weighed(jnp.where(mask, scores(q, k), -1e30), v)


@trap(heads, grad=(0, 1, 2))
def fixed_mask_of_heads_hides_a_row(q, k, v):
    mask = blocks_of_heads(np.arange(Q)[:, None], np.arange(K), np.arange(H)[:, None, None])
    return weighed(jnp.where(mask, scores(q, k), -1e30), v)


@trap(heads, grad=(0, 1, 2))
def fixed_mask_of_indices_hides_a_row(q, k, v):
    mask = blocks_of_heads(jnp.arange(Q)[:, None], jnp.arange(K), jnp.arange(H)[:, None, None])
    return weighed(jnp.where(mask, scores(q, k), -1e30), v)


@trap(heads, grad=(0, 1, 2))
def fixed_mask_of_entries(q, k, v):
    mask = (np.arange(K) + 1) % np.array([2, 3])[:, None] == 0
    return weighed(jnp.where(mask[:, None, None, :], scores(q, k), -1e30), v)


@trap(lambda r: [*heads(r), r.random((B, K)) < 0.3], grad=(0, 1, 2))
def fixed_mask_of_entries_and_padding(q, k, v, padding):
    mask = ((np.arange(K) + 1) % np.array([2, 3])[:, None] == 0) & padding
    return weighed(jnp.where(mask[:, None, None, :], scores(q, k), -1e30), v)


# Bands that leave out the key at the corner, as none of a call's own bounds does, and rows with no key at all.

def beside_sinks(s, sinks):
    sinks = jnp.broadcast_to(sinks[:, None, None], (*s.shape[:-1], 1))
    return jax.nn.softmax(jnp.concatenate([s, sinks], -1))[..., :-1]


@trap(lambda r: [*heads(r), normal(r, H)], grad=(0, 1, 2, 3))
def earlier_keys_beside_sinks(q, k, v, sinks):
    s = jnp.where(jnp.arange(K) < jnp.arange(Q)[:, None], scores(q, k), -jnp.inf)
    return jnp.einsum("bhqk,bkhd->bqhd", beside_sinks(s, sinks), v)


@trap(lambda r: [*heads(r), np.where(np.tri(Q, K, -1, dtype=bool), normal(r, H, Q, K), np.nan)])
def earlier_keys_beside_no_numbers(q, k, v, bias):
    return weighed(jnp.where(jnp.tri(Q, K, -1, dtype=bool), scores(q, k) + bias, -jnp.inf), v)


@trap(lambda r: [*heads(r), normal(r, H), np.array([4, 0], np.int32)], grad=(0, 1, 2, 3))
def later_keys_of_lengths_beside_sinks(q, k, v, sinks, lengths):
    shown = (jnp.arange(K) > jnp.arange(Q)[:, None] + 1) & (jnp.arange(K) < lengths[:, None, None, None] + 3)
    return jnp.einsum("bhqk,bkhd->bqhd", beside_sinks(jnp.where(shown, scores(q, k), -jnp.inf), sinks), v)


# Weights of a sink that are not cut off: they multiply a row beside the values, of zeros or of something else.

def weighed_beside_sinks(q, k, v, sinks, mask):
    s = jnp.where(mask[:, None, None, :], scores(q, k), -jnp.inf)
    sinks = jnp.broadcast_to(sinks[:, None, None], (*s.shape[:-1], 1))
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(jnp.concatenate([sinks, s], -1)), v)


def sinks_and_a_hidden_entry(r):
    return [*heads(r), normal(r, H), np.array([[True] * 4 + [False] * (K - 4), [False] * K])]


@trap(sinks_and_a_hidden_entry, grad=(0, 1, 2, 3))
def sinks_before_padded_values(q, k, v, sinks, mask):
    return weighed_beside_sinks(q, k, jnp.pad(v, ((0, 0), (1, 0), (0, 0), (0, 0))), sinks, mask)


@trap(sinks_and_a_hidden_entry, grad=(0, 1, 2, 3))
def sinks_before_values_of_their_own(q, k, v, sinks, mask):
    return weighed_beside_sinks(q, k, jnp.pad(v, ((0, 0), (1, 0), (0, 0), (0, 0)), constant_values=0.5), sinks, mask)


@trap(sinks_and_a_hidden_entry, grad=(0, 1, 2, 3))
def sinks_before_the_first_value(q, k, v, sinks, mask):
    return weighed_beside_sinks(q, k, jnp.pad(v, ((0, 0), (0, 1), (0, 0), (0, 0))), sinks, mask)
