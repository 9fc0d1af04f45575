"""Attention that goes over blocks of keys with the largest score so far: each block fused in its loop, beside f64."""

import re

import heddle.jax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

B, H, G, Q, K, N, D, V = 2, 4, 2, 6, 12, 4, 8, 16  # blocks of N keys
LOWEST = -0.7 * float(np.finfo(np.float32).max)
CAUSAL = np.arange(K) <= np.arange(Q)[:, None]


def drawn(dtype=np.float32, scale=2.0):
    random = np.random.default_rng(1)
    shapes = [(B, Q, H, D), (B, K, G, D), (B, K, G, V)]
    q, k, v = (random.standard_normal(shape).astype(np.float32) for shape in shapes)
    return [jnp.asarray(x, dtype) for x in (scale * q, k, v)]


def hidden_rows():
    """What is shown: of some rows nothing in a block or two, the first among them, and of entry 1 nothing of the last."""
    shown = np.random.default_rng(2).random((B, 1, 1, Q, K)) < 0.6
    shown[..., 1, :N] = shown[..., 2, N:] = shown[1, ..., 2 * N:] = False
    shown[..., 0] |= ~shown.any(-1)
    return shown


def scores(q, k, cap=None):
    s = jnp.einsum("btghd,bsgd->bghts", q.reshape(B, -1, G, H // G, D), k, preferred_element_type=jnp.float32) * D**-0.5
    return s if cap is None else jnp.tanh(s / cap) * cap


def block(state, s, v):
    """The state after these scores and values, as the flash attention of many libraries has it."""
    o, m, l = state
    largest = lax.stop_gradient(jnp.maximum(m, s.max(-1, keepdims=True)))
    shown = jnp.where(largest == -jnp.inf, 0, largest)
    p = jnp.exp(s - shown)
    share = jnp.exp(jnp.where(m == -jnp.inf, -jnp.inf, m - shown))
    product = jnp.einsum("bghts,bsgd->bghtd", p.astype(v.dtype), v, preferred_element_type=jnp.float32)
    return o * share + product, largest, l * share + p.sum(-1, keepdims=True)


def start(rows=Q, m=-jnp.inf):
    return jnp.zeros((B, G, H // G, rows, V)), jnp.full((B, G, H // G, rows, 1), m), jnp.zeros((B, G, H // G, rows, 1))


def end(state):
    o, _, l = state
    return jnp.moveaxis(o / l, 3, 1).reshape(B, -1, H, V)


def cut(x, i):
    return lax.dynamic_slice_in_dim(x, i * N, N, 1)


def plain(q, k, v):
    state = start()
    for i in range(0, K, N):
        state = block(state, scores(q, k[:, i:i + N]), v[:, i:i + N])
    return end(state)


def causal(q, k, v):
    def one(state, x):
        i, k, v = x
        shown = i * N + jnp.arange(N) <= jnp.arange(Q)[:, None]
        return block(state, jnp.where(shown, scores(q, k), -jnp.inf), v), None

    blocks = [jnp.moveaxis(x.reshape(B, K // N, N, G, -1), 1, 0) for x in (k, v)]
    return end(lax.scan(one, start(), (jnp.arange(K // N), *blocks))[0])


def capped_and_causal(q, k, v):
    def one(i, state):
        shown = i * N + jnp.arange(N) <= jnp.arange(Q)[:, None]
        return block(state, jnp.where(shown, scores(q, cut(k, i), 3.0), LOWEST), cut(v, i))

    return end(lax.fori_loop(0, K // N, one, start(m=LOWEST)))


def biased_and_hidden(fill):
    bias = jnp.asarray(np.random.default_rng(3).standard_normal((B, G, H // G, Q, K)), jnp.float32)

    def attend(q, k, v):
        def one(state):
            i, state = state
            shown, term = (lax.dynamic_slice_in_dim(x, i * N, N, 4) for x in (jnp.asarray(hidden_rows()), bias))
            return i + 1, block(state, jnp.where(shown, scores(q, cut(k, i)) + term, fill), cut(v, i))

        return end(lax.while_loop(lambda state: state[0] < K // N, one, (0, start(m=fill)))[1])

    return attend, bias


def passed_over(q, k, v):
    def of_rows(x):
        first, rows = x

        def one(i, state):
            def seen():
                shown = i * N + jnp.arange(N) <= first + jnp.arange(3)[:, None]
                return block(state, jnp.where(shown, scores(rows, cut(k, i)), -1e30), cut(v, i))

            return lax.cond(i * N < first + 3, seen, lambda: state)

        return end(lax.fori_loop(0, K // N, one, start(3)))

    o = lax.map(of_rows, (jnp.arange(0, Q, 3), jnp.moveaxis(q.reshape(B, Q // 3, 3, H, D), 1, 0)))
    return jnp.moveaxis(o, 0, 1).reshape(B, Q, H, V)


def expected(q, k, v, shown=True, bias=0.0, cap=None):
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    s = np.einsum("btghd,bsgd->bghts", q.reshape(B, Q, G, H // G, D), k) * D**-0.5
    s = np.where(shown, (s if cap is None else np.tanh(s / cap) * cap) + np.asarray(bias, np.float64), -np.inf)
    e = np.exp(s - s.max(-1, keepdims=True))
    o = np.einsum("bghts,bsgd->bghtd", e / e.sum(-1, keepdims=True), v)
    return np.moveaxis(o, 3, 1).reshape(B, Q, H, V)


FILLS = {"an infinity": -np.inf, "the lowest": LOWEST, "a billion": -1e9}
PROGRAMS = {
    "plain, unrolled": (plain, {}, 3),
    "causal, in a scan": (causal, {"shown": CAUSAL}, 1),
    "capped and causal, in a loop": (capped_and_causal, {"shown": CAUSAL, "cap": 3.0}, 1),
    "blocks of rows, of keys passed over": (passed_over, {"shown": CAUSAL}, 1),
    **{f"biased, hidden by {name}": (biased_and_hidden(fill)[0], {"shown": hidden_rows(), "bias": biased_and_hidden(fill)[1]}, 1)
       for name, fill in FILLS.items()},
}


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_blocks_of_keys(program, dtype):
    attend, given, calls = PROGRAMS[program]
    arrays = drawn(dtype)
    fused = heddle.jax.fuse(attend)
    text, original = (f.lower(*arrays).as_text("hlo") for f in (fused, jax.jit(attend)))
    assert text.count('custom_call_target="heddle"') == calls
    weights = re.compile(rf",{N}\]\S* exponential\(")
    assert weights.search(original) and not weights.search(text)
    np.testing.assert_allclose(fused(*arrays), expected(*arrays, **given), rtol=1e-5, atol=1e-5 if dtype == jnp.float32 else 2e-2)


@pytest.mark.parametrize("before", [-300.0, -1e30, -np.inf, 0.0, 20.0, 80.0, 104.0, 200.0, 1e30])
def test_however_large_the_scores_before(before):
    """What is left of a block beside them has the digits it has in the program, or is lost as there."""
    q, k, v = drawn()
    random = np.random.default_rng(4)
    state = [jnp.asarray(random.random(x.shape), jnp.float32) for x in start()]
    state[1] = jnp.full_like(state[1], before)

    def one(q, k, v, *state):
        return block(state, scores(q, k), v)

    fused = heddle.jax.fuse(one)
    assert fused.lower(q, k, v, *state).as_text("hlo").count('custom_call_target="heddle"') == 1
    s = np.asarray(scores(*(x.astype(np.float64) for x in map(np.asarray, (q, k)))), np.float64)
    o, m, l = (np.asarray(x, np.float64) for x in state)
    largest = np.maximum(m, s.max(-1, keepdims=True))
    e, share = np.exp(s - largest), np.exp(m - largest)
    truth = share * o + np.einsum("bghts,bsgd->bghtd", e, np.asarray(v, np.float64)), largest, share * l + e.sum(-1, keepdims=True)
    for found, original, exact in zip(fused(q, k, v, *state), jax.jit(one)(q, k, v, *state), truth, strict=True):
        np.testing.assert_allclose(found, original, rtol=3e-5, atol=3e-6)
        np.testing.assert_allclose(found, exact, rtol=3e-5, atol=3e-6)


def test_a_part_alone_beside_larger_scores():
    """Numbers of 1e-20 and less, which a state of size 1 would hide."""
    q, k, v = drawn()
    before = jnp.asarray(np.linspace(-30, 75, Q), jnp.float32)[:, None]

    def part(q, k, v):
        s = scores(q, k)
        p = jnp.exp(s - jnp.maximum(before, s.max(-1, keepdims=True)))
        return jnp.einsum("bghts,bsgd->bghtd", p, v), p.sum(-1)

    fused = heddle.jax.fuse(part)
    assert 'custom_call_target="heddle"' in fused.lower(q, k, v).as_text("hlo")
    s = np.einsum("btghd,bsgd->bghts", np.asarray(q, np.float64).reshape(B, Q, G, H // G, D), np.asarray(k, np.float64)) * D**-0.5
    e = np.exp(s - np.maximum(before, s.max(-1, keepdims=True)))
    o = np.einsum("bghts,bsgd->bghtd", e, np.asarray(v, np.float64))
    scale = np.abs(o).max(-1, keepdims=True)
    np.testing.assert_allclose(np.asarray(fused(q, k, v)[0]) / scale, o / scale, atol=3e-5)
    np.testing.assert_allclose(fused(q, k, v)[1], e.sum(-1), rtol=3e-5)


def test_values_made_of_the_largest_score_leave_others_fused():
    def attend(q, k, v):
        s = scores(q, k)
        m = s.max(-1, keepdims=True)
        p = jnp.exp(s - m)
        return jnp.einsum("bghts,bsgd->bghtd", p, v + m.mean()), p.sum(-1), jax.nn.softmax(s), plain(q, k, v)

    arrays = drawn()
    fused = heddle.jax.fuse(attend)
    assert fused.lower(*arrays).as_text("hlo").count('custom_call_target="heddle"') == 3
    for found, original in zip(fused(*arrays), jax.jit(attend)(*arrays), strict=True):
        np.testing.assert_allclose(found, original, rtol=1e-5, atol=1e-5)
