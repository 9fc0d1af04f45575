"""Prints the ways in which JAX programs write attention, one small HLO module each.

    python tests/rewrite/print_forms.py tests/data/hlo/forms           # all of them
    python tests/rewrite/print_forms.py tests/data/hlo/forms window    # or some

Sizes differ along every axis, so that a mix-up of axes cannot go unseen: batch 2, 2 key/value heads,
3 query heads for each, 10 queries, 14 keys, head_dim 8, value depth 16.
"""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
from jax import lax

B, G, R, Q, K, D, V = 2, 2, 3, 10, 14, 8, 16
H = G * R
FORMS = {}


def shape(*dims, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(dims, dtype)


def form(*shapes):
    def add(f):
        FORMS[f.__name__] = (f, shapes)
        return f

    return add


def gradient(f, *shapes, out):
    """Adds NAME_grad: the gradients of f for a given dO."""

    def g(*arguments):
        *primals, d_o = arguments
        return jax.vjp(f, *primals)[1](d_o)

    FORMS[f.__name__ + "_grad"] = (g, (*shapes, out))


def both(*shapes, out):
    def add(f):
        FORMS[f.__name__] = (f, shapes)
        gradient(f, *shapes, out=out)
        return f

    return add


QB, KB, VB, OB = shape(B, Q, H, D), shape(B, K, H, D), shape(B, K, H, V), shape(B, Q, H, V)
QH, KH, VH, OH = shape(B, H, Q, D), shape(B, H, K, D), shape(B, H, K, V), shape(B, H, Q, V)
KG, VG = shape(B, K, G, D), shape(B, K, G, V)


def softmax(s):
    return jax.nn.softmax(s, axis=-1)


def causal(q=Q, k=K, offset=0):
    return jnp.arange(q)[:, None] + offset >= jnp.arange(k)[None, :]


@both(QH, KH, VH, out=OH)
def heads_first(q, k, v):
    return softmax(q @ k.swapaxes(-1, -2) * D**-0.5) @ v


@both(shape(Q, D), shape(K, D), shape(K, V), out=shape(Q, V))
def one_head(q, k, v):
    return softmax(q @ k.T / D**0.5) @ v


@both(shape(H, Q, D), shape(H, K, D), shape(H, K, V), out=shape(H, Q, V))
def no_batch(q, k, v):
    return softmax(jnp.einsum("hqd,hkd->hqk", q, k)) @ v


@both(QB, KB, VB, out=OB)
def scaled_queries(q, k, v):
    s = jnp.einsum("bqhd,bkhd->bhqk", q * D**-0.5, k)
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(jnp.where(causal(offset=K - Q), s, -1e9)), v)


@both(QB, KB, VB, out=OB)
def scaled_twice(q, k, v):
    s = jnp.einsum("bqhd,bkhd->bhqk", q * 3.0, k / 7.0) / 2.0
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(s), v)


@both(QB, KB, VB, out=OB)
def no_maximum(q, k, v):
    e = jnp.exp(jnp.einsum("bqhd,bkhd->bhqk", q, k) * D**-0.5)
    return jnp.einsum("bhqk,bkhd->bqhd", e / e.sum(-1, keepdims=True), v)


@both(QB, KB, VB, out=OB)
def gradient_through_maximum(q, k, v):
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) * D**-0.5
    e = jnp.exp(s - s.max(-1, keepdims=True))
    return jnp.einsum("bhqk,bkhd->bqhd", e / e.sum(-1, keepdims=True), v)


@both(QB, KB, VB, out=OB)
def by_logarithm(q, k, v):
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) * D**-0.5
    return jnp.einsum("bhqk,bkhd->bqhd", jnp.exp(jax.nn.log_softmax(s)), v)


@both(QB, KB, VB, out=OB)
def normalised_late(q, k, v):
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) * D**-0.5
    e = jnp.exp(s - lax.stop_gradient(s.max(-1, keepdims=True)))
    o = jnp.einsum("bhqk,bkhd->bqhd", e, v)
    return o / jnp.einsum("bhqo->bqho", e.sum(-1, keepdims=True))


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


