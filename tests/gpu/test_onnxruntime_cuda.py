"""Nodes of models in sessions of onnxruntime with CUDA's provider, run by Heddle's libraries: beside f64, and beside
onnxruntime's own CUDA kernels. The same cases run with the CPU's provider, which tests the tests where no GPU is."""

import contextlib
import re
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import onnxruntime
import pytest

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests" / "python"), str(ROOT / "bindings" / "python")]

import onnx_node  # noqa: E402
import test_onnxruntime as cpu_tests  # noqa: E402
import test_onnxruntime_mha as mha  # noqa: E402
import test_onnxruntime_rotary as rotary  # noqa: E402
from gqa_node import Node  # noqa: E402
from test_gqa import BEYOND, CASES, draw, judge, judge_in_place  # noqa: E402
from test_onnxruntime_norms import LAYER, NORMS, RMS, SKIPS, UNITS, draw_norm, draw_skip  # noqa: E402

import heddle.onnxruntime  # noqa: E402

MICROSOFT, ONNX = (heddle.onnxruntime.library_path(domain) for domain in ("com.microsoft", "ai.onnx"))
PROVIDER = "CUDAExecutionProvider"
F32, F16, BF16 = np.float32, np.float16, ml_dtypes.bfloat16
# Of sums that are rounded once; caches hold them rounded.
TOLERANCES = {F32: dict(rtol=1e-4, atol=1e-5), F16: dict(rtol=2e-3, atol=2e-3), BF16: dict(rtol=2e-2, atol=2e-2)}
# More than the decode kernel's least keys, and head dims that it takes codes of.
LONG = {f"{name} of many keys": dict(past=700, capacity=1000, heads=8, rotary=32, head_size=64, **options)
        for name, options in {"numbers": {}, "int8": dict(bits=8, per="PER_CHANNEL"), "int4": dict(bits=4, per="PER_CHANNEL"),
                              "int8 window": dict(bits=8, local_window_size=130), "sink": dict(sink=True),
                              "four rows": dict(rows=4, padded=True), "packed int4": dict(packed=True, bits=4)}.items()}
ON_CPU_ALONE = r"Heddle runs this on a CPU alone: .*\. A session without CUDAExecutionProvider takes it\.|cuda: "

if PROVIDER in onnxruntime.get_available_providers():
    with contextlib.suppress(ImportError):  # CUDA's libraries may have come with it
        import torch  # noqa: F401
    onnxruntime.preload_dlls()


@pytest.fixture(scope="session", autouse=True)
def gpu():
    """Not JAX's."""


@pytest.fixture(params=["cpu", "cuda"], autouse=True)
def device(request, monkeypatch):
    if request.param == "cuda" and PROVIDER not in onnxruntime.get_available_providers():
        pytest.skip(f"this onnxruntime has no {PROVIDER}")
    monkeypatch.setattr(onnx_node, "DEVICE", request.param)
    return request.param


@pytest.fixture
def counted():
    before = {domain: heddle.onnxruntime.calls(domain) for domain in heddle.onnxruntime.DOMAINS}
    return lambda n, domain="com.microsoft": heddle.onnxruntime.calls(domain) - before[domain] == n


def name_of(case):
    return re.sub(r"\W+", "_", str(case))


def name_of_type(dtype):
    return np.dtype(dtype).name


def close(ours, exact, dtype):
    for name, array in ours.items():
        np.testing.assert_allclose(array.astype(float), exact[name], err_msg=name, **TOLERANCES[dtype])


def expect(refused, run):
    """What run() gives; nothing where it is refused, by Heddle's sentence. refused None: it may be."""
    if refused is None:
        try:
            return run()
        except Exception as refusal:
            assert re.search(ON_CPU_ALONE, str(refusal))
            return None
    if not refused:
        return run()
    with pytest.raises(Exception, match=ON_CPU_ALONE):
        run()
    return None


# ---- GroupQueryAttention ----


@pytest.mark.parametrize("dtype", TOLERANCES, ids=name_of_type)
@pytest.mark.parametrize("case", CASES | BEYOND | LONG, ids=name_of)
def test_group_query_attention(case, dtype, counted):
    node = draw(71, **(CASES | BEYOND | LONG)[case], dtype=dtype)
    ours = node.by_onnxruntime(MICROSOFT)
    assert counted(1)
    judge(node, ours, TOLERANCES[dtype])


