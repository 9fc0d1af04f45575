"""heddle.gqa beside onnxruntime's own GroupQueryAttention, and both beside the definition in f64."""

import ctypes
import mmap

import ml_dtypes
import numpy as np
import pytest
from gqa_node import Node

import heddle

F32 = {"rtol": 2e-5, "atol": 2e-6}


def draw(seed, *, batch=2, rows=1, past=None, capacity=0, heads=4, kv_heads=2, head_size=32, packed=False, dtype=np.float32,
         rotary=None, interleaved=0, position_ids=False, bias=None, sink=False, bits=0, per="PER_TENSOR", ragged=True,
         norms=False, padded=False, **attributes):
    """A node with `past` rows before the new ones (None: no past input), fewer in some entries if ragged."""
    rng = np.random.default_rng(seed)
    normal = lambda *dims: rng.standard_normal(dims).astype(dtype)
    before = np.zeros(batch, int) if past is None else np.full(batch, past)
    if ragged and past:
        before = rng.integers(0, past + 1, batch)
        before[0] = past
    added = rng.integers(1, rows + 1, batch) if padded else np.full(batch, rows)
    total = before + added
    inputs = {"query": normal(batch, rows, (heads + 2 * kv_heads if packed else heads) * head_size)}
    if not packed:
        inputs |= {name: normal(batch, rows, kv_heads * head_size) for name in ("key", "value")}
    if ragged and not past and not padded:  # a prompt with padding on the right
        total = rng.integers(1, rows + 1, batch)
        total[0] = rows
    length = max(int(total.max()), rows if not past else 0)
    if past is not None:
        buffer = max(capacity, int(before.max()))
        shape = (batch, kv_heads, buffer, head_size // 2 if bits == 4 else head_size)
        for name in ("past_key", "past_value"):
            cache = (rng.integers(-100, 100, shape).astype(np.int8) if bits == 8 else
                     rng.integers(0, 256, shape).astype(np.uint8) if bits == 4 else normal(*shape))
            for b in range(batch):  # nothing behind the rows
                cache[b, :, before[b]:] = 0
            inputs[name] = cache
    inputs["seqlens_k"] = (total - 1).astype(np.int32)
    inputs["total_sequence_length"] = np.array([length], np.int32)
    if rotary:
        table = rng.uniform(0, 2 * np.pi, (length + 5, rotary // 2))
        inputs |= {"cos_cache": np.cos(table).astype(dtype), "sin_cache": np.sin(table).astype(dtype)}
        attributes |= {"do_rotary": 1, "rotary_interleaved": interleaved}
        if position_ids:
            inputs["position_ids"] = rng.integers(0, length + 5, (batch, rows)).astype(np.int64)
    if bias:
        inputs["attention_bias"] = normal(*(full if one else 1 for full, one in zip((batch, heads), bias, strict=True)), rows,
                                          length)
    if sink:
        inputs["head_sink"] = normal(heads)
    if bits:
        attributes |= {"k_quant_type": per, "v_quant_type": per, "kv_cache_bit_width": bits}
        size = 1 if per == "PER_TENSOR" else kv_heads * head_size
        unit = 0.02 if bits == 8 else 0.3
        for name in ("k_scale", "v_scale"):
            scale = (unit * rng.uniform(0.5, 1.5, size)).astype(np.float32)
            inputs[name] = scale if size == 1 else scale.reshape(1, kv_heads, 1, head_size)
    if norms:
        inputs |= {name: rng.uniform(0.5, 1.5, head_size).astype(dtype) for name in ("q_norm_weight", "k_norm_weight")}
    if padded:
        inputs["query_seqlens"] = added.astype(np.int32)
    return Node(inputs, num_heads=heads, kv_num_heads=kv_heads, **attributes)


SHARED = {"rows": {}, "rows of f16": dict(dtype=np.float16), "int8": dict(bits=8, per="PER_CHANNEL"),
          "int4": dict(bits=4, per="PER_CHANNEL"), "few heads": dict(heads=2, kv_heads=2), "a chunk": dict(rows=3, padded=True)}


def draw_shared(seed, **options):
    """A layer that shares another's cache, key and value of length 0, and what present is, elsewhere than past, by name."""
    node = draw(seed, **(dict(past=20, rotary=32, capacity=40) | options))
    exact = {}
    for name in ("key", "value"):
        node.inputs[name] = np.empty((node.batch, 0, node.kv_heads * node.head_size), node.inputs["query"].dtype)
        past = node.inputs[f"past_{name}"]
        past[...] = np.where(past == 0, np.asarray(7, past.dtype), past)  # behind the rows there are others' leavings
        there = np.arange(past.shape[2])[:, None] < (node.inputs["seqlens_k"] + 1)[:, None, None, None]
        exact[f"present_{name}"] = np.where(there, past, np.zeros((), past.dtype))
    return node, exact


CASES = {
    "prompt": dict(rows=9),
    "prompt of one length": dict(rows=17, ragged=False),
    "prompt into a buffer": dict(rows=7, past=0, capacity=30),
    "decode": dict(past=20),
    "decode in a larger buffer": dict(past=20, capacity=64),
    "many keys": dict(past=3000, capacity=4096, batch=1, heads=8),
    "packed prompt": dict(rows=9, packed=True, rotary=32),
    "packed decode": dict(past=20, packed=True, rotary=32, capacity=30),
    "one entry's chunk": dict(rows=6, past=11, batch=1, rotary=32),
    "halves": dict(past=20, rotary=32),
    "interleaved": dict(rows=9, rotary=32, interleaved=1),
    "interleaved decode": dict(past=20, rotary=32, interleaved=1),
    "part of a head": dict(past=20, rotary=16, head_size=48),
    "positions": dict(past=20, rotary=32, position_ids=True),
    "positions of a chunk": dict(past=11, rows=6, batch=1, rotary=32, position_ids=True),
    "window": dict(rows=19, local_window_size=5, ragged=False),
    "window decode": dict(past=30, local_window_size=7),
    "window beyond the keys": dict(past=5, local_window_size=100),
    "soft cap": dict(past=20, softcap=3.0),
    "soft cap prompt": dict(rows=12, softcap=3.0, rotary=32),
    "smooth": dict(past=20, smooth_softmax=1),
    "sink": dict(past=20, sink=True),
    "sink prompt": dict(rows=9, sink=True, local_window_size=4),
    "bias": dict(past=20, bias=(True, True), ragged=False),
    "bias of all": dict(rows=9, bias=(False, False), ragged=False),
    "bias in a larger buffer": dict(past=20, capacity=64, bias=(False, True), ragged=False),
    "bias under a cap": dict(rows=9, bias=(True, False), softcap=2.0, ragged=False),
    "scale": dict(past=20, scale=0.3),
    "no order": dict(rows=9, causal=0, ragged=False),
    "no order decode": dict(past=20, causal=0),
    "one key head": dict(past=20, heads=8, kv_heads=1),
    "own key heads": dict(past=20, heads=3, kv_heads=3),
    "seven to one": dict(past=20, heads=14, kv_heads=2),
    "head size 8": dict(past=20, head_size=8),
    "head size 40": dict(rows=9, head_size=40),
    "head size 256": dict(past=20, head_size=256, rotary=128),
    "int8": dict(past=20, bits=8),
    "int8 per channel": dict(past=20, bits=8, per="PER_CHANNEL", rotary=32),
    "int8 prompt": dict(rows=9, past=0, capacity=16, bits=8),
    "int8 window": dict(past=30, bits=8, local_window_size=9),
    "int4": dict(past=20, bits=4),
    "int4 per channel": dict(past=20, bits=4, per="PER_CHANNEL", rotary=32, capacity=40),
    "int4 prompt": dict(rows=9, past=0, capacity=16, bits=4, rotary=32),
    "padded chunks": dict(rows=5, past=12, capacity=17, padded=True, rotary=32),
    "padded chunks in a buffer": dict(rows=8, past=12, capacity=40, padded=True, batch=4, local_window_size=6),
    "padded packed chunks": dict(rows=5, past=12, capacity=30, padded=True, packed=True, rotary=32, sink=True),
}
# What onnxruntime's CPU kernel refuses.
BEYOND = {
    "chunks of a batch": dict(rows=6, past=11, batch=3, rotary=32),
    "norms": dict(past=20, norms=True, rotary=32),
    "norms of packed": dict(rows=9, packed=True, norms=True),
    "norms of codes": dict(past=20, norms=True, bits=8, per="PER_CHANNEL"),
    "bias over codes": dict(past=20, bias=(True, True), bits=8, ragged=False),
    "bias and sink over int4": dict(rows=3, past=9, batch=2, bias=(True, True), sink=True, bits=4, ragged=False),
}


def judge(node, results, tolerance=F32):
    """Holds an output and caches against the definition; codes may be off by one where a number is halfway."""
    caches = node.present()
    for name, expected in zip(("present_key", "present_value"), caches, strict=True):
        actual = results[name]
        if actual.dtype == np.int8:
            assert np.abs(actual.astype(int) - expected).max() <= 1, name
            assert (actual != expected).mean() < 1e-3, name
        elif actual.dtype == np.uint8:
            pairs = [(actual & 15, expected.astype(int) & 15), (actual >> 4, expected.astype(int) >> 4)]
            past, added, _ = node.lengths()
            for is_, must in pairs:  # behind the rows there are bytes of 0
                assert np.abs(is_.astype(int) - must).max() <= 1, name
                assert (is_ != must).mean() < 1e-3, name
        else:
            np.testing.assert_allclose(actual.astype(np.float64), expected, err_msg=name, **tolerance)
    exact = node.output_from(results["present_key"], results["present_value"])
    np.testing.assert_allclose(node.valid(results["output"]).astype(np.float64), node.valid(exact), **tolerance)


def judge_in_place(node, apart, together):
    """That a past which is its own present got the new rows that a present apart has, and kept all others."""
    past, added, _ = node.lengths()
    np.testing.assert_array_equal(apart["output"], together["output"])
    for name in ("key", "value"):
        before, after = node.inputs[f"past_{name}"], together[f"present_{name}"]
        for b in range(node.batch):
            new = slice(past[b], past[b] + added[b])
            np.testing.assert_array_equal(after[b, :, new], apart[f"present_{name}"][b, :, new])
            np.testing.assert_array_equal(np.delete(after[b], new, 1), np.delete(before[b], new, 1))


@pytest.mark.parametrize("case", CASES | BEYOND, ids=lambda name: name.replace(" ", "_"))
def test_is_what_the_operator_says(case):
    node = draw(1, **(CASES | BEYOND)[case])
    judge(node, node.by_heddle())


@pytest.mark.parametrize("case", CASES, ids=lambda name: name.replace(" ", "_"))
def test_agrees_with_onnxruntime(case):
    node = draw(2, **CASES[case])
    ours, theirs = node.by_heddle(), node.by_onnxruntime()
    quantised = node.attributes.get("kv_cache_bit_width", 0) != 0
    first = "position_ids" in node.inputs and node.inputs.get("past_key") is None
    assert not first, "onnxruntime's prompt reads the first of the positions alone"
    output = {"rtol": 2e-2, "atol": 2e-2} if quantised else {"rtol": 1e-4, "atol": 1e-5}
    np.testing.assert_allclose(node.valid(ours["output"]), node.valid(theirs["output"]), **output)
    for name in ("present_key", "present_value"):
        assert ours[name].shape == theirs[name].shape
        if quantised:
            assert (ours[name] != theirs[name]).mean() < 2e-3, name
        else:
            np.testing.assert_allclose(ours[name], theirs[name], err_msg=name, **F32)


def test_runs_on_the_arrays_of_the_node():
    """All of them, also total_sequence_length, whose uid a tensor within the graph may have."""
    node = draw(1, rows=3, past=5, capacity=9)
    results = node.by_heddle(execute=lambda plan, arrays: plan.execute(arrays, np.empty(plan.workspace_bytes, np.uint8)))
    judge(node, results)


@pytest.mark.parametrize("case", ["decode in a larger buffer", "packed decode", "prompt into a buffer", "int4 per channel",
                                  "bias in a larger buffer", "padded chunks in a buffer"])
def test_in_place_writes_the_new_rows_alone(case):
    node = draw(3, **CASES[case])
    judge_in_place(node, node.by_heddle(), node.by_heddle(in_place=True))


def test_a_layer_may_share_anothers_cache():
    node = draw(4, rows=1, past=20, rotary=32, ragged=False)
    for name in ("key", "value"):
        node.inputs[name] = np.empty((node.batch, 0, node.kv_heads * node.head_size), np.float32)
        node.inputs[f"past_{name}"] = np.concatenate([node.inputs[f"past_{name}"]] * 2, 2)
    results = node.by_heddle()
    assert set(results) == {"output", "present_key", "present_value"}
    exact = node.output_from(node.inputs["past_key"], node.inputs["past_value"])
    np.testing.assert_allclose(results["output"], exact, **F32)
    theirs = node.by_onnxruntime()["output"]
    np.testing.assert_allclose(results["output"], theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", [1, 2])
@pytest.mark.parametrize("case", ["decode", "decode in a larger buffer", "prompt of one length", "soft cap", "sink", "smooth",
                                  "bias under a cap", "window", "interleaved decode"])
def test_gives_scores_or_probabilities(case, mode):
    node = draw(8, **CASES[case] | {"ragged": False, "qk_output": mode})
    ours, theirs = node.by_heddle(), node.by_onnxruntime()
    scores = np.zeros(ours["output_qk"].shape)
    node.output_from(ours["present_key"], ours["present_value"], scores)
    np.testing.assert_allclose(ours["output_qk"], scores, **F32)
    np.testing.assert_allclose(ours["output_qk"], theirs["output_qk"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("capacity", [8, 11, 40])
@pytest.mark.parametrize("bits", [0, 8])
def test_a_window_of_the_cache_is_as_good_as_all_of_it(capacity, bits):
    """A prompt longer than the window, a chunk and tokens, in place; against the definition over all keys."""
    rng = np.random.default_rng(capacity)
    heads, kv_heads, size, window, batch = 4, 2, 32, 8, 2
    dtype = np.int8 if bits else np.float32
    caches = {name: np.zeros((batch, kv_heads, capacity, size), dtype) for name in ("past_key", "past_value")}
    table = rng.uniform(0, 2 * np.pi, (64, 16))
    attributes = dict(num_heads=heads, kv_num_heads=kv_heads, do_rotary=1, local_window_size=window)
    scales = {}
    if bits:
        attributes |= dict(k_quant_type="PER_TENSOR", v_quant_type="PER_TENSOR", kv_cache_bit_width=8)
        scales = {name: np.array([0.03], np.float32) for name in ("k_scale", "v_scale")}
    keys, values = ([np.zeros((kv_heads, 0, size)) for _ in range(batch)] for _ in range(2))
    total = np.zeros(batch, int)
    for rows in (13, 3, 1, 1, 9, 1, 1):
        total += rows
        inputs = {"query": rng.standard_normal((batch, rows, heads * size)).astype(np.float32)}
        inputs |= {n: rng.standard_normal((batch, rows, kv_heads * size)).astype(np.float32) for n in ("key", "value")}
        inputs |= caches | scales | {
            "seqlens_k": (total - 1).astype(np.int32), "total_sequence_length": np.array([total.max()], np.int32),
            "cos_cache": np.cos(table).astype(np.float32), "sin_cache": np.sin(table).astype(np.float32)}
        node = Node(inputs, sliding_window_cache=1, **attributes)
        _, k, v = node.heads_of_inputs()
        for b in range(batch):
            keys[b] = np.concatenate([keys[b], node.codes(k[b], "k")], 1)
            values[b] = np.concatenate([values[b], node.codes(v[b], "v")], 1)
        results = node.by_heddle(in_place=True)
        caches = {"past_key": results["present_key"], "past_value": results["present_value"]}
        unit = 0.03 if bits else 1
        exact = node.attention([x * unit for x in keys], [x * unit for x in values])
        # A code next to the definition's moves an output by less than its scale.
        close = {"rtol": 1e-2, "atol": 0.03} if bits else F32
        np.testing.assert_allclose(results["output"], exact, **close)


def test_one_plan_serves_a_whole_generation():
    """A prompt, a chunk and tokens by the plan of the longest of them, each at its own shapes, in one cache."""
    rng = np.random.default_rng(3)
    heads, kv_heads, size, capacity, most, batch = 4, 2, 32, 40, 12, 2
    table = rng.uniform(0, 2 * np.pi, (capacity, 16))
    angles = {"cos_cache": np.cos(table).astype(np.float32), "sin_cache": np.sin(table).astype(np.float32)}
    caches = {name: np.zeros((batch, kv_heads, capacity, size), np.float32) for name in ("past_key", "past_value")}
    attributes = dict(num_heads=heads, kv_num_heads=kv_heads, do_rotary=1)

    def node(rows, total):
        inputs = {"query": rng.standard_normal((batch, rows, (heads + 2 * kv_heads) * size)).astype(np.float32)}
        return Node(inputs | caches | angles | {"seqlens_k": (total - 1).astype(np.int32),
                                                "total_sequence_length": np.array([capacity], np.int32)}, **attributes)

    plan, uids = heddle.Plan(node(most, np.full(batch, most)).graph(), "cpu"), heddle.gqa.uids
    workspace = np.empty(plan.workspace_bytes, np.uint8)
    total = np.zeros(batch, int)
    for rows in (most, 5, 1, 1, 3):
        total += rows
        step = node(rows, total)
        exact = Node({name: array.copy() for name, array in step.inputs.items()}, **attributes)
        hidden = (heads + 2 * kv_heads) * size
        output = np.full((batch, most, heads * size), np.nan, np.float32)
        arrays = step.inputs | {"output": output, "present_key": caches["past_key"], "present_value": caches["past_value"]}
        plan.execute({uids[name]: array.ctypes.data for name, array in arrays.items()}, workspace.ctypes.data,
                     shapes={uids["query"]: (batch, heads + 2 * kv_heads, rows, size)},
                     strides={uids["query"]: (rows * hidden, size, hidden, 1)})
        key, value = exact.present()
        np.testing.assert_allclose(caches["past_key"], key, **F32)
        np.testing.assert_allclose(output[:, :rows], exact.output_from(key, value), **F32)
        assert np.isnan(output[:, rows:]).all()


@pytest.mark.parametrize("dtype", [np.float16])
@pytest.mark.parametrize("case", ["decode", "halves", "prompt", "soft cap", "sink", "window decode"])
def test_half_precision(case, dtype):
    node = draw(5, dtype=dtype, **CASES[case])
    ours = node.by_heddle()
    exact = node.output_from(ours["present_key"], ours["present_value"])
    np.testing.assert_allclose(node.valid(ours["output"]), node.valid(exact), rtol=5e-3, atol=5e-3)
    theirs = node.by_onnxruntime()
    np.testing.assert_allclose(node.valid(ours["output"]), node.valid(theirs["output"]), rtol=5e-3, atol=5e-3)


@pytest.mark.parametrize("case", ["decode", "packed prompt", "one entry's chunk", "sink prompt", "norms", "int8 per channel",
                                  "chunks of a batch"])
def test_bfloat16(case):
    node = draw(9, dtype=ml_dtypes.bfloat16, **(CASES | BEYOND)[case])
    ours = node.by_heddle()
    exact = node.output_from(ours["present_key"], ours["present_value"])
    np.testing.assert_allclose(node.valid(ours["output"]).astype(float), node.valid(exact), rtol=2e-2, atol=2e-2)
    if ours["present_key"].dtype == ml_dtypes.bfloat16:
        for name, expected in zip(("present_key", "present_value"), node.present(), strict=True):
            np.testing.assert_allclose(ours[name].astype(float), expected, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("options", [dict(past=20, rotary=32), dict(past=0, rows=9, capacity=16), dict(past=600, softcap=4.0),
                                     dict(past=20, per="PER_CHANNEL", sink=True)], ids=str)
def test_float8_caches(options):
    node = draw(10, bits=8, **options)
    for name in ("past_key", "past_value"):
        node.inputs[name] = (node.inputs[name] / 8).astype(ml_dtypes.float8_e4m3fn)
    ours = node.by_heddle()
    exact = node.output_from(ours["present_key"], ours["present_value"])
    np.testing.assert_allclose(node.valid(ours["output"]), node.valid(exact), **F32)
    for name, expected in zip(("present_key", "present_value"), node.present(), strict=True):
        assert (ours[name].astype(float) != expected).mean() < 1e-3, name


def between_guards(at_end):
    """Moves arrays between pages that nobody may touch, flush with the one behind them or before."""
    libc, page, kept = ctypes.CDLL(None, use_errno=True), mmap.PAGESIZE, []

    def place(array):
        room = max(array.nbytes + page - 1, page) // page * page
        memory = mmap.mmap(-1, room + 2 * page)
        kept.append(memory)
        first = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        for guard in (first, first + page + room):
            assert libc.mprotect(ctypes.c_void_p(guard), ctypes.c_size_t(page), 0) == 0
        offset = page + (room - array.nbytes if at_end else 0)
        moved = np.frombuffer(memory, array.dtype, array.size, offset).reshape(array.shape)
        moved[...] = array
        return moved

    return place


@pytest.mark.parametrize("at_end", [False, True])
@pytest.mark.parametrize("lengths", [(-1, 3), (0, 19), (1000, 18), (-(2**31), 2**31 - 1)])
@pytest.mark.parametrize("options", [dict(), dict(capacity=25, rotary=32, packed=True), dict(bits=4), dict(rows=4, padded=True),
                                     dict(local_window_size=5, sliding_window_cache=1)], ids=str)
def test_lengths_out_of_range_touch_nothing_else(lengths, options, at_end):
    node = draw(11, past=19, ragged=False, **options)
    node.inputs["seqlens_k"] = np.array(lengths, np.int32)
    if "query_seqlens" in node.inputs:
        node.inputs["query_seqlens"] = np.array([-7, 2**31 - 1], np.int32)
    node.by_heddle(in_place=bool(options.get("capacity")), place=between_guards(at_end))


@pytest.mark.parametrize("lengths", [(-1, 3), (0, 19), (1000, 19), (-70, 2**31 - 1)])
@pytest.mark.parametrize("options", [dict(), dict(capacity=25, rotary=32), dict(bits=8), dict(rows=4, padded=True)], ids=str)
def test_lengths_out_of_range_stay_within_the_buffers(lengths, options):
    node = draw(6, past=19, ragged=False, **options)
    node.inputs["seqlens_k"] = np.array(lengths, np.int32)
    results = node.by_heddle()
    assert np.isfinite(results["output"]).all()
    if results["present_key"].dtype == np.float32:
        assert np.isfinite(results["present_key"]).all() and np.isfinite(results["present_value"]).all()


def test_says_what_is_wrong_in_the_operators_words():
    node = draw(7, past=20)
    node.attributes["kv_num_heads"] = 3
    with pytest.raises(heddle.Error, match="num_heads must be a multiple of kv_num_heads"):
        node.graph()
    with pytest.raises(TypeError, match="no input and no attribute 'keys'"):
        heddle.gqa(1, keys=("f32", (1, 1, 8)))
    with pytest.raises(TypeError, match="The input query is 7, expected a data type and dims"):
        heddle.gqa(1, query=7)
    with pytest.raises(TypeError, match="outputs is of type str, expected a list of names, of output, present_key"):
        heddle.gqa(1, outputs="output")
    with pytest.raises(ValueError, match="no output 'presents', expected one of output, present_key"):
        heddle.gqa(1, outputs=["output", "presents"])


@pytest.mark.parametrize("seed", range(60))
def test_random_nodes_agree(seed):
    """Options drawn together, as far as onnxruntime takes them on a CPU."""
    rng = np.random.default_rng([seed, 17])
    pick = lambda *values: values[rng.integers(len(values))]
    decodes = bool(pick(True, True, False))
    kv_heads, head_size = pick(1, 2, 3), pick(8, 16, 24, 48, 64, 80, 128)
    options = dict(batch=pick(1, 2, 3), kv_heads=kv_heads, heads=kv_heads * pick(1, 2, 5), head_size=head_size)
    options |= dict(rows=1, past=pick(1, 9, 40, 600), capacity=pick(0, 640)) if decodes else dict(
        rows=pick(2, 9, 33), past=pick(None, 0), capacity=40)
    options["packed"] = bool(pick(True, False))
    if head_size % 16 == 0 and pick(True, False):
        options |= dict(rotary=pick(16, head_size // 16 * 16), interleaved=pick(0, 1))
        if decodes:
            options["position_ids"] = bool(pick(True, False))
    options["softcap"] = pick(0.0, 0.0, 2.5)
    options["sink"] = bool(pick(True, False, False))
    if pick(True, False):
        options["local_window_size"] = pick(3, 10)
    options["ragged"] = bool(pick(True, False))
    if not options["ragged"] and pick(True, False):
        options["bias"] = (bool(pick(True, False)), bool(pick(True, False)))
    elif head_size % 16 == 0 and options.get("past") is not None and not options["sink"] and pick(True, False):
        options |= dict(bits=pick(4, 8), per=pick("PER_TENSOR", "PER_CHANNEL"))
    node = draw(seed, **options)
    ours = node.by_heddle()
    judge(node, ours)
    theirs = node.by_onnxruntime()
    close = {"rtol": 2e-2, "atol": 2e-2} if options.get("bits") else {"rtol": 1e-4, "atol": 1e-5}
    np.testing.assert_allclose(node.valid(ours["output"]), node.valid(theirs["output"]), **close)


@pytest.mark.parametrize("case", SHARED)
def test_a_cache_that_is_shared_is_handed_on(case):
    node, exact = draw_shared(31, **SHARED[case])
    ours, together = node.by_heddle(), node.by_heddle(in_place=True)
    for name, present in exact.items():
        np.testing.assert_array_equal(ours[name], present)
        np.testing.assert_array_equal(together[name], node.inputs[name.replace("present", "past")])
    np.testing.assert_array_equal(together["output"], ours["output"])
    assert np.isfinite(ours["output"].astype(np.float32)).all()
