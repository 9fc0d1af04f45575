"""heddle.jax.attention and dot_product_attention: parity with JAX, gradients, transformations and refusals."""

import inspect
import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from heddle.jax import attention, dot_product_attention
from jax.test_util import check_grads

try:
    from jax import enable_x64
except ImportError:  # before JAX 0.8
    from jax.experimental import enable_x64

B, T, S, N, K, H = 2, 11, 19, 4, 2, 16


def random(*shape, dtype=jnp.float32, seed=0):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), dtype)


def operands(dtype=jnp.float32, t=T, s=S, n=N, k=K, h=H, d=None):
    return tuple(random(B, *shape, dtype=dtype, seed=i)
                 for i, shape in enumerate(((t, n, h), (s, k, h), (s, k, d or h))))


def plain(q, k, v, *, bias=None, mask=None, causal=False, window=None, scale=None, soft_cap=None, sink=None,
          q_lengths=None, kv_lengths=None, segment_ids=None, score=None):
    """(o, lse) in q's arithmetic, with 0 and -inf for rows without a key."""
    n, t, s = q.shape[2], q.shape[1], k.shape[1]
    k, v = (jnp.repeat(x, n // x.shape[2], 2) for x in (k, v))
    scores = jnp.einsum("btnh,bsnh->bnts", q, k, precision="highest") * (q.shape[-1] ** -0.5 if scale is None else scale)
    row, column = jnp.arange(t)[:, None], jnp.arange(s)
    keep = jnp.ones((1, 1, t, s), bool)
    if soft_cap:
        scores = soft_cap * jnp.tanh(scores / soft_cap)
    if score:
        scores = score(scores, jnp.arange(q.shape[0]).reshape(-1, 1, 1, 1), jnp.arange(n).reshape(1, -1, 1, 1),
                       row[None, None], column[None, None, None])
    if bias is not None:
        scores = scores + bias
    if mask is not None:
        keep &= mask
    shift = jnp.zeros((1, 1, 1, 1), jnp.int32)
    if causal == "bottom_right":
        lengths = (jnp.full(q.shape[0], x) if y is None else y for x, y in ((s, kv_lengths), (t, q_lengths)))
        kv, qs = lengths
        shift = (kv - qs)[:, None, None, None]
    if causal:
        keep &= column <= row + shift
    if window is not None:
        left, right = (window, window) if isinstance(window, int) else window
        keep &= True if left is None else column >= row + shift - left
        keep &= True if right is None else column <= row + shift + right
    if q_lengths is not None:
        keep &= row < q_lengths[:, None, None, None]
    if kv_lengths is not None:
        keep &= column < kv_lengths[:, None, None, None]
    if segment_ids is not None:
        of_q, of_k = segment_ids if isinstance(segment_ids, tuple) else (segment_ids, segment_ids)
        keep &= of_q[:, None, :, None] == of_k[:, None, None, :]
    scores = jnp.where(keep, scores, -jnp.inf)
    columns = scores if sink is None else jnp.concatenate(
        [scores, jnp.broadcast_to(sink[None, :, None, None], (*scores.shape[:3], 1))], -1)
    some = jnp.any(columns > -jnp.inf, -1)
    lse = jax.nn.logsumexp(jnp.where(some[..., None], columns, 0), -1)
    p = jnp.where(keep & some[..., None], jnp.exp(jnp.where(keep, scores, 0) - lse[..., None]), 0)
    return jnp.einsum("bnts,bsnh->btnh", p, v, precision="highest"), jnp.where(some, lse, -jnp.inf)


def compare(options, arrays, differentiated=3):
    """Values and gradients of o and lse."""
    def total(f):
        def loss(*arrays):
            o, lse = f(*arrays)
            finite = lse > -jnp.inf
            return jnp.sum(jnp.sin(o)) + jnp.sum(jnp.where(finite, jnp.cos(jnp.where(finite, lse, 0)), 0)), (o, lse)
        return jax.jit(jax.value_and_grad(loss, tuple(range(differentiated)), has_aux=True))(*arrays)

    ours = total(lambda *a: attention(*a[:3], **options(*a[3:]), return_lse=True))
    theirs = total(lambda *a: plain(*a[:3], **options(*a[3:])))
    for got, expected in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs)):
        np.testing.assert_allclose(got, expected, rtol=5e-4, atol=5e-5)


