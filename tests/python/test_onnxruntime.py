"""Nodes of models in sessions of onnxruntime, run by Heddle's libraries: beside onnxruntime's own kernels, and beside f64."""

import ctypes
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import attention_node
import ml_dtypes
import numpy as np
import onnx
import onnx_node
import onnxruntime
import pytest
from attention_node import Attention
from gqa_node import Node
from onnx import TensorProto, helper
from onnx_node import ELEMENTS
from test_gqa import BEYOND, CASES, F32, draw, judge, judge_in_place

import heddle
import heddle.onnxruntime

MICROSOFT, ONNX = (heddle.onnxruntime.library_path(domain) for domain in ("com.microsoft", "ai.onnx"))


@pytest.fixture
def counted():
    """counted(n): since the test began the library of a domain has run so many nodes."""
    before = {domain: heddle.onnxruntime.calls(domain) for domain in heddle.onnxruntime.DOMAINS}

    def check(expected, domain="com.microsoft"):
        assert heddle.onnxruntime.calls(domain) - before[domain] == expected

    return check


def words(value):
    """An id for a case's part: its words, of a dict the names."""
    return "-".join(value) if isinstance(value, dict) else str(value)


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


@pytest.mark.parametrize("case", CASES, ids=lambda name: name.replace(" ", "_"))
def test_agrees_with_onnxruntime(case, counted):
    node = draw(27, **CASES[case])
    ours = node.by_onnxruntime(MICROSOFT)
    theirs = node.by_onnxruntime()
    counted(1)  # theirs was not ours
    close = {"rtol": 2e-2, "atol": 2e-2} if node.attributes.get("kv_cache_bit_width") else {"rtol": 1e-4, "atol": 1e-5}
    np.testing.assert_allclose(node.valid(ours["output"]), node.valid(theirs["output"]), **close)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=["f16", "bf16"])
@pytest.mark.parametrize("options", [dict(past=20), dict(rows=9), dict(past=20, bits=8),
                                     dict(past=20, bits=4, per="PER_CHANNEL"),
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
    judge_in_place(node, node.by_onnxruntime(MICROSOFT), node.by_onnxruntime(MICROSOFT, in_place=True))


@pytest.mark.parametrize("mode", [1, 2])
@pytest.mark.parametrize("case", ["decode", "decode in a larger buffer", "window"])
def test_gives_scores_or_probabilities(case, mode):
    node = draw(25, **CASES[case] | {"ragged": False, "qk_output": mode})
    ours = node.by_onnxruntime(MICROSOFT)
    scores = np.zeros(ours["output_qk"].shape)
    node.output_from(ours["present_key"], ours["present_value"], scores)
    np.testing.assert_allclose(ours["output_qk"], scores, **F32)


@pytest.mark.parametrize("ragged", [False, True])
def test_a_layer_that_shares_a_cache_hands_it_on_and_agrees_with_onnxruntime(ragged):
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


@pytest.mark.parametrize("window", [0, 8])
def test_a_generation_in_one_buffer(window):
    """A prompt, a chunk and tokens of a batch of ragged lengths, caches bound as past and present; a window's are as small."""
    rng = np.random.default_rng(11)
    heads, kv_heads, size, batch, capacity = 4, 2, 32, 2, 11 if window else 40
    table = rng.uniform(0, 2 * np.pi, (64, 16))
    attributes = dict(num_heads=heads, kv_num_heads=kv_heads, do_rotary=1)
    attributes |= dict(local_window_size=window, sliding_window_cache=1) if window else {}
    caches = {name: np.zeros((batch, kv_heads, capacity, size), np.float32) for name in ("past_key", "past_value")}
    keys, values = ([np.zeros((kv_heads, 0, size)) for _ in range(batch)] for _ in range(2))
    total = np.zeros(batch, int)
    for rows in (13, 3, 1, 1, 9, 1, 1):
        added = np.array([rows, max(1, rows - 2)])
        total += added
        inputs = {"query": rng.standard_normal((batch, rows, (heads + 2 * kv_heads) * size)).astype(np.float32)}
        inputs |= caches | {"seqlens_k": (total - 1).astype(np.int32), "query_seqlens": added.astype(np.int32),
                            "total_sequence_length": np.array([total.max()], np.int32),
                            "cos_cache": np.cos(table).astype(np.float32), "sin_cache": np.sin(table).astype(np.float32)}
        node = Node(inputs, **attributes)
        _, k, v = node.heads_of_inputs()
        for b in range(batch):
            keys[b] = np.concatenate([keys[b], k[b, :added[b]].transpose(1, 0, 2)], 1)
            values[b] = np.concatenate([values[b], v[b, :added[b]].transpose(1, 0, 2)], 1)
        results = node.by_onnxruntime(MICROSOFT, in_place=True)
        caches = {"past_key": results["present_key"], "past_value": results["present_value"]}
        np.testing.assert_allclose(node.valid(results["output"]), node.valid(node.attention(keys, values)), **F32)


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
], ids=words)
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


