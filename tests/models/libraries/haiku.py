"""Haiku's attention layer, in models as its examples build them."""

import haiku as hk
import jax
import jax.numpy as jnp
import jmp
from definition import program
from inputs import Draw, cross_entropy, lengths_mask, squared_error

BATCH, LENGTH, WIDTH = 3, 18, 32


def block(x, mask, dropout=0.0, memory=None, key_size=8, value_size=None):
    norm = lambda x: hk.LayerNorm(-1, create_scale=True, create_offset=True)(x)
    attend = hk.MultiHeadAttention(4, key_size, w_init=hk.initializers.VarianceScaling(1.0), value_size=value_size,
                                   model_size=WIDTH)
    y = norm(x)
    memory = y if memory is None else memory
    y = attend(y, memory, memory, mask)
    x = x + (hk.dropout(hk.next_rng_key(), dropout, y) if dropout else y)
    y = hk.Linear(2 * WIDTH)(norm(x))
    return x + hk.Linear(WIDTH)(jax.nn.gelu(y))


def training(forward, draw, x, *given):
    model = hk.without_apply_rng(hk.transform(forward))
    parameters = draw.parameters(model.init(jax.random.key(0), x, *given))
    return squared_error(model.apply), (parameters, draw.normal(*x.shape), x, *given)


def causal_of_lengths(lengths):
    return lengths_mask(lengths, LENGTH)[:, None, None] & jnp.tril(jnp.ones((LENGTH, LENGTH), bool))


@program("f32", 2, 2)
def language_model():
    """Words in, logits out, dropout behind the attention; padding and causal as one mask."""
    def forward(words, mask):
        positions = hk.get_parameter("positions", [LENGTH, WIDTH], init=hk.initializers.RandomNormal())
        x = hk.Embed(64, WIDTH)(words) + positions
        for _ in range(2):
            x = block(x, mask, dropout=0.1)
        return hk.Linear(64)(x)

    draw, model = Draw(1), hk.transform(forward)
    words, mask = draw.tokens(BATCH, LENGTH), causal_of_lengths([18, 5, 11])
    parameters = draw.parameters(model.init(jax.random.key(0), words, mask))
    apply = lambda parameters, key, *inputs: model.apply(parameters, key, *inputs)
    return cross_entropy(apply), (parameters, draw.tokens(BATCH, LENGTH), jax.random.key(3), words, mask)


@program("f32", 1, 1)
def layer_stack():
    """Layers as one scan over stacked parameters."""
    def forward(x, mask):
        return hk.experimental.layer_stack(3)(lambda x: block(x, mask))(x)

    draw = Draw(2)
    return training(forward, draw, draw.normal(BATCH, LENGTH, WIDTH), causal_of_lengths([4, 18, 9]))


@program("f32", 4, 2)
def remat():
    def forward(x, mask):
        for _ in range(2):
            x = hk.remat(block)(x, mask)
        return x

    draw = Draw(3)
    return training(forward, draw, draw.normal(BATCH, LENGTH, WIDTH), causal_of_lengths([18, 18, 7]))


@program("f32", 3, 3)
def perceiver():
    """Latents that attend to a longer input, then to themselves; values wider than keys."""
    def forward(x, mask):
        latents = hk.get_parameter("latents", [6, WIDTH], init=hk.initializers.RandomNormal())
        latents = block(jnp.broadcast_to(latents, (BATCH, 6, WIDTH)), mask, memory=x, value_size=16)
        for _ in range(2):
            latents = block(latents, None)
        return latents

    draw = Draw(4)
    mask = lengths_mask([29, 12, 20], 29)[:, None, None]
    step, (parameters, _, *rest) = training(forward, draw, draw.normal(BATCH, 29, WIDTH), mask)
    return step, (parameters, draw.normal(BATCH, 6, WIDTH), *rest)


@program("bf16", 2)
def policy_in_bf16():
    """Parameters in f32, and what the attention computes in bf16."""
    policy = jmp.get_policy("params=float32,compute=bfloat16,output=bfloat16")

    def forward(x, mask):
        with hk.mixed_precision.push_policy(hk.MultiHeadAttention, policy):
            for _ in range(2):
                x = block(x, mask)
        return x

    draw, model = Draw(5), hk.without_apply_rng(hk.transform(forward))
    x, mask = draw.normal(BATCH, LENGTH, WIDTH), causal_of_lengths([13, 18, 2])
    return model.apply, (draw.parameters(model.init(jax.random.key(0), x, mask)), x, mask)
