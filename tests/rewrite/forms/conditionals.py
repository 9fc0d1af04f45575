"""Layers that a conditional chooses, without checkpoints: what their backward needs are the conditional's results."""

import jax
import jax.numpy as jnp
from jax import lax

from forms.dropout import dropped
from forms.form import B, D, FORMS, G, H, K, KB, KG, OB, Q, QB, R, V, VB, VG, both, causal, shape, softmax
from forms.layers import LAYERS, attention_layer

CHOICE = shape(dtype=jnp.int32)


def attend(q, k, v, visible=None, weigh=lambda p: p):
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) * D**-0.5
    s = s if visible is None else jnp.where(visible, s, -1e30)
    return jnp.einsum("bhqk,bkhd->bqhd", weigh(softmax(s)), v)


def means(q, k, v, *rest):
    """Something without attention."""
    return jnp.zeros((B, Q, H, V)) + jnp.mean(v, 1, keepdims=True).repeat(H // v.shape[2], 2)


@both(QB, KB, VB, shape(), out=OB)
def attention_or_means(q, k, v, chosen):
    return lax.cond(chosen > 0, lambda q, k, v: attend(q, k, v, causal(offset=4)), means, q, k, v)


@both(QB, KB, VB, shape(), out=OB)
def causal_or_full(q, k, v, chosen):
    return lax.cond(chosen > 0, lambda q, k, v: attend(q, k, v, causal(offset=4)), attend, q, k, v)


@both(shape(B, Q, G, R, D), KG, VG, shape(B, 1, 1, 1, K), shape(), out=shape(B, Q, G, R, V))
def one_of_three_in_groups(q, k, v, mask, chosen):
    def grouped(visible):
        s = jnp.einsum("bqgrd,bkgd->bgrqk", q, k) * D**-0.5
        return jnp.einsum("bgrqk,bkgd->bqgrd", softmax(jnp.where(visible, s, -1e30)), v)

    rows = jnp.mean(v, 1)[:, None, :, None]
    branches = [lambda: grouped(mask > 0), lambda: grouped(causal(offset=4)), lambda: jnp.tile(rows, (1, Q, 1, R, 1))]
    return lax.switch(jnp.where(chosen > 0, 0, jnp.where(chosen < -0.1, 1, 2)), branches)


@both(QB, KB, VB, shape(), shape(2, dtype=jnp.uint32), out=OB)
def dropped_or_not(q, k, v, chosen, key):
    def train(q, k, v, key):
        return attend(q, k, v, weigh=lambda p: dropped(p, jax.random.wrap_key_data(key), p.shape))

    return lax.cond(chosen > 0, train, lambda q, k, v, key: attend(q, k, v), q, k, v, key)


def scan_of_chosen(layer):
    def loss(x, weights, chosen):
        def step(x, per_layer):
            w, chosen = per_layer
            return lax.cond(chosen > 0, layer, lambda x, w: x * 0.5, x, w), None

        return jnp.sum(lax.scan(step, x, (weights, chosen))[0] ** 2)

    return jax.value_and_grad(loss, (0, 1))


FORMS["scan_of_chosen_layers"] = (scan_of_chosen(attention_layer), (*LAYERS, shape(3)))


def chosen_scan(x, weights, chosen):
    """The loop is in the branch."""
    layers = lambda x: lax.scan(lambda x, w: (attention_layer(x, w), None), x, weights)[0]
    return jnp.sum(lax.cond(chosen > 0, layers, lambda x: x, x) ** 2)


FORMS["chosen_scan_grad"] = (jax.value_and_grad(chosen_scan, (0, 1)), (*LAYERS, shape()))


def chosen_twice(x, weights, chosen, again):
    """One conditional in another's branch."""
    inner = lambda x: lax.cond(again > 0, lambda x: attention_layer(x, weights[0]), jnp.sin, x)
    return jnp.sum(lax.cond(chosen > 0, inner, lambda x: attention_layer(x, weights[1]), x) ** 2)


FORMS["chosen_twice_grad"] = (jax.value_and_grad(chosen_twice, (0, 1)), (*LAYERS, shape(), shape()))
