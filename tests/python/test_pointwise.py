"""pointwise nodes as graphs on the CPU, held against numpy in f64 and against JAX: every mode, at every extreme."""

import math

import heddle
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from pointwise_nodes import EXTREMES, Nodes, apply

# Mode -> what numpy in f64 and JAX in f32 make of it.
ONE = {
    "identity": (lambda x: x, lambda x: x), "neg": (np.negative, jnp.negative), "abs": (np.abs, jnp.abs),
    "exp": (np.exp, jnp.exp), "log": (np.log, jnp.log), "sqrt": (np.sqrt, jnp.sqrt),
    "rsqrt": (lambda x: 1 / np.sqrt(x), jax.lax.rsqrt), "reciprocal": (lambda x: 1 / x, jnp.reciprocal),
    "tanh_fwd": (np.tanh, jnp.tanh), "sigmoid_fwd": (lambda x: 1 / (1 + np.exp(-x)), jax.nn.sigmoid),
    "erf": (np.vectorize(math.erf, otypes=[np.float64]), jax.lax.erf), "sin": (np.sin, jnp.sin), "cos": (np.cos, jnp.cos),
    "tan": (np.tan, jnp.tan), "floor": (np.floor, jnp.floor), "ceil": (np.ceil, jnp.ceil),
    "logical_not": (np.logical_not, jnp.logical_not),
}
TWO = {
    "add": (np.add, jnp.add), "sub": (np.subtract, jnp.subtract), "mul": (np.multiply, jnp.multiply),
    "div": (np.divide, jnp.divide), "min": (np.minimum, jnp.minimum), "max": (np.maximum, jnp.maximum),
    "pow": (np.power, jnp.power), "mod": (np.fmod, jax.lax.rem),
    "cmp_eq": (np.equal, jnp.equal), "cmp_neq": (np.not_equal, jnp.not_equal), "cmp_lt": (np.less, jnp.less),
    "cmp_le": (np.less_equal, jnp.less_equal), "cmp_gt": (np.greater, jnp.greater), "cmp_ge": (np.greater_equal, jnp.greater_equal),
    "logical_and": (np.logical_and, jnp.logical_and), "logical_or": (np.logical_or, jnp.logical_or),
}
# The sign of a 0 is theirs too; of minima and maxima of 0 and -0 it is nobody's.
SIGNED = {"identity", "neg", "abs", "add", "sub", "mul", "div", "sqrt", "reciprocal", "floor", "ceil", "mod", "sin", "erf"}


def agree(found, truth, mode, units=8):
    """NaN where it is NaN, infinite where it is infinite, else within `units` of the last place; f32 below 2^-126 may be 0."""
    with np.errstate(over="ignore"):
        rounded = np.asarray(truth, np.float64).astype(np.float32)
    found = np.asarray(found, np.float32)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(rounded), mode)
    for sign in (np.isposinf, np.isneginf):
        np.testing.assert_array_equal(sign(found), sign(rounded), mode)
    finite = np.isfinite(rounded)
    allowed = units * 2.0**-24 * np.abs(rounded[finite], dtype=np.float64) + 1.2e-38
    error = np.abs(found[finite].astype(np.float64) - rounded[finite])
    worst = np.argmax(error - allowed) if error.size else 0
    assert (error <= allowed).all(), f"{mode}: {found[finite][worst]} for {rounded[finite][worst]}"
    if mode in SIGNED:
        zero = (rounded == 0) & (found == 0)
        np.testing.assert_array_equal(np.signbit(found[zero]), np.signbit(rounded[zero]), mode)


@pytest.mark.parametrize("mode", ONE)
def test_every_mode_of_one_input_at_extremes(mode):
    x = np.concatenate([EXTREMES, np.random.default_rng(1).standard_normal(300).astype(np.float32) * 4])
    in_f64, in_jax = ONE[mode]
    found = apply(mode, x)
    with np.errstate(all="ignore"):
        agree(found, in_f64(x.astype(np.float64)), mode)
    agree(found, np.asarray(in_jax(x), np.float32), mode, units=24)


@pytest.mark.parametrize("mode", TWO)
def test_every_mode_of_two_inputs_at_pairs_of_extremes(mode):
    a, b = EXTREMES[:, None], EXTREMES[None, :]
    in_f64, in_jax = TWO[mode]
    found = apply(mode, a, b)
    with np.errstate(all="ignore"):
        truth = in_f64(a.astype(np.float64), b.astype(np.float64))
    agree(found, truth, mode)
    ours, theirs = found, np.asarray(in_jax(a, b), np.float32)
    if mode == "div":  # XLA multiplies by a reciprocal, and those of huge numbers are 0 to it
        ours, theirs = (one[:, ~(np.abs(EXTREMES) > 2.0**126)] for one in (ours, theirs))
    agree(ours, theirs, mode, units=24)
    # The same of inputs of other strides, and of a number in the place of an array.
    np.testing.assert_array_equal(apply(mode, a, np.ascontiguousarray(np.broadcast_to(b, found.shape).T).T), found)
    np.testing.assert_array_equal(apply(mode, a, b[:, 5:6]), found[:, 5:6])


