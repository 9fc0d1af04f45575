"""Flax's linen: its attention layer and function as transformers, decoders and perceivers use them."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from definition import program
from inputs import Draw, cross_entropy, lengths_mask, squared_error

BATCH, LENGTH, WIDTH = 3, 20, 32


class Layer(nn.Module):
    """One layer before whose parts is a norm; `attention` are MultiHeadDotProductAttention's own options."""

    attention: dict
    dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(self, x, mask=None, memory=None, memory_mask=None):
        attend = lambda **more: nn.MultiHeadDotProductAttention(num_heads=4, dtype=self.dtype, **self.attention, **more)
        y = nn.LayerNorm(dtype=self.dtype)(x)
        x = x + attend(name="self")(y, mask=mask)
        if memory is not None:
            x = x + attend(name="cross")(nn.LayerNorm(dtype=self.dtype)(x), memory, mask=memory_mask)
        y = nn.Dense(2 * WIDTH, dtype=self.dtype)(nn.LayerNorm(dtype=self.dtype)(x))
        return x + nn.Dense(WIDTH, dtype=self.dtype)(nn.gelu(y))


class Stack(nn.Module):
    attention: dict
    layers: int = 2
    dtype: jnp.dtype = jnp.float32
    layer: type = Layer

    @nn.compact
    def __call__(self, x, *given):
        for i in range(self.layers):
            x = self.layer(self.attention, self.dtype, name=f"layer{i}")(x, *given)
        return x


def training(model, draw, x, *given, **apply_options):
    """A training step of a model whose output has x's shape."""
    parameters = draw.parameters(model.init(jax.random.key(0), x, *given))
    apply = lambda parameters, *inputs: model.apply(parameters, *inputs, **apply_options)
    return squared_error(apply), (parameters, draw.normal(*x.shape), x, *given)


@program("f32", 2, 2)
def packed_segments():
    """Several texts in a row, told apart by segment ids; causal inside of each."""
    draw = Draw(1)
    segments = jnp.asarray([[1] * 7 + [2] * 9 + [0] * 4, [1] * 3 + [2] * 5 + [3] * 12, [1] * 20])
    same = nn.make_attention_mask(segments, segments, jnp.equal)
    mask = nn.combine_masks(same, nn.make_causal_mask(segments))
    return training(Stack({}), draw, draw.normal(BATCH, LENGTH, WIDTH), mask)


@program("bf16", 4, 4)
def encoder_decoder_lengths():
    """A decoder's self-attention is causal, its cross-attention sees as many rows as each memory has."""
    draw = Draw(2)
    words = jnp.ones((BATCH, LENGTH))
    causal = nn.make_causal_mask(words)
    across = nn.make_attention_mask(words, lengths_mask([13, 5, 9], 13))
    x, memory = draw.normal(BATCH, LENGTH, WIDTH, dtype=jnp.bfloat16), draw.normal(BATCH, 13, WIDTH, dtype=jnp.bfloat16)
    return training(Stack({}, dtype=jnp.bfloat16), draw, x, causal, memory, across)


@program("f32", 2, 2)
def normalized_queries():
    """normalize_qk: a LayerNorm of each head's queries and keys, as in ViT-22B."""
    draw = Draw(3)
    return training(Stack({"normalize_qk": True, "use_bias": False}), draw, draw.normal(BATCH, LENGTH, WIDTH))


@program("bf16", 2, 2)
def softmax_in_f32():
    draw = Draw(4)
    mask = nn.make_attention_mask(jnp.ones((BATCH, LENGTH)), lengths_mask([20, 11, 4], LENGTH))
    x = draw.normal(BATCH, LENGTH, WIDTH, dtype=jnp.bfloat16)
    return training(Stack({"force_fp32_for_softmax": True}, dtype=jnp.bfloat16), draw, x, mask)


@program("f32", 4, 2)
def remat():
    """Each layer's forward is run again for its gradients."""
    draw = Draw(5)
    mask = nn.make_causal_mask(jnp.ones((BATCH, LENGTH)))
    return training(Stack({}, layer=nn.remat(Layer)), draw, draw.normal(BATCH, LENGTH, WIDTH), mask)


