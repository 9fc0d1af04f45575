"""What varies along which axes: operands along such as their role does not have, axes of one, vectors of odd lengths."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from traps.trap import B, D, H, K, Q, V, heads, normal, scores, trap, weighed

# Operands that vary along axes that their role does not have.

def rotated(x, positions):
    """x [b, s, h, d] by angles of positions [b, s]."""
    half = x.shape[-1] // 2
    angle = positions[..., None, None] / 100.0**(jnp.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate([a * jnp.cos(angle) - b * jnp.sin(angle), b * jnp.cos(angle) + a * jnp.sin(angle)], -1)


def self_attention_and_positions(random):
    return [*heads(random, q=K), np.stack([np.arange(K), np.maximum(np.arange(K) - 4, 0)]).astype(np.int32)]


@trap(self_attention_and_positions, grad=(0, 1, 2))
def rope_positions_differ_in_the_batch(q, k, v, positions):
    return weighed(scores(rotated(q, positions), rotated(k, positions)), v)


@trap(lambda r: [*heads(r), normal(r, H, Q, D // 2), normal(r, H, K, D // 2)], grad=(0, 1, 2))
def rope_angles_differ_between_heads(q, k, v, of_rows, of_keys):
    def turned(x, angle):
        angle = angle.transpose(1, 0, 2)
        a, b = jnp.split(x, 2, -1)
        return jnp.concatenate([a * jnp.cos(angle) - b * jnp.sin(angle), b * jnp.cos(angle) + a * jnp.sin(angle)], -1)

    return weighed(scores(turned(q, of_rows), turned(k, of_keys)), v)


def shared_over_heads(random):
    return [normal(random, B, Q, D), normal(random, B, K, D), normal(random, B, K, H, V)]


def for_all_heads(q, k):
    return [jnp.broadcast_to(x[:, :, None], (*x.shape[:2], H, x.shape[-1])) for x in (q, k)]


@trap(lambda r: [normal(r, Q, H, D), normal(r, B, K, H, D), normal(r, B, K, H, V), r.random((B, K)) < 0.6], grad=(0, 1, 2))
def queries_of_all_entries_padding_differs(q, k, v, mask):
    s = jnp.einsum("qhd,bkhd->bhqk", q, k) * D**-0.5
    return weighed(jnp.where(mask[:, None, None, :], s, -1e30), v)


@trap(lambda r: [*shared_over_heads(r), normal(r, H, Q, K)], grad=(0, 1, 2, 3))
def shared_over_heads_bias_differs(q, k, v, bias):
    return weighed(scores(*for_all_heads(q, k)) + bias, v)


@trap(lambda r: [*shared_over_heads(r), normal(r, H)], grad=(0, 1, 2))
def shared_over_heads_slopes_differ(q, k, v, slopes):
    s = scores(*for_all_heads(q, k))
    return weighed(s + slopes[:, None, None] * (jnp.arange(K)[None, :] - jnp.arange(Q)[:, None]).astype(jnp.float32), v)


@trap(lambda r: [normal(r, Q, H, D), normal(r, K, H, D), normal(r, B, K, H, V), r.random((B, K)) < 0.6], grad=(0, 1, 2))
def shared_over_batch_padding_differs(q, k, v, mask):
    s = scores(*(jnp.broadcast_to(x, (B, *x.shape)) for x in (q, k)))
    return weighed(jnp.where(mask[:, None, None, :], s, -1e30), v)


@trap(lambda r: [*shared_over_heads(r), np.array([3, 5], np.uint32)], grad=(0, 1, 2))
def shared_over_heads_dropout_differs(q, k, v, key):
    p = jax.nn.softmax(scores(*for_all_heads(q, k)))
    keep = jax.random.bernoulli(jax.random.wrap_key_data(key), 0.7, (B, H, Q, K))
    return jnp.einsum("bhqk,bkhd->bqhd", jnp.where(keep, p / 0.7, 0), v)


@trap(lambda r: [*shared_over_heads(r), r.random((B, H, Q, K)) < 0.7], grad=(0, 1, 2))
def shared_over_heads_kept_weights_differ(q, k, v, keep):
    p = jax.nn.softmax(scores(*for_all_heads(q, k)))
    return jnp.einsum("bhqk,bkhd->bqhd", jnp.where(keep, p / 0.7, 0), v)


@trap(lambda r: [normal(r, B, Q, 4, D), normal(r, B, K, 2, D), normal(r, B, K, 2, V), normal(r, 2, Q, K)], grad=(0, 1, 2, 3))
def bias_of_each_key_head(q, k, v, bias):
    s = jnp.einsum("bqgrd,bkgd->bgrqk", q.reshape(B, Q, 2, 2, D), k) + bias[:, None]
    return jnp.einsum("bgrqk,bkgd->bqgrd", jax.nn.softmax(s), v)


@trap(lambda r: [*heads(r, k=8), normal(r, H, Q, 2)], grad=(0, 1, 2, 3))
def bias_of_blocks_of_keys(q, k, v, bias):
    return weighed(scores(q, k) + jnp.repeat(bias, 4, -1), v)


# Vectors whose length calls do not take: zeros are added to them, and taken off again.

@trap(lambda r: [*heads(r, d=5, v=11), np.array([[True] * K, [False] * K])], grad=(0, 1, 2))
def odd_depths(q, k, v, mask):
    return weighed(jnp.where(mask[:, None, None, :], scores(q, k), -1e9), v)


@trap(lambda r: [*heads(r, q=K, d=10, v=10), np.arange(B * K, dtype=np.int32).reshape(B, K)], grad=(0, 1, 2))
def odd_depths_rotated(q, k, v, positions):
    return weighed(scores(rotated(q, positions), rotated(k, positions)), v)


@trap(lambda r: heads(r, q=K, d=12, v=12), grad=(0, 1, 2))
def odd_depths_of_layers(q, k, v):
    def layer(x, _):
        return x + weighed(scores(x, k), v), None

    return lax.scan(layer, q, None, length=3)[0]