@both(QB, KG, VG, out=OB)
def grouped_by_repeat(q, k, v):
    k, v = jnp.repeat(k, R, 2), jnp.repeat(v, R, 2)
    s = jnp.where(causal(), jnp.einsum("bqhd,bkhd->bhqk", q, k), -1e30)
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(s), v)


@both(QB, KG, VG, out=OB)
def grouped_by_tile(q, k, v):
    k, v = jnp.tile(k, (1, 1, R, 1)), jnp.tile(v, (1, 1, R, 1))
    s = jnp.where(causal(), jnp.einsum("bqhd,bkhd->bhqk", q, k), -1e30)
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(s), v)


@both(QB, KG, VG, out=OB)
def grouped_by_einsum(q, k, v):
    q = q.reshape(B, Q, G, R, D)
    s = jnp.where(causal(), jnp.einsum("bqgrd,bkgd->bgrqk", q, k), -1e30)
    return jnp.einsum("bgrqk,bkgd->bqgrd", softmax(s), v).reshape(B, Q, H, V)


@both(QB, shape(B, K, D), shape(B, K, V), out=OB)
def one_key_head(q, k, v):
    s = jnp.where(causal(), jnp.einsum("bqhd,bkd->bhqk", q, k), -1e30)
    return jnp.einsum("bhqk,bkd->bqhd", softmax(s), v)


@both(QB, KB, VB, shape(H, Q, K), out=OB)
def bias_per_head(q, k, v, bias):
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) * D**-0.5 + bias
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(s), v)


@both(QB, KB, VB, shape(B, H, Q, K), out=OB)
def bias_full(q, k, v, bias):
    s = jnp.where(causal(), jnp.einsum("bqhd,bkhd->bhqk", q, k) * D**-0.5 + bias, -jnp.inf)
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


def dropped(p, key, shape, probability=0.75):
    return jnp.where(jax.random.bernoulli(key, probability, shape), p / probability, 0)


INTS = dict(dtype=jnp.int32)


def small(x, size):
    """Whole numbers below `size`, whatever they were; small enough for rows that see no key."""
    return jnp.abs(x) % size


@both(QB, KB, VB, shape(Q, K, dtype=jnp.bool_), out=OB)
def mask_is_data(q, k, v, mask):
    s = jnp.where(mask, jnp.einsum("bqhd,bkhd->bhqk", q, k), -1e30)
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(s), v)


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


@form(QB, KB, VB, shape(B, 1, Q, K, dtype=jnp.bool_))
def mask_is_data_twice(q, k, v, mask):
    s = jnp.where(mask, jnp.einsum("bqhd,bkhd->bhqk", q, k), -1e9)
    return jnp.einsum("bhqk,bkhd->bqhd", jnp.where(mask, softmax(s), 0.0), v)


@both(QB, KB, VB, shape(B, 1, Q, K, dtype=jnp.bool_), shape(2, dtype=jnp.uint32), out=OB)
def mask_is_data_and_dropout(q, k, v, mask, key):
    s = jnp.where(mask, jnp.einsum("bqhd,bkhd->bhqk", q, k), -1e30)
    p = softmax(s)
    return jnp.einsum("bhqk,bkhd->bqhd", dropped(p, jax.random.wrap_key_data(key), p.shape), v)


@both(QB, KB, VB, out=OB)
def soft_capped(q, k, v):
    s = 20.0 * jnp.tanh(jnp.einsum("bqhd,bkhd->bhqk", q, k) * (D**-0.5 / 20.0))
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(jnp.where(causal(), s, -1e30)), v)


@both(QB, KB, VB, shape(2, dtype=jnp.uint32), out=OB)
def dropped_out(q, k, v, key):
    p = softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k))
    keep = jax.random.bernoulli(jax.random.wrap_key_data(key), 0.75, p.shape)
    return jnp.einsum("bhqk,bkhd->bqhd", jnp.where(keep, p / 0.75, 0), v)


