"""Norms of models in sessions of onnxruntime, run by Heddle's libraries: beside onnxruntime's own kernels, and beside f64."""

import re

import ml_dtypes
import numpy as np
import onnx_node
import onnxruntime
import pytest
from onnx import TensorProto, helper
from test_gqa import F32
from test_onnxruntime import MICROSOFT, ONNX, counted, known_dims, same, words  # noqa: F401

import heddle.onnxruntime

# ---- RMSNormalization, SimplifiedLayerNormalization and LayerNormalization ----

OUTPUTS_OF_NORM = {"RMSNormalization": ("Y",), "SimplifiedLayerNormalization": ("Y", "inv_std_var"),
                   "LayerNormalization": ("Y", "Mean", "InvStdDev")}


def normalised(x, scale, axis, epsilon, bias=0, centred=False):
    """Y, the rows' means (0 unless they are centred), and 1 / sqrt(mean(c^2) + epsilon), in f64."""
    x, axes = x.astype(np.float64), tuple(range(axis % x.ndim, x.ndim))
    mean = x.mean(axes, keepdims=True) * centred
    inverse = 1 / np.sqrt(((x - mean)**2).mean(axes, keepdims=True) + epsilon)
    return (x - mean) * inverse * np.asarray(scale, np.float64) + np.asarray(bias, np.float64), mean, inverse


SHAPES = [dict(), dict(dims=(2, 3, 8, 5), axis=2), dict(dims=(2, 3, 8, 5), axis=0), dict(dims=(2, 3, 8, 5), axis=2, scale=(5,)),
          dict(dims=(2, 3, 8, 5), axis=1, scale=(3, 1, 5)), dict(dims=(2, 3, 8, 5), axis=1, scale=(3, 1, 1)), dict(scale=(1,)),
          dict(scale=()), dict(scale=(1, 1, 40)), dict(dims=(0, 40)), dict(epsilon=0.5), dict(dims=(2, 3, 1))]
# Scales that differ from row to row, which onnxruntime takes where axis is 2.
OF_ROWS = [dict(dims=(2, 3, 40), axis=2, scale=scale) for scale in ((2, 3, 40), (2, 1, 40), (1, 3, 40))]
OF_OTHER_ROWS = [dict(dims=(2, 3, 4, 5), axis=3, scale=(3, 1, 5)), dict(dims=(2, 3, 4, 5), axis=-2, scale=(2, 1, 4, 1))]
NORMS = [(operator, options) for operator in OUTPUTS_OF_NORM for options in SHAPES]
NORMS += [("LayerNormalization", dict(bias=bias) | options)
          for options, bias in [(dict(), True), (dict(dims=(2, 3, 8, 5), axis=1), True), (dict(offset=30.0), True),
                                (dict(opset=9), True), (dict(opset=9), False), *((options, True) for options in OF_ROWS)]]
BEYOND_NORMS = [(operator, options) for operator in OUTPUTS_OF_NORM for options in OF_OTHER_ROWS]
BEYOND_NORMS += [("LayerNormalization", dict(dims=(2, 3, 8, 5), axis=1, scale=(5,), bias=(3, 1, 1))),
                 ("LayerNormalization", dict(dims=(2, 3, 4, 5), axis=2, bias=(3, 1, 5))), ("RMSNormalization", OF_ROWS[0])]


def draw_norm(operator, *, dims=(2, 3, 40), axis=-1, epsilon=1e-5, scale=None, bias=False, offset=0.0, dtype=np.float32,
              of_scale=None, opset=None):
    """A node, its inputs, results that are to be filled, and what is right in f64, by name. bias: whether, or its dims."""
    rng = np.random.default_rng(51)
    centred, outputs, of_scale = operator == "LayerNormalization", OUTPUTS_OF_NORM[operator], of_scale or dtype
    inputs = {"X": (rng.standard_normal(dims) * 0.1 + offset).astype(dtype),
              "Scale": rng.standard_normal(dims[axis:] if scale is None else scale).astype(of_scale)}
    if bias:
        inputs["B"] = rng.standard_normal(inputs["Scale"].shape if bias is True else bias).astype(of_scale)
    # An attribute is an f32, and so is its default.
    y, mean, inverse = normalised(inputs["X"], inputs["Scale"], axis, float(np.float32(epsilon)), inputs.get("B", 0), centred)
    exact = dict(zip(outputs, (y, mean, inverse) if centred else (y, inverse), strict=False))
    attributes = (dict(axis=axis) if axis != -1 else {}) | (dict(epsilon=epsilon) if epsilon != 1e-5 else {})
    node = onnx_node.Node(operator, "", ("X", "Scale", "B"), outputs, attributes,
                          opset or (23 if operator == "RMSNormalization" else 17))
    results = {name: np.full(array.shape, np.nan, of_scale if name == "Y" else np.float32) for name, array in exact.items()}
    return node, inputs, results, exact


