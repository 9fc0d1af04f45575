"""Penzai's transformers: named axes, positions as an argument, attention as a sequence of its own layers."""

import jax
import jax.numpy as jnp
from definition import program
from inputs import Draw, cross_entropy
from penzai import pz
from penzai.models.transformer.variants import gpt_neox, llamalike_common

BATCH, LENGTH, WORDS = 2, 18, 64


def of_words(model, draw, dtype=jnp.float32):
    """(logits of words at positions, parameters that are moved, what comes after them)."""
    unbound, parameters = pz.unbind_params(model, freeze=True)
    values, tree = jax.tree.flatten(parameters)

    def apply(values, words, positions):
        bound = pz.bind_variables(unbound, jax.tree.unflatten(tree, values))
        named = pz.nx.wrap(words).tag("batch", "seq")
        return bound(named, token_positions=pz.nx.wrap(positions).tag("batch", "seq")).unwrap("batch", "seq", "vocabulary")

    values = [x.astype(dtype) for x in draw.parameters(values)]
    positions = jnp.arange(LENGTH) + jnp.asarray([[0], [5]])
    return apply, values, (draw.tokens(BATCH, LENGTH), positions)


def llamalike(**options):
    config = llamalike_common.LlamalikeTransformerConfig(**{
        "num_kv_heads": 2, "query_head_multiplier": 2, "embedding_dim": 32, "projection_dim": 8, "mlp_hidden_dim": 48,
        "num_decoder_blocks": 2, "vocab_size": WORDS, "mlp_variant": "swiglu", "tie_embedder_and_logits": False, **options})
    return llamalike_common.build_llamalike_transformer(config, init_base_rng=jax.random.key(0))


def training(model, draw):
    apply, values, inputs = of_words(model, draw)
    return cross_entropy(apply), (values, draw.tokens(BATCH, LENGTH), *inputs)


@program("f32", 2, 2)
def grouped_queries():
    return training(llamalike(), Draw(1))


@program("f32", 2, 2)
def windows_and_soft_caps():
    """Every other layer sees a window, scores are capped, as in the second Gemma."""
    kinds = (llamalike_common.AttentionTypeSlidingWindowCausal(7), llamalike_common.AttentionTypeGlobalCausal())
    return training(llamalike(attention_type=kinds, attn_logits_soft_cap=20.0, use_post_attn_norm=True), Draw(2))


@program("f32", 1, 1)
def one_head_of_keys_in_a_stack():
    """Layers stacked, which Penzai scans over; one head of keys for all."""
    return training(llamalike(num_kv_heads=1, query_head_multiplier=4, use_layer_stack=True, num_decoder_blocks=3), Draw(3))


@program("bf16", 2)
def multi_head_in_bf16():
    model = llamalike(num_kv_heads=4, query_head_multiplier=1, parameter_dtype=jnp.bfloat16, activation_dtype=jnp.bfloat16)
    apply, values, inputs = of_words(model, Draw(4), jnp.bfloat16)
    return apply, (values, *inputs)


@program("f32", 2, 2)
def gpt_neox_of_first_columns():
    """A rotation of a head's first columns."""
    config = gpt_neox.GPTNeoXTransformerConfig(
        num_attention_heads=4, embedding_dim=48, projection_dim=12, mlp_hidden_dim=64, num_decoder_blocks=2,
        vocab_size=WORDS, activation_fn="gelu_exact", rope_subset_size=4, rope_wavelength=10_000, layernorm_epsilon=1e-5,
        parameter_dtype=jnp.float32, activation_dtype=jnp.float32)
    return training(gpt_neox.build_gpt_neox_transformer(config, init_base_rng=jax.random.key(0)), Draw(5))
