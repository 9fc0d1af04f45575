"""Trains a small language model on a text, byte by byte, with Heddle's attention, RoPE and RMSNorm.

    python examples/jax/train_gpt.py                    # about a minute on a CPU
    python examples/jax/train_gpt.py --plain            # the same in plain JAX, to compare
    python examples/jax/train_gpt.py --steps 1000 --layers 6 --width 512 --sequence 1024 --dtype bfloat16    # on a GPU

Shapes: B batch, S sequence, E width, N heads, K key and value heads, H head dim.
"""

import argparse
import time
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np


def heddle_ops():
    """(attention, rope, rms_norm) of Heddle."""
    from heddle import jax as heddle_jax

    return partial(heddle_jax.attention, causal=True), heddle_jax.rope, heddle_jax.rms_norm


def plain_ops():
    """The same three in plain JAX."""

    def rope(x):
        half = x.shape[-1] // 2
        angles = jnp.arange(x.shape[1])[:, None, None] * 10000.0 ** (-jnp.arange(half) / half)
        low, high = jnp.split(x.astype(jnp.float32), 2, -1)
        rotated = low * jnp.cos(angles) - high * jnp.sin(angles), high * jnp.cos(angles) + low * jnp.sin(angles)
        return jnp.concatenate(rotated, -1).astype(x.dtype)

    def rms_norm(x, weight):
        wide = x.astype(jnp.float32)
        return (wide * jax.lax.rsqrt(jnp.mean(wide**2, -1, keepdims=True) + 1e-5)).astype(x.dtype) * weight

    return partial(jax.nn.dot_product_attention, is_causal=True), rope, rms_norm


def initial_parameters(key, options):
    """A dict of arrays; those of the layers are stacked along a leading axis."""
    e, hidden = options.width, 4 * options.width
    kv = options.kv_heads * (options.width // options.heads)
    shapes = {"q": (e, e), "k": (e, kv), "v": (e, kv), "o": (e, e), "up": (e, hidden), "down": (hidden, e)}
    keys = iter(jax.random.split(key, len(shapes) + 1))
    layers = {name: jax.random.normal(next(keys), (options.layers, *shape)) * shape[0] ** -0.5
              for name, shape in shapes.items()}
    layers.update({name: jnp.ones((options.layers, e)) for name in ("attention_norm", "mlp_norm")})
    return {"embedding": jax.random.normal(next(keys), (256, e)) * e**-0.5, "layers": layers, "norm": jnp.ones(e)}


def logits_of(parameters, tokens, ops, options):
    """Next-byte logits [B, S, 256] of tokens [B, S]."""
    attention, rope, rms_norm = ops
    cast = lambda tree: jax.tree.map(lambda x: x.astype(options.dtype), tree)

    # Of each layer only attention's result and log-sum-exp are kept for the gradient.
    @partial(jax.checkpoint, policy=jax.checkpoint_policies.save_only_these_names("heddle_out", "heddle_lse"))
    def layer(x, w):
        split = lambda y, heads: y.reshape(*y.shape[:2], heads, -1)
        y = rms_norm(x, w["attention_norm"])
        q, k, v = split(y @ w["q"], options.heads), split(y @ w["k"], options.kv_heads), split(y @ w["v"], options.kv_heads)
        x = x + attention(rope(q), rope(k), v).reshape(x.shape) @ w["o"]
        return x + jax.nn.gelu(rms_norm(x, w["mlp_norm"]) @ w["up"]) @ w["down"], None

    x = cast(parameters["embedding"])[tokens] * options.width**0.5
    x, _ = jax.lax.scan(layer, x, cast(parameters["layers"]))
    return (rms_norm(x, cast(parameters["norm"])) @ cast(parameters["embedding"]).T).astype(jnp.float32)


def loss_of(parameters, batch, ops, options):
    """Mean cross-entropy in nats a byte."""
    logits = logits_of(parameters, batch[:, :-1], ops, options)
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), batch[:, 1:, None], -1))