@pytest.mark.parametrize("operator, options", NORMS + BEYOND_NORMS, ids=str)
def test_norm(operator, options, counted):  # noqa: F811
    node, inputs, results, exact = draw_norm(operator, **options)
    node.run(inputs, results, ONNX)
    counted(1, "ai.onnx")
    # Numbers of f32 far from 0 are as far from each other.
    close = F32 if not options.get("offset") else dict(rtol=2e-5, atol=2e-5)
    for name, array in results.items():
        np.testing.assert_allclose(array, exact[name], err_msg=name, **close)


@pytest.mark.parametrize("operator, options", NORMS, ids=str)
def test_norm_agrees_with_onnxruntime(operator, options):
    node, inputs, ours, _ = draw_norm(operator, **options)
    theirs = {name: array.copy() for name, array in ours.items()}
    node.run(inputs, ours, ONNX)
    node.run(inputs, theirs)
    # Its variance is that of squares less the mean's.
    close = dict(rtol=1e-5, atol=1e-6) if not options.get("offset") else dict(rtol=1e-2, atol=1e-2)
    for name, array in ours.items():
        np.testing.assert_allclose(array, theirs[name], err_msg=name, **close)


@pytest.mark.parametrize("of_scale", [np.float32, np.float16, ml_dtypes.bfloat16, np.float64])
@pytest.mark.parametrize("of_x", [np.float32, np.float16, ml_dtypes.bfloat16, np.float64])
@pytest.mark.parametrize("operator, options", [("RMSNormalization", {}), ("RMSNormalization", OF_OTHER_ROWS[0]),
                                               ("SimplifiedLayerNormalization", {}),
                                               ("SimplifiedLayerNormalization", dict(dims=(2, 3, 96))),
                                               ("LayerNormalization", dict(bias=True)),
                                               ("LayerNormalization", dict(dims=(2, 3, 1), bias=True)),
                                               ("LayerNormalization", OF_OTHER_ROWS[0] | dict(bias=True))], ids=str)
def test_norm_of_types(operator, options, of_x, of_scale):
    if (of_x is np.float64) != (of_scale is np.float64) or (operator == "LayerNormalization" and of_x != of_scale):
        return  # onnxruntime has no such kernels either
    node, inputs, results, exact = draw_norm(operator, dtype=of_x, of_scale=of_scale, **options)
    node.run(inputs, results, ONNX)
    close = {np.float64: 1e-12, np.float32: 2e-6, np.float16: 3e-3}.get(of_scale, 2e-2)
    for name, array in results.items():
        of_statistic = max(close, 1e-6) if name == "Y" else 1e-6
        np.testing.assert_allclose(array.astype(float), exact[name], err_msg=name, rtol=close if name == "Y" else of_statistic,
                                   atol=close / 2 if name == "Y" else of_statistic)


@pytest.mark.parametrize("outputs", [("Y",), ("Y", "Mean"), ("Y", "InvStdDev")], ids=str)
@pytest.mark.parametrize("dims", [(2, 3, 40), (2, 3, 1)], ids=str)
def test_layer_norm_has_the_outputs_that_are_wanted(dims, outputs):
    node, inputs, all_results, _ = draw_norm("LayerNormalization", dims=dims, bias=True)
    results = {name: np.full_like(all_results[name], np.nan) for name in outputs}
    node.run(inputs, results, ONNX)
    node.run(inputs, all_results, ONNX)
    same(results, {name: all_results[name] for name in outputs})


