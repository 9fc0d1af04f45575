"""transformers' Flax models, the last release that has them: other architectures than the kept modules'."""

import jax
import jax.numpy as jnp
import transformers as hf
from definition import program
from inputs import Draw, cross_entropy, lengths_mask, squared_error

BATCH, LENGTH = 3, 20
WORDS = {"vocab_size": 64, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
BERT = WORDS | {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
                "max_position_embeddings": 40}
BART = WORDS | {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
                "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64,
                "max_position_embeddings": 40, "decoder_start_token_id": 2, "forced_eos_token_id": 2}
LLAMA = BERT | {"num_key_value_heads": 2, "head_dim": 8}


def made(model_class, config, draw, dtype=jnp.float32, scale=0.15, **options):
    """A model and its parameters, moved."""
    model = model_class(config, dtype=dtype, **options)
    return model, draw.parameters(model.params, scale)


def first(outputs):
    return outputs[0]


def forward(model, **options):
    """Outputs by parameters and named inputs."""
    return lambda parameters, inputs: first(model(**inputs, params=parameters, **options))


def trained(model, **options):
    """Outputs in training: with dropout, by a key among the inputs."""
    options = options or {"train": True}
    return lambda parameters, key, inputs: first(model(**inputs, params=parameters, dropout_rng=key, **options))


def padded(draw, *lengths, length=LENGTH):
    """Words of texts of so many, and the mask that says so."""
    return {"input_ids": draw.tokens(len(lengths), length), "attention_mask": lengths_mask(lengths, length, jnp.int32)}


def decoded(draw, *lengths, length):
    """The same of texts that a decoder reads."""
    return {f"decoder_{name}": x for name, x in padded(draw, *lengths, length=length).items()}


def step(model, parameters, draw, inputs, target=(BATCH, LENGTH, 32), **options):
    return squared_error(trained(model, **options)), (parameters, draw.normal(*target), jax.random.key(1), inputs)


@program("f32", 2, 2)
def albert():
    """One layer's parameters for all layers; padding, dropout of the weights."""
    draw = Draw(1)
    config = hf.AlbertConfig(**BERT, embedding_size=16, attention_probs_dropout_prob=0.1)
    model, parameters = made(hf.FlaxAlbertModel, config, draw)
    return step(model, parameters, draw, padded(draw, 20, 7, 13))


@program("f32", 2, 2)
def bert_of_pruned_heads():
    """A mask of heads for each layer, behind the dropout of the weights."""
    draw = Draw(25)
    model, parameters = made(hf.FlaxBertModel, hf.BertConfig(**BERT, attention_probs_dropout_prob=0.1), draw)
    heads = jnp.asarray([[1, 0, 1, 1], [0.5, 1, 0, 2]], jnp.float32)
    return step(model, parameters, draw, padded(draw, 20, 7, 13) | {"head_mask": heads})


@program("f32", 2, 2)
def importance_of_heads():
    """The gradient of the loss by ELECTRA's mask of heads, beside those of its parameters."""
    draw = Draw(26)
    model, parameters = made(hf.FlaxElectraModel, hf.ElectraConfig(**BERT, embedding_size=16), draw)
    texts = padded(draw, 4, 20, 11)

    def outputs(trained, key, inputs):
        parameters, heads = trained
        return first(model(**inputs, head_mask=heads, params=parameters, dropout_rng=key, train=True))

    return squared_error(outputs), ((parameters, jnp.ones((2, 4))), draw.normal(BATCH, LENGTH, 32), jax.random.key(1), texts)


@program("bf16", 2, 2)
def roberta_prelayernorm():
    draw = Draw(2)
    model, parameters = made(hf.FlaxRobertaPreLayerNormModel, hf.RobertaPreLayerNormConfig(**BERT), draw, jnp.bfloat16)
    return step(model, parameters, draw, padded(draw, 4, 20, 11))


@program("f32", 2, 2)
def roformer():
    """Rotary queries and keys by sine tables."""
    draw = Draw(3)
    model, parameters = made(hf.FlaxRoFormerModel, hf.RoFormerConfig(**BERT, embedding_size=32), draw)
    return step(model, parameters, draw, padded(draw, 20, 9, 17))


@program("bf16", 2)
def electra():
    draw = Draw(4)
    model, parameters = made(hf.FlaxElectraModel, hf.ElectraConfig(**BERT, embedding_size=16), draw, jnp.bfloat16)
    return forward(model), (parameters, padded(draw, 20, 5, 12))


@program("f32", 6, 6)
def bart():
    """Encoder, decoder and what joins them, both sides padded."""
    draw = Draw(5)
    model, parameters = made(hf.FlaxBartModel, hf.BartConfig(**BART), draw)
    decoder = decoded(draw, 15, 9, 3, length=15)
    inputs = padded(draw, 20, 11, 6) | decoder
    return step(model, parameters, draw, inputs, (BATCH, 15, 32))


@program("bf16", 6)
def marian():
    draw = Draw(6)
    model, parameters = made(hf.FlaxMarianModel, hf.MarianConfig(**BART), draw, jnp.bfloat16)
    decoder = decoded(draw, 9, 15, 4, length=15)
    return forward(model), (parameters, padded(draw, 8, 20, 14) | decoder)


@program("f32", 6, 6)
def pegasus():
    draw = Draw(7)
    model, parameters = made(hf.FlaxPegasusModel, hf.PegasusConfig(**BART), draw)
    decoder = decoded(draw, 15, 15, 8, length=15)
    inputs = padded(draw, 20, 3, 9) | decoder
    return step(model, parameters, draw, inputs, (BATCH, 15, 32), train=False)


@program("f32", 6)
def whisper():
    """Spectra to words: an encoder without a mask, a causal decoder."""
    draw = Draw(8)
    config = hf.WhisperConfig(**BART | {"max_source_positions": 12, "max_target_positions": 20, "num_mel_bins": 8})
    model, parameters = made(hf.FlaxWhisperModel, config, draw, input_shape=(1, 8, 24))
    decoder = decoded(draw, 15, 6, 10, length=15)
    return forward(model), (parameters, {"input_features": draw.normal(BATCH, 8, 24)} | decoder)


@program("f32", 2, 2)
def gptj():
    """Rotary pairs that lie beside each other, on part of each head; causal and padded, logits."""
    draw = Draw(9)
    config = hf.GPTJConfig(**WORDS, n_embd=32, n_layer=2, n_head=2, n_positions=32, rotary_dim=8)
    model, parameters = made(hf.FlaxGPTJForCausalLM, config, draw)
    inputs = padded(draw, 20, 8, 15)
    return cross_entropy(trained(model)), (parameters, draw.tokens(BATCH, LENGTH), jax.random.key(1), inputs)


@program("bf16", 2, 2)
def opt():
    draw = Draw(10)
    config = hf.OPTConfig(**WORDS, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, ffn_dim=64,
                          max_position_embeddings=40, word_embed_proj_dim=32)
    model, parameters = made(hf.FlaxOPTModel, config, draw, jnp.bfloat16)
    return step(model, parameters, draw, padded(draw, 13, 20, 2), deterministic=False)


@program("f32", 2)
def xglm():
    draw = Draw(11)
    config = hf.XGLMConfig(**WORDS, d_model=32, num_layers=2, attention_heads=4, ffn_dim=64, max_position_embeddings=40)
    model, parameters = made(hf.FlaxXGLMModel, config, draw)
    return forward(model), (parameters, padded(draw, 20, 12, 5))


@program("bf16", 2)
def mistral_window():
    """A window of 6 words, grouped queries, rotary by position ids of each entry's own."""
    draw = Draw(12)
    model, parameters = made(hf.FlaxMistralModel, hf.MistralConfig(**LLAMA, sliding_window=6), draw, jnp.bfloat16)
    positions = jnp.arange(LENGTH)[None] + jnp.asarray([[0], [5], [2]])
    return forward(model), (parameters, padded(draw, 20, 10, 17) | {"position_ids": positions})


@program("f32", 2, 2)
def gemma_one_head_of_keys():
    draw = Draw(13)
    config = hf.GemmaConfig(**LLAMA | {"num_key_value_heads": 1, "head_dim": 16})
    model, parameters = made(hf.FlaxGemmaModel, config, draw)
    return step(model, parameters, draw, padded(draw, 6, 20, 14), train=False)


@program("bf16", 6, 6)
def blenderbot():
    """Norms before the parts."""
    draw = Draw(14)
    config = hf.BlenderbotConfig(**BART)
    model, parameters = made(hf.FlaxBlenderbotModel, config, draw, jnp.bfloat16)
    decoder = decoded(draw, 9, 4, 7, length=9)
    inputs = padded(draw, 20, 13, 8) | decoder
    return step(model, parameters, draw, inputs, (BATCH, 9, 32))


@program("f32", 6)
def vision_to_words():
    """A ViT, and a GPT-2 that sees it by cross-attention."""
    draw = Draw(15)
    words = hf.GPT2Config(**WORDS, n_embd=32, n_layer=2, n_head=4, n_positions=24, add_cross_attention=True)
    config = hf.VisionEncoderDecoderConfig.from_encoder_decoder_configs(hf.ViTConfig(**IMAGE), words)
    model, parameters = made(hf.FlaxVisionEncoderDecoderModel, config, draw, input_shape=((1, 16, 16, 3), (1, 1)))
    inputs = decoded(draw, 11, 6, length=11)
    return forward(model), (parameters, {"pixel_values": draw.normal(2, 3, 16, 16)} | inputs)


@program("bf16", 2)
def clip_text():
    """Causal and padded, by masks that are added."""
    draw = Draw(16)
    model, parameters = made(hf.FlaxCLIPTextModel, hf.CLIPTextConfig(**BERT), draw, jnp.bfloat16)
    return forward(model), (parameters, padded(draw, 20, 3, 11))


IMAGE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "image_size": 16,
         "patch_size": 4}


