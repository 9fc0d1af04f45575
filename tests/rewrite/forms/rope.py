"""Rotary embedding of queries and keys."""

import jax.numpy as jnp
import numpy as np

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


def tables(x, pairs):
    """Cosines and sines of each position's angles, as they multiply x."""
    angle = (jnp.arange(x.shape[1])[:, None] * 100.0 ** (-jnp.arange(pairs) / pairs))[None, :, None, :]
    return jnp.cos(angle), jnp.sin(angle)


def turned(a, b, cos, sin):
    return a * cos - b * sin, b * cos + a * sin


def exchanged(x):
    a, b = x[..., :x.shape[-1] // 2], x[..., x.shape[-1] // 2:]
    return jnp.concatenate([-b, a], axis=-1)


def rope_form(name, turn):
    """Queries and keys of groups, each turned so."""

    def f(q, k, v):
        return grouped_by_repeat(turn(q), turn(k), v)

    f.__name__ = name
    both(QB, KG, VG, out=OB)(f)


def by_slices(x):
    half = x.shape[-1] // 2
    return jnp.concatenate(turned(x[..., :half], x[..., half:], *tables(x, half)), axis=-1)


def stacked(x):
    half = x.shape[-1] // 2
    return jnp.stack(turned(x[..., :half], x[..., half:], *tables(x, half)), axis=-2).reshape(x.shape)


def of_exchanged_halves(x):
    cos, sin = (jnp.concatenate([table, table], axis=-1) for table in tables(x, x.shape[-1] // 2))
    return x * cos + exchanged(x) * sin


def by_constants(x):
    half = x.shape[-1] // 2
    angle = np.tile(np.arange(x.shape[1])[:, None] * 100.0 ** (-np.arange(half) / half), 2)[None, :, None, :]
    return x * np.float32(np.cos(angle)) + exchanged(x) * np.float32(np.sin(angle))


def of_neighbours(x):
    return jnp.stack(turned(x[..., ::2], x[..., 1::2], *tables(x, x.shape[-1] // 2)), axis=-1).reshape(x.shape)


def of_pairs(x):
    pairs = x.reshape(*x.shape[:-1], -1, 2)
    return jnp.stack(turned(pairs[..., 0], pairs[..., 1], *tables(x, pairs.shape[-2])), axis=-1).reshape(x.shape)


def of_exchanged_neighbours(x):
    cos, sin = (jnp.repeat(table, 2, axis=-1) for table in tables(x, x.shape[-1] // 2))
    return x * cos + jnp.stack([-x[..., 1::2], x[..., ::2]], axis=-1).reshape(x.shape) * sin


def of_last_columns(x):
    still, a, b = jnp.split(x, [4, 6], axis=-1)
    return jnp.concatenate([still, *turned(a, b, *tables(x, 2))], axis=-1)


def of_first_neighbours(x):
    return jnp.concatenate([of_neighbours(x[..., :4]), x[..., 4:]], axis=-1)


def of_first_halves(x):
    return jnp.concatenate([by_slices(x[..., :4]), x[..., 4:]], axis=-1)


def of_two_angles(x):
    """Halves by angles of their own: no rotation."""
    a, b = jnp.split(x, 2, axis=-1)
    cos, sin = tables(x, x.shape[-1])
    low, high = jnp.split(cos, 2, axis=-1), jnp.split(sin, 2, axis=-1)
    return jnp.concatenate([a * low[0] - b * high[0], b * low[1] + a * high[1]], axis=-1)


for turn in (by_slices, stacked, of_exchanged_halves, by_constants, of_neighbours, of_pairs, of_exchanged_neighbours,
             of_last_columns, of_first_neighbours, of_first_halves, of_two_angles):
    rope_form(f"rope_{turn.__name__}", turn)
