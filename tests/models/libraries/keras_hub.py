"""keras-hub's backbones on Keras's JAX backend: other architectures than the kept modules'."""

import os

os.environ["KERAS_BACKEND"] = "jax"  # read once, at the import

import jax.numpy as jnp  # noqa: E402
import keras_hub  # noqa: E402
from definition import program  # noqa: E402
from inputs import Draw, lengths_mask, squared_error  # noqa: E402

BATCH, LENGTH, WIDTH = 3, 18, 32
PLAIN = {"vocabulary_size": 64, "num_layers": 2, "num_heads": 4, "hidden_dim": WIDTH, "intermediate_dim": 64}
GROUPED = {"vocabulary_size": 64, "num_layers": 2, "num_query_heads": 4, "num_key_value_heads": 2, "hidden_dim": WIDTH,
           "intermediate_dim": 64}


def parts(draw, backbone):
    """(parameters, each moved; outputs by parameters and inputs) of a backbone."""
    parameters = draw.parameters([x.value for x in backbone.trainable_variables])
    state = [x.value for x in backbone.non_trainable_variables]

    def apply(parameters, inputs, training=False):
        outputs = backbone.stateless_call(parameters, state, inputs, training=training)[0]
        if not isinstance(outputs, dict):
            return outputs
        return outputs.get("decoder_sequence_output", outputs.get("sequence_output"))

    return parameters, apply


def forward(draw, backbone, inputs):
    parameters, apply = parts(draw, backbone)
    return apply, (parameters, inputs)


def trained(draw, backbone, inputs, target=(BATCH, LENGTH, WIDTH), training=False):
    parameters, apply = parts(draw, backbone)
    step = squared_error(lambda parameters, inputs: apply(parameters, inputs, training))
    return step, (parameters, draw.normal(*target), inputs)


def words(draw, *lengths, length=LENGTH, prefix="", **more):
    """Words of texts of so many, and the mask that says so."""
    return {f"{prefix}token_ids": draw.tokens(len(lengths), length),
            f"{prefix}padding_mask": lengths_mask(lengths, length, jnp.int32), **more}


def segments():
    return jnp.asarray([[0] * 7 + [1] * 11, [0] * 3 + [1] * 15, [0] * 18])


@program("f32", 2, 2)
def mistral_window():
    draw = Draw(1)
    return trained(draw, keras_hub.models.MistralBackbone(**GROUPED, sliding_window=5), words(draw, 18, 6, 13))


@program("bf16", 2, 2)
def llama3():
    draw = Draw(2)
    return trained(draw, keras_hub.models.Llama3Backbone(**GROUPED, dtype="bfloat16"), words(draw, 9, 18, 4))


@program("f32", 2)
def phi3():
    """One projection to queries, keys and values; rotary."""
    draw = Draw(3)
    return forward(draw, keras_hub.models.Phi3Backbone(**GROUPED), words(draw, 18, 11, 5))


@program("bf16", 2)
def qwen3_normalized():
    """A norm of each head's queries and keys, and then rotary."""
    draw = Draw(4)
    backbone = keras_hub.models.Qwen3Backbone(**GROUPED, head_dim=16, dtype="bfloat16")
    return forward(draw, backbone, words(draw, 7, 18, 10))


@program("f32", 2, 2)
def mixtral():
    """Experts beside the attention."""
    draw = Draw(5)
    backbone = keras_hub.models.MixtralBackbone(**GROUPED, num_experts=4, top_k=2, sliding_window=6)
    return trained(draw, backbone, words(draw, 18, 8, 14))


@program("f32", 2)
def gemma3_window_and_norms():
    """Local and global layers, norms of queries and keys, a soft cap."""
    draw = Draw(6)
    backbone = keras_hub.models.Gemma3Backbone(
        **GROUPED, head_dim=8, image_size=None, attention_logit_soft_cap=20.0, use_sliding_window_attention=True,
        sliding_window_size=5, use_post_ffw_norm=True, use_post_attention_norm=True)
    return forward(draw, backbone, words(draw, 18, 12, 3))