def test_select_takes_nothing_of_the_value_that_is_not_chosen():
    mask = np.array([[True, False, True, False]])
    a = np.array([[1, np.nan, np.inf, np.nan]], np.float32)
    b = np.array([[np.nan, 2, np.nan, -np.inf]], np.float32)
    for given in (mask, mask.astype(np.int32) * -3, mask.astype(np.float32) * np.float32(1e-30)):
        np.testing.assert_array_equal(apply("binary_select", given, a, b), [[1, 2, np.inf, -np.inf]])
    assert np.isnan(apply("binary_select", np.array([[np.nan]], np.float32), a[:, 1:2], b[:, 1:2]))  # NaN is not 0


@pytest.mark.parametrize("axis", range(4))
@pytest.mark.parametrize("dtype", [np.int32, np.float32, np.float16])
def test_gen_index(axis, dtype):
    shape = (2, 3, 5, 37)
    y = np.full((*shape[::-1],), 99, dtype).T  # the first dim is the closest in memory
    nodes = Nodes()
    nodes.add(nodes.give(y), "gen_index", nodes.give(np.zeros(shape, np.float32)), axis=axis)
    nodes.run()
    np.testing.assert_array_equal(y, np.indices(shape)[axis])


def test_whole_numbers():
    n = np.arange(-60, 61, dtype=np.int32)
    a, b = n[:, None], np.concatenate([n[:60], n[61:]])[None, :]
    np.testing.assert_array_equal(apply("div", a, b), (a / b).astype(np.float32))
    nodes, quotient = Nodes(), np.zeros(np.broadcast_shapes(a.shape, b.shape), np.int32)
    ratio = nodes.add(nodes.inner(), "div", nodes.give(a), nodes.give(b))
    nodes.add(nodes.give(quotient), "floor", ratio)
    nodes.run()
    np.testing.assert_array_equal(quotient, a // b)  # 6 / 3 is 2, and no less
    np.testing.assert_array_equal(apply("mod", a, b, dtype=np.int32), np.fmod(a, b))
    for mode, function in (("add", np.add), ("sub", np.subtract), ("mul", np.multiply), ("min", np.minimum), ("max", np.maximum)):
        np.testing.assert_array_equal(apply(mode, a, b, dtype=np.int32), function(a, b))
    for mode, function in (("cmp_lt", np.less), ("cmp_eq", np.equal)):
        for dtype in (np.bool_, np.int32, np.float32, np.float16):
            np.testing.assert_array_equal(apply(mode, a, b, dtype=dtype), function(a, b).astype(dtype))
    far = np.array([1e20, -1e20, np.nan, np.inf, -np.inf, 2147483000, -0.5, 2.5], np.float32)
    np.testing.assert_array_equal(apply("floor", far, dtype=np.int32), np.asarray(jnp.floor(far).astype(jnp.int32)))


def test_booleans_are_true_unless_they_are_0():
    bytes_ = np.array([0, 1, 2, 255, 128], np.uint8).view(np.bool_)
    np.testing.assert_array_equal(apply("logical_not", bytes_, dtype=np.bool_), [True, False, False, False, False])
    np.testing.assert_array_equal(apply("identity", bytes_), [0, 1, 1, 1, 1])


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16], ids=["f32", "f16", "bf16"])
def test_a_chain_is_rounded_once(dtype):
    """x^2 * 3 / 7 - 1 by way of numbers that f16 does not hold, and tensors that say they are f16."""
    rng = np.random.default_rng(7)
    x = (rng.standard_normal((5, 300)) * 100).astype(dtype)
    x[0, 0] = 300
    three, seven, one = (np.full((1, 1), n, dtype) for n in (3, 7, 1))
    y, nodes = np.full((5, 300), np.nan, dtype), Nodes()
    given = nodes.give(x)
    square = nodes.add(nodes.inner("f16"), "mul", given, given)
    thrice = nodes.add(nodes.inner("f16"), "mul", square, nodes.give(three))
    part = nodes.add(nodes.inner("f16"), "div", thrice, nodes.give(seven))
    nodes.add(nodes.give(y), "sub", part, nodes.give(one))
    assert nodes.run().description.count("\n") == 1
    truth = x.astype(np.float64)**2 * 3 / 7 - 1
    # A rounding to the type, and the three of f32 before it.
    allowed = float(ml_dtypes.finfo(dtype).eps) / 2 * np.abs(truth) * 1.01 + 4 * 2.0**-24 * (np.abs(truth) + 1)
    with np.errstate(over="ignore"):
        infinite = np.isinf(truth.astype(dtype).astype(np.float64))
    np.testing.assert_array_equal(np.isinf(y.astype(np.float64)), infinite)
    assert (np.abs(y.astype(np.float64) - truth) <= allowed)[~infinite].all()


