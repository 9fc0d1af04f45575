"""layer_norm and its backward as a graph on the CPU, held against numpy in more precision and JAX's own derivatives in f64."""

import heddle
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

try:
    from jax import enable_x64
except ImportError:  # before JAX 0.8
    from jax.experimental import enable_x64

NAMES = {np.dtype(ml_dtypes.bfloat16): "bf16", np.dtype(np.float16): "f16", np.dtype(np.float32): "f32",
         np.dtype(np.float64): "f64"}
BF16, F16, F32, F64 = NAMES
EPSILON = 1e-5


def run(op, inputs, outputs, **constants):
    """The node's outputs, NaN before and in the gaps between rows. Arrays are [rows, h], [1, h] or [rows, 1]."""
    graph = heddle.Graph()
    tensor = lambda name, array: graph.tensor(name, list(array.shape), [n // array.itemsize for n in array.strides],
                                              NAMES[array.dtype])
    ports = {port: tensor(port, array) for port, array in (inputs | outputs).items()}
    ports |= {port: graph.tensor(port, [1, 1], dtype="f32", constant=value) for port, value in constants.items()}
    graph.node(op, **ports)
    plan = heddle.Plan(graph, "cpu")
    workspace = np.empty(max(plan.workspace_bytes, 1), np.uint8)
    plan.execute({ports[port].uid: array.ctypes.data for port, array in (inputs | outputs).items()}, workspace.ctypes.data)
    return [outputs[port] for port in outputs]


def gapped(rows, h, dtype, gap):
    """Rows that lie `gap` elements of NaN apart."""
    return np.full((rows, h + gap), np.nan, dtype)[:, :h]


def unwritten(shape, dtype):
    return np.full(shape, np.nan, dtype)


def forward(x, weight, bias, y_dtype, gap=0):
    """(y, mean, inv_variance) of our own."""
    rows, h = x.shape
    wide = F64 if x.dtype == F64 else F32
    inputs = {"x": x, "scale": weight} | ({} if bias is None else {"bias": bias})
    y = gapped(rows, h, y_dtype, gap)
    found = run("layer_norm", inputs, {"y": y, "mean": unwritten((rows, 1), wide),
                                       "inv_variance": unwritten((rows, 1), wide)}, epsilon=EPSILON)
    if gap:
        assert np.isnan(y.base[:, h:].astype(np.float64)).all(), "between rows nothing is written"
    return found


def two_passes(x, weight, bias, dtype):
    """(y, mean, inv_variance), each step rounded to `dtype`: the truth in more precision, or the naive computation."""
    of = lambda a: a.mean(-1, keepdims=True, dtype=dtype)  # by halves
    x, weight = x.astype(dtype), weight.astype(dtype)
    mean = of(x)
    inverse = 1 / np.sqrt(of((x - mean)**2) + dtype(EPSILON))
    y = (x - mean) * inverse * weight
    return y if bias is None else y + bias.astype(dtype), mean, inverse


def assert_as_close(found, truth, naive):
    """The largest error is at most twice the naive computation's, or a few roundings of what is stored."""
    error = lambda of: np.abs(of.astype(truth.dtype) - truth).max()
    step = float(ml_dtypes.finfo(found.dtype).eps)
    assert error(found) <= 2 * error(naive.astype(found.dtype)) + step * np.abs(truth).max()


TYPES = [(F32, F32, F32), (BF16, BF16, BF16), (F16, F32, F16), (BF16, F32, F32), (F32, F16, BF16), (F64, F64, F64)]


def operands(h, types, offset, rows=9):
    rng = np.random.default_rng(h)
    x = gapped(rows, h, types[0], 5)
    x[:] = offset + rng.standard_normal((rows, h)) * np.linspace(0.5, 2, h) + np.linspace(-1, 1, rows)[:, None]
    return x, *(rng.standard_normal((1, h)).astype(types[1]) for _ in range(2)), types[2]


@pytest.mark.parametrize("h", [2, 3, 16, 40, 1000, 4099])
@pytest.mark.parametrize("types", TYPES, ids=lambda types: "_".join(NAMES[one] for one in types))
@pytest.mark.parametrize("far", [False, True], ids=["around_0", "far"])
def test_forward(types, h, far):
    offset = {BF16: 10, F16: 10, F32: 1e4, F64: 1e9}[types[0]] if far else 0
    x, weight, bias, y_dtype = operands(h, types, offset)
    found = forward(x, weight, bias, y_dtype, gap=3)
    own = np.float64 if types[0] == F64 else np.float32
    for one, truth, naive in zip(found, two_passes(x, weight, bias, np.longdouble), two_passes(x, weight, bias, own)):
        assert_as_close(one, truth, naive)


def test_rows_far_from_0_keep_the_digits_that_f32_has():
    """E[x^2] - mean^2 would have none left, and one rounding of the mean would cost 1e-3 of y."""
    x, weight, _, _ = operands(4096, TYPES[0], 1e4)
    y, mean, inverse = forward(x, weight, None, F32)
    truth = two_passes(x, weight, None, np.longdouble)
    assert np.abs(y - truth[0]).max() < 2e-6
    assert np.abs(mean - truth[1]).max() <= np.spacing(np.float32(1e4)) / 2
    assert np.abs(inverse / truth[2] - 1).max() < 2e-7


@pytest.mark.parametrize("far", [0, 1e4])
@pytest.mark.parametrize("h", [2, 40, 1000])
def test_backward(h, far):
    """From x on: statistics are those of our own forward."""
    x, weight, bias, _ = operands(h, TYPES[0], far, rows=70)
    dy = np.random.default_rng(1).standard_normal(x.shape).astype(F32)
    _, mean, inverse = forward(x, weight, bias, F32)
    found = run("layer_norm_backward", {"dy": dy, "x": x, "scale": weight, "mean": mean, "inv_variance": inverse},
                {"dx": gapped(*x.shape, F32, 2), "d_scale": unwritten((1, h), F32), "d_bias": unwritten((1, h), F32)})

    def norm(x, weight, bias):
        return (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + EPSILON) * weight + bias

    def gradients(dtype):
        arrays = (jnp.asarray(np.ascontiguousarray(one), dtype) for one in (x, weight, bias))
        return [np.asarray(one) for one in jax.vjp(norm, *arrays)[1](jnp.asarray(dy, dtype))]

    with enable_x64(True):
        for one, truth, naive in zip(found, gradients(jnp.float64), gradients(jnp.float32)):
            assert_as_close(one, truth, naive)


def test_channels_of_many_f64_are_as_exact_as_those_of_few():
    rng = np.random.default_rng(3)
    x, dy = 3 + rng.standard_normal((2, 1, 2, 1 << 16)), 3 + rng.standard_normal((2, 1, 2, 1 << 16))
    x, dy = (np.moveaxis(one, 2, 1) for one in (x, dy))  # [N, C, 1, many]
    one, y, of_channel = np.ones((1, 2, 1, 1)), unwritten((2, 2, 1, 1 << 16), F64), lambda n: unwritten((n, 2, 1, 1), F64)
    y, mean, inverse = run("instance_norm", {"x": x, "scale": one, "bias": 0 * one},
                           {"y": y, "mean": of_channel(2), "inv_variance": of_channel(2)}, epsilon=EPSILON)
    dx, d_scale, d_bias = run("instance_norm_backward", {"dy": dy, "x": x, "scale": one, "mean": mean, "inv_variance": inverse},
                              {"dx": 0 * y, "d_scale": of_channel(1), "d_bias": of_channel(1)})

    def truth(dtype):
        mean = lambda a: a.mean((2, 3), keepdims=True)
        distance, g = x - mean(x.astype(dtype)), dy.astype(dtype)
        inverse = 1 / np.sqrt(mean(distance**2) + dtype(EPSILON))
        y = distance * inverse
        sums = [a.sum((0, 2, 3)).reshape(1, 2, 1, 1) for a in (g * y, g)]
        return y, inverse, inverse * (g - mean(g) - y * mean(g * y)), *sums

    for found, exact, naive in zip((y, inverse, dx, d_scale, d_bias), truth(np.longdouble), truth(np.float64)):
        assert_as_close(found, exact, naive)


def test_equal_numbers_are_their_bias_and_bad_rows_are_alone():
    x, weight, bias, _ = operands(33, TYPES[0], 0)
    x[1], x[3, 5], x[5, 0] = np.float32(1e4 / 3), np.nan, np.inf
    y, mean, inverse = forward(x, weight, bias, F32)
    np.testing.assert_array_equal(y[1], bias[0])
    assert mean[1] == x[1, 0]
    bad = np.isin(np.arange(len(x)), (3, 5))
    assert np.isnan(y[bad]).all() and np.isnan(inverse[bad]).all()
    assert np.isfinite(y[~bad]).all() and np.isfinite(inverse[~bad]).all()


@pytest.mark.parametrize("by_value", [False, True])
def test_epsilon_may_come_at_the_execution(by_value):
    x, weight, bias = (np.ascontiguousarray(one) for one in operands(24, TYPES[0], 0)[:3])
    graph = heddle.Graph(io="f32")
    ports = {"x": graph.tensor("x", list(x.shape)), "scale": graph.tensor("w", [1, 24]), "bias": graph.tensor("b", [1, 24]),
             "epsilon": graph.tensor("epsilon", [1, 1], dtype="f32", by_value=by_value), "y": graph.tensor("y")}
    graph.node("layer_norm", **ports)
    plan = heddle.Plan(graph, "cpu")
    workspace = np.empty(max(plan.workspace_bytes, 1), np.uint8)
    for epsilon in (0.25, 4.0):
        arrays = {"x": x, "scale": weight, "bias": bias, "epsilon": np.full(1, epsilon, F32), "y": unwritten(x.shape, F32)}
        plan.execute({ports[port].uid: array.ctypes.data for port, array in arrays.items()}, workspace.ctypes.data)
        wide = x.astype(np.float64)
        expected = (wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + epsilon) * weight + bias
        np.testing.assert_allclose(arrays["y"], expected, rtol=1e-5, atol=1e-6)
