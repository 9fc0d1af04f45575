"""heddle.jax.rope: values, gradients, transformations and refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from heddle.jax import rope
from jax.test_util import check_grads

try:
    from jax import enable_x64
except ImportError:  # before JAX 0.8
    from jax.experimental import enable_x64


def random(*shape, dtype=jnp.float32, seed=0):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), dtype)


def plain(x, angles=None, *, positions=None, base=10000.0, rope_dim=None, leading=False, output_scale=1.0, pairing="halves",
          layout="BTNH"):
    """In x's own arithmetic, at least f32."""
    wide = jnp.promote_types(x.dtype, jnp.float32)
    x = x if layout == "BTNH" else jnp.swapaxes(x, -3, -2)
    dim = rope_dim or x.shape[-1]
    rows = jnp.arange(x.shape[-3]) if positions is None else positions
    if angles is None:
        t = rows[..., None] * jnp.asarray(base ** (-2 * np.arange(dim // 2) / dim), jnp.float32)
    else:
        t = jnp.asarray(angles)[rows]
    cos, sin = jnp.cos(t.astype(wide))[..., None, :], jnp.sin(t.astype(wide))[..., None, :]
    first, last = jnp.split(x.astype(wide), [dim if leading else x.shape[-1] - dim], -1)
    turned = first if leading else last
    low, high = jnp.split(turned, 2, -1) if pairing == "halves" else (turned[..., ::2], turned[..., 1::2])
    pair = low * cos - high * sin, high * cos + low * sin
    turned = jnp.concatenate(pair, -1) if pairing == "halves" else jnp.stack(pair, -1).reshape(turned.shape)
    y = (output_scale * jnp.concatenate([turned, last] if leading else [first, turned], -1)).astype(x.dtype)
    return y if layout == "BTNH" else jnp.swapaxes(y, -3, -2)


B, T, N, H = 2, 9, 3, 16
OPTIONS = {
    "default": {},
    "part": {"rope_dim": 8},
    "first columns": {"rope_dim": 6, "leading": True, "positions": np.arange(B * T).reshape(B, T)[:, ::-1].copy()},
    "first columns interleaved": {"rope_dim": 10, "leading": True, "pairing": "interleaved", "output_scale": 2.0},
    "all columns are the first": {"leading": True},
    "interleaved": {"pairing": "interleaved"},
    "scaled": {"output_scale": -0.5, "base": 500.0},
    "positions of all": {"positions": np.arange(T) * 3 + 1},
    "positions of each": {"positions": np.arange(B * T).reshape(B, T)[:, ::-1].copy()},
    "table": {"angles": np.linspace(0, 30, 20 * H // 2, dtype=np.float32).reshape(20, H // 2)},
    "table and positions": {"angles": np.linspace(0, 30, 20 * H // 2, dtype=np.float32).reshape(20, H // 2),
                            "positions": np.arange(B * T).reshape(B, T) % 20},
}


@pytest.mark.parametrize("layout", ["BTNH", "BNTH"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_options(options, layout):
    x = random(*((B, T, N, H) if layout == "BTNH" else (B, N, T, H)))
    both = lambda f: jax.jit(jax.value_and_grad(lambda x: jnp.sum(jnp.sin(f(x, **options, layout=layout)))))(x)
    np.testing.assert_allclose(rope(x, **options, layout=layout), plain(x, **options, layout=layout), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(both(rope)[1], both(plain)[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_low_precision(dtype):
    x = random(B, T, N, H, dtype=dtype)
    y, exact = rope(x), np.asarray(plain(x.astype(jnp.float32)), np.float64)
    assert y.dtype == dtype
    error, allowed = (np.abs(np.asarray(z, np.float64) - exact).max() for z in (y, plain(x)))
    assert error <= 2 * allowed


def test_check_grads_in_f64():
    with enable_x64(True):
        x = random(B, T, N, H, dtype=jnp.float64)
        assert rope(x).dtype == jnp.float64
        check_grads(rope, (x,), order=2, modes=["rev"])


@pytest.mark.parametrize("pairing", ["halves", "interleaved"])
def test_first_columns_in_f64(pairing):
    """Beside the formula in f64; columns that are not turned are what they were, bit by bit."""
    with enable_x64(True):
        x, dy = (random(B, T, N, H, dtype=jnp.float64, seed=seed) for seed in (1, 2))
        options = {"rope_dim": 4, "leading": True, "pairing": pairing,
                   "positions": np.array([[0, 5, 1, 70000, 3, 3, 9, 2, 8], [4, 4, 0, 1, 99, 7, 6, 5, 123]])}
        (y, back), (expected, exact) = (jax.vjp(lambda x, f=f: f(x, **options), x) for f in (rope, plain))
        np.testing.assert_allclose(y, expected, rtol=0, atol=1e-13)
        np.testing.assert_allclose(back(dy)[0], exact(dy)[0], rtol=0, atol=1e-13)
        np.testing.assert_array_equal(y[..., 4:], x[..., 4:])
        np.testing.assert_array_equal(rope(x, leading=True, pairing=pairing), rope(x, pairing=pairing))
        check_grads(lambda x: rope(x, **options), (x,), order=2, modes=["rev"])


def test_vmap_scan_and_remat():
    x = random(4, B, T, N, H)
    np.testing.assert_allclose(jax.vmap(rope, 1, 1)(x), jax.vmap(plain, 1, 1)(x), rtol=1e-4, atol=1e-5)
    positions = jnp.arange(4 * T).reshape(4, T)
    for f in (lambda x, p: rope(x, positions=p), lambda x, p: rope(x, positions=jnp.stack([p, p + 1]))):
        found = jax.vmap(f)(x, positions)
        np.testing.assert_allclose(found, jnp.stack([f(*a) for a in zip(x, positions)]), rtol=1e-5, atol=1e-5)
    layer = jax.checkpoint(lambda x, _: (rope(x), None))
    loss = lambda x: jnp.sum(jax.lax.scan(layer, x, None, length=3)[0] ** 3)
    plainly = lambda x: jnp.sum(plain(plain(plain(x))) ** 3)
    np.testing.assert_allclose(jax.grad(loss)(x[0]), jax.grad(plainly)(x[0]), rtol=1e-3, atol=1e-4)


def test_vmap_over_no_entries():
    x = jnp.zeros((0, B, T, N, H))
    assert jax.vmap(rope)(x).shape == jax.vmap(jax.grad(lambda x: jnp.sum(rope(x))))(x).shape == x.shape


def test_export_donation_and_ahead_of_time():
    from jax import export  # JAX 0.5 imports it only when asked

    x = random(B, T, N, H)
    function = jax.jit(jax.grad(lambda x: jnp.sum(jnp.sin(rope(x)))))
    exported = export.export(function, disabled_checks=[export.DisabledSafetyCheck.custom_call("heddle")])(x)
    expected = jax.grad(lambda x: jnp.sum(jnp.sin(plain(x))))(x)
    for found in (function.lower(x).compile()(x), exported.call(x), jax.jit(function, donate_argnums=0)(x.copy())):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_without_batch_and_empty():
    x = random(T, N, H)
    np.testing.assert_allclose(rope(x), rope(x[None])[0])
    assert rope(x[:0]).shape == (0, N, H)


def test_refusals():
    x = random(B, T, N, H)
    for kind, sentence, arguments, options in [
        (ValueError, "x has head dim 15, expected an even one", (x[..., :15],), {}),
        (ValueError, "rope_dim is 18, expected an even number from 2 to the head dim 16", (x,), {"rope_dim": 18}),
        (ValueError, "x has shape (9, 16), expected BTNH or TNH", (x[0, :, 0],), {}),
        (TypeError, "x has dtype int32", (x.astype(jnp.int32),), {}),
        (ValueError, "layout is 'NTHB', expected 'BTNH' or 'BNTH'", (x,), {"layout": "NTHB"}),
        (ValueError, "base is 1e-300, expected a number of at least 1e-18", (x,), {"base": 1e-300}),
        (ValueError, "angles has shape (9, 16), expected [P, 8], half of rope_dim", (x, jnp.zeros((9, 16))), {}),
        (ValueError, "angles has 8 rows, expected at least 9, the length of x", (x, jnp.zeros((8, 8))), {}),
        (ValueError, "angles has no rows", (x, jnp.zeros((0, 8))), {"positions": jnp.zeros(9, jnp.int32)}),
        (ValueError, "positions has shape (3,), expected (9,) or (2, 9)", (x,), {"positions": jnp.arange(3)}),
        (TypeError, "positions has dtype float32", (x,), {"positions": jnp.zeros(9)}),
        (TypeError, "leading is int, expected True or False", (x,), {"leading": 1}),
        (TypeError, "leading is NoneType, expected True or False", (x,), {"leading": None}),
    ]:
        with pytest.raises(kind) as caught:
            rope(*arguments, **options)
        assert str(caught.value).startswith("rope: ") and sentence in str(caught.value)
    with pytest.raises(ValueError, match="rope: angles is differentiated"):
        jax.grad(lambda a: jnp.sum(rope(x, a)))(jnp.zeros((9, 8)))
