"""Prints the HLO of a decoder's loss and its gradients, layer after layer in one computation: bench/rewriter.py's.

    .venv/bin/python bench/decoder_step.py LAYERS
"""

import sys

import jax
import jax.numpy as jnp

BATCH, LENGTH, HEADS, HEAD_DIM = 2, 256, 4, 64
WIDTH = HEADS * HEAD_DIM


def normalized(x, gain):
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * gain


def layer(x, p):
    y = normalized(x, p["before"])
    q, k, v = ((y @ p[name]).reshape(BATCH, LENGTH, HEADS, HEAD_DIM) for name in "qkv")
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) * HEAD_DIM**-0.5
    s = jnp.where(jnp.tril(jnp.ones((LENGTH, LENGTH), bool)), s, -1e30)
    o = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s), v).reshape(BATCH, LENGTH, WIDTH)
    x = x + o @ p["o"]
    return x + jax.nn.gelu(normalized(x, p["between"]) @ p["up"]) @ p["down"]


def loss(parameters, x):
    for p in parameters:
        x = layer(x, p)
    return jnp.mean(x * x)


def module(layers):
    """HLO text of the loss and its gradients."""
    def shape(*dims):
        return jax.ShapeDtypeStruct(dims, jnp.float32)

    parameters = {**{name: shape(WIDTH, WIDTH) for name in "qkvo"}, "before": shape(WIDTH), "between": shape(WIDTH),
                  "up": shape(WIDTH, 4 * WIDTH), "down": shape(4 * WIDTH, WIDTH)}
    step = jax.jit(jax.value_and_grad(loss))
    return step.lower([parameters] * layers, shape(BATCH, LENGTH, WIDTH)).as_text("hlo")


if __name__ == "__main__":
    print(module(int(sys.argv[1])))