def train_step(state, step, text, ops, options):
    """One step of Adam on random pieces of the text."""
    parameters, mean, square = state
    starts = jax.random.randint(jax.random.fold_in(jax.random.key(1), step), (options.batch, 1), 0,
                                text.size - options.sequence)
    batch = text[starts + jnp.arange(options.sequence + 1)]
    loss, gradients = jax.value_and_grad(loss_of)(parameters, batch, ops, options)
    decay = lambda rate, power: lambda m, g: rate * m + (1 - rate) * g**power
    mean, square = jax.tree.map(decay(0.9, 1), mean, gradients), jax.tree.map(decay(0.99, 2), square, gradients)
    warm, t = jnp.minimum(1.0, (step + 1) / 20), step + 1.0
    rate = options.rate * warm * jnp.sqrt(1 - 0.99**t) / (1 - 0.9**t)
    update = lambda p, m, s: p - rate * m / (jnp.sqrt(s) + 1e-8)
    return (jax.tree.map(update, parameters, mean, square), mean, square), loss


def continued(parameters, prompt, count, ops, options):
    """The prompt with `count` more bytes, each drawn from the model."""
    window = options.sequence

    @jax.jit
    def following(tokens, length, key):
        logits = logits_of(parameters, tokens[None], ops, options)[0, length - 1]
        return jax.random.categorical(key, logits / 0.5)

    text = list(prompt)
    for key in jax.random.split(jax.random.key(2), count):
        recent = text[-window:]
        padded = jnp.asarray(recent + [0] * (window - len(recent)))
        text.append(int(following(padded, len(recent), key)))
    return bytes(text).decode(errors="replace")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, default=Path(__file__).parent / "weaver.txt")
    parser.add_argument("--plain", action="store_true", help="plain JAX in place of Heddle's ops")
    for name, value in (("steps", 200), ("batch", 8), ("sequence", 128), ("layers", 2), ("width", 128), ("heads", 4),
                        ("kv-heads", 2)):
        parser.add_argument(f"--{name}", type=int, default=value, help=f"default {value}")
    parser.add_argument("--rate", type=float, default=2e-3, help="Adam's step size, default 0.002")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16", "float16"), help="of activations")
    options = parser.parse_args()

    text = np.frombuffer(options.text.read_bytes(), np.uint8).astype(np.int32)
    if text.size <= options.sequence + 1:
        parser.error(f"--text has {text.size} bytes, expected more than --sequence, {options.sequence}")
    ops = plain_ops() if options.plain else heddle_ops()
    parameters = initial_parameters(jax.random.key(0), options)
    zeros = partial(jax.tree.map, jnp.zeros_like)
    state = parameters, zeros(parameters), zeros(parameters)
    step_of = jax.jit(partial(train_step, text=jnp.asarray(text), ops=ops, options=options), donate_argnums=0)
    count = sum(x.size for x in jax.tree.leaves(parameters))
    print(f"{count} parameters, {text.size} bytes of text, {jax.devices()[0].device_kind}, "
          f"{'plain JAX' if options.plain else 'Heddle'}", flush=True)

    begin = time.perf_counter()
    state, loss = step_of(state, 0)
    print(f"step    0  loss {loss:.3f}  (compiled in {time.perf_counter() - begin:.1f} s)", flush=True)
    begin = time.perf_counter()
    for step in range(1, options.steps):
        state, loss = step_of(state, step)
        if step % 20 == 0 or step == options.steps - 1:
            loss = float(loss)
            speed = step * options.batch * options.sequence / (time.perf_counter() - begin)
            print(f"step {step:4}  loss {loss:.3f}  {speed:.0f} bytes/s", flush=True)
    print("\n" + continued(state[0], b"The old woman ", 120, ops, options))


if __name__ == "__main__":
    main()
