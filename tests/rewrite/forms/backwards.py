"""Backwards by hand, and of a part."""

import jax
import jax.numpy as jnp

from forms.dropout import dropped
from forms.form import B, D, G, H, K, KB, KG, OB, Q, QB, R, VB, VG, both, causal, form, shape, softmax
from forms.heads import normalised_late, scaled_queries


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


def part(s, q, k, v, d_o, lse, delta):
    """Of keys that are a part of all, whose log-sum-exp and rowsum(dO * O) are given."""
    p = jnp.exp(s - lse[..., None])
    d_s = p * (jnp.einsum("bqhd,bkhd->bhqk", d_o, v) - delta[..., None]) * 0.3
    return (
        jnp.einsum("bhqk,bkhd->bqhd", d_s, k),
        jnp.einsum("bhqk,bqhd->bkhd", d_s, q),
        jnp.einsum("bhqk,bqhd->bkhd", p, d_o),
    )


@form(QB, KB, VB, OB, shape(B, H, Q), shape(B, H, Q))
def gradient_of_a_part(q, k, v, d_o, lse, delta):
    return part(jnp.einsum("bqhd,bkhd->bhqk", q, k) * 0.3, q, k, v, d_o, lse, delta)


@form(QB, KB, VB, OB, OB, shape(B, H, Q))
def gradient_of_a_part_of_few_keys_of_later_rows(q, k, v, o, d_o, lse):
    """The first rows see none of these keys."""
    s = jnp.where(causal(offset=-3), jnp.einsum("bqhd,bkhd->bhqk", q, k) * 0.3, -jnp.inf)
    return part(s, q, k, v, d_o, lse, jnp.einsum("bqhd,bqhd->bhq", o, d_o))


@both(QB, KB, VB, out=OB)
def flash_by_hand(q, k, v):
    return flash(q, k, v)


@form(QB, KB, VB)
def loss_of_output(q, k, v):
    def loss(q, k, v):
        return jnp.sum(scaled_queries(q, k, v) ** 2)

    return jax.value_and_grad(loss, (0, 1, 2))(q, k, v)


@form(QB, KB, VB)
def loss_of_output_normalised_late(q, k, v):
    """dO is O times a number, and divided by the sums again."""
    return jax.grad(lambda *x: jnp.sum(normalised_late(*x) ** 2), (0, 1, 2))(q, k, v)


@form(QB, KB, VB)
def gradient_of_queries_only(q, k, v):
    return jax.grad(lambda q: jnp.sum(jnp.sin(scaled_queries(q, k, v))))(q)


@form(QB, KG, VG, OB)
def gradient_of_values_only(q, k, v, d_o):
    """Of shared heads. Nothing reads V, as O is linear in it."""

    def f(v):
        s = jnp.where(causal(), jnp.einsum("bqhd,bkhd->bhqk", q, jnp.repeat(k, R, 2)), -1e30)
        return jnp.einsum("bhqk,bkhd->bqhd", softmax(s), jnp.repeat(v, R, 2))

    return jax.vjp(f, v)[1](d_o)


@form(QB, KB, VB, shape(B, 1, 1, K, dtype=jnp.bool_), shape(2, dtype=jnp.uint32))
def loss_of_values_only(q, k, v, mask, key):
    """dO is made of O, and rows may see no key."""

    def loss(v):
        p = softmax(jnp.where(mask, jnp.einsum("bqhd,bkhd->bhqk", q, k), -1e30))
        p = dropped(p, jax.random.wrap_key_data(key), p.shape)
        return jnp.sum(jnp.einsum("bhqk,bkhd->bqhd", p, v) ** 2)

    return jax.value_and_grad(loss)(v)


@form(*(shape(*each.shape, dtype=jnp.bfloat16) for each in (QB, KB, VB, OB)))
def gradient_of_narrow_values_only(q, k, v, d_o):
    return jax.vjp(lambda v: scaled_queries(q, k, v), v)[1](d_o)


@form(shape(B, Q, H * D), shape(3, 4, H * D, H * D))
def scan_of_values_only(x, weights):
    """Gradients go through the values of all layers; queries and keys have none."""

    def layer(x, w):
        q, k = ((jax.lax.stop_gradient(x) @ jax.lax.stop_gradient(w[i])).reshape(B, Q, H, D) for i in range(2))
        v = (x @ w[2]).reshape(B, Q, H, D)
        p = softmax(jnp.where(causal(Q, Q), jnp.einsum("bqhd,bkhd->bhqk", q, k), -1e30))
        return x + jnp.tanh(jnp.einsum("bhqk,bkhd->bqhd", p, v).reshape(x.shape) @ w[3]), None

    return jax.value_and_grad(lambda x, w: jnp.sum(jax.lax.scan(layer, x, w)[0] ** 2), (0, 1))(x, weights)


@form(shape(3, 3, 2, 24), shape(3, 5, 2, 24), shape(3, 5, 2, 8))
def gradient_of_repeated_output(q, k, v):
    """O is repeated to the size of the next Q, whose vectors are longer: dO is a sum of arrays that are cut elsewhere."""

    def layer(_, x):
        p = softmax(jnp.einsum("bqhd,bkhd->bhqk", x, k))
        o = jnp.einsum("bhqk,bkhd->bqhd", p, v)
        return x + jnp.resize(o.ravel(), q.size).reshape(q.shape)

    return jax.grad(lambda q: jnp.sum(jnp.sin(jax.lax.fori_loop(0, 2, layer, q))))(q)


@form(QB, KG, VG, OB)
def keys_of_groups_summed_twice(q, k, v, d_o):
    """The gradients of keys that query heads share and of biases of theirs, as XLA merges the sums."""
    d_q, d_k, d_v = jax.vjp(scaled_queries, q, jnp.repeat(k, R, 2), jnp.repeat(v, R, 2))[1](d_o)
    shared = [x.reshape(B, K, G, R, -1) for x in (d_k, d_v)]
    return d_q, *(x.sum(3) for x in shared), *(x.sum((0, 3)) for x in shared), shared[1].sum((0, 1, 3))
