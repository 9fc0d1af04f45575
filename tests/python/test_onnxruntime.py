"""Nodes of models in sessions of onnxruntime, run by Heddle's libraries: beside onnxruntime's own kernels, and beside f64."""

import ctypes
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np
import onnxruntime
import pytest
from gqa_node import Node
from onnx import TensorProto, helper
from onnx_node import ELEMENTS
from test_gqa import BEYOND, CASES, F32, draw, judge

import heddle
import heddle.onnxruntime
from heddle._gqa import OUTPUTS

MICROSOFT = heddle.onnxruntime.library_path()


@pytest.fixture
def counted():
    """counted(n): since the test began the library has run so many nodes."""
    before = heddle.onnxruntime.calls()

    def check(expected):
        assert heddle.onnxruntime.calls() - before == expected

    return check


def same(ours, theirs):
    assert ours.keys() == theirs.keys()
    for name in ours:
        np.testing.assert_array_equal(ours[name].view(np.uint8), theirs[name].view(np.uint8), err_msg=name)


# ---- GroupQueryAttention ----


@pytest.mark.parametrize("case", CASES | BEYOND, ids=lambda name: name.replace(" ", "_"))
def test_is_what_the_operator_says(case, counted):
    node = draw(21, **(CASES | BEYOND)[case])
    ours = node.by_onnxruntime(MICROSOFT)
    counted(1)
    judge(node, ours)
    if case in CASES:
        theirs = node.by_onnxruntime()
        counted(1)  # theirs was not ours
        close = {"rtol": 2e-2, "atol": 2e-2} if node.attributes.get("kv_cache_bit_width") else {"rtol": 1e-4, "atol": 1e-5}
        np.testing.assert_allclose(node.valid(ours["output"]), node.valid(theirs["output"]), **close)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=["f16", "bf16"])
@pytest.mark.parametrize("options", [dict(past=20), dict(rows=9), dict(past=20, bits=8), dict(past=20, bits=4, per="PER_CHANNEL"),
                                     dict(past=20, packed=True, rotary=32, capacity=30), dict(past=20, sink=True, norms=True),
                                     dict(rows=9, bias=(True, False), ragged=False)], ids=str)
def test_every_type_of_query_and_cache(options, dtype):
    node = draw(22, dtype=dtype, **options)
    ours = node.by_onnxruntime(MICROSOFT)
    exact = node.output_from(ours["present_key"], ours["present_value"])
    close = 5e-3 if dtype is np.float16 else 2e-2
    np.testing.assert_allclose(node.valid(ours["output"]).astype(float), node.valid(exact), rtol=close, atol=close)
    same(ours, node.by_heddle())


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16], ids=["f32", "f16", "bf16"])
def test_float8_caches(dtype):
    node = draw(23, past=20, bits=8, rotary=32, dtype=dtype)
    for name in ("past_key", "past_value"):
        node.inputs[name] = (node.inputs[name] / 8).astype(ml_dtypes.float8_e4m3fn)
    ours = node.by_onnxruntime(MICROSOFT)
    exact = node.output_from(ours["present_key"], ours["present_value"])
    close = {np.float32: 1e-5, np.float16: 5e-3}.get(dtype, 2e-2)
    np.testing.assert_allclose(node.valid(ours["output"]).astype(float), node.valid(exact), rtol=close, atol=close)


@pytest.mark.parametrize("case", ["decode in a larger buffer", "packed decode", "prompt into a buffer", "int4 per channel",
                                  "bias in a larger buffer", "padded chunks in a buffer"])
def test_past_and_present_of_one_buffer_are_updated_in_place(case):
    node = draw(24, **CASES[case])
    past, added, _ = node.lengths()
    apart, together = node.by_onnxruntime(MICROSOFT), node.by_onnxruntime(MICROSOFT, in_place=True)
    np.testing.assert_array_equal(apart["output"], together["output"])
    for name in ("key", "value"):
        before, after = node.inputs[f"past_{name}"], together[f"present_{name}"]
        for b in range(node.batch):
            new = slice(past[b], past[b] + added[b])
            np.testing.assert_array_equal(after[b, :, new], apart[f"present_{name}"][b, :, new])
            np.testing.assert_array_equal(np.delete(after[b], new, 1), np.delete(before[b], new, 1))


