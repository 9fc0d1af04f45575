"""examples/cudnn/fit_attention.py: its losses are those of JAX's own attention and derivative."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest


@pytest.fixture
def example(root, monkeypatch):
    monkeypatch.syspath_prepend(str(root / "examples" / "cudnn"))
    import fit_attention

    yield fit_attention
    del sys.modules["fit_attention"]


def test_losses_are_those_of_jax(example, capsys):
    losses = example.main(steps=60)
    assert "step   40" in capsys.readouterr().out and losses[-1] < 0.5 * losses[0]

    rng = np.random.default_rng(0)
    q, k, v = (jnp.asarray(example.array(rng.standard_normal)).transpose(0, 2, 1, 3) for _ in range(3))
    target = 0.3 * jnp.asarray(example.array(rng.standard_normal)).transpose(0, 2, 1, 3)

    @jax.jit
    @jax.value_and_grad
    def loss(given):
        return ((jax.nn.dot_product_attention(*given, scale=example.SCALE, is_causal=True) - target)**2).mean()

    given, true = (q, k, v), []
    for _ in range(60):
        value, gradients = loss(given)
        true.append(float(value))
        given = tuple(x - 200.0 * gradient for x, gradient in zip(given, gradients, strict=True))
    np.testing.assert_allclose(losses, true, rtol=1e-4)