# onnxruntime's CUDA kernel takes 16 bits alone, and a CPU's no bf16.
@pytest.mark.parametrize("case", ["prompt of one length", "prompt into a buffer", "decode", "decode in a larger buffer", "many keys",
                                  "packed prompt", "packed decode", "one entry's chunk", "halves", "interleaved decode",
                                  "window decode", "soft cap", "sink", "one key head", "head size 256"], ids=name_of)
def test_group_query_attention_agrees_with_onnxruntime(case, counted):
    node = draw(72, **CASES[case], dtype=F16)
    ours, theirs = node.by_onnxruntime(MICROSOFT), node.by_onnxruntime()
    assert counted(1)  # theirs was not ours
    np.testing.assert_allclose(node.valid(ours["output"]).astype(float), node.valid(theirs["output"]).astype(float), rtol=5e-3,
                               atol=5e-3)


@pytest.mark.parametrize("dtype", TOLERANCES, ids=name_of_type)
@pytest.mark.parametrize("case", ["decode in a larger buffer", "packed decode", "prompt into a buffer", "int4 per channel",
                                  "padded chunks in a buffer", "int8 of many keys"], ids=name_of)
def test_past_and_present_of_one_buffer_are_updated_in_place(case, dtype):
    node = draw(73, **(CASES | LONG)[case], dtype=dtype)
    judge_in_place(node, node.by_onnxruntime(MICROSOFT), node.by_onnxruntime(MICROSOFT, in_place=True))


@pytest.mark.parametrize("dtype", TOLERANCES, ids=name_of_type)
@pytest.mark.parametrize("window", [0, 8])
def test_a_generation_in_one_buffer(window, dtype):
    """A prompt, a chunk and tokens of a batch of ragged lengths, caches bound as past and present; a window's are as small."""
    rng = np.random.default_rng(11)
    heads, kv_heads, size, batch, capacity = 4, 2, 32, 2, 11 if window else 40
    table = rng.uniform(0, 2 * np.pi, (64, 16))
    attributes = dict(num_heads=heads, kv_num_heads=kv_heads, do_rotary=1)
    attributes |= dict(local_window_size=window, sliding_window_cache=1) if window else {}
    caches = {name: np.zeros((batch, kv_heads, capacity, size), dtype) for name in ("past_key", "past_value")}
    keys, values = ([np.zeros((kv_heads, 0, size)) for _ in range(batch)] for _ in range(2))
    total = np.zeros(batch, int)
    for rows in (13, 3, 1, 1, 9, 1, 1):
        added = np.array([rows, max(1, rows - 2)])
        total += added
        inputs = {"query": rng.standard_normal((batch, rows, (heads + 2 * kv_heads) * size)).astype(dtype)}
        inputs |= caches | {"seqlens_k": (total - 1).astype(np.int32), "query_seqlens": added.astype(np.int32),
                            "total_sequence_length": np.array([total.max()], np.int32),
                            "cos_cache": np.cos(table).astype(dtype), "sin_cache": np.sin(table).astype(dtype)}
        node = Node(inputs, **attributes)
        _, k, v = node.heads_of_inputs()
        for b in range(batch):
            for all_rows, new in ((keys, k), (values, v)):  # as a cache holds them
                new = new[b, :added[b]].transpose(1, 0, 2).astype(dtype).astype(np.float64)
                all_rows[b] = np.concatenate([all_rows[b], new], 1)
        results = node.by_onnxruntime(MICROSOFT, in_place=True)
        caches = {"past_key": results["present_key"], "past_value": results["present_value"]}
        np.testing.assert_allclose(node.valid(results["output"]).astype(float), node.valid(node.attention(keys, values)),
                                   **TOLERANCES[dtype])


