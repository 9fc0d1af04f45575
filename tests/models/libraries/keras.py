"""Keras's attention layers on its JAX backend."""

import os

os.environ["KERAS_BACKEND"] = "jax"  # read once, at the import

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import keras  # noqa: E402
from definition import program  # noqa: E402
from inputs import Draw, lengths_mask, squared_error  # noqa: E402

BATCH, LENGTH, WIDTH = 3, 20, 32


def stateless(draw, layer, *inputs, **given):
    """(parameters, each moved; apply(parameters, *inputs)) of a layer that has seen these inputs."""
    layer(*inputs, **given)
    parameters = draw.parameters([x.value for x in layer.trainable_variables])
    state = [x.value for x in layer.non_trainable_variables]
    return parameters, lambda parameters, *inputs, **given: layer.stateless_call(parameters, state, *inputs, **given)[0]


def trained(draw, layer, *inputs, **given):
    """A training step of a layer whose output is as its first input."""
    parameters, apply = stateless(draw, layer, *inputs, **given)
    names = list(given)
    options = {name: given[name] for name in names if not hasattr(given[name], "shape")}
    arrays = {name: given[name] for name in names if name not in options}
    step = squared_error(lambda parameters, arrays, *inputs: apply(parameters, *inputs, **arrays, **options))
    return step, (parameters, draw.normal(*inputs[0].shape), arrays, *inputs)


@program("f32", 1, 1)
def attention_of_lengths():
    """MultiHeadAttention by causal mask and padding."""
    draw = Draw(1)
    layer = keras.layers.MultiHeadAttention(4, 8)
    x = draw.normal(BATCH, LENGTH, WIDTH)
    mask = jnp.broadcast_to(lengths_mask([20, 7, 12], LENGTH)[:, None], (BATCH, LENGTH, LENGTH))
    return trained(draw, layer, x, x, attention_mask=mask, use_causal_mask=True)


@program("bf16", 1, 1)
def mixed_precision():
    """Variables in f32, what is computed in bf16; queries and values of other lengths."""
    draw = Draw(2)
    layer = keras.layers.MultiHeadAttention(4, 8, dtype="mixed_bfloat16")
    x, memory = draw.normal(BATCH, LENGTH, WIDTH), draw.normal(BATCH, 13, WIDTH)
    mask = jnp.broadcast_to(lengths_mask([13, 4, 9], 13)[:, None], (BATCH, LENGTH, 13))
    return trained(draw, layer, x, memory, attention_mask=mask)


@program("f32", 1)
def attention_over_two_axes():
    """Each cell of a grid sees all cells of its entry."""
    draw = Draw(3)
    layer = keras.layers.MultiHeadAttention(2, 8, attention_axes=(1, 2))
    x = draw.normal(2, 5, 6, WIDTH)
    parameters, apply = stateless(draw, layer, x, x)
    return apply, (parameters, x, x)


@program("f32", 1, 1)
def grouped_queries():
    draw = Draw(4)
    layer = keras.layers.GroupQueryAttention(8, 4, 2)
    x = draw.normal(BATCH, LENGTH, WIDTH)
    mask = jnp.broadcast_to(lengths_mask([9, 20, 15], LENGTH)[:, None], (BATCH, LENGTH, LENGTH))
    return trained(draw, layer, x, x, attention_mask=mask, use_causal_mask=True)


@program("f32", 1)
def attention_with_scale():
    """The layer without projections: dot products by a learned scale, each text of its length."""
    draw = Draw(5)
    layer = keras.layers.Attention(use_scale=True)
    inputs = [draw.normal(BATCH, rows, WIDTH) for rows in (LENGTH, 13, 13)]
    masks = [lengths_mask([20, 8, 14], LENGTH), lengths_mask([5, 13, 9], 13)]
    parameters, apply = stateless(draw, layer, inputs, mask=masks)
    return lambda parameters, inputs, masks: apply(parameters, inputs, mask=masks), (parameters, inputs, masks)


class Checkpointed(keras.layers.Layer):
    """A layer whose attention is run again backwards."""

    def __init__(self):
        super().__init__()
        self.attention = keras.layers.MultiHeadAttention(4, 8)
        self.norm = keras.layers.LayerNormalization()

    def call(self, x):
        return x + keras.remat(lambda y: self.attention(y, y, use_causal_mask=True))(self.norm(x))


@program("f32", 2, 1)
def remat():
    draw = Draw(6)
    return trained(draw, Checkpointed(), draw.normal(BATCH, LENGTH, WIDTH))