def test_arrays_that_lie_at_no_whole_elements():
    """As those of a file whose header has an odd number of bytes, of which onnxruntime hands on the address."""
    def moved(array):
        return np.frombuffer(b"\0" + array.tobytes(), array.dtype, offset=1).reshape(array.shape)

    def drawn(*dims):
        return rng.standard_normal(dims).astype(np.float32)

    rng = np.random.default_rng(52)
    node, inputs, results, exact = draw_norm("LayerNormalization", bias=True)
    calls = [(node, ONNX, inputs, {"Y": results["Y"]})]
    # A mask that the node fills up, and parts of a tensor that hold keys and values.
    calls.append((onnx_node.Node("Attention", "", ("Q", "K", "V", "attn_mask"), ("Y",), {}, 23), ONNX,
                  {"Q": drawn(1, 2, 3, 8), "K": drawn(1, 2, 5, 8), "V": drawn(1, 2, 5, 8), "attn_mask": drawn(3, 4)},
                  {"Y": np.empty((1, 2, 3, 8), np.float32)}))
    calls.append((onnx_node.Node("MultiHeadAttention", "com.microsoft", ("query", "key"), ("output",), {"num_heads": 2}), MICROSOFT,
                  {"query": drawn(1, 3, 16), "key": drawn(1, 5, 2, 2, 8)}, {"output": np.empty((1, 3, 16), np.float32)}))
    for node, library, inputs, results in calls:
        expected = {name: np.empty_like(array) for name, array in results.items()}
        node.run(inputs, expected, library)
        node.run({name: moved(array) for name, array in inputs.items()}, results, library)
        same(results, expected)
    np.testing.assert_allclose(calls[0][3]["Y"], exact["Y"], **F32)


def test_layer_norm_keeps_nan_and_infinity_in_their_rows_agrees_with_onnxruntime():
    node, inputs, results, _ = draw_norm("LayerNormalization", bias=True)
    inputs["X"][0, 1, 3], inputs["X"][1, 2, 39] = np.nan, np.inf
    node.run(inputs, results, ONNX)
    rows = np.isnan(results["Y"])
    assert rows[0, 1].all() and rows[1, 2].all() and rows.any(-1).sum() == 2
    theirs = {name: array.copy() for name, array in results.items()}
    node.run(inputs, theirs)
    np.testing.assert_array_equal(rows.any(-1), np.isnan(theirs["Y"]).any(-1))


@pytest.mark.parametrize("operator, dims, scale, attributes, sentence", [
    ("RMSNormalization", (3, 4), (4,), dict(axis=2), "axis must be from -2 to 1, as X has 2 dimensions. Got 2"),
    ("RMSNormalization", (3, 4), (3,), {},
     "scale has dims [3], expected those of X, [3, 4], or what is broadcast to them"),
    ("LayerNormalization", (3, 4), (1, 1, 4), {}, "Scale has dims [1, 1, 4], expected those of X, [3, 4]"),
    ("LayerNormalization", (3, 4), (2, 4), {}, "Scale has dims [2, 4], expected those of X, [3, 4]"),
    ("LayerNormalization", (3, 4), (4,), dict(B=(3,)), "B has dims [3], expected those of X, [3, 4]"),
    ("LayerNormalization", (3, 4), (4,), dict(axis=-3), "axis must be from -2 to 1, as X has 2 dimensions. Got -3"),
    ("LayerNormalization", (3, 4), (4,), dict(epsilon=float("nan")), "epsilon must be finite and not negative. Got nan"),
    ("RMSNormalization", (3, 4), (4,), dict(epsilon=-1.0), "epsilon must be finite and not negative. Got -1"),
    ("RMSNormalization", (3, 4), (4,), dict(axis=1.0), "The attribute axis is a number, expected an integer."),
], ids=words)
def test_norm_says_what_is_wrong(operator, dims, scale, attributes, sentence):
    inputs = {"X": np.ones(dims, np.float32), "Scale": np.ones(scale, np.float32)}
    if of_bias := attributes.pop("B", None):
        inputs["B"] = np.ones(of_bias, np.float32)
    node = onnx_node.Node(operator, "", ("X", "Scale", "B"), ("Y",), attributes, 23)
    with pytest.raises(Exception) as raised:
        node.run(inputs, {"Y": np.ones(dims, np.float32)}, ONNX)
    assert sentence in str(raised.value)


def test_dims_of_norms_known_before_a_run_are_those_of_the_run_agrees_with_onnxruntime():
    for operator, options in NORMS:
        node, inputs, results, _ = draw_norm(operator, **options)
        assert known_dims(node, inputs, results, ONNX) == results["Y"].shape


# ---- SkipSimplifiedLayerNormalization and SkipLayerNormalization ----