@pytest.mark.parametrize("dtype", [F16, BF16], ids=name_of_type)
def test_one_captured_graph_serves_a_generation(dtype, device, counted):
    """Of a session that captures its kernels into a CUDA graph, every step after the first is that graph, at other lengths."""
    node = draw(74, **LONG["numbers of many keys"] | dict(past=260, packed=True, ragged=False), dtype=dtype)
    rng, (batch, kv_heads, _, size) = np.random.default_rng(5), node.inputs["past_key"].shape
    # The longest that a step may come to: tables and buffers are of one size throughout.
    angles = rng.uniform(0, 2 * np.pi, (1000, 16))
    feeds = node.inputs | {"cos_cache": np.cos(angles).astype(dtype), "sin_cache": np.sin(angles).astype(dtype)}
    results = {"output": np.zeros((batch, 1, node.heads * size), dtype), "present_key": feeds["past_key"],
               "present_value": feeds["past_value"]}
    options = {"enable_cuda_graph": "1"} if device == "cuda" else {}
    session, memory = onnx_node._session(node.node().model(feeds, results), MICROSOFT, device, **options), onnx_node.Memory(device)
    binding = session.io_binding()
    for bind, arrays in ((binding.bind_input, feeds), (binding.bind_output, results)):
        for name, array in arrays.items():
            bind(name, *memory.of(name, array), onnx_node.ELEMENTS[array.dtype], array.shape, memory.address(name, array))
    calls = heddle.onnxruntime.calls()
    for step, total in enumerate([(261, 300), (262, 301), (700, 5), (999, 998)]):
        feeds["query"][...] = rng.standard_normal(feeds["query"].shape).astype(dtype)
        feeds["seqlens_k"][...] = np.array(total, np.int32) - 1
        if total[0] > feeds["seqlens_k"].size and step == 2:
            feeds["past_key"][...], feeds["past_value"][...] = (rng.standard_normal(feeds["past_key"].shape) for _ in range(2))
        for name in ("query", "seqlens_k", "past_key", "past_value"):
            memory.write(feeds[name])
        asked = Node({name: array.copy() for name, array in feeds.items()}, **node.attributes)
        asked.total = 1000
        session.run_with_iobinding(binding)
        memory.bring_back(results.values())
        exact = asked.output_from(feeds["past_key"], feeds["past_value"])
        np.testing.assert_allclose(results["output"].astype(float), exact, **TOLERANCES[dtype])
        if step == 0:
            first = heddle.onnxruntime.calls() - calls
    assert heddle.onnxruntime.calls() - calls == (first if device == "cuda" else 4)
    assert first >= 1 and kv_heads == 2


# ---- ONNX's Attention ----


@pytest.mark.parametrize("dtype", TOLERANCES, ids=name_of_type)
@pytest.mark.parametrize("case", cpu_tests.ATTENTION | cpu_tests.BEYOND_ATTENTION, ids=name_of)
def test_attention(case, dtype, device, counted):
    node = cpu_tests.draw_attention(75, **(cpu_tests.ATTENTION | cpu_tests.BEYOND_ATTENTION)[case], dtype=dtype)
    mask, keys = node.inputs.get("attn_mask"), node.heads("K").shape[2] + node.inputs.get("past_key", np.empty((0, 0, 0))).shape[2]
    gives_masked = "qk_matmul_output" in node.outputs and node.attributes.get("qk_matmul_output_mode", 0) == 2
    is_refused = device == "cuda" and (gives_masked or (mask is not None and mask.shape[-1] < keys))
    if device == "cuda" and mask is not None and mask.dtype == np.float64:
        is_refused = None
    ours = expect(is_refused, lambda: node.by_onnxruntime(ONNX))
    assert counted(1 if ours else 0, "ai.onnx")
    if ours:
        close(ours, node.exact(), dtype)


# ---- MultiHeadAttention ----


@pytest.mark.parametrize("dtype", TOLERANCES, ids=name_of_type)
@pytest.mark.parametrize("case", mha.CASES | mha.BEYOND, ids=name_of)
def test_multi_head_attention(case, dtype, device, counted):
    options = (mha.CASES | mha.BEYOND)[case]
    if dtype is not F32:  # of hidden keys qk has the type's least number, which f64 has not
        options = options | dict(outputs=tuple(name for name in options.get("outputs", ("output",)) if name != "qk"))
    node = mha.draw(76, **options, dtype=dtype)
    rows, keys = (x.shape[2] for x in node.heads()[:2])
    is_masked = {"key_padding_mask", "attention_bias"} & node.inputs.keys() or (
        node.attributes.get("unidirectional") == 1 and rows > 1 and rows != keys)
    adds = {"key_padding_mask", "attention_bias"} & node.inputs.keys() or node.attributes.get("unidirectional") == 1
    is_refused = device == "cuda" and bool(("qk" in node.outputs and adds) or "cache_indirection" in node.inputs or
                                           ("past_sequence_length" in node.inputs and is_masked))
    ours = expect(is_refused, lambda: node.by_onnxruntime(MICROSOFT, in_place="past_sequence_length" in node.inputs))
    assert counted(0 if is_refused else 1)
    if ours:
        # Scores that -10000 was added to are as far from each other as f32 has them there.
        mha.compare(node, ours, node.exact(), max(TOLERANCES[dtype]["rtol"] * 2, 3e-3 * ("key_padding_mask" in node.inputs)))