@pytest.mark.parametrize("seed", range(60))
def test_any_strides_and_broadcast_dims(seed):
    """Dims in any order in memory, gaps of NaN that stay, dims of 1, strides of 0."""
    rng = np.random.default_rng(seed)
    rank = int(rng.integers(1, 5))
    dims = [int(rng.choice([1, 2, 3, 8, 17, 300 if rank < 3 else 5])) for _ in range(rank)]

    def placed(shape, dtype, fill):
        order, gaps = rng.permutation(rank), rng.integers(0, 3, rank)
        wide = np.full([shape[d] + gaps[n] for n, d in enumerate(order)], fill, dtype)
        view = wide[tuple(slice(gaps[n] // 2, gaps[n] // 2 + shape[d]) for n, d in enumerate(order))]
        return wide, view.transpose(np.argsort(order))

    arrays = []
    for _ in range(3):
        shape = [1 if rng.random() < 0.3 else n for n in dims]
        dtype = rng.choice([np.float32, np.float16, ml_dtypes.bfloat16])
        view = placed(shape, dtype, np.nan)[1]
        view[...] = rng.standard_normal(shape).astype(dtype)
        if rng.random() < 0.2:
            view = np.broadcast_to(view, dims)
        arrays.append(view)
    shape = np.broadcast_shapes(*(array.shape for array in arrays))
    wide, y = placed(shape, np.float32, np.nan)
    nodes = Nodes()
    a, b, c = (nodes.give(array) for array in arrays)
    nodes.add(nodes.give(y), "sub", nodes.add(nodes.inner(), "mul", a, b), c)
    nodes.run()
    a, b, c = (array.astype(np.float64) for array in arrays)
    np.testing.assert_allclose(y, a * b - c, rtol=1e-6, atol=1e-6)
    assert np.isnan(wide).sum() == wide.size - y.size


def test_values_between_other_ops():
    """rms_norm of a sum, and a gate on what it makes: tensors between are virtual, in the workspace."""
    rng = np.random.default_rng(3)
    x, residual, y = (rng.standard_normal((6, 40)).astype(np.float32) for _ in range(3))
    weight = rng.standard_normal((1, 40)).astype(np.float32)
    nodes = Nodes()
    total = nodes.add(nodes.inner(), "add", nodes.give(x), nodes.give(residual))
    normed, epsilon = nodes.inner(), nodes.graph.tensor("epsilon", [1, 1], dtype="f32", constant=1e-5)
    nodes.graph.node("rms_norm", "norm", x=total, scale=nodes.give(weight), epsilon=epsilon, y=normed)
    gate = nodes.add(nodes.inner(), "sigmoid_fwd", normed)
    nodes.add(nodes.give(y), "mul", normed, gate)
    assert nodes.run().description.count("\n") == 3
    s = x.astype(np.float64) + residual
    n = s / np.sqrt((s * s).mean(1, keepdims=True) + 1e-5) * weight
    np.testing.assert_allclose(y, n / (1 + np.exp(-n)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dims, strides, sentence", [
    ([2**31, 1, 1, 1], None, "expected each from 1 to 2147483647"),
    ([2**31 - 1] * 4, None, "more elements than 63 bits count"),
    ([2**31 - 1, 2**31 - 1, 1, 1], [2**40, 2**62, 1, 1], "reaches beyond what 63 bits address"),
    ([2, 2], [-1, 1], "expected none to be negative"),
    ([0, 3], None, "expected each from 1"),
])
def test_hostile_sizes_are_refused_with_a_sentence(dims, strides, sentence):
    graph = heddle.Graph()
    x = graph.tensor("x", dims, strides, "f32")
    graph.node("pointwise", "op", mode="neg", a=x, y=graph.tensor("y", dtype="f32"))
    with pytest.raises(heddle.Error, match=sentence):
        heddle.Plan(graph, "cpu")


def test_an_unknown_mode_and_a_wrong_field_are_named():
    graph = heddle.Graph()
    x = graph.tensor("x", [2, 2], dtype="f32")
    with pytest.raises(heddle.Error, match="The field 'mode' is 'relu', expected one of identity, add"):
        graph.node("pointwise", "op", mode="relu", a=x, y=x)
    with pytest.raises(heddle.Error, match="pointwise has no field 'x' to set"):
        graph.node("pointwise", "op", mode="neg", x=x)


def test_a_chain_longer_than_a_step_is_refused():
    nodes = Nodes()
    x, y = np.zeros(3, np.float32), np.zeros(3, np.float32)
    value = nodes.give(x)
    for _ in range(2100):
        value = nodes.add(nodes.inner(), "exp", value)
    nodes.add(nodes.give(y), "neg", value)
    with pytest.raises(heddle.Error, match="one step has 2102 ops, expected at most 2048"):
        nodes.run()