@program("f32", 2, 2)
def clip_vision():
    draw = Draw(17)
    model, parameters = made(hf.FlaxCLIPVisionModel, hf.CLIPVisionConfig(**IMAGE, attention_dropout=0.1), draw)
    return step(model, parameters, draw, {"pixel_values": draw.normal(2, 3, 16, 16)}, (2, 17, 32))


@program("bf16", 2, 2)
def vit():
    draw = Draw(18)
    config = hf.ViTConfig(**IMAGE, attention_probs_dropout_prob=0.0)
    model, parameters = made(hf.FlaxViTModel, config, draw, jnp.bfloat16)
    return step(model, parameters, draw, {"pixel_values": draw.normal(2, 3, 16, 16)}, (2, 17, 32))


@program("f32", 2)
def dinov2():
    draw = Draw(19)
    model, parameters = made(hf.FlaxDinov2Model, hf.Dinov2Config(**IMAGE), draw)
    return forward(model), (parameters, {"pixel_values": draw.normal(2, 3, 16, 16)})


@program("f32", 2)
def gpt2_cached():
    """Five words at once into a decoder's cache of 24, of which nine are known."""
    draw = Draw(20)
    config = hf.GPT2Config(**WORDS, n_embd=32, n_layer=2, n_head=4, n_positions=24)
    model, parameters = made(hf.FlaxGPT2LMHeadModel, config, draw)
    cache = model.init_cache(2, 24)
    mask = lengths_mask([14, 24], 24, jnp.int32)
    early = draw.tokens(2, 9)
    cache = model(early, params=parameters, past_key_values=cache, attention_mask=mask,
                  position_ids=jnp.broadcast_to(jnp.arange(9), (2, 9))).past_key_values
    inputs = {"input_ids": draw.tokens(2, 5), "attention_mask": mask, "past_key_values": cache,
              "position_ids": jnp.broadcast_to(jnp.arange(9, 14), (2, 5))}
    return forward(model), (parameters, inputs)