RMS, LAYER = "SkipSimplifiedLayerNormalization", "SkipLayerNormalization"
SHAPES_OF_SKIP = [dict(), dict(skip=(3, 40)), dict(skip=(1, 3, 40)), dict(dims=(5, 40)), dict(dims=(1, 5, 40), skip=(5, 40)),
                  dict(bias=True), dict(bias=True, skip=(3, 40)), dict(epsilon=0.5), dict(epsilon=1e-6), dict(dims=(3, 1, 2)),
                  dict(dims=(2, 70, 513), bias=True)]
SKIPS = [(RMS, options) for options in [*SHAPES_OF_SKIP, dict(epsilon=0.0)]]
SKIPS += [(LAYER, dict(beta=n % 3 != 1) | options) for n, options in enumerate(SHAPES_OF_SKIP)]
UNITS = {np.float64: 2**-24, np.float32: 2**-24, np.float16: 2**-11, ml_dtypes.bfloat16: 2**-8}  # of f64 the statistics' own
OUTPUTS_OF_SKIP = ("output", "mean", "inv_std_var", "input_skip_bias_sum")


def draw_skip(operator=RMS, dtype=np.float32, *, dims=(2, 3, 40), skip=None, bias=False, beta=False, epsilon=None, spread=1.0,
              offset=0.0, outputs=OUTPUTS_OF_SKIP):
    """A node, its inputs, results that are to be filled, and what is right in f64, by name."""
    rng = np.random.default_rng(61)
    normal = lambda *of: (offset + spread * rng.standard_normal(of)).astype(dtype)
    inputs = {"input": normal(*dims), "skip": normal(*(skip or dims)), "gamma": rng.standard_normal(dims[-1]).astype(dtype)}
    if beta:
        inputs["beta"] = rng.standard_normal(dims[-1]).astype(dtype)
    if bias:
        inputs["bias"] = normal(dims[-1])
    wide = {name: array.astype(np.float64) for name, array in inputs.items()}
    total = wide["input"] + wide["skip"] + wide.get("bias", 0)
    output, mean, inverse = normalised(total, wide["gamma"], -1,
                                       np.float32(1e-12 if epsilon is None else epsilon).astype(np.float64),
                                       wide.get("beta", 0), operator == LAYER)
    exact = {"output": output, "mean": np.broadcast_to(mean, inverse.shape), "inv_std_var": inverse, "input_skip_bias_sum": total}
    exact = {name: exact[name] for name in outputs}
    results = {name: np.full(array.shape, np.nan, np.float32 if array.shape[-1] == 1 else dtype) for name, array in exact.items()}
    names = ("input", "skip", "gamma", *(("beta",) if operator == LAYER else ()), "bias")
    node = onnx_node.Node(operator, "com.microsoft", names, OUTPUTS_OF_SKIP, {} if epsilon is None else {"epsilon": epsilon})
    return node, inputs, results, exact


@pytest.mark.parametrize("dtype", UNITS, ids=lambda dtype: dtype.__name__)
@pytest.mark.parametrize("operator, options", SKIPS, ids=str)
def test_skip_norm(operator, options, dtype, counted):  # noqa: F811
    """Each result is rounded once from sums in f32; a sum of three may lose the half of its last place twice."""
    node, inputs, results, exact = draw_skip(operator, dtype, **options)
    node.run(inputs, results, MICROSOFT)
    counted(1)
    unit = UNITS[dtype]
    for name in exact:
        assert np.abs(results[name].astype(np.float64) - exact[name]).max() <= 4 * unit * np.abs(exact[name]).max(), name


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16], ids=lambda dtype: dtype.__name__)
@pytest.mark.parametrize("operator, options", SKIPS, ids=str)
def test_skip_norm_agrees_with_onnxruntime(operator, options, dtype):
    """At most twice as far from f64 as its own kernel, which rounds as often; that gives no mean of rows, and no deviation."""
    node, inputs, ours, exact = draw_skip(operator, dtype, **options)
    if operator == LAYER:
        exact = {name: exact[name] for name in ("output", "input_skip_bias_sum")}
        ours = {name: ours[name] for name in exact}
    theirs = {name: array.copy() for name, array in ours.items()}
    node.run(inputs, ours, MICROSOFT)
    node.run(inputs, theirs)
    unit = UNITS[dtype]
    for name in exact:
        error = lambda array, name=name: np.abs(array.astype(np.float64) - exact[name]).max()
        assert error(ours[name]) <= 2 * error(theirs[name]) + unit * np.abs(exact[name]).max(), name


