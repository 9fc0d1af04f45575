"""Activations and their derivatives as pointwise nodes: held against numpy in f64 at every extreme, and against JAX."""

import math

import heddle
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from pointwise_nodes import EXTREMES, Nodes, apply

_erf = np.vectorize(math.erf, otypes=[np.float64])


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def relu(x, relu_lower_clip=0.0, relu_upper_clip=np.inf, relu_lower_clip_slope=0.0):
    below = relu_lower_clip + (relu_lower_clip_slope * (x - relu_lower_clip) if relu_lower_clip_slope else 0)
    return np.where(x <= relu_lower_clip, below, np.where(x >= relu_upper_clip, relu_upper_clip, x))


def relu_slope(x, relu_lower_clip=0.0, relu_upper_clip=np.inf, relu_lower_clip_slope=0.0):
    clipped = (x >= relu_upper_clip) & np.isfinite(relu_upper_clip)
    return np.where(x <= relu_lower_clip, relu_lower_clip_slope, np.where(clipped, 0, 1.0))


def gelu_slope(x):
    return 0.5 * (1 + _erf(x / np.sqrt(2))) + x * (np.exp(-0.5 * x * x) / np.sqrt(2 * np.pi))


def inner(x):
    """2u of gelu_approx_tanh's tanh(u): (1 + tanh(u)) / 2 is the sigmoid of 2u, and nothing cancels in that."""
    return np.sqrt(8 / np.pi) * (x + 0.044715 * x**3)


def gelu_tanh_slope(x):
    s = sigmoid(inner(x))
    return s + x * (s * (1 - s) * np.sqrt(8 / np.pi) * (1 + 3 * 0.044715 * x * x))


def swish_slope(x, swish_beta=1.0):
    s = sigmoid(swish_beta * x)
    return s + x * (swish_beta * (s * (1 - s)))


# Mode -> what it makes of x and its numbers, its slope, and numbers to try.
ACTIVATIONS = {
    "relu": (relu, relu_slope, [{}, {"relu_upper_clip": 6}, {"relu_lower_clip_slope": 0.125},
                                {"relu_lower_clip": -0.5, "relu_upper_clip": 2.5, "relu_lower_clip_slope": -1.5}]),
    "elu": (lambda x, elu_alpha=1.0: np.where(x < 0, elu_alpha * np.expm1(x), x),
            lambda x, elu_alpha=1.0: np.where(x < 0, elu_alpha * np.exp(x), 1),
            [{}, {"elu_alpha": 0.3}, {"elu_alpha": -2}]),
    "gelu": (lambda x: 0.5 * x * (1 + _erf(x / np.sqrt(2))), gelu_slope, [{}]),
    "gelu_approx_tanh": (lambda x: x * sigmoid(inner(x)), gelu_tanh_slope, [{}]),
    "softplus": (lambda x, softplus_beta=1.0: np.logaddexp(0, softplus_beta * x) / softplus_beta,
                 lambda x, softplus_beta=1.0: sigmoid(softplus_beta * x),
                 [{}, {"softplus_beta": 10}, {"softplus_beta": -0.5}, {"softplus_beta": 1e-3}]),
    "swish": (lambda x, swish_beta=1.0: x * sigmoid(swish_beta * x), swish_slope,
              [{}, {"swish_beta": 1.702}, {"swish_beta": -3}, {"swish_beta": 0}]),
    "tanh": (None, lambda x: 1 - np.tanh(x)**2, [{}]),
    "sigmoid": (None, lambda x: sigmoid(x) * (1 - sigmoid(x)), [{}]),
}
CASES = [pytest.param(mode, numbers, id="-".join([mode, *map(str, numbers.values())]))
         for mode, (_, _, tried) in ACTIVATIONS.items() for numbers in tried]
FORWARDS = [case for case in CASES if ACTIVATIONS[case.values[0]][0]]
X = np.concatenate([EXTREMES, np.random.default_rng(1).standard_normal(300).astype(np.float32) * 4])


def rounded(truth):
    with np.errstate(over="ignore"):
        return np.asarray(truth, np.float64).astype(np.float32)