LENGTHS = {"q_lengths": np.array([T, 4], np.int32), "kv_lengths": np.array([7, S], np.int32)}
MASK = np.random.default_rng(9).random((B, 1, T, S)) < 0.6
MASK[0, 0, 3] = False
OPTIONS = {
    "none": {},
    "causal": {"causal": True},
    "bottom right": {"causal": "bottom_right"},
    "bottom right with lengths": {"causal": "bottom_right", **LENGTHS},
    "window": {"window": (3, 2)},
    "one-sided windows": {"window": (None, 2)},
    "causal window": {"window": 3, "causal": True},
    "scale": {"scale": -0.3},
    "soft cap": {"soft_cap": 1.5, "causal": True},
    "lengths": LENGTHS,
    "q lengths": {"q_lengths": LENGTHS["q_lengths"]},
    "kv lengths": {"kv_lengths": np.array([0, 5], np.int32)},
    "mask": {"mask": MASK},
    "mask of heads": {"mask": np.random.default_rng(8).random((N, 1, S)) < 0.5},
    "segments": {"segment_ids": (np.sort(np.random.default_rng(7).integers(0, 4, (B, T)), -1),
                                 np.sort(np.random.default_rng(6).integers(0, 4, (B, S)), -1))},
    "score": {"score": lambda s, b, h, i, j: jnp.where((i + j) % 3 == 0, s * 0.5 ** (h + 1), jnp.tanh(s) + b * s**2)},
    "score of an array": {"score": lambda s, b, h, i, j: s - jnp.arange(1.0, N + 1)[:, None, None] * abs(i - j) * 0.1},
    "score of the head alone": {"score": lambda s, b, h, i, j: jnp.broadcast_to(h * 0.5, s.shape)},
    "score without scores": {"score": lambda s, b, h, i, j: jnp.broadcast_to(-0.1 * abs(i - j), s.shape)},
    "all": {"causal": True, "window": (6, None), "soft_cap": 2.0, "mask": MASK, **LENGTHS},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_options(options):
    compare(lambda: options, operands())


@pytest.mark.parametrize("options", [{"causal": "bottom_right"}, {"window": (1, 2)}, {"causal": True, "window": 2}])
def test_more_queries_than_keys(options):
    compare(lambda: options, operands(t=13, s=5))


@pytest.mark.parametrize("shape", [(B, N, T, S), (1, N, T, S), (1, 1, T, S), (N, 1, S), (B, 1, T, 1)])
def test_bias(shape):
    compare(lambda bias: {"bias": bias, "causal": True}, (*operands(), random(*shape, seed=5)), 4)


def test_sink():
    compare(lambda sink: {"sink": sink, "mask": MASK}, (*operands(), random(N, seed=5)), 4)


@pytest.mark.parametrize("n, k, h, d", [(4, 4, 16, 16), (3, 1, 8, 24), (4, 2, 5, 7), (2, 1, 1, 1)])
def test_heads_and_head_dims(n, k, h, d):
    compare(lambda: {"causal": True}, operands(n=n, k=k, h=h, d=d))


def test_layouts_and_no_batch():
    q, k, v = operands()
    expected = attention(q, k, v, causal=True)
    swapped = lambda x: jnp.swapaxes(x, 1, 2)
    loss = lambda layout: lambda *x: jnp.sum(jnp.sin(attention(*x, causal=True, layout=layout)))
    np.testing.assert_allclose(attention(*map(swapped, (q, k, v)), causal=True, layout="BNTH"), swapped(expected))
    ours = jax.grad(loss("BNTH"), (0, 1, 2))(*map(swapped, (q, k, v)))
    for got, expected_gradient in zip(ours, jax.grad(loss("BTNH"), (0, 1, 2))(q, k, v)):
        np.testing.assert_allclose(swapped(got), expected_gradient, rtol=1e-6)
    o, lse = attention(q[0], k[0], v[0], causal=True, return_lse=True)
    np.testing.assert_allclose(o, expected[0])
    assert lse.shape == (N, T)


@pytest.mark.parametrize("t, s", [(0, S), (T, 0)])
def test_empty(t, s):
    q, k, v = operands(t=t, s=s)
    o, lse = attention(q * jnp.nan, k, v, return_lse=True)
    assert o.shape == (B, t, N, H) and not o.any() and (lse == -jnp.inf).all()
    jax.grad(lambda *x: jnp.sum(attention(*x)))(*operands(t=t, s=s))


def test_no_keys_but_a_sink():
    """The log-sum-exp is the sink in rows that are there, as where keys are hidden."""
    q, k, v = operands(s=0)
    sink, lengths = random(N, seed=3), jnp.array([T, 4])
    none = jnp.zeros((1, 1, 1, S), bool)
    for options in ({}, {"q_lengths": lengths}):
        lse = attention(q, k, v, sink=sink, return_lse=True, **options)[1]
        hidden = attention(*operands(), sink=sink, mask=none, return_lse=True, **options)[1]
        np.testing.assert_allclose(lse, hidden, rtol=1e-6)
        there = np.arange(T) < np.asarray(options.get("q_lengths", [T, T]))[:, None, None]
        np.testing.assert_allclose(lse, np.where(there, np.asarray(sink)[:, None], -np.inf), rtol=1e-6)
        of_sink = jax.grad(lambda x: jnp.sum(jnp.where(there, attention(q, k, v, sink=x, return_lse=True, **options)[1], 0)))
        np.testing.assert_allclose(of_sink(sink), there.sum((0, 1, 2)) * np.ones(N), rtol=1e-6)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_low_precision(dtype):
    arrays, d_o = operands(dtype, t=70, s=70), random(B, 70, N, H, dtype=dtype, seed=7)

    def gradients(f, arrays, d_o):
        (o, lse), pull = jax.vjp(f, *arrays)
        return o, *pull((d_o.astype(o.dtype), jnp.cos(lse).astype(lse.dtype)))

    def naive(q, k, v):
        o, lse = plain(q, k, v, causal=True)
        return o.astype(dtype), lse.astype(jnp.float32)

    ours = jax.jit(partial(gradients, partial(attention, causal=True, return_lse=True)))(arrays, d_o)
    naive = gradients(naive, arrays, d_o)
    with enable_x64(True):
        wide = [x.astype(jnp.float64) for x in arrays]
        exact = jax.jit(partial(gradients, partial(plain, causal=True)))(wide, d_o.astype(jnp.float64))
    for got, low, high in zip(ours, naive, exact):
        assert got.dtype == dtype
        error, allowed = (np.abs(np.asarray(x, np.float64) - np.asarray(high)).max() for x in (got, low))
        assert error <= 2 * allowed


def test_sums_of_many_rows_in_f32():
    """The gradients of a head of keys, sums over all rows of all its query heads, beside XLA's own in f32."""
    arrays, d_o = operands(t=200, s=264, n=8, k=2, h=64), random(B, 200, 8, 64, seed=7)

    def gradients(f, arrays, d_o):
        return jax.jit(lambda arrays, d_o: jax.vjp(f, *arrays)[1](d_o))(arrays, d_o)

    ours = gradients(partial(attention, causal=True), arrays, d_o)
    naive = gradients(lambda *x: plain(*x, causal=True)[0], arrays, d_o)
    with enable_x64(True):
        exact = gradients(lambda *x: plain(*x, causal=True)[0], [x.astype(jnp.float64) for x in arrays], d_o.astype(jnp.float64))
    for got, low, high in zip(ours, naive, exact):
        error, allowed = (np.sqrt(np.mean((np.asarray(x, np.float64) - np.asarray(high)) ** 2)) for x in (got, low))
        assert error <= 2 * allowed


def test_check_grads():
    q, k, v = operands()
    check_grads(lambda *x: attention(*x, causal=True, return_lse=True), (q, k, v), order=1, modes=["rev"], rtol=2e-2,
                atol=2e-2, eps=1e-2)


class TestDropout:
    options = {"causal": True, "dropout": (0.4, 7)}

    def kept(self, **more):
        """What each value is multiplied by, over its probability: v is the identity."""
        q, k, _ = operands(s=16)
        v = jnp.broadcast_to(jnp.eye(16)[None, :, None], (B, 16, K, 16))
        whole = attention(q, k, v)
        return attention(q, k, v, dropout=(0.4, 7, 3), **more) / whole

    def test_bits(self):
        kept = self.kept()
        assert np.isclose(kept, 0, atol=1e-5).mean() == pytest.approx(0.4, abs=0.06)
        np.testing.assert_allclose(kept[kept > 0.1], 1 / 0.6, rtol=1e-4)

    def test_gradients_use_the_same_bits(self):
        q, k, v = operands(s=16)
        kept = jnp.transpose(self.kept(), (0, 2, 1, 3))

        def loss(q, k, v):
            scores = jnp.einsum("btnh,bsnh->bnts", q, jnp.repeat(k, 2, 2), precision="highest") * H**-0.5
            return jnp.sum(jnp.sin(jnp.einsum("bnts,bsnh->btnh", jax.nn.softmax(scores) * kept, jnp.repeat(v, 2, 2),
                                              precision="highest")))

        ours = jax.grad(lambda *x: jnp.sum(jnp.sin(attention(*x, dropout=(0.4, 7, 3)))), (0, 1, 2))(q, k, v)
        for got, expected in zip(ours, jax.grad(loss, (0, 1, 2))(q, k, v)):
            np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-4)

    def test_seed_is_an_operand(self):
        q, k, v = operands()
        drop = jax.jit(lambda seed: attention(q, k, v, dropout=(0.4, seed)))
        first, second = drop(jax.random.key(0)), drop(jax.random.key(1))
        assert drop._cache_size() == 1 and not jnp.allclose(first, second)
        np.testing.assert_array_equal(first, drop(jax.random.key(0)))

    def test_all_bits_of_a_seed_count(self):
        q, k, v = operands()
        with enable_x64(True):
            drop = lambda seed: attention(q, k, v, dropout=(0.4, seed))
            for kind in (jnp.int64, jnp.uint64):
                np.testing.assert_array_equal(drop(jnp.array(2**40 + 3, kind)), drop(jnp.array(2**40 + 3, jnp.int64)))
                assert not jnp.allclose(drop(jnp.array(2**40 + 3, kind)), drop(jnp.array(3, kind)))

    def test_vmap_draws_what_each_entry_would(self):
        q, k, v = (jnp.stack([x, x]) for x in operands())
        for seed, axis in ((5, None), (jnp.array([5, 6]), 0)):
            found = jax.vmap(lambda q, k, v, s: attention(q, k, v, dropout=(0.4, s)), (0, 0, 0, axis))(q, k, v, seed)
            for i in range(2):
                one = attention(q[i], k[i], v[i], dropout=(0.4, seed if axis is None else seed[i]))
                np.testing.assert_allclose(found[i], one, rtol=1e-5, atol=1e-6)