TOKEN = dict(batch=2, past=20, capacity=30, ragged=False)
CHUNK = dict(batch=2, past=20, capacity=30, ragged=False, rows=4, padded=True)
# Options of draw, inputs of other contents, and what is said of them: as by onnxruntime's kernel, where it takes such a node.
WRONG_CONTENTS = {
    "a length behind the buffer": (TOKEN, dict(seqlens_k=[20, 30]), "seqlens_k[1] = 30 is out of range [0, 30)"),
    "the largest length": (TOKEN, dict(seqlens_k=[2**31 - 1, 0]), "seqlens_k[0] = 2147483647 is out of range [0, 30)"),
    "a negative length": (TOKEN, dict(seqlens_k=[20, -1]), "seqlens_k[1] = -1 is out of range [0, 30)"),
    "a prompt behind its rows": (dict(rows=4), dict(seqlens_k=[3, 4]), "seqlens_k[1] = 4 is out of range [0, 4)"),
    "a position behind the tables": (TOKEN | dict(rotary=32), dict(seqlens_k=[20, 26]),
                                     "seqlens_k[1] = 26 is out of range for rotary cache dimension 0 (26)"),
    "an id behind the tables": (TOKEN | dict(rotary=32, position_ids=True), dict(position_ids=[[3], [26]]),
                                "position_ids value 26 at index 1 is out of range [0, 26)"),
    "a negative id": (TOKEN | dict(rotary=32, position_ids=True), dict(position_ids=[[-1], [3]]),
                      "position_ids value -1 at index 0 is out of range [0, 26)"),
    "more tokens than rows": (CHUNK, dict(seqlens_k=[22, 22], query_seqlens=[3, 5]),
                              "query_seqlens[1] = 5 must be in [0, min(sequence_length, seqlens_k[1] + 1)] = [0, 4]."),
    "fewer tokens than none": (CHUNK, dict(seqlens_k=[22, 22], query_seqlens=[-1, 4]),
                               "query_seqlens[0] = -1 must be in [0, min(sequence_length, seqlens_k[0] + 1)] = [0, 4]."),
    "more new tokens than tokens": (CHUNK, dict(seqlens_k=[22, 2], query_seqlens=[3, 4]),
                                    "query_seqlens[1] = 4 must be in [0, min(sequence_length, seqlens_k[1] + 1)] = [0, 3]."),
}
OUR_WRONG_CONTENTS = {
    "rows that no past has": (TOKEN | dict(capacity=20), dict(seqlens_k=[20, 24], total_sequence_length=[25]),
                              "seqlens_k[1] = 24 requires 24 past KV rows, which exceeds the past buffer sequence length 20."),
    "keys without a bias": (TOKEN | dict(bias=(True, True)), dict(seqlens_k=[20, 21]), "seqlens_k[1] = 21 is out of range [0, 21)"),
    "a window's length": (TOKEN | dict(sliding_window_cache=1, local_window_size=8), dict(seqlens_k=[20, 21]),
                          "seqlens_k[1] = 21 is out of range [0, 21)"),
    "an id in a padded chunk": (CHUNK | dict(rotary=32, position_ids=True),
                                dict(query_seqlens=[2, 4], position_ids=[[20, 21, -1, -1], [20, 21, 22, -1]]),
                                "position_ids value -1 at index 7 is out of range [0, "),
}