def agree(found, truth, size, where=True):
    """NaN and infinite where the truth is; else within 16 roundings of numbers of this size, below 2^-126 maybe 0."""
    truth, where = rounded(truth), np.broadcast_to(where, found.shape)
    for kind in (np.isnan, np.isposinf, np.isneginf):
        np.testing.assert_array_equal(kind(found)[where], kind(truth)[where])
    finite = where & np.isfinite(truth)
    error = np.abs(found.astype(np.float64) - truth)[finite]
    allowed = (16 * 2.0**-24 * np.broadcast_to(size, found.shape) + 1.2e-38)[finite]
    worst = np.argmax(error - allowed)
    assert (error <= allowed).all(), f"{found[finite][worst]} for {truth[finite][worst]}"


@pytest.mark.parametrize("mode, numbers", FORWARDS)
def test_forwards_at_extremes(mode, numbers):
    function = ACTIVATIONS[mode][0]
    with np.errstate(all="ignore"):
        x = X.astype(np.float64)
        truth = function(x, **numbers)
        # An exponent's own rounding is one of the result's for each unit, where f32 has e to its power at all.
        beta = numbers.get("swish_beta", numbers.get("softplus_beta", 1))
        exponent = inner(x) if mode == "gelu_approx_tanh" else beta * x
        size = np.abs(truth) * (1 + np.minimum(np.abs(exponent), 110)) + 1e-30 * np.abs(x)
        if mode == "gelu":  # 1 + erf cancels
            size += np.abs(x)
        agree(apply(f"{mode}_fwd", X, **numbers), truth, size)


@pytest.mark.parametrize("mode, numbers", CASES)
def test_backwards_at_pairs_of_extremes(mode, numbers):
    slope = ACTIVATIONS[mode][1]
    d_y, x = EXTREMES[:, None], X[None, :]
    found = apply(f"{mode}_bwd", d_y, x, **numbers)
    with np.errstate(all="ignore"):
        at = slope(x.astype(np.float64), **numbers)
        truth = d_y.astype(np.float64) * at
        if mode == "relu":  # a flat piece lets nothing through
            truth = np.where(at == 0, 0, truth)
        # What f32 rounds to 0 lets nothing of an infinite gradient through.
        where = np.isfinite(d_y) | (np.abs(at) > 1e-5) | (mode == "relu") | np.isnan(at)
        reach = np.minimum(np.abs(np.nan_to_num(x * numbers.get("swish_beta", 1))), 20)
        size = np.abs(np.nan_to_num(d_y.astype(np.float64))) * (np.abs(at) + reach)
        agree(found, truth, size, where)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16], ids=["f32", "f16", "bf16"])
@pytest.mark.parametrize("mode, numbers", CASES)
def test_any_strides_and_types(mode, numbers, dtype):
    """Columns that lie far apart, a gradient that is broadcast, and a result whose gaps stay NaN."""
    rng = np.random.default_rng(11)
    x = (rng.standard_normal((3, 21, 5)) * 3).astype(dtype).transpose(2, 0, 1)
    d_y = rng.standard_normal((5, 1, 21)).astype(dtype)
    for name, arrays in (("fwd", (x,)), ("bwd", (d_y, x))):
        value, slope, _ = ACTIVATIONS[mode]
        if name == "fwd" and value is None:
            continue
        wide = np.full((5, 3, 50), np.nan, dtype)
        y = wide[:, :, 3:45:2]
        nodes = Nodes()
        nodes.add(nodes.give(y), f"{mode}_{name}", *map(nodes.give, arrays), **numbers)
        nodes.run()
        x64 = x.astype(np.float64)
        truth = value(x64, **numbers) if name == "fwd" else d_y.astype(np.float64) * slope(x64, **numbers)
        eps = float(ml_dtypes.finfo(dtype).eps)
        # Rounded once, of what f32 makes of it.
        size = np.abs(truth) + (np.abs(x64) if name == "fwd" else np.abs(d_y.astype(np.float64)) * (1 + np.abs(x64)))
        allowed = 0.501 * eps * np.abs(truth) + 2.0**-22 * size + (2.0**-25 if dtype == np.float16 else 0)
        assert (np.abs(y.astype(np.float64) - truth) <= allowed).all()
        assert np.isnan(wide.astype(np.float32)).sum() == wide.size - y.size


