"""Attention in f64, fused, beside XLA's own program in f64: neither may be twice as far as the other from the same mathematics
in numbers of 64 bits of mantissa, which NumPy has as longdouble. Scores reach extremes, and inputs differ along every axis."""

import functools

import heddle.jax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

try:
    from jax import enable_x64
except ImportError:  # before JAX 0.8
    from jax.experimental import enable_x64

B, N, K, T, S, H, D = 2, 4, 2, 37, 53, 16, 24
LOWEST = float(np.finfo(np.float64).min)
CAUSAL = np.tril(np.ones((T, S), bool), S - T)
pytestmark = pytest.mark.skipif(np.finfo(np.longdouble).nmant < 63, reason="longdouble is no wider than f64 here")


@pytest.fixture(autouse=True)
def x64():
    with enable_x64(True):
        yield


def random(*shape, seed=0, scale=1.0):
    return np.random.default_rng(seed).standard_normal(shape) * scale


def padding(fill, hidden=(S, 7)):
    """Added to scores: how many first keys of each entry are hidden, all those of one."""
    bias = np.zeros((B, 1, 1, S))
    for entry, keys in enumerate(hidden):
        bias[entry, ..., :keys] = fill
    return bias


KEYS = random(B, 1, T, S, seed=3) < 0.5
KEYS[0, :, 5] = False  # a row that sees nothing
LENGTHS = np.arange(S) < np.asarray([3, S - 1])[:, None, None, None]
SLOPES = 2.0 ** -np.arange(1, N + 1)[:, None, None] * (np.arange(S) - np.arange(T)[:, None])


# Of a score, and the derivative by it; inputs' scale.
SCORES = {
    "plain": (lambda xp, s: s, lambda s: 1, 1),
    "causal": (lambda xp, s: xp.where(CAUSAL, s, LOWEST), lambda s: CAUSAL, 1),
    "causal by -1e30": (lambda xp, s: xp.where(CAUSAL, s, -1e30), lambda s: CAUSAL, 1),
    "window": (lambda xp, s: xp.where(CAUSAL & ~np.tril(CAUSAL, S - T - 9), s, LOWEST),
               lambda s: CAUSAL & ~np.tril(CAUSAL, S - T - 9), 1),
    "mask": (lambda xp, s: xp.where(KEYS, s, -1e30), lambda s: KEYS, 1),
    "mask of the lowest": (lambda xp, s: xp.where(KEYS, s, LOWEST), lambda s: KEYS, 1),
    "lengths": (lambda xp, s: xp.where(LENGTHS, s, LOWEST), lambda s: LENGTHS, 1),
    "padding added": (lambda xp, s: s + padding(-1e9), lambda s: 1, 1),
    "padding of the lowest added": (lambda xp, s: s + padding(LOWEST), lambda s: 1, 1),
    "padding of -inf added": (lambda xp, s: s + padding(-np.inf, (5, 7)), lambda s: 1, 1),
    "bias": (lambda xp, s: s + random(1, N, T, S, seed=8), lambda s: 1, 1),
    "slopes": (lambda xp, s: s + SLOPES, lambda s: 1, 1),
    "soft cap": (lambda xp, s: 5.0 * xp.tanh(s / 5.0), lambda s: 1 - np.tanh(s / 5) ** 2, 2),
    "soft cap and causal": (lambda xp, s: xp.where(CAUSAL, 5.0 * xp.tanh(s / 5.0), LOWEST),
                            lambda s: CAUSAL * (1 - np.tanh(s / 5) ** 2), 2),
    "logits of 1000": (lambda xp, s: s, lambda s: 1, 25),
    "logits of 1e-9": (lambda xp, s: s, lambda s: 1, 1e-5),
}


