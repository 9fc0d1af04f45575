"""Inputs of models that differ along every axis, and what a training step asks of a model."""

import jax
import jax.numpy as jnp
import numpy as np


class Draw:
    """Random arrays, the same ones in every process."""

    def __init__(self, seed=0):
        self._random = np.random.default_rng(seed)

    def normal(self, *shape, dtype=jnp.float32, scale=1.0):
        return jnp.asarray(scale * self._random.standard_normal(shape), dtype)

    def tokens(self, *shape, below=60):
        """Words from 3 on: models take the lowest for padding, beginnings and ends."""
        return jnp.asarray(self._random.integers(3, below, shape), jnp.int32)

    def chance(self, probability, *shape):
        return jnp.asarray(self._random.random(shape) < probability)

    def parameters(self, tree, scale=0.15):
        """The parameters a model was given, every float moved: biases, norms and tables are no longer constant, and
        scores not near 0. What is no float stays."""
        def moved(x):
            if not jnp.issubdtype(x.dtype, jnp.floating):
                return x
            return (x + scale * self._random.standard_normal(x.shape)).astype(x.dtype)

        return jax.tree.map(moved, tree)


def lengths_mask(lengths, size, dtype=bool):
    """[B, size]: entry b has lengths[b] words, and then padding."""
    return jnp.asarray(np.arange(size) < np.asarray(lengths)[:, None], dtype)


def squared_error(apply):
    """A training step's loss and gradients: apply(parameters, ...) beside a target, which comes second."""
    def loss(parameters, target, *inputs):
        return jnp.mean(jnp.square(apply(parameters, *inputs).astype(jnp.float32) - target))

    return jax.value_and_grad(loss)


def cross_entropy(apply):
    """The same of logits, whose target is the right word of each row."""
    def loss(parameters, target, *inputs):
        logits = jax.nn.log_softmax(apply(parameters, *inputs).astype(jnp.float32))
        return -jnp.mean(jnp.take_along_axis(logits, target[..., None], -1))

    return jax.value_and_grad(loss)