@both(QB, KB, VB, shape(2, dtype=jnp.uint32), out=OB)
def dropped_by_fold_in(q, k, v, key):
    p = softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k))
    key = jax.random.split(jax.random.fold_in(jax.random.wrap_key_data(key), 7))[1]
    return jnp.einsum("bhqk,bkhd->bqhd", dropped(p, key, p.shape, 0.9), v)


@both(QB, KB, VB, shape(2, dtype=jnp.uint32), out=OB)
def dropped_for_all_heads(q, k, v, key):
    p = softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k))
    return jnp.einsum("bhqk,bkhd->bqhd", dropped(p, jax.random.wrap_key_data(key), (B, 1, Q, K)), v)


@both(QB, KB, VB, shape(2, dtype=jnp.uint32), out=OB)
def dropped_transposed(q, k, v, key):
    p = softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k)).transpose(1, 0, 3, 2)
    p = dropped(p, jax.random.wrap_key_data(key), p.shape)
    return jnp.einsum("hbkq,bkhd->bqhd", p, v)


@both(QB, KB, VB, shape(4, dtype=jnp.uint32), out=OB)
def dropped_by_generator(q, k, v, key):
    p = softmax(jnp.where(causal(offset=4), jnp.einsum("bqhd,bkhd->bhqk", q, k), -1e30))
    p = dropped(p, jax.random.wrap_key_data(key, impl="rbg"), p.shape)
    return jnp.einsum("bhqk,bkhd->bqhd", p, v)


@jax.custom_vjp
def flash(q, k, v):
    return flash_forward(q, k, v)[0]


def flash_forward(q, k, v):
    s = jnp.where(causal(), jnp.einsum("bqhd,bkhd->bhqk", q, k), -1e30)
    lse = jax.nn.logsumexp(s, -1, keepdims=True)
    o = jnp.einsum("bhqk,bkhd->bqhd", jnp.exp(s - lse), v)
    return o, (q, k, v, o, lse)


def flash_backward(kept, d_o):
    q, k, v, o, lse = kept
    s = jnp.where(causal(), jnp.einsum("bqhd,bkhd->bhqk", q, k), -1e30)
    p = jnp.exp(s - lse)
    delta = jnp.einsum("bqhd,bqhd->bhq", d_o, o)[..., None]
    d_s = p * (jnp.einsum("bqhd,bkhd->bhqk", d_o, v) - delta)
    return (
        jnp.einsum("bhqk,bkhd->bqhd", d_s, k),
        jnp.einsum("bhqk,bqhd->bkhd", d_s, q),
        jnp.einsum("bhqk,bqhd->bkhd", p, d_o),
    )


flash.defvjp(flash_forward, flash_backward)


@both(QB, KB, VB, out=OB)
def flash_by_hand(q, k, v):
    return flash(q, k, v)


@form(QB, KB, VB)
def loss_of_output(q, k, v):
    def loss(q, k, v):
        return jnp.sum(scaled_queries(q, k, v) ** 2)

    return jax.value_and_grad(loss, (0, 1, 2))(q, k, v)


@form(QB, KB, VB)
def gradient_of_queries_only(q, k, v):
    return jax.grad(lambda q: jnp.sum(jnp.sin(scaled_queries(q, k, v))))(q)


@form(shape(B, Q, H * D), shape(3, 4, H * D, H * D))
def layers_unrolled(x, weights):
    def loss(x, weights):
        for w in weights:
            q, k, v = ((x @ w[i]).reshape(B, Q, H, D) for i in range(3))
            s = jnp.where(causal(Q, Q), jnp.einsum("bqhd,bkhd->bhqk", q, k) * D**-0.5, -1e30)
            o = jnp.einsum("bhqk,bkhd->bqhd", softmax(s), v)
            x = x + jnp.tanh(o.reshape(x.shape) @ w[3])
        return jnp.sum(x**2)

    return jax.value_and_grad(loss, (0, 1))(x, weights)


