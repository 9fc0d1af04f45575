"""heddle.jax.rms_norm: values, gradients, transformations and refusals."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from heddle.jax import rms_norm
from jax.test_util import check_grads

try:
    from jax import enable_x64
except ImportError:  # before JAX 0.8
    from jax.experimental import enable_x64

DTYPES = (jnp.float64, jnp.float32, jnp.float16, jnp.bfloat16)


@pytest.fixture(autouse=True)
def wide():
    with enable_x64(True):
        yield


def random(*shape, dtype=jnp.float32, seed=0):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), dtype)


def plain(x, weight, eps=1e-5):
    axes = tuple(range(x.ndim - weight.ndim, x.ndim))
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    normalised = wide * jax.lax.rsqrt(jnp.mean(wide * wide, axes, keepdims=True) + eps)
    return normalised.astype(weight.dtype) * weight


def truth(x, weight, eps=1e-5):
    return plain(x.astype(jnp.float64), weight.astype(jnp.float64), eps)


def gradients(norm, x, weight, dy):
    return jax.jit(lambda x, w, dy: jax.vjp(norm, x, w)[1](dy))(x, weight, dy)


def assert_close(ours, naive, exact):
    exact = np.asarray(exact, np.float64)
    error, allowed = (np.abs(np.asarray(x, np.float64) - exact).max() for x in (ours, naive))
    step = float(jnp.finfo(ours.dtype).eps) * np.abs(exact).max()
    assert error <= 2 * allowed + 4 * step


@pytest.mark.parametrize("x_dtype, w_dtype", list(itertools.product(DTYPES, DTYPES)))
def test_every_pair_of_types(x_dtype, w_dtype):
    x, weight = random(3, 7, 96, dtype=x_dtype), random(96, dtype=w_dtype, seed=1)
    dy = random(3, 7, 96, dtype=w_dtype, seed=2)
    y = rms_norm(x, weight)
    assert y.dtype == w_dtype and y.shape == x.shape
    assert_close(y, plain(x, weight), truth(x, weight))
    exact = gradients(truth, x.astype(jnp.float64), weight.astype(jnp.float64), dy.astype(jnp.float64))
    ours, naive = gradients(rms_norm, x, weight, dy), gradients(plain, x, weight, dy)
    assert ours[0].dtype == x_dtype and ours[1].dtype == w_dtype
    for got, low, high in zip(ours, naive, exact):
        assert_close(got, low, high)


@pytest.mark.parametrize("dtype", [jnp.float64, jnp.float32])
@pytest.mark.parametrize("shape", [(2, 1 << 16), (1 << 16, 2)])
def test_gradients_of_long_sums(shape, dtype):
    """As exact as those of few numbers; sums of equal ones round one way each time."""
    x, dy = 3 + jnp.round(random(*shape, dtype=dtype)) / 10, 3 + jnp.round(random(*shape, dtype=dtype, seed=1)) / 10
    dx, d_weight = map(np.asarray, gradients(rms_norm, x, jnp.ones(shape[1], dtype), dy))
    x, dy = np.asarray(x, np.float64), np.asarray(dy, np.float64)
    normalised = x / np.sqrt([[math.fsum(row**2) / row.size + 1e-5] for row in x])
    along = np.array([[math.fsum(row) / row.size] for row in dy * normalised])
    eps = np.finfo(dx.dtype).eps
    if shape[1] > 2:  # two columns are what is left of them beside their rounding
        assert np.abs(dx - normalised / x * (dy - normalised * along)).max() < 8 * eps
    of_columns = np.array([math.fsum(column) for column in (dy * normalised).T])
    assert np.abs(d_weight / of_columns - 1).max() < 4 * eps


def test_check_grads():
    x, weight = random(2, 3, 8, dtype=jnp.float64), random(8, dtype=jnp.float64, seed=1)
    check_grads(rms_norm, (x, weight), order=1, modes=["rev"])


@pytest.mark.parametrize("shape, weight_shape", [((5,), (5,)), ((2, 3, 4, 6), (4, 6)), ((4, 6), (4, 6)), ((9, 1), (1,)),
                                                 ((3, 1, 4), (1, 4)), ((0, 4), (4,)), ((3, 0), (0,))])
def test_shapes(shape, weight_shape):
    x, weight = random(*shape, dtype=jnp.float64), random(*weight_shape, dtype=jnp.float64, seed=1)
    dy = random(*shape, dtype=jnp.float64, seed=2)
    np.testing.assert_allclose(rms_norm(x, weight, 1e-3), plain(x, weight, 1e-3), rtol=1e-12)
    for ours, theirs in zip(gradients(rms_norm, x, weight, dy), gradients(plain, x, weight, dy)):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("axes", [(0, None), (None, 0), (0, 0), (1, None), (1, 1)])
def test_vmap(axes):
    x = random(3, 5, 16) if axes[0] is not None else random(5, 16)
    x = x if axes[0] != 1 else x.swapaxes(0, 1)
    weight = random(3, 16, seed=1) if axes[1] == 0 else random(16, 3, seed=1) if axes[1] == 1 else random(16, seed=1)
    both = lambda norm: jax.vmap(lambda x, w: (norm(x, w), jax.grad(lambda *a: jnp.sum(jnp.sin(norm(*a))), (0, 1))(x, w)),
                                 axes)
    for ours, theirs in zip(jax.tree.leaves(both(rms_norm)(x, weight)), jax.tree.leaves(both(plain)(x, weight))):
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-5)


def test_gradient_of_vmap_sums_the_shared_weight():
    x, weight = random(3, 5, 16), random(16, seed=1)
    loss = lambda norm: lambda w: jnp.sum(jnp.sin(jax.vmap(lambda x: norm(x, w))(x)))
    np.testing.assert_allclose(jax.grad(loss(rms_norm))(weight), jax.grad(loss(plain))(weight), rtol=1e-4, atol=1e-5)


def test_vmap_of_vmap():
    x, weight = random(2, 3, 5, 16), random(3, 16, seed=1)
    nested = lambda norm: jax.vmap(jax.vmap(norm), (0, None))(x, weight)
    np.testing.assert_allclose(nested(rms_norm), nested(plain), rtol=2e-5, atol=2e-5)


def test_vmap_over_no_entries():
    x, weight = jnp.zeros((0, 5, 16)), random(16)
    found = jax.vmap(lambda x: (rms_norm(x, weight), jax.grad(lambda w: jnp.sum(rms_norm(x, w)))(weight)))(x)
    assert [y.shape for y in found] == [(0, 5, 16), (0, 16)]


def test_scan_and_remat():
    x, weights = random(4, 16), random(6, 16, seed=1)

    def loss(norm, policy):
        layer = jax.checkpoint(lambda x, w: (x + norm(x, w), None), policy=policy)
        return lambda x, w: jnp.sum(jax.lax.scan(layer, x, w)[0] ** 2)

    policy = jax.checkpoint_policies.save_only_these_names("heddle_rms")
    ours = jax.jit(jax.grad(loss(rms_norm, policy), (0, 1)))(x, weights)
    theirs = jax.jit(jax.grad(loss(plain, None), (0, 1)))(x, weights)
    for got, expected in zip(ours, theirs):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


def test_remat_does_not_norm_twice_where_1_over_rms_is_saved():
    x, weight = random(4, 16), random(16, seed=1)
    policy = jax.checkpoint_policies.save_only_these_names("heddle_rms")
    calls = {}
    for name, norm in (("saved", jax.checkpoint(rms_norm, policy=policy)), ("again", jax.checkpoint(rms_norm))):
        text = jax.jit(jax.value_and_grad(lambda x, w: jnp.sum(norm(x, w)), (0, 1))).lower(x, weight).as_text()
        calls[name] = text.count("@heddle(")
    assert calls == {"saved": 2, "again": 3}


def test_equal_bits_each_time():
    x, weight, dy = random(1000, 33, dtype=jnp.bfloat16), random(33, seed=1), random(1000, 33, seed=2)
    first, second = (gradients(rms_norm, x, weight, dy) for _ in range(2))
    for a, b in zip(first, second):
        np.testing.assert_array_equal(a, b)


def test_export_and_ahead_of_time():
    from jax import export  # JAX 0.5 imports it only when asked

    x, weight = random(4, 16), random(16, seed=1)
    function = jax.jit(jax.grad(lambda x, w: jnp.sum(jnp.sin(rms_norm(x, w))), (0, 1)))
    expected = function(x, weight)
    ahead = function.lower(x, weight).compile()(x, weight)
    checks = [export.DisabledSafetyCheck.custom_call("heddle")]
    exported = export.export(function, disabled_checks=checks)(x, weight)
    for got in (ahead, exported.call(x, weight)):
        for a, b in zip(got, expected):
            np.testing.assert_array_equal(a, b)


def test_donation():
    x, weight = random(4, 16), random(16, seed=1)
    expected = plain(x, weight)
    np.testing.assert_allclose(jax.jit(rms_norm, donate_argnums=0)(x, weight), expected, rtol=2e-5, atol=2e-5)


class TestRefusals:
    def refused(self, kind, *arguments):
        with pytest.raises(kind) as eager:
            rms_norm(*arguments)
        arrays = [x for x in arguments if hasattr(x, "shape")]
        if len(arrays) == 2:
            with pytest.raises(kind) as traced:
                jax.eval_shape(lambda x, w: rms_norm(x, w, *arguments[2:]), *arrays)
            assert str(traced.value) == str(eager.value)
        return str(eager.value)

    def test_shape(self):
        assert self.refused(ValueError, random(4, 16), random(15)) == (
            "rms_norm: weight has shape (15,), expected the last dims of x, whose shape is (4, 16).")
        self.refused(ValueError, random(16), random(4, 16))
        self.refused(ValueError, random(16), random())

    def test_dtype(self):
        assert self.refused(TypeError, random(4, 16).astype(jnp.int32), random(16)) == (
            "rms_norm: x has dtype int32, expected float64 or float32 or float16 or bfloat16.")

    def test_no_array(self):
        assert "rms_norm: weight is str, expected an array." in self.refused(TypeError, random(4, 16), "ones")

    def test_eps(self):
        assert "eps is -1.0" in self.refused(ValueError, random(4, 16), random(16), -1)
        assert "eps is inf" in self.refused(ValueError, random(4, 16), random(16), float("inf"))
        assert "eps is str" in self.refused(TypeError, random(4, 16), random(16), "1e-5")
        with pytest.raises(TypeError, match="eps is a traced array"):
            jax.jit(lambda x, w, eps: rms_norm(x, w, eps))(random(4, 16), random(16), 1e-5)