def stacked(x, axis):
    return x if axis is None else jnp.stack([x, 0.5 * x, x + 1], axis)


@pytest.mark.parametrize("batch, axes", [
    (2, (0, 0, 0, 0)), (2, (0, None, None, None)), (1, (None, 0, 0, None)), (2, (0, 1, 0, None)), (1, (0, None, None, 0)),
    (2, (None, None, None, 0)), (1, (2, None, 0, None))])
def test_vmap(batch, axes):
    arrays = [x[:batch] for x in operands()] + [random(1, N, T, S, seed=5)]
    arrays = [stacked(x, axis) for x, axis in zip(arrays, axes)]

    def both(f):
        loss = lambda *a: jnp.sum(jnp.sin(f(*a)))
        return jax.jit(jax.vmap(lambda *a: (f(*a), jax.grad(loss, (0, 1, 2, 3))(*a)), axes))(*arrays)

    ours = both(lambda q, k, v, b: attention(q, k, v, bias=b, causal=True))
    theirs = both(lambda q, k, v, b: plain(q, k, v, bias=b, causal=True)[0])
    for got, expected in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs)):
        np.testing.assert_allclose(got, expected, rtol=5e-4, atol=5e-5)


def test_vmap_over_no_entries():
    """Results have the vmap's size, and what is shared has a gradient of zeros."""
    q, k, v = (x[0] for x in operands())
    none, bias = jnp.zeros((3, 0, *q.shape)), random(N, T, S)
    attend = jax.vmap(jax.vmap(lambda q, k: attention(q, k, v, bias=bias, return_lse=True), (0, None)), (0, None))
    o, lse = attend(none, k)
    assert (o.shape, lse.shape) == (none.shape, (3, 0, N, T))
    of_q, of_k = jax.jit(jax.grad(lambda *a: jnp.sum(attend(*a)[0]), (0, 1)))(none, k)
    assert of_q.shape == none.shape
    np.testing.assert_array_equal(of_k, jnp.zeros_like(k))


