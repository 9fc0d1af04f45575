"""How long the rewriter takes: `heddle explain` of a decoder's training step, layer after layer in one computation.

    .venv/bin/python bench/rewriter.py                  # about 10,000, 40,000 and 160,000 instructions
    .venv/bin/python bench/rewriter.py --layers 163

Prints, for each, the instructions of the module as JAX prints it, the attention calls found, and the processor's
seconds (reading the text included, the least of three runs) and the most memory that the process had.
"""

import argparse
import os
import re
import subprocess
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp

HEDDLE = Path(__file__).parents[1] / "build" / "bin" / "heddle"
BATCH, LENGTH, HEADS, HEAD_DIM = 2, 256, 4, 64
WIDTH = HEADS * HEAD_DIM


def normalized(x, gain):
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * gain


def layer(x, p):
    y = normalized(x, p["before"])
    q, k, v = ((y @ p[name]).reshape(BATCH, LENGTH, HEADS, HEAD_DIM) for name in "qkv")
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) * HEAD_DIM**-0.5
    s = jnp.where(jnp.tril(jnp.ones((LENGTH, LENGTH), bool)), s, -1e30)
    o = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s), v).reshape(BATCH, LENGTH, WIDTH)
    x = x + o @ p["o"]
    return x + jax.nn.gelu(normalized(x, p["between"]) @ p["up"]) @ p["down"]


def loss(parameters, x):
    for p in parameters:
        x = layer(x, p)
    return jnp.mean(x * x)


def module(layers):
    """HLO text of the loss and its gradients."""
    def shape(*dims):
        return jax.ShapeDtypeStruct(dims, jnp.float32)

    parameters = {**{name: shape(WIDTH, WIDTH) for name in "qkvo"}, "before": shape(WIDTH), "between": shape(WIDTH),
                  "up": shape(WIDTH, 4 * WIDTH), "down": shape(4 * WIDTH, WIDTH)}
    step = jax.jit(jax.value_and_grad(loss))
    return step.lower([parameters] * layers, shape(BATCH, LENGTH, WIDTH)).as_text("hlo")


def run(path):
    """(output, seconds of the processor, MB at most) of one `heddle explain`."""
    with subprocess.Popen([HEDDLE, "explain", path], stdout=subprocess.PIPE, text=True) as process:
        output = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"heddle explain ended with {process.returncode}")
    return output, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--layers", type=int, nargs="+", default=[41, 163, 655])
    options = parser.parse_args()
    print(f"{'layers':>6}  {'instructions':>12}  {'calls':>5}  {'seconds':>7}  {'MB':>5}")
    for layers in options.layers:
        with tempfile.NamedTemporaryFile("w", suffix=".hlo") as file:
            file.write(module(layers))
            file.flush()
            runs = [run(file.name) for _ in range(3)]
        instructions, calls = re.search(r"(\d+) instructions; attention calls: (\d+)", runs[0][0]).groups()
        seconds, memory = (min(figures) for figures in list(zip(*runs, strict=True))[1:])
        print(f"{layers:6}  {instructions:>12}  {calls:>5}  {seconds:7.2f}  {memory:5.0f}", flush=True)


if __name__ == "__main__":
    main()