@pytest.mark.parametrize("spread, offset", [(1e-18, 0), (1e15, 0), (1, 1e4), (0, 0)])
def test_skip_norm_of_extremes_agrees_with_onnxruntime(spread, offset):
    node, inputs, ours, exact = draw_skip(spread=spread, offset=offset)
    theirs = {name: array.copy() for name, array in ours.items()}
    node.run(inputs, ours, MICROSOFT)
    node.run(inputs, theirs)
    for name in exact:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=2e-5, atol=1e-6 * np.abs(exact[name]).max(), err_msg=name)


def test_skip_norm_keeps_nan_in_its_row():
    node, inputs, results, _ = draw_skip()
    inputs["skip"][1, 2, 7] = np.nan
    node.run(inputs, results, MICROSOFT)
    rows = np.isnan(results["output"]).any(-1)
    assert rows[1, 2] and rows.sum() == 1 and np.isnan(results["output"][1, 2]).all()
    assert np.isnan(results["input_skip_bias_sum"]).sum() == 1


@pytest.mark.parametrize("operator", [RMS, LAYER])
@pytest.mark.parametrize("outputs", [("output",), ("output", "input_skip_bias_sum"), ("output", "inv_std_var"), ("output", "mean")],
                         ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.float16], ids=lambda dtype: dtype.__name__)
def test_skip_norm_has_the_outputs_that_are_wanted(operator, outputs, dtype):
    node, inputs, results, _ = draw_skip(operator, dtype, outputs=outputs)
    _, _, all_results, _ = draw_skip(operator, dtype)
    node.run(inputs, results, MICROSOFT)
    node.run(inputs, all_results, MICROSOFT)
    same(results, {name: all_results[name] for name in outputs})


@pytest.mark.parametrize("dims", [(0, 3, 40), (2, 0, 40), (0, 40)])
def test_skip_norm_of_no_rows(dims, counted):  # noqa: F811
    node, inputs, results, _ = draw_skip(dims=dims)
    node.run(inputs, results, MICROSOFT)
    counted(1)


@pytest.mark.parametrize("change, sentence", [
    (dict(input=(8,)), "input is expected to have 3 or 2 dimensions, got 1"),
    (dict(input=(2, 2, 3, 8)), "input is expected to have 3 or 2 dimensions, got 4"),
    (dict(skip=(8,)), "skip is expected to have 3 or 2 dimensions, got 1"),
    (dict(skip=(2, 1, 8)), "last two dimensions of skip needs to be same as input"),
    (dict(skip=(2, 3, 4)), "last two dimensions of skip needs to be same as input"),
    (dict(skip=(3, 3, 8)), "skip is expected to have same shape as input or, a batch size of 1 or no batch size when input has 3"),
    (dict(input=(3, 8), skip=(1, 3, 8)), "skip is expected to have same shape as input or, a batch size of 1"),
    (dict(gamma=(1, 8)), "gamma is expected to have 1 dimension, got 2"),
    (dict(gamma=(4,)), "Last dimension of gamma and input does not match"),
    (dict(bias=(8, 1)), "bias is expected to have 1 dimension, got 2"),
    (dict(bias=(4,)), "Last dimension of bias and input does not match"),
    (dict(input=(2, 3, 0), skip=(2, 3, 0), gamma=(0,)), "hidden_size must be positive and no greater than 2147483647. Got 0."),
    (dict(epsilon=-1.0), "epsilon must be finite and not negative. Got -1"),
    (dict(epsilon=float("inf")), "epsilon must be finite and not negative. Got inf"),
    (dict(epsilon=1), "The attribute epsilon is an integer, expected a number."),
    (dict(beta=(1, 8)), "beta is expected to have 1 dimension, got 2"),
    (dict(beta=(4,)), "Last dimension of beta and input does not match"),
], ids=str)
@pytest.mark.parametrize("operator", [RMS, LAYER])
def test_skip_norm_refuses(operator, change, sentence):
    if operator == RMS and "beta" in change:
        return  # it has none
    change = dict(change)
    attributes = {"epsilon": change.pop("epsilon")} if "epsilon" in change else {}
    dims = {"input": (2, 3, 8), "skip": (2, 3, 8), "gamma": (8,)} | change
    node, _, _, _ = draw_skip(operator)
    node.attributes = attributes
    results = {"output": np.zeros(dims["input"], np.float32)}
    with pytest.raises(Exception, match=re.escape(sentence)):
        node.run({name: np.ones(of, np.float32) for name, of in dims.items()}, results, MICROSOFT)


