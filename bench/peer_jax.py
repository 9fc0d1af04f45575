"""Attention as one writes it in JAX, compiled by XLA: scores, mask, softmax, weighted sum."""

import jax
import jax.numpy as jnp

DTYPES = {"f32": jnp.float32, "bf16": jnp.bfloat16, "f16": jnp.float16}


def start(threads):
    del threads  # XLA uses the cores the process may run on


def attention(causal, query, key, value):
    scores = jnp.einsum("bhqd,bhkd->bhqk", query, key, preferred_element_type=jnp.float32)
    scores = scores * query.shape[-1] ** -0.5
    if causal:
        mask = jnp.tril(jnp.ones(scores.shape[-2:], bool))
        scores = jnp.where(mask, scores, -jnp.inf)
    return jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores).astype(value.dtype), value)


def prepare(cell, query, key, value, gradient):
    tensors = [jnp.asarray(array, DTYPES[cell.dtype]) for array in (query, key, value)]
    gradient = jnp.asarray(gradient, DTYPES[cell.dtype])
    last = {}

    @jax.jit
    def forward(query, key, value):
        return attention(cell.causal, query, key, value)

    @jax.jit
    def forward_and_backward(query, key, value, gradient):
        output, pull = jax.vjp(lambda *a: attention(cell.causal, *a), query, key, value)
        return output, pull(gradient)

    def run():
        if cell.backward:
            last["output"], last["gradients"] = jax.block_until_ready(forward_and_backward(*tensors, gradient))
        else:
            last["output"] = jax.block_until_ready(forward(*tensors))

    if cell.backward:  # compile outside of what is timed and of what memory is measured
        compiled = forward_and_backward.lower(*tensors, gradient).compile()
        forward_and_backward = compiled
    else:
        compiled = forward.lower(*tensors).compile()
        forward = compiled
    return run, lambda: jnp.asarray(last["output"], jnp.float32)
