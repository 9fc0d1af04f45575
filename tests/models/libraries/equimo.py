"""Equimo's vision models: transformers of one image, mapped over a batch."""

import equinox as eqx
import jax
import jax.numpy as jnp
from definition import program
from equimo.layers import attention
from equimo.models import vit
from inputs import Draw, squared_error

BATCH, IMAGE, PATCH, WIDTH = 2, 24, 6, 32


def mapped(draw, model, apply=lambda model, *x: model(*x)):
    """(a batch's outputs by the model's arrays, those, each moved)."""
    arrays, rest = eqx.partition(model, eqx.is_inexact_array)

    def run(arrays, *batch):
        return jax.vmap(lambda *x: apply(eqx.combine(arrays, rest), *x))(*batch)

    return run, draw.parameters(arrays)


def keys(seed):
    return jax.random.split(jax.random.key(seed), BATCH)


def images(draw, *arguments, **options):
    """A training step of a vision transformer of two blocks."""
    model = vit.VisionTransformer(IMAGE, 3, WIDTH, PATCH, 4, [2], num_classes=10, key=jax.random.key(0), **options)
    run, arrays = mapped(draw, model)
    batch = draw.normal(BATCH, 3, IMAGE, IMAGE), keys(1)
    return squared_error(run), (arrays, draw.normal(BATCH, 10), *batch)


@program("f32", 2, 2)
def vision_transformer():
    return images(Draw(1))


@program("f32", 2, 2)
def normalized_queries_and_dropout():
    return images(Draw(2), qk_norm=True, attn_drop=0.2, reg_tokens=0, init_values=0.5)


@program("f32", 2, 2)
def rotary_patches_behind_registers():
    """Rows and columns of the image rotate the patches alone, as in DINOv3."""
    return images(Draw(3), use_local_pos_embed=True, use_global_pos_embed=False)


@program("f32", 1, 1)
def windows_with_a_bias_of_positions():
    """Windows of 4 by 4, whose bias a network makes of distances, beside one carrier token."""
    draw = Draw(4)
    run, arrays = mapped(draw, attention.WindowedAttention(WIDTH, 4, 4, 17, key=jax.random.key(0), qk_norm=True))
    return squared_error(run), (arrays, draw.normal(BATCH, 17, WIDTH), draw.normal(BATCH, 17, WIDTH), keys(2))


@program("f32", 1, 1)
def one_query():
    draw = Draw(5)
    run, arrays = mapped(draw, attention.SQA(WIDTH, 4, key=jax.random.key(0), attn_drop=0.1))
    x, query = draw.normal(BATCH, 18, WIDTH), draw.normal(BATCH, 1, WIDTH)
    return squared_error(run), (arrays, draw.normal(BATCH, 18, WIDTH), x, query, keys(3))


@program("bf16", 1)
def windows_of_channels():
    """Attention of one head over windows of an image of channels first, its values gated."""
    draw = Draw(6)
    layer = attention.SHMA(28, num_heads=1, window_size=4, head_dim_reduce_ratio=2, key=jax.random.key(0))
    run, arrays = mapped(draw, layer)
    return run, (jax.tree.map(lambda x: x.astype(jnp.bfloat16), arrays), draw.normal(BATCH, 28, 8, 12, dtype=jnp.bfloat16),
                 keys(4))