def refusal_of(node, library):
    """What a session says of a node, which is to leave caches, bound in place, as they are."""
    feeds = {name: array.copy() for name, array in node.inputs.items()}
    results = {"output": np.full((node.batch, node.rows, node.heads * node.head_size), 7, np.float32)}
    for name in ("key", "value"):
        past, present = feeds.get(f"past_{name}"), node._cache()
        results[f"present_{name}"] = past if past is not None and past.shape == present.shape else present
    before = {name: array.copy() for name, array in results.items()}
    with pytest.raises(Exception) as raised:
        node.node().run(feeds, results, library)
    same(results, before)
    return str(raised.value)


def wrong_contents(case):
    options, contents, sentence = (WRONG_CONTENTS | OUR_WRONG_CONTENTS)[case]
    node = draw(1, **options)
    return Node(node.inputs | {name: np.array(content, node.inputs[name].dtype) for name, content in contents.items()},
                **node.attributes), sentence


@pytest.mark.parametrize("case", WRONG_CONTENTS | OUR_WRONG_CONTENTS, ids=lambda name: name.replace(" ", "_"))
def test_wrong_contents_are_refused_and_caches_stay_as_they_are(case, counted):
    node, sentence = wrong_contents(case)
    assert sentence in refusal_of(node, MICROSOFT)
    counted(0)


@pytest.mark.parametrize("case", WRONG_CONTENTS, ids=lambda name: name.replace(" ", "_"))
def test_the_sentence_of_wrong_contents_agrees_with_onnxruntime(case):
    node, sentence = wrong_contents(case)
    assert sentence in refusal_of(node, None)


def test_contents_of_padding_may_be_anything():
    node = draw(1, **CHUNK, rotary=32, position_ids=True)
    added = node.inputs["query_seqlens"]
    assert (added < 4).any()
    clean = node.by_onnxruntime(MICROSOFT)
    for b in range(2):
        node.inputs["position_ids"][b, added[b]:] = 2**40
    same(node.by_onnxruntime(MICROSOFT), clean)


# What a session says of its nodes' paths: a prompt, a step and a prompt again, of two layers.
PATHS = """
import sys

import numpy as np
from onnx import TensorProto, helper

import heddle.onnxruntime

layers = [helper.make_node("GroupQueryAttention", ["q", "k", "v", "", "", "lengths", "total"], [f"o{n}"], name=f"layer{n}/attn",
                           domain="com.microsoft", num_heads=4, kv_num_heads=2) for n in range(2)]
float_, int_ = TensorProto.FLOAT, TensorProto.INT32
inputs = [("q", float_, ["b", "s", 128]), ("k", float_, ["b", "s", 64]), ("v", float_, ["b", "s", 64]), ("lengths", int_, ["b"]),
          ("total", int_, [1])]
graph = helper.make_graph(layers, "two layers", [helper.make_tensor_value_info(*one) for one in inputs],
                          [helper.make_tensor_value_info(f"o{n}", float_, None) for n in range(2)])
model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)])
session = heddle.onnxruntime.session(model.SerializeToString())
for rows in (9, 1, 8):
    session.run(None, {"q": np.ones((2, rows, 128), np.float32), "k": np.ones((2, rows, 64), np.float32),
                       "v": np.ones((2, rows, 64), np.float32), "lengths": np.full(2, rows - 1, np.int32),
                       "total": np.array([rows], np.int32)})
"""


def say_paths(**variables):
    """Exit status and standard error of PATHS; lines in no order, as layers that do not depend on each other have none."""
    folder = str(Path(heddle.__file__).parents[1])
    run = subprocess.run([sys.executable, "-c", PATHS], capture_output=True, text=True, timeout=120,
                         env={**os.environ, "PYTHONPATH": folder, **variables})
    return run.returncode, run.stderr


def test_debugging_prints_each_path_of_a_node_once():
    status, said = say_paths(HEDDLE_GQA_DEBUG="1")
    lines = sorted(line.split(" the ")[0] for line in said.splitlines() if line.startswith("heddle: "))
    assert status == 0
    assert lines == sorted(f"heddle: GroupQueryAttention 'layer{n}/attn': {path}:" for n in range(2) for path in ("decode", "flash"))
    assert say_paths() == (0, "")


