"""heddle.jax.layer_norm: values, gradients, transformations and refusals. What it shares with rms_norm is tested there."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from heddle.jax import layer_norm
from jax.test_util import check_grads

try:
    from jax import enable_x64
except ImportError:  # before JAX 0.8
    from jax.experimental import enable_x64

F64, F32, F16, BF16 = jnp.float64, jnp.float32, jnp.float16, jnp.bfloat16


@pytest.fixture(autouse=True)
def wide():
    with enable_x64(True):
        yield


def random(*shape, dtype=F32, seed=0):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), dtype)


def plain(x, weight, bias=None, eps=1e-5):
    axes = tuple(range(x.ndim - weight.ndim, x.ndim))
    wide = x.astype(jnp.promote_types(x.dtype, F32))
    distance = wide - jnp.mean(wide, axes, keepdims=True)
    y = distance * jax.lax.rsqrt(jnp.mean(distance**2, axes, keepdims=True) + eps) * weight.astype(wide.dtype)
    return (y if bias is None else y + bias.astype(wide.dtype)).astype(weight.dtype)


def gradients(norm, dy, *arguments):
    return jax.jit(lambda dy, *a: jax.vjp(norm, *a)[1](dy))(dy, *arguments)


def assert_close(ours, naive, exact):
    exact = np.asarray(exact, np.float64)
    error, allowed = (np.abs(np.asarray(x, np.float64) - exact).max() for x in (ours, naive))
    assert error <= 2 * allowed + 4 * float(jnp.finfo(ours.dtype).eps) * np.abs(exact).max()


@pytest.mark.parametrize("dtypes", [(F32, F32, F32), (BF16, BF16, BF16), (F16, F16, F16), (BF16, F32, F16), (F32, BF16, F64),
                                    (F64, F64, F64)])
def test_types(dtypes):
    x, weight, bias = 8 + random(3, 7, 96, dtype=dtypes[0]), *(random(96, dtype=d, seed=s) for s, d in enumerate(dtypes[1:]))
    dy = random(3, 7, 96, dtype=weight.dtype, seed=3)
    y = layer_norm(x, weight, bias)
    assert y.dtype == weight.dtype and y.shape == x.shape
    exact = tuple(a.astype(F64) for a in (dy, x, weight, bias))
    assert_close(y, plain(x, weight, bias), plain(*exact[1:]))
    ours, naive, truth = gradients(layer_norm, dy, x, weight, bias), gradients(plain, dy, x, weight, bias), gradients(plain, *exact)
    assert tuple(one.dtype for one in ours) == dtypes
    for got, low, high in zip(ours, naive, truth):
        assert_close(got, low, high)


@pytest.mark.parametrize("biased", [False, True])
def test_check_grads(biased):
    arguments = random(2, 3, 8, dtype=F64), *(random(8, dtype=F64, seed=1 + n) for n in range(1 + biased))
    check_grads(layer_norm, arguments, order=1, modes=["rev"])


@pytest.mark.parametrize("shape, of_weight", [((5,), (5,)), ((2, 3, 4, 6), (4, 6)), ((4, 6), (4, 6)), ((9, 1), (1,)),
                                              ((0, 4), (4,)), ((3, 0), (0,))])
def test_shapes(shape, of_weight):
    x, weight, bias = random(*shape, dtype=F64), random(*of_weight, dtype=F64, seed=1), random(*of_weight, dtype=F64, seed=2)
    dy = random(*shape, dtype=F64, seed=3)
    np.testing.assert_allclose(layer_norm(x, weight, bias, 1e-3), plain(x, weight, bias, 1e-3), rtol=1e-12)
    for ours, theirs in zip(gradients(layer_norm, dy, x, weight, bias), gradients(plain, dy, x, weight, bias)):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("axes", [(0, None, None), (1, 0, 1)])
def test_vmap(axes):
    x = {0: random(3, 5, 16), 1: random(5, 3, 16), None: random(5, 16)}[axes[0]]
    weight, bias = ({0: random(3, 16, seed=1 + n), 1: random(16, 3, seed=1 + n), None: random(16, seed=1 + n)}[axis]
                    for n, axis in enumerate(axes[1:]))
    loss = lambda norm: lambda *a: jnp.sum(jnp.sin(norm(*a)))
    both = lambda norm: jax.vmap(lambda *a: (norm(*a), jax.grad(loss(norm), (0, 1, 2))(*a)), axes)(x, weight, bias)
    for ours, theirs in zip(jax.tree.leaves(both(layer_norm)), jax.tree.leaves(both(plain))):
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=3e-5)


def test_remat_does_not_norm_twice_where_the_statistics_are_saved():
    arguments = random(4, 16), random(16, seed=1), random(16, seed=2)
    policy = jax.checkpoint_policies.save_only_these_names("heddle_mean", "heddle_rms")
    calls = {}
    for name, norm in (("saved", jax.checkpoint(layer_norm, policy=policy)), ("again", jax.checkpoint(layer_norm))):
        text = jax.jit(jax.value_and_grad(lambda *a: jnp.sum(norm(*a)), (0, 1, 2))).lower(*arguments).as_text()
        calls[name] = text.count("@heddle(")
    assert calls == {"saved": 2, "again": 3}


def test_equal_bits_each_time():
    arguments = random(1000, 33, seed=2), random(1000, 33, dtype=BF16), random(33, seed=1), random(33, seed=4)
    first, second = (gradients(layer_norm, *arguments) for _ in range(2))
    for a, b in zip(first, second):
        np.testing.assert_array_equal(a, b)


class TestRefusals:
    def refused(self, kind, *arguments):
        with pytest.raises(kind) as caught:
            layer_norm(*arguments)
        return str(caught.value)

    def test_shapes(self):
        assert self.refused(ValueError, random(4, 16), random(15)) == (
            "layer_norm: weight has shape (15,), expected the last dims of x, whose shape is (4, 16).")
        assert self.refused(ValueError, random(4, 16), random(16), random(1, 16)) == (
            "layer_norm: bias has shape (1, 16), expected that of weight, (16,).")

    def test_dtypes(self):
        assert self.refused(TypeError, random(4, 16), random(16), random(16).astype(jnp.int32)) == (
            "layer_norm: bias has dtype int32, expected float64 or float32 or float16 or bfloat16.")
        assert "bias is str, expected an array" in self.refused(TypeError, random(4, 16), random(16), "zeros")

    def test_eps(self):
        assert "layer_norm: eps is -1.0" in self.refused(ValueError, random(4, 16), random(16), None, -1)
        with pytest.raises(TypeError, match="eps is a traced array"):
            jax.jit(lambda x, w, eps: layer_norm(x, w, None, eps))(random(4, 16), random(16), 1e-5)