def attention_layer(x, w, weigh=lambda p: p):
    q, k, v = ((x @ w[i]).reshape(B, Q, H, D) for i in range(3))
    s = jnp.where(causal(Q, Q), jnp.einsum("bqhd,bkhd->bhqk", q, k) * D**-0.5, -1e30)
    o = jnp.einsum("bhqk,bkhd->bqhd", weigh(softmax(s)), v)
    return x + jnp.tanh(o.reshape(x.shape) @ w[3])


def layers_in_scan(checkpoint):
    def loss(x, weights):
        def layer(x, w):
            return attention_layer(x, w), None

        layer = jax.checkpoint(layer) if checkpoint else layer
        return jnp.sum(lax.scan(layer, x, weights)[0] ** 2)

    return jax.value_and_grad(loss, (0, 1))


LAYERS = shape(B, Q, H * D), shape(3, 4, H * D, H * D)
FORMS["scan"] = (layers_in_scan(False), LAYERS)
FORMS["scan_checkpoint"] = (layers_in_scan(True), LAYERS)


def dropping_layers_in_scan(checkpoint):
    def loss(x, weights, keys):
        def layer(x, per_layer):
            w, key = per_layer
            key = jax.random.wrap_key_data(key)
            return attention_layer(x, w, lambda p: dropped(p, key, p.shape)), None

        layer = jax.checkpoint(layer) if checkpoint else layer
        return jnp.sum(lax.scan(layer, x, (weights, keys))[0] ** 2)

    return jax.value_and_grad(loss, (0, 1))


def dropping_by_generator(x, weights, keys):
    def loss(x, weights):
        def layer(x, per_layer):
            w, key = per_layer
            key = jax.random.wrap_key_data(key, impl="rbg")
            return attention_layer(x, w, lambda p: dropped(p, key, p.shape)), None

        return jnp.sum(lax.scan(jax.checkpoint(layer), x, (weights, keys))[0] ** 2)

    return jax.value_and_grad(loss, (0, 1))(x, weights)


FORMS["scan_dropped_by_generator_checkpoint"] = (dropping_by_generator, (*LAYERS, shape(3, 4, dtype=jnp.uint32)))
KEYS = shape(3, 2, dtype=jnp.uint32)
FORMS["scan_dropped_out"] = (dropping_layers_in_scan(False), (*LAYERS, KEYS))
FORMS["scan_dropped_out_checkpoint"] = (dropping_layers_in_scan(True), (*LAYERS, KEYS))


@form(*LAYERS)
def scan_reversed(x, weights):
    def loss(x, weights):
        return jnp.sum(lax.scan(lambda x, w: (attention_layer(x, w), None), x, weights, reverse=True)[0] ** 2)

    return jax.value_and_grad(loss, (0, 1))(x, weights)


@form(LAYERS[0], shape(2, 3, 4, H * D, H * D))
def scan_of_scans(x, weights):
    def loss(x, weights):
        def layers(x, weights):
            return lax.scan(lambda x, w: (attention_layer(x, w), None), x, weights)

        return jnp.sum(lax.scan(layers, x, weights)[0] ** 2)

    return jax.value_and_grad(loss, (0, 1))(x, weights)


@form(*LAYERS, shape(B, Q, dtype=jnp.bool_))
def scan_with_mask(x, weights, mask):
    m = (mask[:, None, :] & causal(Q, Q))[:, None]

    def loss(x, weights):
        def layer(x, w):
            q, k, v = ((x @ w[i]).reshape(B, Q, H, D) for i in range(3))
            s = jnp.where(m, jnp.einsum("bqhd,bkhd->bhqk", q, k) * D**-0.5, -1e30)
            o = jnp.einsum("bhqk,bkhd->bqhd", softmax(s), v)
            return x + jnp.tanh(o.reshape(x.shape) @ w[3]), None

        return jnp.sum(lax.scan(layer, x, weights)[0] ** 2)

    return jax.value_and_grad(loss, (0, 1))(x, weights)