def test_vmap_shares_keys_values_and_mask():
    """Neither is repeated: no array as large as that is made."""
    q, k, v = (x[0] for x in operands())
    q = jnp.stack([q] * 37)
    text = jax.jit(jax.vmap(lambda q: attention(q, k, v, mask=MASK[:1]))).lower(q).compile().as_text()
    assert f"37,{S},{K},{H}" not in text and f"37,1,{T},{S}" not in text and text.count('custom_call_target="heddle"') == 1


@pytest.mark.parametrize("policy, calls", [(None, 3), (("heddle_out", "heddle_lse"), 2)])
def test_remat(policy, calls):
    q, k, v = operands()
    saved = jax.checkpoint_policies.save_only_these_names(*policy) if policy else None
    loss = lambda q, k, v: jnp.sum(jnp.sin(jax.checkpoint(lambda *x: attention(*x, causal=True), policy=saved)(q, k, v)))
    gradient = jax.jit(jax.value_and_grad(loss, (0, 1, 2)))
    assert gradient.lower(q, k, v).as_text().count("@heddle(") == calls
    expected = jax.grad(lambda *x: jnp.sum(jnp.sin(plain(*x, causal=True)[0])), (0, 1, 2))(q, k, v)
    for got, wanted in zip(gradient(q, k, v)[1], expected):
        np.testing.assert_allclose(got, wanted, rtol=5e-4, atol=5e-5)


