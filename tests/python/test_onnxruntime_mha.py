"""com.microsoft's MultiHeadAttention in sessions of onnxruntime, run by Heddle: beside onnxruntime's own kernel, and beside f64."""

import ml_dtypes
import numpy as np
import pytest
from mha_node import LEAST, OUTPUTS, MultiHeadAttention
from test_onnxruntime import MICROSOFT, counted, known_dims, same, words  # noqa: F401

BATCH, HEADS, SIZE = 4, 3, 8
ALL = OUTPUTS
CACHES = OUTPUTS[:3]


def draw(seed, *, rows=5, keys=None, form="rows", v_size=SIZE, bias=False, mask=None, added=None, past=None, buffer=None,
         beams=None, beam_rows=None, spread=1.0, outputs=("output",), dtype=np.float32, **attributes):
    """A node with inputs of their own along every axis. keys: new ones, as many as rows unless given; added: an attention_bias's
    leading dims; past: rows before; buffer: those of a buffer that past and present share."""
    rng = np.random.default_rng(seed)
    keys, total = keys or rows, (keys or rows) + (past or 0)
    numbers = lambda *dims: (rng.standard_normal(dims) * spread).astype(dtype)
    hidden, v_hidden = HEADS * SIZE, HEADS * v_size
    inputs = {"query": numbers(BATCH, rows, HEADS, 3, SIZE) if form == "packed" else numbers(BATCH, rows, hidden)}
    if form == "rows":
        inputs |= {"key": numbers(BATCH, keys, hidden), "value": numbers(BATCH, keys, v_hidden)}
    elif form == "pairs":
        inputs |= {"key": numbers(BATCH, keys, HEADS, 2, SIZE)}
    elif form == "heads":
        inputs |= {name: numbers(BATCH, HEADS, keys, SIZE) for name in ("key", "value")}
    if bias:
        inputs["bias"] = numbers(2 * hidden + v_hidden)
    lengths = rng.integers(1, total + 1, BATCH)
    if mask == "lengths":
        inputs["key_padding_mask"] = lengths
    elif mask == "starts":
        starts = [np.arange(BATCH + 1) * rows, np.arange(BATCH + 1) * total]
        inputs["key_padding_mask"] = np.concatenate([lengths, *starts])
    elif mask:
        dims = (BATCH, total) if mask == "keys" else (BATCH, rows, total)
        # 0 filters and 1 does not. Of other numbers onnxruntime has two minds: where it follows beams, those below 0 do not filter.
        inputs["key_padding_mask"] = rng.integers(0 if beams else -1, 3, dims)
        inputs["key_padding_mask"][..., 0] = 1
        inputs["key_padding_mask"][1] = 0  # an entry all of whose keys are filtered alike
    if "key_padding_mask" in inputs:
        inputs["key_padding_mask"] = inputs["key_padding_mask"].astype(np.int32)
    if added:
        inputs["attention_bias"] = numbers(*added, rows, total)
    if past is not None:
        inputs |= {name: numbers(BATCH, HEADS, buffer or past, size) for name, size in (("past_key", SIZE), ("past_value", v_size))}
    if buffer:
        inputs["past_sequence_length"] = np.array([past], np.int32)
    if beams:
        inputs["cache_indirection"] = rng.integers(0, beams, (BATCH // beams, beams, beam_rows or buffer)).astype(np.int32)
    return MultiHeadAttention(inputs, {"num_heads": HEADS, **attributes}, outputs)


CASES = {
    "plain": dict(),
    "other lengths": dict(rows=5, keys=9),
    "one row": dict(rows=1, keys=70),
    "many rows": dict(rows=130),
    "wider values": dict(v_size=16),
    "narrower values, all outputs": dict(v_size=5, outputs=ALL),
    "scale": dict(scale=0.7),
    "scale below 0": dict(scale=-0.5),
    "causal": dict(unidirectional=1),
    "causal, more keys": dict(rows=4, keys=9, unidirectional=1, outputs=ALL),
    "causal, fewer keys": dict(rows=9, keys=4, unidirectional=1, outputs=ALL),
    "causal, one row": dict(rows=1, keys=6, unidirectional=1, outputs=ALL),
    "unidirectional of 2 is none": dict(unidirectional=2),
    "bias": dict(bias=True),
    "bias, wider values": dict(bias=True, v_size=16, keys=7, outputs=ALL),
    "heads": dict(form="heads", keys=9),
    "heads, all outputs": dict(form="heads", keys=9, outputs=ALL),
    "heads with a bias, which is Q's": dict(form="heads", keys=9, bias=True),
    "heads with a past": dict(form="heads", keys=4, past=6, outputs=ALL),
    "lengths": dict(mask="lengths", outputs=("output", "qk")),
    "lengths, causal": dict(mask="lengths", unidirectional=1, outputs=("output", "qk")),
    "lengths and starts": dict(mask="starts", keys=7),
    "mask of keys": dict(mask="keys", outputs=("output", "qk")),
    "mask of keys, small filter": dict(mask="keys", mask_filter_value=-1.5, outputs=("output", "qk")),
    "mask of rows": dict(mask="rows", keys=7, outputs=("output", "qk")),
    "mask of rows, causal": dict(mask="rows", mask_filter_value=-2.0, unidirectional=1, outputs=("output", "qk")),
    "mask of keys, causal, least filter": dict(mask="keys", mask_filter_value=LEAST, unidirectional=1),
    "mask of rows, causal, least filter": dict(mask="rows", mask_filter_value=LEAST, unidirectional=1, added=(1, HEADS)),
    "attention bias": dict(added=(BATCH, HEADS), outputs=("output", "qk")),
    "attention bias of heads": dict(added=(1, HEADS), keys=7),
    "attention bias of entries": dict(added=(BATCH, 1)),
    "one attention bias": dict(added=(1, 1), unidirectional=1, outputs=("output", "qk")),
    "attention bias and mask": dict(added=(BATCH, 1), mask="keys", mask_filter_value=-3.0, outputs=ALL),
    "present alone": dict(outputs=CACHES),
    "present key alone": dict(outputs=("output", "present_key")),
    "past": dict(past=6, outputs=CACHES),
    "past, causal": dict(past=6, unidirectional=1, outputs=ALL),
    "past, causal, other lengths": dict(past=6, rows=3, keys=5, unidirectional=1, outputs=ALL),
    "past, one row, bias": dict(past=70, rows=1, bias=True, outputs=CACHES),
    "past of no rows": dict(past=0, outputs=CACHES),
    "past, masked": dict(past=6, mask="rows", mask_filter_value=-1.0, added=(1, HEADS), outputs=ALL),
    "past, lengths": dict(past=6, mask="lengths", outputs=CACHES),
    "buffer": dict(past=6, rows=1, buffer=11, outputs=CACHES),
    "buffer without a past": dict(past=0, rows=4, buffer=11, unidirectional=1, outputs=CACHES),
    "buffer, last row": dict(past=10, rows=1, buffer=11, outputs=CACHES),
    "buffer, causal rows": dict(past=6, rows=3, buffer=11, unidirectional=1, bias=True, outputs=CACHES),
    "buffer, causal, other lengths": dict(past=6, rows=3, keys=2, buffer=11, unidirectional=1, outputs=CACHES),
    "buffer, causal, mask of rows": dict(past=6, rows=3, keys=4, buffer=11, mask="rows", mask_filter_value=-1.0, added=(1, HEADS),
                                         unidirectional=1, outputs=CACHES),
    "buffer, masked": dict(past=6, rows=2, buffer=11, mask="keys", mask_filter_value=-1.0, added=(BATCH, 1), outputs=CACHES),
    "buffer, lengths": dict(past=6, rows=2, buffer=11, mask="lengths", outputs=CACHES),
    "buffer, attention bias": dict(past=6, rows=2, buffer=11, added=(1, HEADS), outputs=CACHES),
    "buffer, causal, least filter": dict(past=6, rows=3, buffer=11, mask="rows", mask_filter_value=LEAST, unidirectional=1,
                                         outputs=CACHES),
    "buffer, scores": dict(past=6, rows=2, buffer=11, mask="rows", unidirectional=1, outputs=ALL),
    "beams": dict(past=6, rows=1, buffer=11, beams=2, outputs=CACHES),
    "beams of one entry, bias, mask": dict(past=6, rows=1, buffer=11, beams=4, bias=True, mask="keys", outputs=ALL),
}
# onnxruntime's kernel on a CPU has no packed inputs, reads memory that it did not write where past comes without present, and
# wants a past's values as wide as its keys.
BEYOND = {
    "pairs": dict(form="pairs", keys=9, outputs=ALL),
    "pairs, bias, past, mask": dict(form="pairs", past=6, bias=True, mask="lengths", unidirectional=1, outputs=ALL),
    "packed": dict(form="packed", outputs=ALL),
    "packed, bias, causal": dict(form="packed", bias=True, unidirectional=1),
    "packed, buffer": dict(form="packed", rows=1, past=6, buffer=9, bias=True, outputs=CACHES),
    "past without present": dict(past=6),
    "past of wider values": dict(past=6, v_size=16, outputs=ALL),
    "beams of fewer rows": dict(past=6, rows=1, buffer=11, beams=2, beam_rows=6, outputs=CACHES),
    "beams and several rows": dict(past=6, rows=3, buffer=11, beams=2, unidirectional=1, v_size=4, outputs=CACHES),
}


def compare(node, ours, expected, close):
    for name, array in ours.items():
        known = np.s_[:]
        if name.startswith("present") and "past_sequence_length" in node.inputs:
            known = np.s_[:, :, :int(node.inputs["past_sequence_length"][0]) + node.heads()[1].shape[2]]
        np.testing.assert_allclose(array[known].astype(float), expected[name][known], rtol=close, atol=close, err_msg=name)


def name_of(case):
    return case.replace(" ", "_").replace(",", "")


@pytest.mark.parametrize("case", CASES | BEYOND, ids=name_of)
def test_is_what_the_operator_says(case, counted):  # noqa: F811
    node = draw(61, **(CASES | BEYOND)[case])
    ours = node.by_onnxruntime(MICROSOFT)
    counted(1)
    # Of scores with a filter of -10000 f32 keeps a thousandth.
    filtered = "key_padding_mask" in node.inputs and "mask_filter_value" not in node.attributes
    compare(node, ours, node.exact(), 1e-3 if filtered else 2e-5)


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_agrees_with_onnxruntime(case, counted):  # noqa: F811
    node = draw(62, **CASES[case])
    ours, theirs = node.by_onnxruntime(MICROSOFT), node.by_onnxruntime()
    counted(1)  # theirs was not ours
    compare(node, ours, theirs, 2e-5 if "key_padding_mask" not in node.inputs else 1e-3)


def drawn_options(seed):
    """Options of a node that onnxruntime's kernel takes too, each with each other sooner or later."""
    rng = np.random.default_rng(seed)
    pick = lambda *of: of[rng.integers(len(of))]
    rows = int(pick(1, 2, 5, 33))
    keys = int(pick(rows, rows, rows + 3, max(1, rows - 1)))
    options = dict(rows=rows, keys=keys, form=pick("rows", "rows", "heads"), bias=pick(True, False),
                   mask=pick(None, "lengths", "keys", "rows"), unidirectional=int(rng.integers(2)),
                   added=pick(None, (1, 1), (1, HEADS), (BATCH, 1), (BATCH, HEADS)),
                   outputs=pick(("output",), CACHES, ALL, ("output", "qk")), scale=float(pick(0.0, 0.3, 2.0)),
                   mask_filter_value=float(pick(-1.5, -20.0)))
    past = pick(None, 0, 1, 18)
    if past is not None:
        options |= dict(past=past, outputs=pick(CACHES, ALL))
        if pick(True, False) and options["form"] == "rows":
            options |= dict(buffer=past + keys + int(pick(0, 4)))
    elif options["form"] == "rows":
        options |= dict(v_size=int(pick(4, SIZE, 24)))
    return options


@pytest.mark.parametrize("first", range(0, 200, 25))
def test_random_options_agrees_with_onnxruntime_and_f64(first):
    for seed in range(first, first + 25):
        options = drawn_options(seed)
        node = draw(1000 + seed, **options)
        try:
            ours = node.by_onnxruntime(MICROSOFT)
            compare(node, ours, node.exact(), 3e-5)
            compare(node, ours, node.by_onnxruntime(), 3e-5)
        except Exception as failure:
            raise AssertionError(f"seed {seed}: {options}") from failure


@pytest.mark.parametrize("form, how", [("pairs", 1), ("packed", 0)])
def test_packed_inputs_are_their_parts_agrees_with_onnxruntime(form, how):
    node = draw(63, form=form, bias=True, mask="lengths", unidirectional=1, outputs=ALL)
    packed = node.inputs["key" if how else "query"]
    flat = lambda n: np.ascontiguousarray(packed[:, :, :, n]).reshape(*packed.shape[:2], -1)
    parts = {"key": flat(0), "value": flat(1)} if how else {"query": flat(0), "key": flat(1), "value": flat(2)}
    apart = MultiHeadAttention(node.inputs | parts, node.attributes, node.outputs)
    compare(node, node.by_onnxruntime(MICROSOFT), apart.by_onnxruntime(), 1e-3)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=["f16", "bf16"])
@pytest.mark.parametrize("case", CASES | BEYOND, ids=name_of)
def test_types(case, dtype):
    node = draw(64, dtype=dtype, **(CASES | BEYOND)[case])
    ours, exact = node.by_onnxruntime(MICROSOFT), node.exact()
    if "qk" in ours:  # of large sums 16 bits keep less, and of the least number another one
        exact["qk"] = np.maximum(exact["qk"], float(ml_dtypes.finfo(dtype).min))
        np.testing.assert_allclose(ours.pop("qk").astype(float), exact["qk"], rtol=1e-2, atol=8e-2)
    compare(node, ours, exact, 1e-2 if dtype is np.float16 else 6e-2)


@pytest.mark.parametrize("case", [case for case in CASES | BEYOND if "buffer" in (CASES | BEYOND)[case]], ids=name_of)
def test_past_and_present_of_one_buffer_are_updated_in_place(case):
    node = draw(65, **(CASES | BEYOND)[case])
    apart, together = node.by_onnxruntime(MICROSOFT), node.by_onnxruntime(MICROSOFT, in_place=True)
    np.testing.assert_array_equal(apart["output"], together["output"])
    for name in ("key", "value"):
        past, new = int(node.inputs["past_sequence_length"][0]), node.heads()[1].shape[2]
        after, before = together[f"present_{name}"], node.inputs[f"past_{name}"]
        np.testing.assert_array_equal(after[:, :, past:past + new], apart[f"present_{name}"][:, :, past:past + new])
        np.testing.assert_array_equal(np.delete(after, np.s_[past:past + new], 2), np.delete(before, np.s_[past:past + new], 2))


@pytest.mark.parametrize("case", [case for case in CASES | BEYOND if "buffer" in (CASES | BEYOND)[case]], ids=name_of)
def test_what_lies_behind_the_rows_of_a_buffer_is_not_read(case):
    clean, dirty = (draw(74, **(CASES | BEYOND)[case]) for _ in range(2))
    for name in ("past_key", "past_value"):
        dirty.inputs[name][:, :, int(dirty.inputs["past_sequence_length"][0]):] = np.nan
    np.testing.assert_array_equal(*(node.by_onnxruntime(MICROSOFT, in_place=True)["output"] for node in (clean, dirty)))


def test_a_generation_in_one_buffer_agrees_with_onnxruntime():
    """Steps of one node with one set of shapes: the lengths alone change."""
    nodes = [draw(66, rows=1, past=0, buffer=9, outputs=CACHES) for _ in range(2)]
    for step in range(9):
        new = draw(67 + step, rows=1, past=step, buffer=9, outputs=CACHES)
        results = []
        for node, library in zip(nodes, (MICROSOFT, None), strict=True):
            node.inputs |= {name: new.inputs[name] for name in ("query", "key", "value", "past_sequence_length")}
            results.append(node.by_onnxruntime(library, in_place=True))
            node.inputs |= {f"past_{name}": results[-1][f"present_{name}"] for name in ("key", "value")}
        compare(new, *results, 2e-5)


@pytest.mark.parametrize("options", [dict(), dict(mask="lengths"), dict(past=6, unidirectional=1, outputs=CACHES), dict(bias=True)],
                         ids=words)
def test_huge_scores_agrees_with_onnxruntime(options):
    node = draw(68, spread=40.0, **options)
    ours = node.by_onnxruntime(MICROSOFT)
    assert all(np.isfinite(array).all() for array in ours.values())
    compare(node, ours, node.by_onnxruntime(), 2e-3)


def test_a_row_without_keys_is_zeros():
    """Where onnxruntime gives NaN."""
    node = draw(69, mask="keys", mask_filter_value=float("-inf"))
    ours, exact = node.by_onnxruntime(MICROSOFT)["output"], node.exact()["output"]
    assert (ours[1] == 0).all()
    np.testing.assert_allclose(np.delete(ours, 1, 0), np.delete(exact, 1, 0), rtol=1e-5, atol=1e-5)


def test_what_a_causal_row_does_not_see_is_the_least_number():
    scores = draw(70, rows=4, unidirectional=1, added=(1, 1), outputs=("output", "qk")).by_onnxruntime(MICROSOFT)["qk"]
    assert (scores[:, :, np.triu_indices(4, 1)[0], np.triu_indices(4, 1)[1]] == LEAST).all()
    assert (scores[:, :, np.tril_indices(4)[0], np.tril_indices(4)[1]] > -100).all()


def test_scores_are_infinite_where_the_bias_is_agrees_with_onnxruntime():
    node = draw(75, rows=4, unidirectional=1, added=(1, HEADS), mask="rows", mask_filter_value=-2.0, outputs=("output", "qk"))
    bias = node.inputs["attention_bias"]
    bias[0, 0, 0, 2] = bias[0, 1, 2, 1] = bias[0, 2, 3, 3] = -np.inf  # behind a row's own place, before it, and in the last row
    ours, theirs = node.by_onnxruntime(MICROSOFT), node.by_onnxruntime()
    assert np.isneginf(theirs["qk"]).sum() == 3 * BATCH
    compare(node, ours, theirs, 2e-5)


def test_reruns_are_the_same():
    node = draw(71, rows=70, past=30, mask="lengths", bias=True, outputs=CACHES)
    same(node.by_onnxruntime(MICROSOFT), node.by_onnxruntime(MICROSOFT))


def test_dims_known_before_a_run_are_those_of_the_run_agrees_with_onnxruntime():
    for case in (CASES | BEYOND).values():
        node = draw(72, **case)
        results = node.results()
        assert known_dims(node.node(), node.inputs, results, MICROSOFT) == results["output"].shape


ones = lambda *dims: np.ones(dims, np.float32)


@pytest.mark.parametrize("options, change, sentence", [
    (dict(), dict(num_heads=0), "num_heads must be positive. Got 0"),
    (dict(), dict(num_heads=None), "The attribute num_heads is required."),
    (dict(), dict(scale=float("inf")), "scale must be finite. Got inf"),
    (dict(), dict(mask_filter_value=float("nan")), "mask_filter_value must be a number or -inf. Got nan"),
    (dict(), dict(unidirectional=1.0), "The attribute unidirectional is a number, expected an integer."),
    (dict(), dict(num_heads=5), "The hidden size of 'query', 24, must be a multiple of num_heads, 5"),
    (dict(), dict(value=ones(4, 5, 25)), "The hidden size of 'value', 25, must be a multiple of num_heads, 3"),
    (dict(), dict(key=ones(4, 5, 27)), "Input 'query' and 'key' shall have same dim 2 (hidden_size), got 24 and 27"),
    (dict(), dict(value=ones(4, 6, 24)), "'key' and 'value' shall have same dim 1 (kv_sequence_length), got 5 and 6"),
    (dict(), dict(key=ones(3, 5, 24)), "Input 'query', 'key' and 'value' shall have same dim 0 (batch_size)"),
    (dict(), dict(key=None, value=None), "Packed qkv of 3D BS3NH format is not support by MultiHeadAttention"),
    (dict(), dict(value=None), "Expect rank of key be 5 for packed kv, got 3"),
    (dict(), dict(value=ones(4, 3, 5, 8)), "Expect rank of key and value be same, and either 3 or 4, got 3 and 4"),
    (dict(), dict(key=ones(4, 0, 24), value=ones(4, 0, 24)), "Input 'key' has dims [4, 0, 24], of which none may be 0"),
    (dict(form="heads"), dict(value=ones(4, 3, 5, 9)), "shall have same shape (batch_size, num_heads, kv_sequence_length, "),
    (dict(form="pairs"), dict(value=ones(4, 5, 24)), "Expect 'value' be none when 'key' has packed kv format."),
    (dict(form="pairs"), dict(key=ones(4, 5, 3, 2, 9)), "Expect 'key' shape (batch_size, kv_sequence_length, num_heads, 2, "),
    (dict(form="packed"), dict(query=ones(4, 5, 3, 2, 8)), "Expect 'query' shape (batch_size, kv_sequence_length, num_heads, 3"),
    (dict(form="packed"), dict(key=ones(4, 5, 24)), "Input 'query' is expected to have 3 dimensions when key is given, got 5"),
    (dict(), dict(query=ones(4, 5, 3, 8)), "Input 'query' is expected to have 3 or 5 dimensions, got 4"),
    (dict(bias=True), dict(bias=ones(70)), "Input 'bias' length is expected to be 2 * hidden_size + hidden_size_v, got 70 instea"),
    (dict(bias=True), dict(bias=ones(1, 72)), "Input 'bias' is expected to have 1 dimension, got 2"),
    (dict(mask="keys"), dict(key_padding_mask=np.ones((1, 5), np.int32)), "'key_padding_mask' shape is not expected. Got [1, 5]"),
    (dict(added=(1, 1)), dict(attention_bias=ones(5, 5)), "Input 'attention_bias' is expected to have 4 dimensions, got 2"),
    (dict(added=(1, 1)), dict(attention_bias=ones(2, 1, 5, 5)), "Input 'attention_bias' has dims [2, 1, 5, 5], expected (batch_si"),
    (dict(past=6), dict(past_value=None), "Input 'past_key' and 'past_value' shall be both present or both absent"),
    (dict(past=6), dict(past_value=ones(4, 3, 5, 8)), "Input 'past_value' has dims [4, 3, 5, 8], expected (batch_size, num_heads"),
    (dict(past=6), dict(past_key=ones(4, 6, 24)), "Input 'past_key' has dims [4, 6, 24], expected (batch_size, num_heads, rows"),
    (dict(past=6, rows=1, buffer=9), {}, "Shared past/present buffer requires both present_key and present_value outputs."),
    (dict(past=5, rows=4, buffer=9, outputs=CACHES), dict(past_sequence_length=np.array([6], np.int32)),
     "past_sequence_length (6) plus kv_sequence_length (4) must not exceed max_sequence_length (9)."),
    (dict(past=6, rows=1, buffer=9, outputs=CACHES), dict(past_sequence_length=np.array([9], np.int32)),
     "past_sequence_length must be non-negative and less than max_sequence_length (9), got 9"),
    (dict(past=6, rows=1, buffer=9, outputs=CACHES), dict(past_sequence_length=np.array([-1], np.int32)),
     "past_sequence_length must be non-negative and less than max_sequence_length (9), got -1"),
    (dict(past=6, rows=1, buffer=9, outputs=CACHES), dict(past_sequence_length=np.array([1, 2], np.int32)),
     "past_sequence_length tensor must be of one element when past_present_share_buffer is set"),
    (dict(past=6, rows=1, buffer=9, beams=2, outputs=CACHES), dict(cache_indirection=np.full((2, 2, 9), 2, np.int32)),
     "cache_indirection beam index out of range. Expected [0, 2), got 2 at flattened batch_beam index 0, sequence position 0"),
    (dict(past=6, rows=1, buffer=9, beams=2, outputs=CACHES), dict(cache_indirection=np.zeros((3, 2, 9), np.int32)),
     "Input 'cache_indirection' has dims [3, 2, 9], expected a batch and beams whose product is batch_size, 4, and from 6 to 9"),
    (dict(past=6, rows=1, buffer=9, beams=2, outputs=CACHES), dict(cache_indirection=np.zeros((2, 2, 5), np.int32)),
     "Input 'cache_indirection' has dims [2, 2, 5]"),
], ids=words)
def test_says_what_is_wrong_and_writes_nothing(options, change, sentence):
    node = draw(73, **options)
    results = {name: np.full_like(array, 7) for name, array in node.results().items()}
    for name, value in change.items():
        where = node.attributes if name in ("num_heads", "scale", "mask_filter_value", "unidirectional") else node.inputs
        where[name] = value
        if value is None:
            del where[name]
    with pytest.raises(Exception) as raised:
        node.node().run(node.inputs, results, MICROSOFT)
    assert sentence in str(raised.value)
    assert all((array == 7).all() for array in results.values())