@pytest.mark.parametrize("variable", ["HEDDLE_DISABLE_FLASH_ATTENTION", "ORT_DISABLE_FLASH_ATTENTION",
                                      "ORT_GQA_DISABLE_FLASH_ATTENTION"])
def test_a_path_that_is_switched_off_serves_no_node(variable):
    status, said = say_paths(HEDDLE_GQA_DEBUG="1", **{variable: "1"})
    assert status == 0 and said.count("memory_efficient: tiles of") == 2
    assert f"decode by {variable}=1" in said and "': flash" not in said and "': decode" not in said


def test_switches_have_two_values():
    for variable in ("ORT_DISABLE_FLASH_DECODE", "HEDDLE_GQA_DEBUG"):
        status, said = say_paths(**{variable: "on"})
        assert status != 0 and f"{variable} is 'on', expected 0 or 1" in said


# ---- ONNX's Attention ----


def draw_attention(seed, *, batch=2, heads=4, kv_heads=2, rows=5, keys=None, size=16, v_size=None, past=None, flat=False,
                   mask=None, mask_type=None, nonpad=False, dtype=np.float32, present=False, opset=23, scores=None,
                   **attributes):
    rng = np.random.default_rng(seed)
    normal = lambda *dims: rng.standard_normal(dims).astype(dtype)
    keys, v_size = keys or rows, v_size or size
    inputs = {"Q": normal(batch, heads, rows, size), "K": normal(batch, kv_heads, keys, size),
              "V": normal(batch, kv_heads, keys, v_size)}
    if flat:
        inputs = {name: x.transpose(0, 2, 1, 3).reshape(batch, x.shape[2], -1).copy() for name, x in inputs.items()}
        attributes |= dict(q_num_heads=heads, kv_num_heads=kv_heads)
    if past is not None:
        inputs |= {"past_key": normal(batch, kv_heads, past, size), "past_value": normal(batch, kv_heads, past, v_size)}
    if mask is not None:
        drawn = rng.standard_normal(mask)
        inputs["attn_mask"] = drawn < 0.8 if mask_type is bool else drawn.astype(mask_type or dtype)
    if nonpad:
        inputs["nonpad_kv_seqlen"] = rng.integers(1, keys + 1, batch).astype(np.int64)
        opset = 25 if "left_window_size" in attributes else 24
    outputs = ["Y"] + (["present_key", "present_value"] if present else [])
    if scores is not None:
        outputs.append("qk_matmul_output")
        attributes["qk_matmul_output_mode"] = scores
    return Attention(inputs, attributes, tuple(outputs), opset)


