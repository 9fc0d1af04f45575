"""Programs that multiply their weights after the softmax, by numbers of heads, rows, keys and entries, fused beside XLA's own
in f64: the values, and the gradients of queries, keys, values and factors. Heads are pruned by 0, numbers reach 1e30 and
-1e-30, masks hide keys, causality rows' ends, and dropout stands before the factor or behind it."""

import heddle.jax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

try:
    from jax import enable_x64
except ImportError:  # before JAX 0.8
    from jax.experimental import enable_x64

B, G, R, T, S, H, D = 2, 2, 3, 11, 13, 8, 5
N = G * R
LOWEST = float(np.finfo(np.float32).min)
CAUSAL = np.tril(np.ones((T, S), bool), S - T)
KEYS = np.arange(S) < np.asarray([5, S])[:, None, None, None]


@pytest.fixture(autouse=True)
def x64():
    with enable_x64(True):
        yield


def random(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def factor(*shape, seed=6):
    """Of every size, some 0."""
    x = random(*shape, seed=seed)
    flat = x.reshape(-1)
    flat[:: max(flat.size // 3, 2)] = 0
    flat[1::7] *= 1e30
    flat[2::7] *= -1e-30
    return x


dropped = lambda p: jnp.where(jax.random.bernoulli(jax.random.wrap_key_data(jnp.asarray([7, 9], jnp.uint32)), 0.75, p.shape),
                              p / 0.75, 0)
PROGRAMS = {
    "heads by einsum": ((N,), lambda p, f: jnp.einsum("...hqk,h->...hqk", p, f)),
    "heads": ((1, N, 1, 1), lambda p, f: p * f),
    "entries": ((B, 1, 1, 1), lambda p, f: f * p),
    "entries and heads": ((B, N), lambda p, f: p * f[..., None, None]),
    "rows": ((B, N, T, 1), lambda p, f: p * f),
    "rows of all": ((T,), lambda p, f: p * f[:, None]),
    "keys": ((B, N, 1, S), lambda p, f: p * f),
    "keys of all": ((S,), lambda p, f: p * f),
    "a number": ((), lambda p, f: p * f),
    "divided by heads": ((N,), lambda p, f: p / jnp.exp(jnp.clip(f, -9, 9))[:, None, None]),
    "divided by rows": ((B, 1, T, 1), lambda p, f: p / (1 + jnp.abs(f))),
    "divided by keys": ((B, 1, 1, S), lambda p, f: p / (1 + jnp.clip(f, -9, 9) ** 2)),
    "a square": ((N,), lambda p, f: p * (f * f)[:, None, None]),
    "dropped, then heads": ((N,), lambda p, f: dropped(p) * f[:, None, None]),
    "rows, then dropped": ((B, N, T, 1), lambda p, f: dropped(p * f)),
    "keys, then dropped": ((B, 1, 1, S), lambda p, f: dropped(p * f)),
    "heads, hidden twice": ((N,), lambda p, f: jnp.where(KEYS, p * f[:, None, None], 0)),
}
MASKS = {"none": lambda s: s, "causal": lambda s: jnp.where(CAUSAL, s, LOWEST),
         "padding": lambda s: s + jnp.where(KEYS, 0.0, LOWEST), "lengths": lambda s: jnp.where(KEYS, s, -jnp.inf)}


def attention(of_scores, of_weights, shared):
    def attend(q, k, v, f):
        k, v = (jnp.repeat(x, R, 1) if shared else x for x in (k, v))
        p = jax.nn.softmax(of_scores(jnp.einsum("bhqd,bhkd->bhqk", q, k) * H**-0.5), axis=-1)
        return jnp.einsum("bhqk,bhkd->bhqd", of_weights(p, f), v)

    return attend


def training_step(attend):
    def step(q, k, v, f, d_o):
        o, gradients = jax.vjp(attend, q, k, v, f)
        return o, *gradients(d_o)

    return step


def distance(found, truth):
    """Row by row, as factors make rows of sizes apart: of a row its largest number is what its errors are held to."""
    found, truth = (np.asarray(x, np.float64).reshape(-1, x.shape[-1] if x.ndim else 1) for x in (found, truth))
    size = np.abs(truth).max(-1, keepdims=True)
    return np.max(np.abs(found - truth) / np.where(size == 0, 1, size))


def operands(name, shared, dtype):
    heads = G if shared else N
    arrays = (random(B, N, T, H), random(B, heads, S, H, seed=1), random(B, heads, S, D, seed=2),
              factor(*PROGRAMS[name][0]), random(B, N, T, D, seed=7))
    return [jnp.asarray(x, dtype) for x in arrays]


@pytest.mark.parametrize(("mask", "shared"), [*((mask, False) for mask in MASKS), ("causal", True)])
@pytest.mark.parametrize("name", PROGRAMS)
def test_fused_program_is_the_original(name, mask, shared):
    step = training_step(attention(MASKS[mask], PROGRAMS[name][1], shared))
    given = operands(name, shared, jnp.float64)
    fused = heddle.jax.fuse(step)
    calls = fused.lower(*given).as_text().count("stablehlo.custom_call @heddle")
    # One V for three heads has no numbers of each of them; and a mask that stands for numbers first is no mask again.
    is_left_alone = (shared and name == "keys") or (name == "heads, hidden twice" and mask == "padding")
    assert calls == (0 if is_left_alone else 2)
    for part, e, f in zip(("O", "dQ", "dK", "dV", "dF"), jax.jit(step)(*given), fused(*given), strict=True):
        # A factor's gradient is a sum in which much is lost.
        assert distance(f, e) < 1e-11, f"{part}: {distance(f, e)}"


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("name", PROGRAMS)
def test_narrow_program_is_as_exact_as_the_original(name, dtype):
    step = training_step(attention(MASKS["causal"], PROGRAMS[name][1], False))
    given = operands(name, False, dtype)
    given[3] = jnp.clip(given[3], -4, 4)
    truth = jax.jit(step)(*(x.astype(jnp.float64) for x in given))
    fused, original = heddle.jax.fuse(step), jax.jit(step)
    assert fused.lower(*given).as_text().count("stablehlo.custom_call @heddle") == 2
    norm = lambda x, t: np.linalg.norm(np.asarray(x, np.float64) - t) / max(np.linalg.norm(t), 1e-300)
    for part, t, e, f in zip(("O", "dQ", "dK", "dV", "dF"), truth, original(*given), fused(*given), strict=True):
        assert f.dtype == dtype
        allowed = 2 * norm(e, t) + 4 * float(jnp.finfo(dtype).eps)
        assert norm(f, t) <= allowed, f"{part}: {norm(f, t)}, XLA's {norm(e, t)}"


def test_factors_beyond_f16_beside_values():
    """No weight times a factor is beyond f16, but values times factors are."""
    step = training_step(attention(MASKS["none"], PROGRAMS["keys"][1], False))
    q, k, v, _, d_o = operands("keys", False, jnp.float16)
    given = (q / 8, k, v * 25, jnp.full((B, N, 1, S), 1000, jnp.float16), d_o / 16)
    assert np.abs(np.asarray(given[2], np.float64)).max() * 1000 > float(jnp.finfo(jnp.float16).max)
    truth = jax.jit(step)(*(x.astype(jnp.float64) for x in given))
    fused, original = heddle.jax.fuse(step), jax.jit(step)
    assert fused.lower(*given).as_text().count("stablehlo.custom_call @heddle") == 2
    norm = lambda x, t: np.linalg.norm(np.asarray(x, np.float64) - t) / np.linalg.norm(t)
    for part, t, e, f in zip(("O", "dQ", "dK", "dV", "dF"), truth, original(*given), fused(*given), strict=True):
        assert norm(f, t) <= 2 * norm(e, t) + 4 * float(jnp.finfo(jnp.float16).eps), f"{part}: {norm(f, t)}, XLA's {norm(e, t)}"


def test_pruned_head_of_no_finite_output_is_not_finite():
    """0 times a row of NaN is NaN, whatever multiplies it first."""
    step = attention(MASKS["none"], PROGRAMS["heads"][1], False)
    q, k, v, f, _ = operands("heads", False, jnp.float32)
    v = v.at[0, 0, 2, 1].set(jnp.nan).at[1, 3, 4, 0].set(jnp.inf)
    e, o = np.asarray(jax.jit(step)(q, k, v, f)), np.asarray(heddle.jax.fuse(step)(q, k, v, f))
    assert np.isnan(e).sum() > 0
    np.testing.assert_array_equal(np.isnan(o), np.isnan(e))
