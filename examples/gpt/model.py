"""A small GPT-style language model and its training step, in plain JAX.

Nothing here knows of Heddle: attention is written out the way a textbook does (scores, mask,
softmax, weighted sum), and the compiler is left to find it.

Shapes: B batch, S sequence length, E model width, N query heads, K key/value heads, H head_dim,
F hidden width of the MLP, V vocabulary, L layers.
"""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax


@dataclass(frozen=True)
class Config:
    """The model's sizes. `dtype` is that of parameters and activations; softmax, norms and loss are f32."""

    batch: int = 1
    sequence: int = 512
    layers: int = 4
    query_heads: int = 8
    kv_heads: int = 2
    head_dim: int = 64
    hidden: int = 1024
    vocabulary: int = 1024
    dtype: str = "float32"
    checkpoint: bool = False  # recompute each layer's activations in the backward pass
    learning_rate: float = 0.1

    @property
    def width(self):
        return self.query_heads * self.head_dim


def init(config, key):
    """Parameters as a dict of arrays; those of the layers are stacked along a leading axis of size L."""
    e, f = config.width, config.hidden
    nh, kh = config.query_heads * config.head_dim, config.kv_heads * config.head_dim
    shapes = {
        "attention_norm": (e,),
        "query": (e, nh),
        "key": (e, kh),
        "value": (e, kh),
        "output": (nh, e),
        "mlp_norm": (e,),
        "gate": (e, f),
        "up": (e, f),
        "down": (f, e),
    }
    keys = iter(jax.random.split(key, len(shapes) + 2))

    def weight(shape, fan_in):
        return (jax.random.normal(next(keys), shape) * fan_in**-0.5).astype(config.dtype)

    layers = {
        name: jnp.ones((config.layers, *shape), config.dtype)
        if len(shape) == 1
        else weight((config.layers, *shape), shape[0])
        for name, shape in shapes.items()
    }
    return {
        "embedding": weight((config.vocabulary, e), 1),
        "layers": layers,
        "final_norm": jnp.ones((e,), config.dtype),
        "head": weight((e, config.vocabulary), e),
    }


def rms_norm(x, weight, epsilon=1e-5):
    """x / rms(x) * weight over the last axis (Zhang and Sennrich, 2019), in f32."""
    x32 = x.astype(jnp.float32)
    inverse_rms = lax.rsqrt(jnp.mean(x32 * x32, axis=-1, keepdims=True) + epsilon)
    return (x32 * inverse_rms).astype(x.dtype) * weight


def rope(x, base=10000.0):
    """Rotary position embedding (Su et al., 2021), halves layout. x: [B, S, heads, H]."""
    sequence, half = x.shape[1], x.shape[3] // 2
    frequency = base ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angle = jnp.arange(sequence, dtype=jnp.float32)[:, None] * frequency
    cos, sin = jnp.cos(angle)[None, :, None, :], jnp.sin(angle)[None, :, None, :]
    low, high = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1).astype(x.dtype)


def attention(query, key, value):
    """Causal softmax attention. query [B, S, N, H]; key, value [B, S, K, H] with N a multiple of K."""
    group = query.shape[2] // key.shape[2]
    key, value = jnp.repeat(key, group, axis=2), jnp.repeat(value, group, axis=2)
    scores = jnp.einsum("bqnh,bknh->bnqk", query, key, preferred_element_type=jnp.float32)
    scores = scores * query.shape[-1] ** -0.5
    causal = jnp.tril(jnp.ones((query.shape[1], key.shape[1]), bool))
    weights = jax.nn.softmax(jnp.where(causal, scores, -jnp.inf), axis=-1).astype(value.dtype)
    return jnp.einsum("bnqk,bknh->bqnh", weights, value)


def layer(config, x, p):
    """One transformer layer: x + attention, then x + MLP. x: [B, S, E]."""
    b, s, e = x.shape
    h = rms_norm(x, p["attention_norm"])
    query = rope((h @ p["query"]).reshape(b, s, config.query_heads, config.head_dim))
    key = rope((h @ p["key"]).reshape(b, s, config.kv_heads, config.head_dim))
    value = (h @ p["value"]).reshape(b, s, config.kv_heads, config.head_dim)
    x = x + attention(query, key, value).reshape(b, s, -1) @ p["output"]
    h = rms_norm(x, p["mlp_norm"])
    return x + (jax.nn.silu(h @ p["gate"]) * (h @ p["up"])) @ p["down"]


def loss(config, params, tokens):
    """Mean cross-entropy of predicting tokens[:, 1:] from tokens[:, :-1]. tokens: int32 [B, S + 1]."""
    body = partial(layer, config)
    if config.checkpoint:
        body = jax.checkpoint(body)
    x = params["embedding"][tokens[:, :-1]]
    x, _ = lax.scan(lambda x, p: (body(x, p), None), x, params["layers"])
    logits = (rms_norm(x, params["final_norm"]) @ params["head"]).astype(jnp.float32)
    picked = jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[:, 1:, None], axis=-1)
    return -jnp.mean(picked)


def train_step(config, params, tokens):
    """One step of gradient descent: (loss, gradients, updated parameters)."""
    value, gradients = jax.value_and_grad(partial(loss, config))(params, tokens)
    update = jax.tree.map(lambda p, g: p - config.learning_rate * g, params, gradients)
    return value, gradients, update