def program(of_scores, keep):
    def attend(q, k, v):
        k, v = (jnp.repeat(x, N // K, 1) for x in (k, v))
        s = of_scores(jnp, jnp.einsum("bhqd,bhkd->bhqk", q, k) * H**-0.5)
        p = jax.nn.softmax(s, axis=-1)
        return jnp.einsum("bhqk,bhkd->bhqd", p if keep is None else jnp.where(keep, p / 0.75, 0.0), v)

    return attend


def exactly(of_scores, derivative, keep, q, k, v, d_o):
    """O, dQ, dK and dV in longdouble."""
    q, k, v, d_o = (x.astype(np.longdouble) for x in (q, k, v, d_o))
    factor = np.longdouble(1) if keep is None else keep / np.longdouble(0.75)
    k_rows, v_rows = (np.repeat(x, N // K, 1) for x in (k, v))
    dot = np.einsum("bhqd,bhkd->bhqk", q, k_rows) * np.longdouble(H**-0.5)
    s = of_scores(np, dot)
    p = np.exp(s - s.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    d_p = np.einsum("bhqd,bhkd->bhqk", d_o, v_rows) * factor
    d_dot = p * (d_p - (p * d_p).sum(-1, keepdims=True)) * derivative(dot) * np.longdouble(H**-0.5)
    summed = lambda x: x.reshape(B, K, N // K, *x.shape[2:]).sum(2)
    return (np.einsum("bhqk,bhkd->bhqd", p * factor, v_rows), np.einsum("bhqk,bhkd->bhqd", d_dot, k_rows),
            summed(np.einsum("bhqk,bhqd->bhkd", d_dot, q)), summed(np.einsum("bhqk,bhqd->bhkd", p * factor, d_o)))


def distance(found, truth):
    return float(np.linalg.norm((np.asarray(found).astype(np.longdouble) - truth).astype(np.float64).ravel()) /
                 max(np.linalg.norm(truth.astype(np.float64).ravel()), 1e-300))


@pytest.mark.parametrize("drops", [False, True])
@pytest.mark.parametrize("name", SCORES)
def test_fused_program_is_as_exact_as_the_original(name, drops):
    of_scores, derivative, scale = SCORES[name]
    keep = random(B, N, T, S, seed=9) < 0.7 if drops else None
    attend = program(of_scores, keep)
    q, k, v = random(B, N, T, H, scale=scale), random(B, K, S, H, seed=1), random(B, K, S, D, seed=2)
    d_o = random(B, N, T, D, seed=7)

    def step(q, k, v, d_o):
        o, gradients = jax.vjp(attend, q, k, v)
        return o, *gradients(d_o)

    fused, original = heddle.jax.fuse(step), jax.jit(step)
    assert fused.lower(q, k, v, d_o).as_text().count("stablehlo.custom_call @heddle") == 2
    parts = zip(("O", "dQ", "dK", "dV"), exactly(of_scores, derivative, keep, q, k, v, d_o), original(q, k, v, d_o),
                fused(q, k, v, d_o), strict=True)
    for part, truth, e, f in parts:
        assert f.dtype == np.float64
        allowed = 2 * distance(e, truth) + 4e-16
        assert distance(f, truth) <= allowed, f"{part}: {distance(f, truth)}, XLA's {distance(e, truth)}"


@pytest.mark.parametrize("more", [1e-6, 1e-9, 1e-12])
def test_what_is_nearly_the_gradient_is_no_gradient(more):
    """Numbers that f32 holds apart hardly, or not at all."""
    q, k, v, d_o = (random(B, N, T, H, seed=i) for i in range(4))

    def step(taken, q, k, v, d_o):
        p = jax.nn.softmax(jnp.einsum("bhqd,bhkd->bhqk", q, k), axis=-1)
        d_p = jnp.einsum("bhqd,bhkd->bhqk", d_o, v)
        d_s = p * (d_p - taken * (p * d_p).sum(-1, keepdims=True))
        return jnp.einsum("bhqk,bhkd->bhqd", p, v), jnp.einsum("bhqk,bhkd->bhqd", d_s, k)

    def calls(taken):
        text = heddle.jax.fuse(functools.partial(step, taken)).lower(q, k, v, d_o).as_text()
        return text.count("stablehlo.custom_call @heddle")

    assert calls(1.0) == 2
    assert calls(1.0 + more) == 0


def test_many_keys_in_tiles():
    t, s, h = 300, 700, 40
    q, k, v = random(1, t, 3, h), random(1, s, 3, h, seed=1), random(1, s, 3, h, seed=2)

    def step(q, k, v):
        score = jnp.einsum("bqhd,bkhd->bhqk", q, k) * h**-0.5
        o = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(score, axis=-1), v)
        return jnp.sum(o * jnp.cos(o))

    fused, original = heddle.jax.fuse(jax.grad(step, (0, 1, 2))), jax.jit(jax.grad(step, (0, 1, 2)))
    assert "stablehlo.custom_call @heddle" in fused.lower(q, k, v).as_text()
    for e, f in zip(original(q, k, v), fused(q, k, v), strict=True):
        assert distance(f, np.asarray(e).astype(np.longdouble)) < 1e-14


def test_f32_attention_of_a_program_in_x64_stays_f32():
    q, k, v = (random(B, T, N, H, seed=i).astype(np.float32) for i in range(3))
    attend = lambda q, k, v: jax.nn.dot_product_attention(q, k, v)
    fused = heddle.jax.fuse(attend)
    assert "custom_call @heddle" in fused.lower(q, k, v).as_text()
    assert fused(q, k, v).dtype == np.float32
    np.testing.assert_allclose(fused(q, k, v), attend(q, k, v), rtol=0, atol=2e-6)


@pytest.mark.parametrize("options", [
    {}, {"causal": True}, {"soft_cap": 2.0}, {"window": 5}, {"kv_lengths": np.asarray([S, 9], np.int32)},
    {"score": lambda s, b, n, i, j: s * jnp.exp(-jnp.abs(s)) + jnp.sin(i - j) / 3}, {"mask": KEYS},
    {"score": lambda s, b, n, i, j: jnp.log(1.0 + s * s) * jnp.tanh(s)}])
def test_the_op_on_f64(options):
    """heddle.jax.attention and its gradients."""
    q, k, v = random(B, T, N, H), random(B, S, K, H, seed=1), random(B, S, K, D, seed=2)
    bias, sink, d_o = random(1, N, T, S, seed=3), random(N, seed=4), random(B, T, N, D, seed=7)

    def loss(attend):
        def of(*operands):
            o, lse = attend(*operands)
            return jnp.sum(o * d_o) + jnp.sum(jnp.sin(lse))

        return jax.jit(jax.value_and_grad(of, range(5)))

    def heddles(q, k, v, bias, sink):
        o, lse = heddle.jax.attention(q, k, v, bias=bias, sink=sink, return_lse=True, **options)
        assert o.dtype == lse.dtype == jnp.float64
        return o, lse

    def plain(q, k, v, bias, sink):
        k, v = (jnp.repeat(x, N // K, 2) for x in (k, v))
        s = jnp.einsum("bqhd,bkhd->bhqk", q, k) * H**-0.5
        i, j = jnp.arange(T)[:, None], jnp.arange(S)
        if "soft_cap" in options:
            s = 2.0 * jnp.tanh(s / 2.0)
        if "score" in options:
            s = options["score"](s, 0, 0, i, j)
        s = s + bias
        keep = jnp.ones((1, 1, T, S), bool)
        keep &= j <= i if "causal" in options else True
        keep &= abs(i - j) <= 5 if "window" in options else True
        keep &= j < options["kv_lengths"][:, None, None, None] if "kv_lengths" in options else True
        keep &= KEYS if "mask" in options else True
        s = jnp.where(keep, s, -jnp.inf)
        all_scores = jnp.concatenate([s, jnp.broadcast_to(sink[None, :, None, None], (B, N, T, 1))], -1)
        return (jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(all_scores, -1)[..., :-1], v),
                jax.nn.logsumexp(all_scores, axis=-1))

    operands = q, k, v, bias, sink
    (e, of_e), (f, of_f) = (loss(attend)(*operands) for attend in (plain, heddles))
    assert abs(f - e) < 1e-12 * abs(e)
    for one, right in zip(of_f, of_e, strict=True):
        assert one.dtype == jnp.float64
        assert distance(one, np.asarray(right).astype(np.longdouble)) < 1e-14


def test_sinks_biases_and_their_gradients():
    q, k, v = random(B, T, N, H), random(B, S, N, H, seed=1), random(B, S, N, H, seed=2)
    bias, sink = random(1, N, T, S, seed=3), random(N, seed=4)

    def loss(q, k, v, bias, sink):
        s = jnp.einsum("bqhd,bkhd->bhqk", q, k) * H**-0.5 + bias
        s = jnp.concatenate([s, jnp.broadcast_to(sink[None, :, None, None], (B, N, T, 1))], -1)
        return jnp.sum(jnp.sin(jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s, -1)[..., :-1], v)))

    gradients = jax.grad(loss, range(5))
    fused = heddle.jax.fuse(gradients)
    assert fused.lower(q, k, v, bias, sink).as_text().count("custom_call @heddle") == 2
    for e, f in zip(jax.jit(gradients)(q, k, v, bias, sink), fused(q, k, v, bias, sink), strict=True):
        assert distance(f, np.asarray(e).astype(np.longdouble)) < 2e-14


@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("fill", [LOWEST, -1.5e308, -1e300, -1.7e299, -1.6e299, -1e295, -1e290, -1e30])
def test_fills_of_any_size_are_numbers(fill, added):
    """Of a row that data hide whole the weights are equal: a fill that becomes -inf would make it 0."""
    q, k, v = random(B, T, N, H), random(B, S, N, H, seed=1), random(B, S, N, D, seed=2)

    def loss(q, k, v, shown):
        s = jnp.einsum("bqhd,bkhd->bhqk", q, k) * H**-0.5
        s = s + jnp.where(shown, 0.0, fill) if added else jnp.where(shown, s, fill)
        return jnp.sum(jnp.sin(jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s, -1), v)))

    gradients = jax.grad(loss, range(3))
    fused = heddle.jax.fuse(gradients)
    assert fused.lower(q, k, v, KEYS).as_text().count("custom_call @heddle") == 2
    for e, f in zip(jax.jit(gradients)(q, k, v, KEYS), fused(q, k, v, KEYS), strict=True):
        assert distance(f, np.asarray(e).astype(np.longdouble)) < 1e-14


HIDDEN = np.where(KEYS, 0.0, -1e9).astype(np.float32)


@pytest.mark.parametrize("of_scores, more", [
    (lambda s, shown: s + jnp.where(shown, 0.0, -1e9).astype(jnp.float32), KEYS),
    (lambda s, shown: s + (1 - shown.astype(jnp.float32)) * -1e9, KEYS), (lambda s, bias: s + bias, HIDDEN)])
def test_scores_rounded_to_f32_beside_a_fill_stay(of_scores, more):
    """Of a row hidden whole an f32 holds the fill alone, and an f64 its scores too."""
    q, k, v = random(B, T, N, H), random(B, S, N, H, seed=1), random(B, S, N, D, seed=2)

    def attend(q, k, v, more):
        s = of_scores((jnp.einsum("bqhd,bkhd->bhqk", q, k) * H**-0.5).astype(jnp.float32), more)
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s, -1).astype(v.dtype), v)

    fused, original = heddle.jax.fuse(attend), jax.jit(attend)
    assert "custom_call @heddle" not in fused.lower(q, k, v, more).as_text()
    assert distance(fused(q, k, v, more), np.asarray(original(q, k, v, more)).astype(np.longdouble)) < 1e-6


