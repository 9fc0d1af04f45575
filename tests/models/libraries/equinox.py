"""Equinox's attention layer: one sequence's, mapped over a batch."""

import equinox as eqx
import jax
import jax.numpy as jnp
from definition import program
from inputs import Draw, lengths_mask, squared_error

BATCH, LENGTH, WIDTH, HEADS = 3, 18, 32, 4


class Block(eqx.Module):
    attention: eqx.nn.MultiheadAttention
    norm: eqx.nn.LayerNorm
    mlp: eqx.nn.MLP
    rope: eqx.nn.RotaryPositionalEmbedding | None

    def __init__(self, key, rope=False, **options):
        keys = jax.random.split(key)
        self.attention = eqx.nn.MultiheadAttention(HEADS, WIDTH, key=keys[0], **options)
        self.norm = eqx.nn.LayerNorm(WIDTH)
        self.mlp = eqx.nn.MLP(WIDTH, WIDTH, 2 * WIDTH, 1, jax.nn.gelu, key=keys[1])
        self.rope = eqx.nn.RotaryPositionalEmbedding(WIDTH // HEADS) if rope else None

    def turned(self, q, k, v):
        turn = jax.vmap(self.rope, in_axes=1, out_axes=1)
        return turn(q), turn(k), v

    def __call__(self, x, mask, key=None):
        y = jax.vmap(self.norm)(x)
        x = x + self.attention(y, y, y, mask, key=key, process_heads=self.turned if self.rope else None)
        return x + jax.vmap(self.mlp)(x)


def parts(draw, model):
    """(arrays of a model, each moved; a function that makes it a model again)."""
    arrays, rest = eqx.partition(model, eqx.is_inexact_array)
    return draw.parameters(arrays), lambda arrays: eqx.combine(arrays, rest)


def stacked(key, count, **options):
    return eqx.filter_vmap(lambda key: Block(key, **options))(jax.random.split(key, count))


@program("f32", 2, 2)
def rotary_causal():
    draw = Draw(1)
    arrays, model = parts(draw, [Block(key, rope=True) for key in jax.random.split(jax.random.key(0))])
    mask = jnp.tril(jnp.ones((LENGTH, LENGTH), bool))

    def apply(arrays, x):
        for block in model(arrays):
            x = jax.vmap(lambda row, block=block: block(row, mask))(x)
        return x

    return squared_error(apply), (arrays, draw.normal(BATCH, LENGTH, WIDTH), draw.normal(BATCH, LENGTH, WIDTH))


@program("f32", 1, 1)
def mask_of_each_head():
    """A mask of [heads, rows, keys] for every entry; each row sees a key at least."""
    draw = Draw(2)
    arrays, model = parts(draw, Block(jax.random.key(0), use_query_bias=True, use_value_bias=True))
    mask = draw.chance(0.6, BATCH, HEADS, LENGTH, LENGTH) | jnp.eye(LENGTH, dtype=bool)
    return squared_error(lambda arrays, x, mask: jax.vmap(model(arrays))(x, mask)), (
        arrays, draw.normal(BATCH, LENGTH, WIDTH), draw.normal(BATCH, LENGTH, WIDTH), mask)


@program("f32", 2, 2)
def dropout_and_lengths():
    draw = Draw(3)
    arrays, model = parts(draw, [Block(key, dropout_p=0.25) for key in jax.random.split(jax.random.key(0))])
    mask = jnp.broadcast_to(lengths_mask([18, 7, 12], LENGTH)[:, None], (BATCH, LENGTH, LENGTH))

    def apply(arrays, x, mask, keys):
        for i, block in enumerate(model(arrays)):
            x = jax.vmap(block)(x, mask, jax.vmap(lambda key, i=i: jax.random.fold_in(key, i))(keys))
        return x

    return squared_error(apply), (arrays, draw.normal(BATCH, LENGTH, WIDTH), draw.normal(BATCH, LENGTH, WIDTH), mask,
                                  jax.random.split(jax.random.key(5), BATCH))


@program("bf16", 2, 1)
def scan_of_checkpoints():
    """Blocks stacked and scanned, each a checkpoint, in bf16."""
    draw = Draw(4)
    arrays, model = parts(draw, stacked(jax.random.key(0), 3))
    arrays = jax.tree.map(lambda x: x.astype(jnp.bfloat16), arrays)
    mask = jnp.tril(jnp.ones((LENGTH, LENGTH), bool))

    def apply(arrays, x):
        def step(x, layer):
            run = eqx.filter_checkpoint(lambda layer, x: jax.vmap(lambda row: model(layer)(row, mask))(x))
            return run(layer, x), None

        return jax.lax.scan(step, x, arrays)[0]

    x = draw.normal(BATCH, LENGTH, WIDTH, dtype=jnp.bfloat16)
    return squared_error(apply), (arrays, draw.normal(BATCH, LENGTH, WIDTH), x)


@program("f32", 1)
def cross_attention_of_sizes():
    """Queries, keys and values of widths of their own; keys of 8 and values of 12 a head."""
    draw = Draw(5)
    layer = eqx.nn.MultiheadAttention(2, 20, key_size=24, value_size=28, output_size=16, qk_size=8, vo_size=12,
                                      key=jax.random.key(0))
    arrays, model = parts(draw, layer)
    keys, values = draw.normal(BATCH, 11, 24), draw.normal(BATCH, 11, 28)
    mask = jnp.broadcast_to(lengths_mask([11, 3, 8], 11)[:, None], (BATCH, LENGTH, 11))
    return lambda arrays, *x: jax.vmap(model(arrays))(*x), (arrays, draw.normal(BATCH, LENGTH, 20), keys, values, mask)
