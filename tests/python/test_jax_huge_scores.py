"""heddle.jax.attention where scores are huge: additive masks of finite numbers, and logits in the thousands.

JAX's own composition is the judge: in float32 a row hidden whole has the mean of its values and the gradients of that
mean, and our distance from float64 is at most twice the composition's.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from heddle.jax import attention

try:
    from jax import enable_x64
except ImportError:  # before JAX 0.8
    from jax.experimental import enable_x64

B, T, S, N, K, H = 2, 24, 40, 4, 2, 16
LEAST = {dtype: float(jnp.finfo(dtype).min) for dtype in (jnp.float32, jnp.bfloat16, jnp.float16)}


def random(seed, *shape, dtype=jnp.float32):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), dtype)


def composition(q, k, v, bias=None, sink=None, causal=False, score=None, kept=1):
    """Attention as a program spells it out, in v's arithmetic."""
    n, t, s = q.shape[2], q.shape[1], k.shape[1]
    k, v = (jnp.repeat(x, n // x.shape[2], 2) for x in (k, v))
    scores = jnp.einsum("btnh,bsnh->bnts", q, k, precision="highest") * q.shape[-1] ** -0.5
    if score is not None:
        scores = score(scores, None, None, jnp.arange(t)[:, None], jnp.arange(s))
    if bias is not None:
        scores = scores + bias
    if causal:
        scores = jnp.where(jnp.arange(s) <= jnp.arange(t)[:, None], scores, -jnp.inf)
    if sink is not None:
        column = jnp.broadcast_to(sink[None, :, None, None].astype(scores.dtype), (*scores.shape[:3], 1))
        scores = jnp.concatenate([scores, column], -1)
    return jnp.einsum("bnts,bsnh->btnh", jax.nn.softmax(scores)[..., :s] * kept, v, precision="highest")


def results(f, arrays, d_o):
    """O and the gradients of sum(O * d_o) by every array."""
    def loss(arrays):
        o = f(*arrays)
        return jnp.sum(o * d_o.astype(o.dtype)), o

    gradients, o = jax.jit(jax.grad(loss, has_aux=True))(tuple(arrays))
    return o, *gradients


def assert_near(got, expected, tolerance):
    for x, y in zip(got, expected):
        x, y = (np.asarray(z, np.float64) for z in (x, y))
        assert np.isfinite(y).all()
        np.testing.assert_allclose(x, y, rtol=0, atol=tolerance * np.abs(y).max())


def hidden(where, fill, dtype):
    """An additive mask: a batch entry's padding, another whole, or single rows."""
    keep = np.ones((B, N, T, S) if where == "rows" else (B, 1, 1, S))
    if where == "rows":
        keep = np.random.default_rng(3).random(keep.shape) < 0.8
        keep[:, :, ::3] = 0
    else:
        keep[0, ..., :S // 2] = 0
        keep[1] = where == "left"
    return jnp.asarray((1 - keep) * fill, dtype)


@pytest.mark.parametrize("where, causal", [("entry", False), ("rows", False), ("left", True)])
@pytest.mark.parametrize("fill", [-1e9, -1e30, "least"])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_rows_hidden_whole(dtype, fill, where, causal):
    fill = LEAST[dtype] if fill == "least" else fill
    mask = hidden(where, fill, dtype if fill >= LEAST[dtype] else jnp.float32)
    arrays = [random(0, B, T, N, H, dtype=dtype), *(random(i, B, S, K, H, dtype=dtype) for i in (1, 2)), mask]
    d_o = random(4, B, T, N, H, dtype=dtype)
    ours = results(lambda q, k, v, bias: attention(q, k, v, bias=bias, causal=causal), arrays, d_o)
    naive = results(lambda q, k, v, bias: composition(q, k, v, bias, causal=causal),
                    [x.astype(jnp.float32) for x in arrays], d_o.astype(jnp.float32))
    assert_near(ours, naive, 2e-6 if dtype == jnp.float32 else 2e-2)


def test_rows_lifted_whole():
    mask = np.zeros((B, 1, T, S))
    mask[:, :, ::2] = 4e9
    mask[..., 5:9] = -1e9
    arrays = [random(0, B, T, N, H), random(1, B, S, K, H), random(2, B, S, K, H), jnp.asarray(mask, jnp.float32)]
    ours = results(lambda q, k, v, bias: attention(q, k, v, bias=bias), arrays, random(4, B, T, N, H))
    assert_near(ours, results(composition, arrays, random(4, B, T, N, H)), 2e-6)


def test_rows_hidden_by_a_score_function():
    def score(scores, batch, head, row, column):
        return jnp.where((row % 3 == 0) | (column % 5 == 1), -1e30, scores)

    arrays = random(0, B, T, N, H), random(1, B, S, K, H), random(2, B, S, K, H)
    ours = results(lambda *x: attention(*x, score=score), arrays, random(4, B, T, N, H))
    assert_near(ours, results(lambda *x: composition(*x, score=score), arrays, random(4, B, T, N, H)), 2e-6)


def test_rows_hidden_beside_a_sink():
    """A sink shares a hidden row with its keys if it is as low, and takes all of it if it is not."""
    arrays = [random(0, B, T, N, H), random(1, B, S, K, H), random(2, B, S, K, H), hidden("rows", -1e30, jnp.float32),
              jnp.asarray([-1e30, -2e30, 0.5, -3.0], jnp.float32)]
    ours = results(lambda q, k, v, bias, sink: attention(q, k, v, bias=bias, sink=sink), arrays, random(4, B, T, N, H))
    assert_near(ours, results(composition, arrays, random(4, B, T, N, H)), 2e-6)


def test_rows_hidden_whole_under_dropout():
    arrays = [random(0, B, T, N, H), random(1, B, S, K, H), random(2, B, S, K, H), hidden("rows", -1e30, jnp.float32)]
    drop = lambda q, k, v, bias: attention(q, k, v, bias=bias, dropout=(0.3, 5))
    # What each weight is multiplied by: V is the identity, and all weights are alike.
    every = drop(jnp.zeros_like(arrays[0]), arrays[1], jnp.broadcast_to(jnp.eye(S)[None, :, None], (B, S, K, S)),
                 jnp.zeros((1, 1, T, S)))
    kept = jnp.swapaxes(jnp.where(every > 0, 1 / 0.7, 0), 1, 2)
    ours = results(drop, arrays, random(4, B, T, N, H))
    assert_near(ours, results(lambda *x: composition(*x, kept=kept), arrays, random(4, B, T, N, H)), 2e-6)


@pytest.mark.parametrize("winners", [False, True])
@pytest.mark.parametrize("rows, options", [(1, ()), (2, ()), (100, ()), (100, ("causal",)), (100, ("sink",))])
def test_logits_in_the_thousands(rows, options, winners):
    """As transformers without QK norm have them; few rows are computed in another way.

    A row is that of one key: by far with `winners`, else now and then by little, which decides how far all are off.
    """
    q, k, v = 1000 * random(0, 8, rows, N, 64), random(1, 8, 120, K, 64), random(2, 8, 120, K, 64)
    if winners:
        q = 150 * jnp.repeat(k[:, jnp.arange(rows) // 2], N // K, 2)
    arrays = [q, k, v, 1000 * random(5, N)] if "sink" in options else [q, k, v]
    names, causal = ("q", "k", "v", "sink"), "causal" in options
    d_o = random(4, 8, rows, N, 64)

    def fused(*arrays):
        more = dict(zip(names, arrays))
        return attention(more.pop("q"), more.pop("k"), more.pop("v"), **more, causal=causal)

    def spelt(*arrays):
        return composition(**dict(zip(names, arrays)), causal=causal)

    ours, naive = results(fused, arrays, d_o), results(spelt, arrays, d_o)
    with enable_x64(True):
        exact = results(spelt, [x.astype(jnp.float64) for x in arrays], d_o.astype(jnp.float64))
    for got, low, high in zip(ours, naive, exact):
        error, allowed = (np.sqrt(np.mean((np.asarray(x, np.float64) - np.asarray(high)) ** 2)) for x in (got, low))
        assert error <= 2 * allowed + 1e-6 * np.abs(high).max()