@pytest.mark.parametrize("mode, numbers, function", [
    ("relu", {}, jax.nn.relu), ("relu", {"relu_upper_clip": 6}, jax.nn.relu6),
    ("relu", {"relu_lower_clip_slope": 0.01}, jax.nn.leaky_relu), ("elu", {}, jax.nn.elu),
    ("relu", {"relu_lower_clip": -1, "relu_upper_clip": 1}, jax.nn.hard_tanh),
    ("elu", {"elu_alpha": 1.6}, lambda x: jax.nn.elu(x, 1.6)),
    ("gelu", {}, lambda x: jax.nn.gelu(x, approximate=False)), ("gelu_approx_tanh", {}, jax.nn.gelu),
    ("softplus", {}, jax.nn.softplus), ("swish", {}, jax.nn.silu), ("tanh", {}, jnp.tanh),
    ("sigmoid", {}, jax.nn.sigmoid)])
def test_as_jax_has_them(mode, numbers, function):
    rng = np.random.default_rng(5)
    x, d_y = (rng.standard_normal((4, 200)).astype(np.float32) * 3 for _ in range(2))
    y, pullback = jax.vjp(function, x)
    np.testing.assert_allclose(apply(f"{mode}_fwd", x, **numbers), y, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(apply(f"{mode}_bwd", d_y, x, **numbers), pullback(d_y)[0], rtol=1e-5, atol=3e-5)


def test_a_gated_unit_is_one_step():
    """swish(gate) * up with gelu beside it, as transformers' MLPs have them."""
    rng = np.random.default_rng(3)
    gate, up, y, z = (rng.standard_normal((6, 40)).astype(np.float32) for _ in range(4))
    nodes = Nodes()
    given = nodes.give(gate)
    nodes.add(nodes.give(y), "mul", nodes.add(nodes.inner(), "swish_fwd", given), nodes.give(up))
    nodes.add(nodes.give(z), "gelu_fwd", given)
    assert nodes.run().description.count("\n") == 1
    np.testing.assert_allclose(y, gate * sigmoid(gate.astype(np.float64)) * up, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(z, ACTIVATIONS["gelu"][0](gate.astype(np.float64)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("numbers", [{}, {"swish_beta": 1.5}])
def test_of_scores(numbers):
    """Softmax of swished scores, and its derivative, which the library finds: against JAX in f32."""
    rng = np.random.default_rng(17)
    q, k, v, d_o = (rng.standard_normal((1, 2, n, 8)).astype(np.float32) for n in (5, 7, 7, 5))

    def attention(q, k, v):
        s = jnp.einsum("bhqd,bhkd->bhqk", q, k)
        p = jax.nn.softmax(s * jax.nn.sigmoid(numbers.get("swish_beta", 1) * s))
        return jnp.einsum("bhqk,bhkd->bhqd", p, v)

    truth, pullback = jax.vjp(attention, q, k, v)
    found = [np.zeros_like(q), np.zeros((1, 2, 5, 1), np.float32)]
    gradients = [np.zeros_like(x) for x in (q, k, v)]
    for op, bound in (("sdpa", {"q": q, "k": k, "v": v, "o": found[0], "stats": found[1]}),
                      ("sdpa_backward", {"q": q, "k": k, "v": v, "o": found[0], "stats": found[1], "d_o": d_o,
                                         "d_q": gradients[0], "d_k": gradients[1], "d_v": gradients[2]})):
        graph = heddle.Graph(io="f32", intermediate="f32")
        ports = {name: graph.tensor(name, list(array.shape), dtype="f32") for name, array in bound.items()}
        score = heddle.Expression(graph)
        score.apply("swish_fwd", score.score, **numbers)
        graph.node(op, "attention", **ports, score_mod=score)
        plan = heddle.Plan(graph, "cpu")
        workspace = np.zeros(max(plan.workspace_bytes, 1), np.uint8)
        plan.execute({ports[name].uid: array.ctypes.data for name, array in bound.items()}, workspace.ctypes.data)
    for ours, theirs in zip([found[0], *gradients], [truth, *pullback(d_o)], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_numbers_of_other_modes_are_refused():
    with pytest.raises(heddle.Error, match="gelu_fwd has a swish_beta, expected none: only swish_fwd and swish_bwd"):
        apply("gelu_fwd", X, swish_beta=2)
    with pytest.raises(heddle.Error, match="softplus_fwd has a softplus_beta of 0, expected"):
        apply("softplus_fwd", X, softplus_beta=0)