@pytest.mark.parametrize("mode", [1, 2])
@pytest.mark.parametrize("case", ["decode", "decode in a larger buffer", "window"])
def test_gives_scores_or_probabilities(case, mode):
    node = draw(25, **CASES[case] | {"ragged": False, "qk_output": mode})
    ours, theirs = node.by_onnxruntime(MICROSOFT), node.by_onnxruntime()
    scores = np.zeros(ours["output_qk"].shape)
    node.output_from(ours["present_key"], ours["present_value"], scores)
    np.testing.assert_allclose(ours["output_qk"], scores, **F32)
    np.testing.assert_allclose(ours["output_qk"], theirs["output_qk"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("ragged", [False, True])
def test_a_layer_that_shares_a_cache_hands_it_on(ragged):
    node = draw(26, past=20, rotary=32, ragged=ragged)
    for name in ("key", "value"):
        node.inputs[name] = np.empty((node.batch, 0, node.kv_heads * node.head_size), np.float32)
        node.inputs[f"past_{name}"] = np.concatenate([node.inputs[f"past_{name}"] + 1] * 2, 2)
    ours, theirs = node.by_onnxruntime(MICROSOFT), node.by_onnxruntime()
    np.testing.assert_allclose(ours["output"], theirs["output"], rtol=1e-4, atol=1e-5)
    for name in ("present_key", "present_value"):
        np.testing.assert_array_equal(ours[name], theirs[name])
    together = node.by_onnxruntime(MICROSOFT, in_place=True)
    np.testing.assert_array_equal(together["output"], ours["output"])
    np.testing.assert_array_equal(together["present_key"], node.inputs["past_key"])


def gqa_model(layers=1, with_present=True, imports=("", "com.microsoft"), **attributes):
    """A decoder's attention of f32, `layers` deep: packed QKV of a layer is the output before through a Gelu and a matrix."""
    heads, kv_heads, size = attributes["num_heads"], attributes["kv_num_heads"], 16
    hidden, packed = heads * size, (heads + 2 * kv_heads) * size
    rng = np.random.default_rng(5)
    value = lambda name, kind, dims: helper.make_tensor_value_info(name, kind, dims)
    f32, i32 = TensorProto.FLOAT, TensorProto.INT32
    nodes, weights, inputs, outputs = [], [], [], []
    before = "x"
    for n in range(layers):
        weight = rng.standard_normal((hidden, packed)).astype(np.float32) / hidden**0.5
        weights.append(helper.make_tensor(f"w{n}", f32, weight.shape, weight.tobytes(), raw=True))
        nodes += [helper.make_node("Gelu", [before], [f"g{n}"], domain="com.microsoft"),
                  helper.make_node("MatMul", [f"g{n}", f"w{n}"], [f"qkv{n}"])]
        past, present = ([f"{when}_{name}{n}" for name in ("key", "value")] for when in ("past", "present"))
        nodes.append(helper.make_node(
            "GroupQueryAttention", [f"qkv{n}", "", "", *past, "seqlens_k", "total_sequence_length", "cos_cache", "sin_cache"],
            [f"o{n}", *(present if with_present else [])], domain="com.microsoft", do_rotary=1, **attributes))
        inputs += [value(name, f32, ["batch", kv_heads, "past", size]) for name in past]
        if with_present:
            outputs += [value(name, f32, ["batch", kv_heads, "total", size]) for name in present]
        before = f"o{n}"
    inputs += [value("x", f32, ["batch", "rows", hidden]), value("seqlens_k", i32, ["batch"]),
               value("total_sequence_length", i32, [1]), value("cos_cache", f32, ["positions", size // 2]),
               value("sin_cache", f32, ["positions", size // 2])]
    outputs.insert(0, value(before, f32, ["batch", "rows", hidden]))
    graph = helper.make_graph(nodes, "layers", inputs, outputs, weights)
    versions = {"": 21, "com.microsoft": 1}
    return helper.make_model(graph, opset_imports=[helper.make_opsetid(name, versions[name]) for name in imports],
                             ir_version=10).SerializeToString()


ATTRIBUTES = dict(num_heads=4, kv_num_heads=2)


def feeds(layers, batch, rows, total, caches, seed=6):
    rng = np.random.default_rng(seed)
    angles = np.random.default_rng(7).uniform(0, 6, (64, 8))
    return {"x": rng.standard_normal((batch, rows, 64)).astype(np.float32), "seqlens_k": np.array(total, np.int32) - 1,
            "total_sequence_length": np.array([max(total)], np.int32), "cos_cache": np.cos(angles).astype(np.float32),
            "sin_cache": np.sin(angles).astype(np.float32)} | {
                f"past_{name}{n}": caches[n][i] for n in range(layers) for i, name in enumerate(("key", "value"))}


def test_a_generation_whose_caches_grow(counted):
    """A prompt and tokens through three layers; other operators of com.microsoft stay the session's own."""
    model, layers = gqa_model(3, **ATTRIBUTES), 3
    sessions = [heddle.onnxruntime.session(model), onnxruntime.InferenceSession(model)]
    caches = [[[np.zeros((2, 2, 0, 16), np.float32)] * 2 for _ in range(layers)] for _ in sessions]
    for step, (rows, total) in enumerate([(5, 5), (1, 6), (1, 7), (1, 8)]):
        results = [session.run(None, feeds(layers, 2, rows, [total, total], cache, step))
                   for session, cache in zip(sessions, caches, strict=True)]
        for ours, theirs in zip(*results, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
        caches = [[result[1 + 2 * n:3 + 2 * n] for n in range(layers)] for result in results]
    counted(4 * layers)


def test_many_threads_run_a_session_at_once():
    model = gqa_model(2, **ATTRIBUTES)
    session, plain = heddle.onnxruntime.session(model), onnxruntime.InferenceSession(model)
    rng = np.random.default_rng(8)
    steps = [feeds(2, 1, 1, [20 + n % 4], rng.standard_normal((2, 2, 1, 2, 19 + n % 4, 16)).astype(np.float32), n)
             for n in range(24)]
    with ThreadPoolExecutor(4) as threads:
        for step, ours in zip(steps, threads.map(lambda step: session.run(None, step), steps), strict=True):
            for a, b in zip(ours, plain.run(None, step), strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_present_that_nobody_wants_is_not_made():
    whole, alone = (heddle.onnxruntime.session(gqa_model(1, with_present, **ATTRIBUTES)) for with_present in (True, False))
    given = feeds(1, 2, 1, [9, 9], np.random.default_rng(9).standard_normal((1, 2, 2, 2, 8, 16)).astype(np.float32))
    result, = alone.run(None, given)
    np.testing.assert_array_equal(result, whole.run(None, given)[0])


@pytest.mark.parametrize("attributes, sentence", [
    (dict(num_heads=3), "num_heads must be a multiple of kv_num_heads. Got num_heads % kv_num_heads == 1"),
    (dict(num_heads=0), "num_heads and kv_num_heads must be positive. Got 0 and 2"),
    (dict(causal=2), "causal must be 0 or 1. Got 2"),
    (dict(local_window_size=0), "local_window_size must be -1 or greater than 0. Got 0"),
    (dict(causal=0, local_window_size=3), "local_window_size must be -1 when causal is 0. Got 3"),
    (dict(sliding_window_cache=1), "sliding_window_cache=1 requires local_window_size > 0."),
    (dict(qk_output=5), "qk_output attribute received unsupported value 5"),
    (dict(kv_cache_bit_width=3), "kv_cache_bit_width must be 0, 4 or 8. Got 3"),
    (dict(kv_cache_bit_width=8), "kv_cache_bit_width must be 0 when quantization is disabled. Got 8"),
    (dict(k_quant_type="BOTH"), "k_quant_type must be NONE, PER_TENSOR or PER_CHANNEL. Got BOTH"),
    (dict(qk_norm_epsilon=-1.0), "qk_norm_epsilon must be finite and positive. Got -1"),
    (dict(scale=float("inf")), "scale must be finite. Got inf"),
    (dict(scale=1), "The attribute scale is an integer, expected a number."),
    (dict(num_heads=4.5), "The attribute num_heads is a number, expected an integer."),
    (dict(softcap="high"), "The attribute softcap is a string, expected a number."),
    (dict(k_quant_type=1), "The attribute k_quant_type is an integer, expected a string."),
    (dict(kv_num_heads=None), "The attribute kv_num_heads is required."),
], ids=str)
def test_a_session_with_wrong_attributes_is_not_made(attributes, sentence):
    node = draw(1, past=4)
    node.attributes = {name: value for name, value in (node.attributes | attributes).items() if value is not None}
    with pytest.raises(Exception) as raised:
        node.by_onnxruntime(MICROSOFT)
    assert sentence in str(raised.value)


def test_a_wrong_shape_is_refused_in_the_operators_words_and_caches_stay_as_they_are(counted):
    node = draw(1, past=20, capacity=30)
    for name, array, sentence in [
            ("past_key", np.zeros((2, 2, 30, 24), np.float32),
             "Input 'past_key' dimension 3 should match the packed KV head dimension, got 24"),
            ("seqlens_k", np.zeros(3, np.int32), "seqlens_k must have batch_size (2) elements, got 3."),
            ("total_sequence_length", np.zeros(1, np.int32), "total_sequence_length must be positive, got 0."),
            ("total_sequence_length", np.zeros(2, np.int32), "total_sequence_length tensor must be of one element."),
            ("key", np.zeros((2, 1, 65), np.float32), "kv_hidden_size must be a multiple of kv_num_heads.")]:
        wrong = Node(node.inputs | {name: array}, **node.attributes)
        results = {"output": np.full((2, 1, 128), 7, np.float32)} | {
            f"present_{name}": np.full((2, 2, 30, 32), 7, np.float32) for name in ("key", "value")}
        with pytest.raises(Exception) as raised:
            wrong.node().run(wrong.inputs, results, MICROSOFT)
        assert sentence in str(raised.value)
        assert all((array == 7).all() for array in results.values())
    counted(0)


# ---- The libraries ----


def test_a_model_that_does_not_import_the_domain_stays_as_it_is():
    """There the library would break what onnxruntime's own optimisations put in, as it says itself."""
    x = helper.make_tensor_value_info("x", ELEMENTS[np.dtype(np.float32)], ["n"])
    nodes = [helper.make_node("Constant", [], ["root"], value_float=2**0.5), helper.make_node("Div", ["x", "root"], ["a"]),
             helper.make_node("Erf", ["a"], ["b"]), helper.make_node("Constant", [], ["one"], value_float=1.0),
             helper.make_node("Add", ["b", "one"], ["c"]), helper.make_node("Mul", ["x", "c"], ["d"]),
             helper.make_node("Constant", [], ["half"], value_float=0.5), helper.make_node("Mul", ["d", "half"], ["y"])]
    graph = helper.make_graph(nodes, "gelu", [x], [helper.make_tensor_value_info("y", 1, ["n"])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    given = np.linspace(-3, 3, 7, dtype=np.float32)
    session = heddle.onnxruntime.session(model)
    np.testing.assert_allclose(session.run(None, {"x": given})[0], onnxruntime.InferenceSession(model).run(None, {"x": given})[0])


def test_session_takes_paths_options_and_what_is_no_model(tmp_path, counted):
    model, path = gqa_model(1, **ATTRIBUTES), tmp_path / "model.onnx"
    path.write_bytes(model)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    given = feeds(1, 1, 1, [1], np.zeros((1, 2, 1, 2, 0, 16), np.float32))
    for made in (heddle.onnxruntime.session(path, options, providers=["CPUExecutionProvider"]),
                 heddle.onnxruntime.session(str(path)), heddle.onnxruntime.session(model)):
        made.run(None, given)
    counted(3)
    for wrong in (b"", b"\xff" * 40, model[:len(model) // 2], b"\x42\xff\xff\xff\xff\x0f"):
        with pytest.raises(Exception, match="(?i)model|protobuf|parse"):
            heddle.onnxruntime.session(wrong)
    with pytest.raises(Exception, match="none.onnx"):
        heddle.onnxruntime.session(tmp_path / "none.onnx")
    with pytest.raises(ValueError, match="no library for the domain 'ai.other'"):
        heddle.onnxruntime.library_path("ai.other")


@pytest.mark.parametrize("newest", [0, 1, 17])
def test_an_older_host_is_told_so(newest):
    """A host that knows the interface up to a version: there is a sentence, where it has a way to be told one."""
    said = []
    create = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_int, ctypes.c_char_p)(lambda code, text: said.append((code, text)) or 1)
    table = ctypes.cast((ctypes.c_void_p * 300)(ctypes.cast(create, ctypes.c_void_p).value), ctypes.c_void_p).value
    get_api = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32)(lambda version: table if 0 < version <= newest else None)
    version = ctypes.CFUNCTYPE(ctypes.c_char_p)(lambda: b"1.2.3")
    base = (ctypes.c_void_p * 2)(ctypes.cast(get_api, ctypes.c_void_p).value, ctypes.cast(version, ctypes.c_void_p).value)
    register = ctypes.CDLL(MICROSOFT).RegisterCustomOps
    register.restype, register.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_void_p]
    register(None, ctypes.addressof(base))
    assert said == ([(9, b"Heddle's operators need ONNX Runtime 1.18 or later, this is 1.2.3.")] if newest else [])


def test_the_library_exports_its_two_functions_alone():
    listed = subprocess.run(["nm", "-D", "--defined-only", MICROSOFT], capture_output=True, text=True, check=True).stdout
    assert sorted(line.split()[-1] for line in listed.splitlines()) == ["RegisterCustomOps", "heddle_onnxruntime_calls"]


def test_the_package_asks_for_onnxruntime_only_in_a_session():
    program = "import sys, heddle.onnxruntime as h; h.library_path(); h.calls(); assert 'onnxruntime' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)})