@program("f32", 2, 2)
def roformer_v2():
    draw = Draw(7)
    backbone = keras_hub.models.RoformerV2Backbone(**PLAIN, head_size=8)
    inputs = {"token_ids": words(draw, 18, 5, 11)["token_ids"], "segment_ids": segments()}
    return trained(draw, backbone, inputs)


@program("bf16", 6)
def t5():
    """Biases of relative positions, looked up in a table."""
    draw = Draw(8)
    inputs = words(draw, 18, 7, 12, prefix="encoder_") | words(draw, 9, 4, 6, length=9, prefix="decoder_")
    return forward(draw, keras_hub.models.T5Backbone(**PLAIN, dtype="bfloat16"), inputs)


@program("f32", 6, 6)
def whisper():
    draw = Draw(9)
    backbone = keras_hub.models.WhisperBackbone(**PLAIN, num_mels=8, max_encoder_sequence_length=24,
                                                max_decoder_sequence_length=12)
    inputs = words(draw, 12, 4, 9, length=12, prefix="decoder_", encoder_features=draw.normal(BATCH, 24, 8))
    return trained(draw, backbone, inputs, (BATCH, 12, WIDTH))


@program("f32", 2, 2)
def electra():
    draw = Draw(10)
    sizes = {"vocab_size": 64, "num_layers": 2, "num_heads": 4, "hidden_dim": WIDTH, "intermediate_dim": 64}
    backbone = keras_hub.models.ElectraBackbone(**sizes, embedding_dim=16, max_sequence_length=20)
    return trained(draw, backbone, words(draw, 18, 10, 6, segment_ids=segments()))


@program("f32", 2, 2)
def vit():
    draw = Draw(11)
    backbone = keras_hub.models.ViTBackbone(image_shape=(16, 16, 3), patch_size=(4, 4), num_layers=2, num_heads=4,
                                            hidden_dim=WIDTH, mlp_dim=64)
    return trained(draw, backbone, draw.normal(BATCH, 16, 16, 3), (BATCH, 17, WIDTH))


@program("bf16", 2)
def opt():
    draw = Draw(12)
    backbone = keras_hub.models.OPTBackbone(**PLAIN, max_sequence_length=20, dtype="bfloat16")
    return forward(draw, backbone, words(draw, 5, 18, 10))


@program("f32", 2)
def esm():
    """Proteins: rotary, and padding by the words themselves."""
    draw = Draw(13)
    backbone = keras_hub.models.ESMBackbone(**PLAIN, max_sequence_length=20)
    lengths = lengths_mask([18, 9, 13], LENGTH, jnp.int32)
    return forward(draw, backbone, {"token_ids": draw.tokens(BATCH, LENGTH) * lengths})


@program("f32", 4, 4)
def swin_windows():
    """Windows that see themselves alone, every second layer's shifted, with tables of relative positions."""
    draw = Draw(14)
    backbone = keras_hub.models.SwinTransformerBackbone(
        image_shape=(32, 32, 3), patch_size=4, embed_dim=20, depths=(2, 2), num_heads=(2, 4), window_size=4)
    return trained(draw, backbone, draw.normal(2, 32, 32, 3), (2, 16, 40))


@program("f32", 2)
def vit_det():
    """A layer of windows and one of the whole image, biased by decomposed relative positions."""
    draw = Draw(15)
    backbone = keras_hub.models.ViTDetBackbone(
        hidden_size=WIDTH, num_layers=2, num_heads=4, intermediate_dim=64, global_attention_layer_indices=[1],
        image_shape=(96, 96, 3), patch_size=16, num_output_channels=8, window_size=3)
    return forward(draw, backbone, draw.normal(2, 96, 96, 3))


@program("f32", 2, 2)
def xlm_roberta():
    draw = Draw(16)
    return trained(draw, keras_hub.models.XLMRobertaBackbone(**PLAIN, max_sequence_length=20), words(draw, 18, 10, 6),
                   training=True)