def test_scan_donation_export_and_ahead_of_time():
    from jax import export  # JAX 0.5 imports it only when asked

    x, weights = random(B, T, N, H), 0.1 * random(3, H, H, seed=1)

    def loss(f, x, weights):
        layer = lambda x, w: (x + f(x @ w, x, x), None)
        return jnp.sum(jax.lax.scan(layer, x, weights)[0] ** 2)

    attend = lambda *a: attention(*a, causal=True, deterministic=True)  # runs are compared below
    ours = jax.jit(jax.grad(lambda x, w: loss(attend, x, w), (0, 1)))
    expected = jax.grad(lambda x, w: loss(lambda *a: plain(*a, causal=True)[0], x, w), (0, 1))(x, weights)
    found = ours(x, weights)
    for got, wanted in zip(found, expected):
        assert np.linalg.norm(got - wanted) <= 1e-4 * np.linalg.norm(wanted)
    exported = export.export(ours, disabled_checks=[export.DisabledSafetyCheck.custom_call("heddle")])(x, weights)
    donated = jax.jit(lambda x, w: ours(x, w), donate_argnums=0)
    for other in (ours.lower(x, weights).compile()(x, weights), exported.call(x, weights), donated(x, weights)):
        for got, wanted in zip(other, found):
            np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def test_where_nothing_is_compiled():
    """Op by op, as people debug."""
    q, k, v = operands()
    loss = lambda q: jnp.sum(jnp.sin(jax.vmap(partial(attention, causal=True))(q[None], k[None], v[None])))
    with jax.disable_jit():
        found = jax.grad(loss)(q)
    np.testing.assert_array_equal(found, jax.grad(loss)(q))


def test_what_a_score_knows_when_it_is_traced_is_no_operand():
    """Numbers and what is made of them are in the call; an array that is used twice is loaded from one operand."""
    q, k, v = operands()
    slopes = jnp.arange(1.0, N + 1)[:, None, None]

    def score(s, b, h, i, j):
        return jnp.where((i - j) % 3 == jnp.array(1) + 1, s * 2.0 ** -jnp.array(3.0), s * slopes - slopes * abs(i - j) + h)

    for f in (attention, jax.jit(attention, static_argnames="score")):
        text = jax.jit(lambda *x: f(*x, score=score)).lower(q, k, v).as_text()
        assert set(re.findall(r"load\d", text)) == {"load0", "load1"}


@jax.custom_jvp
def even(x):
    return x - x % 2


even.defjvp(lambda x, tangents: (even(*x), *tangents))


@pytest.mark.parametrize("seen", [
    lambda i, j, x: jnp.where(j > 3, j, 2**31 - 1) > i,
    lambda i, j, x: (i - j) % 3 > 1,
    lambda i, j, x: jax.lax.rem(i - j, 4) < -1,
    lambda i, j, x: jax.lax.rem(i, j % 3) > 1,
    lambda i, j, x: i.astype(jnp.uint8) + j.astype(jnp.uint8) > 20,
    lambda i, j, x: jnp.clip(i - j, -3, 2).astype(jnp.int8) ** 2 < 5,
    lambda i, j, x: (x * 2 + 1) % 7 < i,
    lambda i, j, x: jnp.where(j > 3, x, 2**31 - 1) > abs(i - x),
    lambda i, j, x: jnp.less(*jax.lax.optimization_barrier((i, j))),
    lambda i, j, x: even(i) + 3 > j,
], ids=range(10))
def test_whole_numbers_of_a_score(seen):
    """Those that a float holds are what XLA computes; x is known to a running program only."""
    q, k, v = operands()
    x = jnp.arange(S, dtype=jnp.int32) * 3 - 20

    def run(attend, x):
        return attend(q, k, v, score=lambda s, b, h, i, j: jnp.where(seen(i, j, x), s, -1.5))

    np.testing.assert_allclose(jax.jit(partial(run, attention))(x), run(plain, x)[0], rtol=1e-5, atol=1e-6)


def says_where_functions_are():
    eqn, = jax.make_jaxpr(jax.nn.relu)(1.0).eqns
    return eqn.params["call_jaxpr"].jaxpr.debug_info is not None


@pytest.mark.parametrize("change", [
    jnp.abs, jax.nn.relu, jax.nn.relu6, partial(jnp.clip, min=0, max=1), lambda s: jax.lax.clamp(0.0, s, 1.0),
    lambda s: jnp.maximum(s, 2 * s), lambda s: jnp.minimum(0.0, s)], ids=range(7))
def test_derivatives_of_equal_values(change):
    """Scores of exactly 0, as padding has them."""
    if change in (jax.nn.relu, jax.nn.relu6) and not says_where_functions_are():
        pytest.skip("this JAX does not say whose functions with derivatives of their own are: all are refused")
    q, k, v = operands()
    q, k = q.at[:, ::2].set(0), k.at[:, 3].set(0)

    def loss(attend, q, k):
        return jnp.sum(jnp.sin(attend(q, k, v, score=lambda s, *_: change(s))))

    found = jax.grad(partial(loss, attention), (0, 1))(q, k)
    wanted = jax.grad(partial(loss, lambda *x, **options: plain(*x, **options)[0]), (0, 1))(q, k)
    for got, true in zip(found, wanted):
        np.testing.assert_allclose(got, true, rtol=1e-5, atol=1e-5)


@jax.custom_vjp
def straight_through(x):
    return jnp.floor(x)


straight_through.defvjp(lambda x: (jnp.floor(x), None), lambda _, gradient: (gradient,))


