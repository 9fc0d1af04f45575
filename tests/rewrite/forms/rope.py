"""Rotary embedding of queries and keys."""

import jax.numpy as jnp

from forms.form import KG, OB, QB, VG, both
from forms.heads import grouped_by_repeat


def rotated(x):
    half = x.shape[-1] // 2
    angle = jnp.arange(x.shape[1])[:, None] * 100.0 ** (-jnp.arange(half) / half)
    cos, sin = jnp.cos(angle)[None, :, None, :], jnp.sin(angle)[None, :, None, :]
    a, b = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


@both(QB, KG, VG, out=OB)
def rope(q, k, v):
    return grouped_by_repeat(rotated(q), rotated(k), v)