ATTENTION = {
    "plain": dict(), "flat": dict(flat=True), "causal": dict(is_causal=1), "scale": dict(scale=0.3), "mqa": dict(kv_heads=1),
    "of other keys": dict(keys=9), "of other keys, causal": dict(keys=9, is_causal=1),
    "of fewer keys, causal": dict(rows=9, keys=5, is_causal=1), "value size": dict(v_size=24, flat=True),
    "cap": dict(softcap=1.5), "cap and mask": dict(softcap=1.5, mask=(5, 5)), "head size 40": dict(size=40, flat=True),
    "past": dict(past=7, present=True), "past, causal": dict(past=7, present=True, is_causal=1, flat=True),
    "one token": dict(past=7, rows=1, present=True, is_causal=1), "past of none": dict(past=0, present=True),
    "past, other keys": dict(past=7, keys=3, present=True, is_causal=1), "present": dict(present=True, flat=True),
    "mask": dict(mask=(2, 4, 5, 5)), "mask of entries": dict(mask=(2, 1, 5, 5)), "mask of heads": dict(mask=(4, 5, 5)),
    "mask of rows": dict(mask=(5, 5)), "kept": dict(mask=(5, 5), mask_type=bool),
    "kept each": dict(mask=(2, 4, 5, 5), mask_type=bool),
    "mask and past": dict(past=7, present=True, mask=(5, 12), is_causal=1), "mask f16": dict(mask=(5, 5), mask_type=np.float16),
    "mask f64": dict(mask=(5, 5), mask_type=np.float64), "lengths": dict(nonpad=True, keys=9),
    "lengths, causal": dict(nonpad=True, keys=9, is_causal=1), "lengths and mask": dict(nonpad=True, keys=9, mask=(5, 9)),
    "version 24": dict(opset=24, past=3, present=True), "version 25": dict(opset=25, is_causal=1),
    "window": dict(opset=25, rows=9, left_window_size=2, is_causal=1), "window of one": dict(opset=25, left_window_size=0),
    "window of both sides": dict(opset=25, rows=9, left_window_size=2, right_window_size=1),
    "right window": dict(opset=25, rows=9, right_window_size=2),
    "causal right window": dict(opset=25, right_window_size=2, is_causal=1),
    "window over a past": dict(opset=25, past=7, rows=4, present=True, left_window_size=3, right_window_size=1),
    "window of a token": dict(opset=25, past=7, rows=1, present=True, left_window_size=3, is_causal=1),
    "right window, other keys": dict(opset=25, past=7, keys=3, present=True, right_window_size=1),
    "window, more keys": dict(opset=25, keys=9, left_window_size=2, right_window_size=1),
    "window, fewer keys": dict(opset=25, rows=9, keys=5, left_window_size=2, right_window_size=1),
    "window over a past, fewer keys": dict(opset=25, past=7, keys=2, present=True, left_window_size=2, is_causal=1),
    "window over a past, more keys": dict(opset=25, past=3, rows=4, keys=6, present=True, left_window_size=1, right_window_size=2,
                                          mask=(4, 9), mask_type=bool, softcap=1.3),
    "window over a past, more rows than keys": dict(opset=25, past=2, rows=9, keys=1, present=True, left_window_size=3),
    "window and mask": dict(opset=25, left_window_size=2, mask=(5, 5), mask_type=bool),
    "window and lengths": dict(nonpad=True, keys=9, left_window_size=2, right_window_size=1),
    "softmax in f16": dict(softmax_precision=10),
    **{f"scores {mode}": dict(scores=mode, softcap=1.2, mask=(5, 5), is_causal=1, past=None) for mode in (0, 1, 3)},
    **{f"scores {mode} of kept": dict(scores=mode, mask=(5, 5), mask_type=bool) for mode in (0, 1, 3)},
}
# What onnxruntime's CPU kernel refuses, or gives the lowest number for where ONNX says -inf.
BEYOND_ATTENTION = {
    "mask of one row": dict(mask=(1, 5)), "short mask": dict(mask=(5, 3)), "mask of one key": dict(mask=(5, 1)),
    "kept short": dict(mask=(2, 1, 5, 3), mask_type=bool, softcap=2.0), "past without present": dict(past=7), "scale 0": dict(scale=0.0),
    "scores 2": dict(scores=2, softcap=1.2, mask=(5, 5), is_causal=1),
    "scores 2 of kept": dict(scores=2, mask=(5, 5), mask_type=bool),
    "scores 2 in a window": dict(opset=25, scores=2, left_window_size=2, right_window_size=1),
}


@pytest.mark.parametrize("case", ATTENTION | BEYOND_ATTENTION, ids=lambda name: name.replace(" ", "_"))
def test_attention(case, counted):
    node = draw_attention(31, **(ATTENTION | BEYOND_ATTENTION)[case])
    ours, exact = node.by_onnxruntime(ONNX), node.exact()
    counted(1, "ai.onnx")
    for name, array in ours.items():
        np.testing.assert_allclose(array, exact[name], err_msg=name, **F32)


@pytest.mark.parametrize("case", ATTENTION | BEYOND_ATTENTION, ids=lambda name: name.replace(" ", "_"))
def test_attention_agrees_with_onnxruntime(case, counted):
    """Or, where that has no such kernel, with onnx's own evaluator."""
    node = draw_attention(36, **(ATTENTION | BEYOND_ATTENTION)[case])
    ours = node.by_onnxruntime(ONNX)
    theirs = node.by_onnxruntime() if case in ATTENTION else node.by_onnx()
    counted(1, "ai.onnx")
    for name, array in ours.items():
        np.testing.assert_allclose(array, theirs[name], err_msg=name, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=["f16", "bf16"])