@pytest.mark.parametrize("name, change", [
    ("stop_gradient", lambda s: s * jax.lax.stop_gradient(s)),
    ("stop_gradient", lambda s: s + jax.lax.stop_gradient(jnp.floor(s) - s)),
    ("custom_vjp_call", lambda s: straight_through(s * 4)),
])
def test_derivatives_of_their_own_are_refused(name, change):
    if name not in [eqn.primitive.name for eqn in jax.make_jaxpr(change)(1.0).eqns]:
        pytest.skip("this JAX has another call there, which score may not use")
    q, k, v = operands()
    attend = partial(attention, score=lambda s, *_: change(s))
    np.testing.assert_allclose(attend(q, k, v), plain(q, k, v, score=lambda s, *_: change(s))[0], rtol=1e-4, atol=1e-5)
    jax.grad(lambda v: jnp.sum(attend(q, k, v)))(v)
    with pytest.raises(ValueError, match=f"attention: score uses {name} on scores that are differentiated"):
        jax.grad(lambda q: jnp.sum(attend(q, k, v)))(q)


def test_a_stopped_gradient_that_changes_nothing():
    q, k, v = operands()

    def score(s, *_):
        return jnp.where(jax.lax.stop_gradient(s) > 0, s, s / 4)

    found = jax.grad(lambda q: jnp.sum(jnp.sin(attention(q, k, v, score=score))))(q)
    wanted = jax.grad(lambda q: jnp.sum(jnp.sin(plain(q, k, v, score=score)[0])))(q)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_only_what_is_wanted_is_computed():
    q, k, v = operands()
    bias = random(1, N, T, S)
    text = jax.jit(jax.grad(lambda q: jnp.sum(attention(q, k, v, bias=bias)))).lower(q).as_text()
    assert "d_q" in text and "d_bias" not in text
    if jax.default_backend() == "cpu":  # a GPU's kernels give dQ, dK and dV together
        assert "d_k" not in text


def test_deterministic():
    arrays = operands(t=200, s=200)
    gradient = jax.jit(jax.grad(lambda *x: jnp.sum(jnp.sin(attention(*x, deterministic=True))), (0, 1, 2)))
    for a, b in zip(gradient(*arrays), gradient(*arrays)):
        np.testing.assert_array_equal(a, b)


def test_keys_beyond_their_length_do_not_leak():
    q, k, v = operands()
    lengths = np.array([7, S], np.int32)
    poisoned = [x.at[0, 7:].set(jnp.nan) for x in (k, v)]
    clean = lambda k, v: jax.value_and_grad(lambda q: jnp.sum(jnp.sin(attention(q, k, v, kv_lengths=lengths))))(q)
    for got, expected in zip(clean(*poisoned), clean(k, v)):
        np.testing.assert_array_equal(got, expected)


def test_lengths_beyond_i32_are_all_there_is():
    arrays = operands()
    expected = attention(*arrays, kv_lengths=jnp.array([S, 5]))
    np.testing.assert_array_equal(attention(*arrays, kv_lengths=jnp.array([2**32 - 1, 5], jnp.uint32)), expected)
    with enable_x64(True):
        found = attention(*arrays, kv_lengths=jnp.array([2**32 + 3, 5]))
    np.testing.assert_array_equal(found, expected)


# ---- jax.nn.dot_product_attention

# The residual is newer than JAX 0.5.
RESIDUAL = {"return_residual": True} if "return_residual" in inspect.signature(
    jax.nn.dot_product_attention).parameters else {}

JAX_OPTIONS = {
    "none": {},
    "causal": {"is_causal": True},
    "scale": {"scale": 0.3},
    "window": {"local_window_size": (2, 1)},
    "causal window": {"local_window_size": 3, "is_causal": True},
    "lengths": {"query_seq_lengths": np.array([T, 4], np.int32), "key_value_seq_lengths": np.array([7, S], np.int32)},
    "no keys": {"key_value_seq_lengths": np.array([0, 5], np.int32)},
    "q lengths": {"query_seq_lengths": np.array([0, 5], np.int32)},
    "mask with empty rows": {"mask": MASK},
    "mask of heads": {"mask": np.random.default_rng(8).random((1, N, 1, S)) < 0.5, "is_causal": True},
    "bias and mask": {"bias": np.random.default_rng(5).standard_normal((1, N, T, S), np.float32), "mask": MASK},
    "all": {"bias": np.random.default_rng(5).standard_normal((B, 1, T, S), np.float32), "mask": MASK, "is_causal": True,
            "scale": 0.5, "local_window_size": (4, 4), "query_seq_lengths": np.array([9, T], np.int32),
            "key_value_seq_lengths": np.array([S, 8], np.int32)},
}


if not RESIDUAL:  # JAX 0.5 masked these otherwise than it does now
    del JAX_OPTIONS["window"], JAX_OPTIONS["q lengths"]