# ---- RotaryEmbedding of both domains ----


@pytest.mark.parametrize("dtype", TOLERANCES, ids=name_of_type)
@pytest.mark.parametrize("options", rotary.ROTATIONS, ids=name_of)
@pytest.mark.parametrize("domain", ["com.microsoft", ""])
def test_rotary_embedding(domain, options, dtype, counted):
    node, inputs, exact = rotary.draw_rotation(domain, dtype=dtype, **options)
    ours = {"Y": np.full(exact.shape, np.nan, dtype)}
    node.run(inputs, ours, MICROSOFT if domain else ONNX)
    assert counted(1, domain or "ai.onnx")
    close(ours, {"Y": exact}, dtype)


# ---- Norms ----


@pytest.mark.parametrize("dtype", TOLERANCES, ids=name_of_type)
@pytest.mark.parametrize("operator, options", NORMS, ids=name_of)
def test_norm(operator, options, dtype, device, counted):
    node, inputs, ours, exact = draw_norm(operator, dtype=dtype, **options)
    x, axis = inputs["X"], options.get("axis", -1)
    width = int(np.prod(x.shape[axis:]))
    is_refused = device == "cuda" and x.size > 0 and (width < 2 or any(
        array.size != width for name, array in inputs.items() if name != "X"))
    expect(is_refused, lambda: node.run(inputs, ours, ONNX))
    assert counted(0 if is_refused else 1, "ai.onnx")
    if not is_refused and not options.get("offset"):
        close(ours, exact, dtype)


@pytest.mark.parametrize("operator", ["SimplifiedLayerNormalization", "LayerNormalization"])
def test_norm_agrees_with_onnxruntime(operator):
    node, inputs, ours, _ = draw_norm(operator, dtype=F16, dims=(4, 512), bias=operator == "LayerNormalization")
    ours = {"Y": ours["Y"]}
    theirs = {"Y": ours["Y"].copy()}
    node.run(inputs, ours, ONNX)
    node.run(inputs, theirs)
    np.testing.assert_allclose(ours["Y"].astype(float), theirs["Y"].astype(float), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("dtype", UNITS, ids=name_of_type)
@pytest.mark.parametrize("operator, options", SKIPS, ids=name_of)
def test_skip_norm(operator, options, dtype, counted):
    node, inputs, results, exact = draw_skip(operator, dtype, **options)
    node.run(inputs, results, MICROSOFT)
    assert counted(1)
    unit = UNITS[dtype]
    for name in exact:
        assert np.abs(results[name].astype(np.float64) - exact[name]).max() <= 4 * unit * np.abs(exact[name]).max(), name


@pytest.mark.parametrize("operator", [RMS, LAYER])
@pytest.mark.parametrize("dtype", [F32, F16], ids=name_of_type)
def test_skip_norm_agrees_with_onnxruntime(operator, dtype):
    """At most twice as far from f64 as its own kernel, which rounds as often."""
    outputs = ("output", "input_skip_bias_sum")
    node, inputs, ours, exact = draw_skip(operator, dtype, dims=(2, 7, 512), bias=True, outputs=outputs)
    theirs = {name: array.copy() for name, array in ours.items()}
    node.run(inputs, ours, MICROSOFT)
    node.run(inputs, theirs)
    for name in exact:
        error = lambda array, name=name: np.abs(array.astype(np.float64) - exact[name]).max()
        assert error(ours[name]) <= 2 * error(theirs[name]) + UNITS[dtype] * np.abs(exact[name]).max(), name