@pytest.mark.parametrize("options", [dict(), dict(past=7, rows=1, present=True), dict(mask=(5, 5), is_causal=1),
                                     dict(mask=(5, 5), mask_type=bool, scores=3)], ids=str)
def test_attention_in_16_bits(options, dtype):
    node = draw_attention(32, dtype=dtype, **options)
    exact = node.exact()
    for name, array in node.by_onnxruntime(ONNX).items():
        close = 4e-3 if dtype is np.float16 else 3e-2
        np.testing.assert_allclose(array.astype(float), exact[name], err_msg=name, rtol=close, atol=close)


def test_a_row_that_sees_nothing_is_zeros():
    node = draw_attention(33, mask=(5, 5), mask_type=bool)
    node.inputs["attn_mask"][[1, 4]] = False
    ours = node.by_onnxruntime(ONNX)["Y"]
    np.testing.assert_allclose(ours, node.exact()["Y"], **F32)
    assert (ours[:, :, [1, 4]] == 0).all() and (ours[:, :, 0] != 0).any()


@pytest.mark.parametrize("mode", [2, 3])
def test_scores_know_nothing_of_keys_without_a_token(mode):
    node = draw_attention(34, nonpad=True, keys=9, scores=mode)
    clean, there = node.exact(), np.arange(9) < node.inputs["nonpad_kv_seqlen"][:, None]
    assert not there.all()
    for name in "KV":
        node.inputs[name].swapaxes(1, 2)[~there] = np.nan
    ours = node.by_onnxruntime(ONNX)
    for name in ours:
        np.testing.assert_allclose(ours[name], clean[name], **F32, err_msg=name)


@pytest.mark.parametrize("options, change, sentence", [
    (dict(flat=True), dict(q_num_heads=0), "'Q' has 3 dimensions, for which q_num_heads must be positive. Got 0"),
    (dict(flat=True), dict(q_num_heads=3), "The last dimension of 'Q', 64, must be a multiple of q_num_heads, 3"),
    (dict(), dict(kv_num_heads=4), "'K' has 2 heads, but kv_num_heads is 4."),
    (dict(), dict(qk_matmul_output_mode=4), "qk_matmul_output_mode must be from 0 to 3. Got 4"),
    (dict(), dict(softcap=-1.0), "softcap must be finite and not negative. Got -1"),
    (dict(), dict(left_window_size=-2), "left_window_size must be -1 or not negative. Got -2"),
    (dict(), dict(softmax_precision=7), "softmax_precision must be that of f32 (1), f16 (10), f64 (11) or bf16 (16). Got 7"),
    (dict(), dict(K=np.ones((2, 2, 5, 24), np.float32)), "Q and K must have one head size, got 16 and 24"),
    (dict(), dict(V=np.ones((2, 2, 6, 16), np.float32)), "K and V must have one length, got 5 and 6"),
    (dict(heads=3), dict(), "K and V must have as many heads, of which those of Q are a multiple. Got 3 of Q, 2 of K, 2 of V"),
    (dict(past=3), dict(past_key=np.ones((2, 2, 4, 16), np.float32)),
     "past_value has dims [2, 2, 3, 16], expected [2, 2, 4, 16]"),
    (dict(mask=(5, 5)), dict(attn_mask=np.ones((4, 5), np.float32)),
     "attn_mask has dims [4, 5], expected what is broadcast to"),
    (dict(mask=(5, 5)), dict(attn_mask=np.ones((5, 6), np.float32)),
     "attn_mask has dims [5, 6], expected what is broadcast to"),
    (dict(mask=(5, 5)), dict(attn_mask=np.ones((5, 5), np.int32)),
     "attn_mask is of type i32, expected boolean or a floating type"),
    (dict(nonpad=True), dict(nonpad_kv_seqlen=np.array([6, 1])), "nonpad_kv_seqlen[0] = 6 is out of range, expected 0 to 5"),
    (dict(nonpad=True), dict(nonpad_kv_seqlen=np.array([1, -1])), "nonpad_kv_seqlen[1] = -1 is out of range, expected 0 to 5"),
], ids=words)
def test_attention_says_what_is_wrong(options, change, sentence, counted):
    node = draw_attention(35, **options)
    results = {"Y": np.full((2, 4, 5, 16) if not options.get("flat") else (2, 5, 64), 7, np.float32)}
    for name, value in change.items():
        (node.inputs if isinstance(value, np.ndarray) else node.attributes)[name] = value
    with pytest.raises(Exception) as raised:
        onnx_node.Node("Attention", "", attention_node.INPUTS, attention_node.OUTPUTS, node.attributes, 24).run(
            node.inputs, results, ONNX)
    assert sentence in str(raised.value)
    assert (results["Y"] == 7).all()
    counted(0, "ai.onnx")