def test_scores_rounded_to_f32_that_a_fill_replaces_are_fused():
    q, k, v = random(B, T, N, H), random(B, S, N, H, seed=1), random(B, S, N, D, seed=2)

    def attend(q, k, v, shown):
        s = (jnp.einsum("bqhd,bkhd->bhqk", q, k) * H**-0.5).astype(jnp.float32)
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(jnp.where(shown, s, -1e9), -1).astype(v.dtype), v)

    fused, original = heddle.jax.fuse(attend), jax.jit(attend)
    assert "custom_call @heddle" in fused.lower(q, k, v, KEYS).as_text()
    assert distance(fused(q, k, v, KEYS), np.asarray(original(q, k, v, KEYS)).astype(np.longdouble)) < 1e-6


@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16])
@pytest.mark.parametrize("scores, stays", [
    (lambda q, k, shown: jnp.einsum("bhqd,bhkd->bhqk", q, k) * H**-0.5 + np.where(shown, 0.0, -1e9), True),
    (lambda q, k, shown: jnp.einsum("bhqd,bhkd->bhqk", q.astype(np.float64), k.astype(np.float64)), True),
    (lambda q, k, shown: jnp.einsum("bhqd,bhkd->bhqk", q, k, preferred_element_type=np.float64), True),
    (lambda q, k, shown: jnp.where(shown, jnp.einsum("bhqd,bhkd->bhqk", q, k) / np.sqrt(H), -1e9), False)])
def test_scores_in_f64_of_narrower_operands(dtype, scores, stays):
    """A call of these is no f64: of a row hidden whole the f64 holds the scores beside the fill, and a product's digits."""
    q, k, v = (jnp.asarray(x, dtype) for x in (random(B, N, T, H, scale=5), random(B, N, S, H, seed=1),
                                               random(B, N, S, D, seed=2)))
    weights = np.cos(np.arange(B * N * T * D)).reshape(B, N, T, D)

    def loss(q, k, v):
        p = jax.nn.softmax(scores(q, k, KEYS), -1)
        assert p.dtype == np.float64
        return jnp.sum(jnp.einsum("bhqk,bhkd->bhqd", p.astype(dtype), v) * weights.astype(dtype))

    gradients = jax.grad(loss, range(3))
    fused = heddle.jax.fuse(gradients)
    assert fused.lower(q, k, v).as_text().count("custom_call @heddle") == (0 if stays else 2)
    for e, f in zip(jax.jit(gradients)(q, k, v), fused(q, k, v), strict=True):
        assert distance(f, np.asarray(e).astype(np.longdouble)) < (2e-6 if dtype == np.float32 else 2e-2)