@pytest.mark.parametrize("name, n, k", [*((name, 4, 2) for name in JAX_OPTIONS), ("all", 4, 4), ("all", 4, 1)])
def test_parity(name, n, k):
    options, arrays = JAX_OPTIONS[name], operands(n=n, k=k)

    def both(f):
        def loss(*a):
            found = f(*a, **options, **RESIDUAL)
            return jnp.sum(jnp.sin(found[0] if RESIDUAL else found)), found
        return jax.jit(jax.value_and_grad(loss, (0, 1, 2), has_aux=True))(*arrays)

    ours, theirs = both(dot_product_attention), both(jax.nn.dot_product_attention)
    for got, expected in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs)):
        assert got.dtype == expected.dtype
        np.testing.assert_allclose(got, expected, rtol=5e-4, atol=5e-5)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_parity_in_low_precision(dtype):
    options = {"mask": MASK, "key_value_seq_lengths": np.array([9, S], np.int32), **RESIDUAL}
    ours, theirs = (jax.tree.leaves(f(*operands(dtype), **options)) for f in (dot_product_attention,
                                                                           jax.nn.dot_product_attention))
    for got, expected in zip(ours, theirs):
        assert got.dtype == dtype
        np.testing.assert_allclose(got.astype(jnp.float32), expected.astype(jnp.float32), rtol=2e-2, atol=2e-2)


def test_parity_without_batch():
    q, k, v = (x[0] for x in operands())
    for options in ({}, {"mask": MASK[:1], **RESIDUAL}):
        for got, expected in zip(jax.tree.leaves(dot_product_attention(q, k, v, **options)),
                                 jax.tree.leaves(jax.nn.dot_product_attention(q, k, v, **options))):
            np.testing.assert_allclose(got, expected, rtol=5e-4, atol=5e-5)


