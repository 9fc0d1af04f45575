"""GroupQueryAttention over its options: nodes in which every two of them meet, beside f64 and beside onnxruntime's kernel.

A seed, printed with each failure, draws other nodes that cover the same pairs: HEDDLE_TEST_SEED=7 pytest test_gqa_pairs.py.
"""

import itertools
import os
import random

import ml_dtypes
import numpy as np
import pytest
from test_gqa import draw

SEED = int(os.environ.get("HEDDLE_TEST_SEED", "1"))

# Of each option the choices, as arguments of draw.
OPTIONS = {
    "rows": {"prompt": dict(rows=9), "prompt of one length": dict(rows=13, ragged=False), "prompt in a buffer": dict(rows=7, past=0),
             "token": dict(past=20), "token of one length": dict(past=300, ragged=False), "chunk": dict(rows=6, past=11),
             "chunk with padding": dict(rows=5, past=12, padded=True)},
    "type": {"f32": {}, "f16": dict(dtype=np.float16), "bf16": dict(dtype=ml_dtypes.bfloat16)},
    "cache": {"its type": {}, "int8": dict(bits=8), "int8 by channel": dict(bits=8, per="PER_CHANNEL"), "int4": dict(bits=4),
              "int4 by channel": dict(bits=4, per="PER_CHANNEL"), "f8": dict(bits=8), "f8 by channel": dict(bits=8, per="PER_CHANNEL")},
    "buffer": {"apart": {}, "larger": dict(capacity=330), "in place": dict(capacity=330)},
    "batch": {"one": dict(batch=1), "three": dict(batch=3)},
    "heads": {"4 on 2": {}, "3 on 3": dict(heads=3, kv_heads=3), "6 on 1": dict(heads=6, kv_heads=1),
              "14 on 2": dict(heads=14, kv_heads=2)},
    "head size": {"32": {}, "40": dict(head_size=40), "64": dict(head_size=64), "144": dict(head_size=144)},
    "inputs": {"three": {}, "packed": dict(packed=True)},
    "rotation": {"none": {}, "halves": dict(rotary=32), "pairs": dict(rotary=16, interleaved=1),
                 "positions": dict(rotary=32, position_ids=True)},
    "mask": {"causal": {}, "window": dict(local_window_size=5), "none": dict(causal=0)},
    "cap": {"none": {}, "3": dict(softcap=3.0)},
    "sink": {"none": {}, "smooth": dict(smooth_softmax=1), "by head": dict(sink=True)},
    "bias": {"none": {}, "one": dict(bias=(False, False)), "by head": dict(bias=(False, True)), "by all": dict(bias=(True, True))},
    "norms": {"none": {}, "both": dict(norms=True)},
    "scale": {"usual": {}, "0.15": dict(scale=0.15)},
}
QUANTISED = [cache for cache in OPTIONS["cache"] if cache != "its type"]


def every(first, second):
    """The pairs of each choice of one option with each of another: (option, choices) both."""
    return {frozenset(pair) for pair in itertools.product(*(itertools.product([name], choices) for name, choices in (first, second)))}


# Two choices that no node may have.
CONFLICTS = (every(("rows", ["prompt", "prompt of one length"]), ("cache", QUANTISED)) |
             every(("rows", ["prompt", "prompt of one length"]), ("buffer", ["larger", "in place"])) |
             every(("rows", ["chunk with padding"]), ("mask", ["none"])) |
             every(("head size", ["40"]), ("rotation", ["halves", "pairs", "positions"])))
# What onnxruntime's kernel for a CPU takes of them, and of positions of a prompt it reads one.
THEIRS = OPTIONS | {"type": {name: OPTIONS["type"][name] for name in ("f32", "f16")}, "norms": {"none": {}},
                    "cache": {name: choice for name, choice in OPTIONS["cache"].items() if not name.startswith("f8")}}
THEIR_CONFLICTS = (CONFLICTS | every(("rows", ["chunk"]), ("batch", ["three"])) |
                   every(("bias", ["one", "by head", "by all"]), ("cache", QUANTISED)) |
                   every(("rows", [rows for rows in OPTIONS["rows"] if rows.startswith("prompt")]), ("rotation", ["positions"])))


def pairs(choices):
    return {frozenset(pair) for pair in itertools.combinations(choices.items(), 2)}