def test_lengths_are_computed_as_far_as_numbers_are_exact():
    past, one = np.zeros((1, 1, 2**24, 1), np.float32), np.zeros((1, 1, 1, 1), np.float32)
    node = onnx_node.Node("Attention", "", ("Q", "K", "V", "attn_mask", "past_key", "past_value"),
                          ("Y", "present_key", "present_value"), {}, 23)
    present = np.full((1, 1, 2**24 + 1, 1), 7, np.float32)
    results = {"Y": np.full_like(one, 7), "present_key": present, "present_value": present.copy()}
    with pytest.raises(Exception, match="a length of 16777217 is computed with, expected at most 16777216"):
        node.run({"Q": one, "K": one, "V": one, "past_key": past, "past_value": past}, results, ONNX)
    assert all((x == 7).all() for x in results.values())


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
    ours, theirs = (session.run(None, {"x": given})[0]
                    for session in (heddle.onnxruntime.session(model), onnxruntime.InferenceSession(model)))
    np.testing.assert_allclose(ours, theirs)


@pytest.mark.parametrize("packed", [False, True])
def test_what_follows_a_node_is_optimised_as_without_the_library_agrees_with_onnxruntime(packed, tmp_path):
    """A sum and a norm behind it become one operator, for which onnxruntime has to know the node's output's dims."""
    node = draw(28, past=20, ragged=False, packed=packed)
    model = onnx.load_from_string(node.node().model(node.inputs, node.by_heddle()))
    f32 = TensorProto.FLOAT
    model.graph.input.append(helper.make_tensor_value_info("x", f32, ["batch", "rows", 128]))
    for name, dim in zip(("batch", "rows"), model.graph.input[0].type.tensor_type.shape.dim, strict=False):
        dim.dim_param = name
    for name in ("gamma", "beta"):
        model.graph.initializer.append(helper.make_tensor(name, f32, [128], np.ones(128)))
    model.graph.node.extend([helper.make_node("Add", ["output", "x"], ["sum"]),
                             helper.make_node("LayerNormalization", ["sum", "gamma", "beta"], ["y"], epsilon=1e-5)])
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", f32, ["batch", "rows", 128]))
    found, results = [], []
    for make in (onnxruntime.InferenceSession, heddle.onnxruntime.session):
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
        session = make(model.SerializeToString(), options)
        found.append([one.op_type for one in onnx.load(options.optimized_model_filepath).graph.node])
        results.append(session.run(["y"], node.inputs | {"x": np.ones((2, 1, 128), np.float32)})[0])
    assert found[0] == found[1] and "SkipLayerNormalization" in found[1]
    np.testing.assert_allclose(*results, rtol=1e-4, atol=1e-5)


def known_dims(node, inputs, results, library):
    """Dims that a session knows of a node's first output before it runs."""
    model = onnx.load_from_string(node.model(inputs, results))
    output = model.graph.output[0]
    model.graph.node.append(helper.make_node("Identity", [output.name], ["same"]))
    output.CopyFrom(helper.make_tensor_value_info("same", output.type.tensor_type.elem_type, None))
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.register_custom_ops_library(library)
    return tuple(onnxruntime.InferenceSession(model.SerializeToString(), options).get_outputs()[0].shape)