@form(*LAYERS)
def scan_keeping_weights(x, weights):
    """The probabilities are stacked for another reader too."""

    def loss(x, weights):
        def layer(x, w):
            seen = []
            x = attention_layer(x, w, lambda p: seen.append(p) or p)
            return x, jnp.max(seen[0], axis=-1)

        x, largest = lax.scan(layer, x, weights)
        return jnp.sum(x**2) + jnp.sum(largest)

    return jax.value_and_grad(loss, (0, 1))(x, weights)


def rotated(x):
    half = x.shape[-1] // 2
    angle = jnp.arange(x.shape[1])[:, None] * 100.0 ** (-jnp.arange(half) / half)
    cos, sin = jnp.cos(angle)[None, :, None, :], jnp.sin(angle)[None, :, None, :]
    a, b = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


@both(QB, KG, VG, out=OB)
def rope(q, k, v):
    return grouped_by_repeat(rotated(q), rotated(k), v)


SINKS = shape(H)


def beside_sinks(s, sinks):
    """Scores [B, H, Q, K] and a column of each head's sink."""
    return jnp.concatenate([s, jnp.broadcast_to(sinks[None, :, None, None], (*s.shape[:-1], 1))], -1)


@both(QB, KB, VB, SINKS, out=OB)
def sink_column(q, k, v, sinks):
    s = jnp.where(causal(offset=4), jnp.einsum("bqhd,bkhd->bhqk", q, k) * D**-0.5, -1e30)
    p = softmax(beside_sinks(s, sinks))[..., :-1]
    return jnp.einsum("bhqk,bkhd->bqhd", p, v)


@both(QB, KG, VG, shape(G, R, dtype=jnp.bfloat16), out=OB)
def sink_column_in_groups(q, k, v, sinks):
    s = jnp.einsum("bqgrd,bkgd->bgrqk", q.reshape(B, Q, G, R, D), k)
    sinks = jnp.broadcast_to(sinks[None, :, :, None, None], (B, G, R, Q, 1)).astype(s.dtype)
    s = jnp.concatenate([sinks, s], -1)
    p = softmax(s)[..., 1:]
    return jnp.einsum("bgrqk,bkgd->bqgrd", p, v).reshape(B, Q, H, V)


@both(QB, KB, VB, SINKS, out=OB)
def sink_by_hand(q, k, v, sinks):
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) * D**-0.5
    sinks = sinks[:, None, None]
    m = lax.stop_gradient(jnp.maximum(s.max(-1, keepdims=True), sinks))
    e = jnp.exp(s - m)
    p = e / (e.sum(-1, keepdims=True) + jnp.exp(sinks - m))
    return jnp.einsum("bhqk,bkhd->bqhd", p, v)


@both(QB, KB, VB, out=OB)
def sink_of_one(q, k, v):
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) * D**-0.5
    m = lax.stop_gradient(jnp.maximum(s.max(-1, keepdims=True), 0))
    e = jnp.exp(s - m)
    return jnp.einsum("bhqk,bkhd->bqhd", e / (e.sum(-1, keepdims=True) + jnp.exp(-m)), v)


@both(QB, KB, VB, out=OB)
def sink_padded(q, k, v):
    s = jnp.pad(jnp.einsum("bqhd,bkhd->bhqk", q, k), ((0, 0), (0, 0), (0, 0), (0, 1)))
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(s)[..., :K], v)


@both(QB, KB, VB, SINKS, shape(B, 1, Q, K, dtype=jnp.bool_), out=OB)
def sink_and_mask(q, k, v, sinks, mask):
    s = jnp.where(mask, jnp.einsum("bqhd,bkhd->bhqk", q, k), -1e30)
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(beside_sinks(s, sinks))[..., :K], v)


@both(QB, KB, VB, SINKS, shape(2, dtype=jnp.uint32), out=OB)
def sink_and_dropout(q, k, v, sinks, key):
    p = softmax(beside_sinks(jnp.einsum("bqhd,bkhd->bhqk", q, k), sinks))[..., :K]
    return jnp.einsum("bhqk,bkhd->bqhd", dropped(p, jax.random.wrap_key_data(key), p.shape), v)