def refusals():
    q, k, v = operands()
    ids = np.zeros((B, T), np.int32)
    return [
        (ValueError, "q has shape (11, 4)", (q[0, :, :, 0], k[0, :, :, 0], v[0, :, :, 0]), {}),
        (ValueError, "expected all three with a batch or all without", (q[0], k, v), {}),
        (TypeError, "q has dtype int32, expected float64 or float32 or float16 or bfloat16", (q.astype(jnp.int32), k, v), {}),
        (TypeError, "k has dtype bfloat16, expected float32 as q has", (q, k.astype(jnp.bfloat16), v), {}),
        (ValueError, "k has 3 heads, expected a divisor of q's 4 heads", (q, *(jnp.ones((B, S, 3, H)),) * 2), {}),
        (ValueError, "k has head dim 8, expected 16 as q has", (q, k[..., :8], v), {}),
        (ValueError, "v has shape (2, 18, 2, 16), expected that of k, (2, 19, 2, 16)", (q, k, v[:, 1:]), {}),
        (ValueError, "k has batch 1, expected 2 as q has", (q, k[:1], v[:1]), {}),
        (ValueError, "layout is 'TBNH', expected 'BTNH' or 'BNTH'", (q, k, v), {"layout": "TBNH"}),
        (ValueError, "bias has shape (3, 1, 11, 19), expected one that broadcasts to [B, N, T, S], which is (2, 4, 11, 19)",
         (q, k, v), {"bias": jnp.zeros((3, 1, T, S))}),
        (TypeError, "bias has dtype bool", (q, k, v), {"bias": MASK}),
        (TypeError, "bias has dtype complex64, expected a floating one", (q, k, v), {"bias": jnp.zeros((T, S), jnp.complex64)}),
        (TypeError, "mask has dtype int8, expected bool", (q, k, v), {"mask": MASK.astype(np.int8)}),
        (ValueError, "causal is 'left', expected 'top_left' or 'bottom_right'", (q, k, v), {"causal": "left"}),
        (TypeError, "causal is ndarray, expected True or False", (q, k, v), {"causal": np.ones(3, bool)}),
        (TypeError, "return_lse is str, expected True or False", (q, k, v), {"return_lse": "no"}),
        (TypeError, "deterministic is NoneType, expected True or False", (q, k, v), {"deterministic": None}),
        (ValueError, "layout is ['BTNH'], expected 'BTNH' or 'BNTH'", (q, k, v), {"layout": ["BTNH"]}),
        (ValueError, "window is (-1, 0), expected sides of at least 0", (q, k, v), {"window": (-1, 0)}),
        (TypeError, "window is '3', expected an int or a pair", (q, k, v), {"window": "3"}),
        (TypeError, "window is (True, 0), expected an int or a pair", (q, k, v), {"window": (True, 0)}),
        (TypeError, "scale has dtype complex64, expected a real number", (q, k, v), {"scale": jnp.array(1j)}),
        (ValueError, "scale is nan, expected a finite number", (q, k, v), {"scale": float("nan")}),
        (ValueError, "scale is an int of 1329 bits, expected a number that a float holds", (q, k, v), {"scale": 10**400}),
        (ValueError, "soft_cap is 0.0, expected a number from 1e-30 to 1e30", (q, k, v), {"soft_cap": 0}),
        (ValueError, "soft_cap is 1e+39, expected a number from 1e-30 to 1e30", (q, k, v), {"soft_cap": 1e39}),
        (ValueError, "dropout's probability is 1.0", (q, k, v), {"dropout": (1, 0)}),
        (TypeError, "dropout is float, expected (probability, seed)", (q, k, v), {"dropout": 0.5}),
        (TypeError, "dropout's seed is float32[]", (q, k, v), {"dropout": (0.5, 1.0)}),
        (TypeError, "dropout's seed is key<fry>[2], expected one integer or a key", (q, k, v),
         {"dropout": (0.5, jax.random.split(jax.random.key(0)))}),
        (TypeError, "dropout's seed is int, expected an array", (q, k, v), {"dropout": (0.5, 2**70)}),
        (TypeError, "sink has dtype bool, expected a floating one", (q, k, v), {"sink": np.ones(N, bool)}),
        (ValueError, "sink has shape (2,), expected (4,), one logit a head", (q, k, v), {"sink": jnp.zeros(K)}),
        (ValueError, "q_lengths has shape (3,), expected (2,)", (q, k, v), {"q_lengths": np.zeros(3, np.int32)}),
        (TypeError, "kv_lengths has dtype float32", (q, k, v), {"kv_lengths": np.zeros(B, np.float32)}),
        (ValueError, "segment_ids has shape (2, 11), expected (2, 19)", (q, k, v), {"segment_ids": ids}),
        (TypeError, "score is int, expected a function", (q, k, v), {"score": 3}),
        (ValueError, "score uses reduce_sum, expected", (q, k, v), {"score": lambda s, *_: s - s.sum(-1, keepdims=True)}),
        (ValueError, "score returns", (q, k, v), {"score": lambda s, b, h, i, j: i - j}),
        (ValueError, "score makes uint32s that wrap (convert_element_type of numbers that may give -18), expected", (q, k, v),
         {"score": lambda s, b, h, i, j: jnp.where((i - j).astype(jnp.uint32) < 4, s, -jnp.inf)}),
        (ValueError, "score makes uint8s that wrap (mul of numbers that may give 300)", (q, k, v),
         {"score": lambda s, b, h, i, j: s * (i.astype(jnp.uint8) * jnp.uint8(30))}),
        (ValueError, "score makes int16s that wrap (convert_element_type", (q, k, v),
         {"score": lambda s, b, h, i, j: jnp.where((jnp.arange(S) + 40000 + i).astype(jnp.int16) > 0, s, 0)}),
        (ValueError, "score computes with whole numbers beyond 2**24 in magnitude (mul), expected whole numbers that their type",
         (q, k, v), {"score": lambda s, b, h, i, j: jnp.where(j * 2654435 % 1000 < 500, s, -jnp.inf)}),
        (ValueError, "score makes int32s that wrap (add of numbers that may give", (q, k, v),
         {"score": lambda s, b, h, i, j: jnp.where(jnp.where(j > 3, j, 2**31 - 1) + i > 5, s, -jnp.inf)}),
        (ValueError, "score compares whole numbers beyond 2**24 in magnitude", (q, k, v),
         {"score": lambda s, b, h, i, j: jnp.where(jnp.where(j > 3, j, 2**30) > jnp.where(i > 3, i, 2**30 + 1), s, 0)}),
        (ValueError, "score cannot be traced as a function", (q, k, v), {"score": lambda s, *_: s if s > 0 else -s}),
    ]


@pytest.mark.parametrize("kind, sentence, arrays, options", refusals(), ids=lambda x: x if isinstance(x, str) else "")
def test_refusals(kind, sentence, arrays, options):
    for call in (lambda: attention(*arrays, **options),
                 lambda: jax.eval_shape(lambda *x: attention(*x, **options), *arrays)):
        with pytest.raises(kind) as caught:
            call()
        assert str(caught.value).startswith("attention: ") and sentence in str(caught.value)


def test_what_cannot_be_differentiated_is_said():
    q, k, v = operands()
    with pytest.raises(ValueError, match="attention: an array that score uses is differentiated"):
        jax.grad(lambda a: jnp.sum(attention(q, k, v, score=lambda s, *_: s * a)))(2.0)
    for name, value in {"scale": 0.5, "soft_cap": 0.5, "causal": True, "return_lse": True, "deterministic": False}.items():
        with pytest.raises(TypeError, match=f"attention: {name} is a traced array"):
            jax.jit(lambda x: attention(q, k, v, **{name: x}))(value)
    with pytest.raises(TypeError, match="dot_product_attention: is_causal is a traced array"):
        jax.jit(lambda x: dot_product_attention(q, k, v, is_causal=x))(True)