def covering(seed, options, conflicts):
    """Choices of every option, a dict each, in which each pair of choices that may meet does."""
    rng = random.Random(seed)
    open_ = set().union(*(every((a, options[a]), (b, options[b])) for a, b in itertools.combinations(options, 2))) - conflicts
    while open_:
        wanted = dict(min(open_, key=sorted))
        best = None
        for _ in range(60):
            choices = {name: wanted.get(name, rng.choice(list(options[name]))) for name in options}
            if not pairs(choices) & conflicts and (best is None or len(pairs(choices) & open_) > len(pairs(best) & open_)):
                best = choices
        if best is not None:
            open_ -= pairs(best)
            yield best


CASES, THEIR_CASES = list(covering(SEED, OPTIONS, CONFLICTS)), list(covering(SEED, THEIRS, THEIR_CONFLICTS))
CLOSE = {np.dtype(np.float32): (2e-5, 1e-5), np.dtype(np.float16): (5e-3, 5e-3), np.dtype(ml_dtypes.bfloat16): (3e-2, 3e-2)}


def node_of(choices, seed):
    """The node, and whether its past and present are one buffer."""
    arguments = {}
    for name, choice in choices.items():
        arguments |= OPTIONS[name][choice]
    if arguments.get("past") is None:
        arguments.pop("capacity", None)
    elif "capacity" not in arguments:  # rows that have no place are dropped, which judge does not know
        arguments["capacity"] = arguments["past"] + arguments.get("rows", 1)
    node = draw(seed, **arguments)
    if choices["cache"].startswith("f8"):
        for name in ("past_key", "past_value"):
            node.inputs[name] = (node.inputs[name] / 8).astype(ml_dtypes.float8_e4m3fn)
    return node, choices["buffer"] == "in place"


def assert_same_caches(ours, expected, name):
    """Codes may be one off where a number is halfway."""
    if ours.dtype == np.uint8:
        for shift in (0, 4):
            is_, must = (ours.astype(int) >> shift & 15), (expected.astype(int) >> shift & 15)
            assert np.abs(is_ - must).max() <= 1 and (is_ != must).mean() < 5e-3, name
    elif ours.dtype == np.int8:
        assert np.abs(ours.astype(int) - expected).max() <= 1 and (ours != expected).mean() < 5e-3, name
    elif ours.dtype == ml_dtypes.float8_e4m3fn:
        is_, must = ours.astype(float), expected.astype(float)
        np.testing.assert_allclose(is_, must, rtol=1 / 8, atol=2**-9, err_msg=name)
        assert (is_ != must).mean() < 5e-3, name
    else:
        rtol, atol = CLOSE[ours.dtype]
        np.testing.assert_allclose(ours.astype(float), expected.astype(float), rtol=rtol, atol=atol, err_msg=name)


@pytest.mark.parametrize("cases, options, conflicts", [(CASES, OPTIONS, CONFLICTS), (THEIR_CASES, THEIRS, THEIR_CONFLICTS)],
                         ids=["ours", "theirs"])
def test_every_two_choices_meet(cases, options, conflicts):
    met = set().union(*map(pairs, cases))
    for a, b in itertools.combinations(options, 2):
        for pair in every((a, options[a]), (b, options[b])):
            assert (pair in met) != (pair in conflicts), pair


@pytest.mark.parametrize("index", range(len(CASES)))
def test_is_what_the_operator_says(index):
    print(f"HEDDLE_TEST_SEED={SEED}, case {index}: {CASES[index]}")
    node, in_place = node_of(CASES[index], 1000 * SEED + index)
    ours = node.by_heddle(in_place=in_place)
    for name, expected in zip(("present_key", "present_value"), node.present(), strict=True):
        assert_same_caches(ours[name], expected, name)
    exact = node.output_from(ours["present_key"], ours["present_value"])
    rtol, atol = CLOSE[node.inputs["query"].dtype]
    np.testing.assert_allclose(node.valid(ours["output"]).astype(float), node.valid(exact), rtol=rtol, atol=atol)


@pytest.mark.parametrize("index", range(len(THEIR_CASES)))
def test_agrees_with_onnxruntime(index):
    print(f"HEDDLE_TEST_SEED={SEED}, case {index}: {THEIR_CASES[index]}")
    node, in_place = node_of(THEIR_CASES[index], 1000 * SEED + 500 + index)
    ours, theirs = node.by_heddle(in_place=in_place), node.by_onnxruntime(in_place=in_place)
    rtol, atol = CLOSE[node.inputs["query"].dtype]
    if THEIR_CASES[index]["cache"] != "its type":
        rtol, atol = 2e-2, 3e-2
    np.testing.assert_allclose(*(node.valid(one["output"]).astype(float) for one in (ours, theirs)), rtol=max(rtol, 1e-4), atol=atol)
    for name in ("present_key", "present_value"):
        assert ours[name].shape == theirs[name].shape
        assert_same_caches(ours[name], theirs[name], name)