def layers_with_sinks(checkpoint):
    def loss(x, weights, sinks):
        def layer(x, per_layer):
            w, sinks = per_layer
            q, k, v = ((x @ w[i]).reshape(B, Q, H, D) for i in range(3))
            s = jnp.where(causal(Q, Q), jnp.einsum("bqhd,bkhd->bhqk", q, k) * D**-0.5, -1e30)
            p = softmax(beside_sinks(s, sinks))[..., :-1]
            return x + jnp.tanh(jnp.einsum("bhqk,bkhd->bqhd", p, v).reshape(x.shape) @ w[3]), None

        layer = jax.checkpoint(layer) if checkpoint else layer
        return jnp.sum(lax.scan(layer, x, (weights, sinks))[0] ** 2)

    return jax.value_and_grad(loss, (0, 1, 2))


LAYERS_WITH_SINKS = shape(B, Q, H * D), shape(3, 4, H * D, H * D), shape(3, H)
FORMS["scan_with_sinks"] = (layers_with_sinks(False), LAYERS_WITH_SINKS)
FORMS["scan_with_sinks_checkpoint"] = (layers_with_sinks(True), LAYERS_WITH_SINKS)


# Programs that look like attention and are not, or must be left alone.


@both(QB, KB, VB, shape(H, Q), out=OB)
def sink_of_each_row(q, k, v, sinks):
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k)
    s = jnp.concatenate([s, jnp.broadcast_to(sinks[None, :, :, None], (B, H, Q, 1))], -1)
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(s)[..., :-1], v)


@form(QB, KB, VB, SINKS)
def sink_returned(q, k, v, sinks):
    p = softmax(beside_sinks(jnp.einsum("bqhd,bkhd->bhqk", q, k), sinks))
    return jnp.einsum("bhqk,bkhd->bqhd", p[..., :-1], v), p[..., -1]


@form(QB, KB, VB, SINKS)
def sink_not_dropped(q, k, v, sinks):
    p = softmax(beside_sinks(jnp.einsum("bqhd,bkhd->bhqk", q, k), sinks))[..., 1:]
    return jnp.einsum("bhqk,bkhd->bqhd", p, v)


@form(QB, KB, VB)
def probabilities_returned(q, k, v):
    p = softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k))
    return jnp.einsum("bhqk,bkhd->bqhd", p, v), p


@form(QB, KB, VB)
def not_normalised(q, k, v):
    return jnp.einsum("bhqk,bkhd->bqhd", jnp.exp(jnp.einsum("bqhd,bkhd->bhqk", q, k)), v)


@form(QB, KB, VB)
def normalised_over_queries(q, k, v):
    p = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k), axis=-2)
    return jnp.einsum("bhqk,bkhd->bqhd", p, v)


@form(QB, KB, VB)
def fill_within_reach(q, k, v):
    s = jnp.where(causal(), jnp.einsum("bqhd,bkhd->bhqk", q, k), -100.0)
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(s), v)


@form(QB, KB, VB)
def rows_without_keys(q, k, v):
    s = jnp.where(causal(offset=-2), jnp.einsum("bqhd,bkhd->bhqk", q, k), -1e30)
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(s), v)


@form(QB, KB, VB)
def masked_after_softmax(q, k, v):
    p = jnp.where(causal(), softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k)), 0.0)
    return jnp.einsum("bhqk,bkhd->bqhd", p, v)


@form(QB, KB, VB)
def relu_of_scores(q, k, v):
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k)
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(jnp.where(s > 0, s, -1e30)), v)


@form(QB, KB, VB)
def capped_after_mask(q, k, v):
    s = jnp.where(causal(), jnp.einsum("bqhd,bkhd->bhqk", q, k), -1e30)
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(5.0 * jnp.tanh(s / 5.0)), v)


def main(folder, *names):
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for name in names or FORMS:
        f, shapes = FORMS[name]
        f.__name__ = name
        computation = jax.jit(f).lower(*shapes).compiler_ir("hlo")
        text = computation.as_hlo_text(print_large_constants=True)
        (folder / f"{name}.hlo").write_text(text)


if __name__ == "__main__":
    main(*sys.argv[1:])
