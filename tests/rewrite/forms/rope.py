"""Rotary embedding of queries and keys."""

import jax.numpy as jnp

from forms.form import KG, OB, QB, VG, both, shape
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


NARROW = [shape(*each.shape, dtype=jnp.bfloat16) for each in (QB, KG, VG, OB)]


@both(*NARROW[:3], out=NARROW[3])
def rope_by_narrow_tables(q, k, v):
    def turned(x):
        half = x.shape[-1] // 2
        angle = jnp.arange(x.shape[1])[:, None] * 100.0 ** (-jnp.arange(half) / half)
        cos, sin = [f(angle)[None, :, None, :].astype(jnp.bfloat16) for f in (jnp.cos, jnp.sin)]
        a, b = jnp.split(x, 2, axis=-1)
        return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)

    return grouped_by_repeat(turned(q), turned(k), v)