def test_dims_known_before_a_run_are_those_of_the_run_agrees_with_onnxruntime():
    nodes = []
    for case in (CASES | BEYOND).values():
        node = draw(29, **case)
        nodes.append((node.node(), node.inputs, node.by_heddle(), MICROSOFT))
    for case in ATTENTION.values():
        node = draw_attention(37, **case)
        nodes.append((node.node(), node.inputs, node.results(), ONNX))
    for node, inputs, results, library in nodes:
        assert known_dims(node, inputs, results, library) == next(iter(results.values())).shape


def test_session_takes_paths_options_and_what_is_no_model(tmp_path, counted):
    model, path = gqa_model(1, **ATTRIBUTES), tmp_path / "model.onnx"
    path.write_bytes(model)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    given = feeds(1, 1, 1, [1], np.zeros((1, 2, 1, 2, 0, 16), np.float32))
    assert set(heddle.onnxruntime._imports(model)) == {"ai.onnx", "com.microsoft"}
    for made in (heddle.onnxruntime.session(path, options, providers=["CPUExecutionProvider"]),
                 heddle.onnxruntime.session(str(path)), heddle.onnxruntime.session(model)):
        made.run(None, given)
    counted(3)
    heddle.onnxruntime.session(model, options).run(None, given)
    counted(4)
    plain = helper.make_model(helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "plain", [
        helper.make_tensor_value_info("x", 1, [3])], [helper.make_tensor_value_info("y", 1, [3])]), ir_version=8,
        opset_imports=[helper.make_opsetid("", 17)]).SerializeToString()
    with pytest.raises(ValueError, match="have Heddle's operators of com.microsoft, a domain that this model does not import"):
        heddle.onnxruntime.session(plain, options)
    for wrong in (b"", b"\xff" * 40, model[:len(model) // 2], b"\x42\xff\xff\xff\xff\x0f"):
        with pytest.raises(Exception, match="(?i)model|protobuf|parse"):
            heddle.onnxruntime.session(wrong)
    assert heddle.onnxruntime._imports(b"\x80" * 10**7) == set()  # no number of ten million bytes
    with pytest.raises(Exception, match="none.onnx"):
        heddle.onnxruntime.session(tmp_path / "none.onnx")
    with pytest.raises(ValueError, match="no library for the domain 'ai.other'"):
        heddle.onnxruntime.library_path("ai.other")


@pytest.mark.parametrize("newest", [0, 1, 17])
def test_an_older_host_is_told_so(newest):
    """A host that knows the interface up to a version: there is a sentence, where it has a way to be told one."""
    said = []
    create = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_int, ctypes.c_char_p)(lambda code, text: said.append((code, text)) or 1)
    functions = (ctypes.c_void_p * 300)(ctypes.cast(create, ctypes.c_void_p).value)
    table = ctypes.addressof(functions)
    get_api = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_uint32)(lambda version: table if 0 < version <= newest else 0)
    text = ctypes.create_string_buffer(b"1.2.3")
    version = ctypes.CFUNCTYPE(ctypes.c_size_t)(lambda: ctypes.addressof(text))
    base = (ctypes.c_void_p * 2)(ctypes.cast(get_api, ctypes.c_void_p).value, ctypes.cast(version, ctypes.c_void_p).value)
    register = ctypes.CDLL(MICROSOFT).RegisterCustomOps
    register.restype, register.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_void_p]
    register(None, ctypes.addressof(base))
    assert said == ([(9, b"Heddle's operators need ONNX Runtime 1.18 or later, this is 1.2.3.")] if newest else [])


@pytest.mark.parametrize("library", [MICROSOFT, ONNX], ids=["microsoft", "onnx"])
def test_a_library_exports_its_two_functions_alone(library):
    listed = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout
    assert sorted(line.split()[-1] for line in listed.splitlines()) == ["RegisterCustomOps", "heddle_onnxruntime_calls"]


def test_the_package_asks_for_onnxruntime_only_in_a_session():
    program = "import sys, heddle.onnxruntime as h; h.library_path(); h.calls(); assert 'onnxruntime' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)})
