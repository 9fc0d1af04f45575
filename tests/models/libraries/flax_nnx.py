"""Flax's nnx: its attention layer, with heads shared, causal, cached, and its transforms around it."""

import flax.nnx as nnx
import jax
import jax.numpy as jnp
from definition import program
from inputs import Draw, lengths_mask, squared_error

BATCH, LENGTH, WIDTH = 3, 20, 32


class Block(nnx.Module):
    def __init__(self, rngs, **options):
        self.attention = nnx.MultiHeadAttention(4, WIDTH, decode=False, rngs=rngs, **options)
        self.norm = nnx.RMSNorm(WIDTH, rngs=rngs)
        self.wide = nnx.Linear(WIDTH, 2 * WIDTH, rngs=rngs)
        self.narrow = nnx.Linear(2 * WIDTH, WIDTH, rngs=rngs)

    def __call__(self, x, mask=None, is_causal=False, rngs=None):
        x = x + self.attention(self.norm(x), mask=mask, is_causal=is_causal, rngs=rngs)
        return x + self.narrow(nnx.silu(self.wide(x)))


class Blocks(nnx.Module):
    def __init__(self, rngs, **options):
        self.blocks = nnx.List([Block(rngs, **options) for _ in range(2)])

    def __call__(self, x, **given):
        for block in self.blocks:
            x = block(x, **given)
        return x


def parts(draw, model, dtype=jnp.float32):
    """(parameters, each moved; a function that makes them a model again)."""
    graph, parameters, rest = nnx.split(model, nnx.Param, ...)
    parameters = jax.tree.map(lambda x: x.astype(dtype), draw.parameters(parameters))
    return parameters, lambda parameters: nnx.merge(graph, parameters, rest)


def training(draw, model, *given, apply, dtype=jnp.float32):
    parameters, merged = parts(draw, model, dtype)
    x = draw.normal(BATCH, LENGTH, WIDTH, dtype=dtype)
    return squared_error(lambda parameters, *inputs: apply(merged(parameters), *inputs)), (
        parameters, draw.normal(BATCH, LENGTH, WIDTH), x, *given)


def causal_of_lengths(*lengths):
    causal = nnx.make_causal_mask(jnp.ones((BATCH, LENGTH)), dtype=bool)
    return causal & lengths_mask(lengths, LENGTH)[:, None, None]


@program("f32", 2, 2)
def grouped_causal():
    """Four heads of queries, two of keys; JAX's own attention beneath."""
    model = Blocks(nnx.Rngs(0), num_kv_heads=2)
    return training(Draw(1), model, apply=lambda model, x: model(x, is_causal=True))


@program("bf16", 2, 2)
def lengths_and_dropout():
    """Each entry of its own length; a dropout mask that all heads and entries share."""
    model = Blocks(nnx.Rngs(0), dropout_rate=0.2, deterministic=False, dtype=jnp.bfloat16, keep_rngs=False)
    mask = lengths_mask([20, 6, 13], LENGTH)[:, None, None]
    apply = lambda model, x, mask, key: model(x, mask=mask, rngs=nnx.Rngs(dropout=key))
    return training(Draw(2), model, mask, jax.random.key(4), apply=apply, dtype=jnp.bfloat16)


@program("f32", 2, 2)
def normalized_queries():
    model = Blocks(nnx.Rngs(0), normalize_qk=True, use_bias=False)
    mask = causal_of_lengths(11, 20, 5)
    return training(Draw(3), model, mask, apply=lambda model, x, mask: model(x, mask=mask))


@program("f32", 2, 1)
def scan_of_remat():
    """Blocks stacked by vmap, scanned, each run again backwards."""
    @nnx.split_rngs(splits=3)
    @nnx.vmap(in_axes=(0,), out_axes=0)
    def stacked(rngs):
        return Block(rngs)

    @nnx.scan(in_axes=(nnx.Carry, 0, None), out_axes=nnx.Carry)
    @nnx.remat
    def run(x, block, mask):
        return block(x, mask=mask)

    mask = causal_of_lengths(20, 3, 16)
    return training(Draw(4), stacked(nnx.Rngs(0)), mask, apply=lambda model, x, mask: run(x, model, mask))


@program("f32", 1)
def cross_with_bias():
    """dot_product_attention of two batch axes, with a bias that heads share."""
    draw = Draw(5)
    q, k, v = (draw.normal(2, 3, rows, 4, 8) for rows in (7, 11, 11))
    mask = draw.chance(0.7, 2, 3, 1, 7, 11).at[..., 0].set(True)
    bias = draw.normal(2, 3, 1, 7, 11)
    apply = lambda q, k, v, bias, mask: nnx.dot_product_attention(q, k, v, bias=bias, mask=mask, deterministic=True)
    return apply, (q, k, v, bias, mask)


@program("f32", 1, 1)
def vmapped_models():
    """Three models of one shape side by side, each with inputs of its own."""
    draw = Draw(6)
    graph, parameters, rest = nnx.split(Block(nnx.Rngs(0)), nnx.Param, ...)
    parameters = draw.parameters(jax.tree.map(lambda x: jnp.broadcast_to(x, (3, *x.shape)), parameters))

    def apply(parameters, x):
        return jax.vmap(lambda parameters, x: nnx.merge(graph, parameters, rest)(x, is_causal=True))(parameters, x)

    shape = 3, 2, LENGTH, WIDTH
    return squared_error(apply), (parameters, draw.normal(*shape), draw.normal(*shape))
