"""What forms are made of: their sizes, how one is noted, and the pieces many have in common.

Sizes differ along every axis, but in equal_axes.py, so that a mix-up of axes cannot go unseen: batch 2, 2 key/value
heads, 3 query heads for each, 10 queries, 14 keys, head_dim 8, value depth 16.
"""

import jax
import jax.numpy as jnp

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