@program("f32", 2, 2)
def dropout_each():
    """A dropout mask of its own for each head and entry, beside padding."""
    draw = Draw(6)
    mask = nn.make_attention_mask(jnp.ones((BATCH, LENGTH)), lengths_mask([9, 20, 16], LENGTH))
    model = Stack({"dropout_rate": 0.2, "broadcast_dropout": False, "deterministic": False})
    x = draw.normal(BATCH, LENGTH, WIDTH)
    parameters = draw.parameters(model.init({"params": jax.random.key(0), "dropout": jax.random.key(1)}, x, mask))
    apply = lambda parameters, key, x, mask: model.apply(parameters, x, mask, rngs={"dropout": key})
    return squared_error(apply), (parameters, draw.normal(*x.shape), jax.random.key(7), x, mask)


class ScannedLayer(nn.Module):
    @nn.compact
    def __call__(self, x, mask):
        return Layer({}, jnp.float32)(x, mask), None


class Scanned(nn.Module):
    @nn.compact
    def __call__(self, x, mask):
        layers = nn.scan(nn.remat(ScannedLayer, prevent_cse=False), variable_axes={"params": 0},
                         split_rngs={"params": True}, in_axes=nn.broadcast, length=3)
        return layers()(x, mask)[0]


@program("f32", 2, 1)
def scan_of_remat():
    """Three layers as one loop whose body is run again backwards, packed texts in a language model's mask."""
    draw = Draw(8)
    mask = nn.make_attention_mask(jnp.ones((BATCH, LENGTH)), lengths_mask([6, 20, 13], LENGTH))
    return training(Scanned(), draw, draw.normal(BATCH, LENGTH, WIDTH), mask)


@program("f32", 1, 1)
def alibi_bias():
    """dot_product_attention with slopes of distances as its bias, each head its own."""
    draw = Draw(9)

    def attend(parameters, x):
        heads = lambda w: jnp.einsum("bsw,whd->bshd", x, w)
        distance = jnp.arange(LENGTH)[None, :] - jnp.arange(LENGTH)[:, None]
        bias = parameters["slopes"][:, None, None] * distance
        y = nn.dot_product_attention(*(heads(parameters[name]) for name in "qkv"), bias=bias[None],
                                     mask=distance[None, None] <= 0, deterministic=True)
        return jnp.einsum("bshd,hdw->bsw", y, parameters["o"])

    parameters = {name: draw.normal(WIDTH, 4, 8, scale=0.3) for name in "qkv"}
    parameters |= {"o": draw.normal(4, 8, WIDTH, scale=0.3), "slopes": jnp.asarray([0.5, 0.25, 0.125, 0.0625])}
    return squared_error(attend), (parameters, draw.normal(2, LENGTH, WIDTH), draw.normal(2, LENGTH, WIDTH))


@program("bf16", 1)
def perceiver_of_images():
    """Latents attend to rows of two batch axes, frames of videos; heads of 12."""
    draw = Draw(10)
    model = nn.MultiHeadDotProductAttention(num_heads=2, qkv_features=24, dtype=jnp.bfloat16)
    latents, rows = draw.normal(2, 3, 6, WIDTH, dtype=jnp.bfloat16), draw.normal(2, 3, 17, 40, dtype=jnp.bfloat16)
    mask = draw.chance(0.7, 2, 3, 1, 6, 17).at[..., 0].set(True)
    parameters = draw.parameters(model.init(jax.random.key(0), latents, rows, mask=mask))
    return lambda parameters, *x: model.apply(parameters, x[0], x[1], mask=x[2]), (parameters, latents, rows, mask)


@program("f16", 2, 2)
def language_model_f16():
    """Words in, logits out by the table of words, in f16."""
    class Model(nn.Module):
        @nn.compact
        def __call__(self, words):
            table = nn.Embed(64, WIDTH, dtype=jnp.float16)
            return table.attend(Stack({"use_bias": False}, dtype=jnp.float16)(table(words), nn.make_causal_mask(words)))

    draw = Draw(11)
    words = draw.tokens(BATCH, LENGTH)
    parameters = draw.parameters(Model().init(jax.random.key(0), words))
    return cross_entropy(Model().apply), (parameters, draw.tokens(BATCH, LENGTH), words)