@pytest.mark.parametrize("centred", [False, True])
def test_a_norm_that_onnxruntime_finds_in_a_model_is_heddles(centred, counted):  # noqa: F811
    """Written out, as exporters do: onnxruntime makes a norm of it, and that is replaced."""
    f32 = TensorProto.FLOAT
    constant = lambda name, value: helper.make_tensor(name, f32, np.shape(value), np.ravel(value))
    rng = np.random.default_rng(9)
    scale, bias = rng.standard_normal((2, 32)).astype(np.float32)
    node, mean = helper.make_node, lambda x, y: helper.make_node("ReduceMean", [x], [y], axes=[-1], keepdims=1)
    nodes = [mean("x", "mean"), node("Sub", ["x", "mean"], ["c"])] if centred else []
    c = "c" if centred else "x"
    nodes += [node("Pow", [c, "two"], ["squares"]), mean("squares", "variance"), node("Add", ["variance", "eps"], ["sum"]),
              node("Sqrt", ["sum"], ["root"]), node("Div", [c, "root"], ["normalised"]),
              node("Mul", ["normalised", "scale"], ["scaled" if centred else "y"])]
    if centred:
        nodes.append(node("Add", ["scaled", "bias"], ["y"]))
    graph = helper.make_graph(nodes, "norm", [helper.make_tensor_value_info("x", f32, ["n", 32])],
                              [helper.make_tensor_value_info("y", f32, ["n", 32])],
                              [constant("two", 2.0), constant("eps", 1e-5), constant("scale", scale), constant("bias", bias)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    x = rng.standard_normal((3, 32)).astype(np.float32)
    result, = heddle.onnxruntime.session(model).run(None, {"x": x})
    np.testing.assert_allclose(result, normalised(x, scale, -1, 1e-5, bias * centred, centred)[0], **F32)
    counted(1, "ai.onnx")


@pytest.mark.parametrize("within", ["graph", "body", "function"])
@pytest.mark.parametrize("attributes", [{}, {"epsilon": 1e-5}], ids=str)
def test_a_norm_behind_a_sum_keeps_its_epsilon_agrees_with_onnxruntime(attributes, within, tmp_path):
    """onnxruntime makes one operator of the two; of a node without an epsilon it would take another than ONNX's."""
    f32, dims = TensorProto.FLOAT, ["batch", 3, 32]
    nodes = [helper.make_node("Add", ["a", "b"], ["sum"]),
             helper.make_node("LayerNormalization", ["sum", "scale"], ["y"], **attributes)]
    value = lambda name: helper.make_tensor_value_info(name, f32, dims)
    given, functions, imports = ["a", "b", "scale"], [], [helper.make_opsetid("", 17)]
    if within == "body":
        body = helper.make_graph(nodes, "body", [], [value("y")])
        nodes = [helper.make_node("If", ["always"], ["y"], then_branch=body, else_branch=body)]
    elif within == "function":
        functions = [helper.make_function("local", "SumAndNorm", given, ["y"], nodes, imports)]
        nodes = [helper.make_node("SumAndNorm", given, ["y"], domain="local")]
        imports = [*imports, helper.make_opsetid("local", 1)]
    graph = helper.make_graph(nodes, "norm", [value("a"), value("b"), helper.make_tensor_value_info("always", TensorProto.BOOL, [])],
                              [value("y")], [helper.make_tensor("scale", f32, [32], np.ones(32))])
    model = helper.make_model(graph, opset_imports=imports, functions=functions, ir_version=8).SerializeToString()
    a, b = np.random.default_rng(11).standard_normal((2, 2, 3, 32)).astype(np.float32) * 2e-3  # beside which 1e-5 is much
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    session = heddle.onnxruntime.session(model, options)
    fed = {name: array for name, array in (("a", a), ("b", b), ("always", np.array(True)))
           if name in {one.name for one in session.get_inputs()}}
    result, = session.run(None, fed)
    np.testing.assert_allclose(result, normalised(a + b, np.ones(32), -1, 1e-5, centred=True)[0], **F32)
    is_fused = b"SkipLayerNormalization" in (tmp_path / "optimised.onnx").read_bytes()
    assert is_fused == bool(attributes)
