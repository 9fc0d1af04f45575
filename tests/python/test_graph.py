"""heddle.Graph: what Python puts together is what the text form says, and what is wrong gets its sentence."""

import json
from concurrent.futures import ThreadPoolExecutor

import heddle
import pytest

DIMS = [2, 3, 40, 16]


def parts(graph):
    """The tensors by name, and the nodes with names in the place of uids."""
    text = json.loads(graph.text)
    tensors = {tensor["name"]: tensor for tensor in text["tensors"]}
    return tensors, text["nodes"]


def test_every_kind_of_field():
    graph = heddle.Graph("layer", io="bf16", intermediate="f32", compute="f32")
    q, k, v = (graph.tensor(name, DIMS, [1920, 640, 16, 1]) for name in "qkv")
    o, seed, offset = graph.tensor("o"), graph.tensor("seed", [1] * 4, dtype="i64", by_value=True), graph.tensor(
        "offset", [1] * 4, dtype="i64", by_value=True)
    ends = graph.tensor("ends", [3, 1, 1, 1], dtype="i32", uid=70)
    packed = graph.tensor("packed", ragged_offset=ends, ragged_offset_multiplier=48)
    score = heddle.Expression(graph)
    row = score.apply("gen_index", axis=2)
    cap = graph.tensor("cap", [1] * 4, dtype="f32", constant=-float("inf"))
    score.apply("binary_select", score.apply("cmp_ge", row, row), score.score, cap)
    graph.node("sdpa", "attention", q=q, k=k, v=v, o=o, attn_scale=0.25, right_bound=0, left_bound=None, alibi_mask=False,
               diagonal_alignment="bottom_right", score_mod=score,
               dropout={"probability": 0.5, "seed": seed, "offset": offset})
    tensors, (node,) = parts(graph)
    assert [tensors[name]["uid"] for name in ("q", "k", "v", "o")] == [1, 2, 3, 4] == [x.uid for x in (q, k, v, o)]
    assert tensors["q"]["dims"] == DIMS and tensors["q"]["strides"] == [1920, 640, 16, 1]
    assert tensors["seed"]["pass_by_value"] and tensors["seed"]["dtype"] == "i64"
    assert tensors["packed"]["ragged_offset"] == 70 and tensors["packed"]["ragged_offset_multiplier"] == 48
    assert tensors["cap"]["constant"] == "-inf" and tensors["score"]["virtual"]
    assert packed.uid == 7, "the first that is free"
    assert node["attn_scale"] == 0.25 and node["right_bound"] == 0 and "left_bound" not in node
    assert node["diagonal_alignment"] == "bottom_right" and node["dropout"] == {"probability": 0.5, "seed": 5, "offset": 6}
    ops = node["score_mod"]["ops"]
    assert [op["op"] for op in ops] == ["gen_index", "cmp_ge", "binary_select"] and ops[0]["axis"] == 2
    assert node["score_mod"]["score_in"] == score.score.uid and node["score_mod"]["score_out"] == score.result.uid
    assert heddle.Graph.of_text(graph.text).text == graph.text


def test_validation_infers_and_refuses():
    graph = heddle.Graph(io="f32")
    q, k, v = (graph.tensor(name, DIMS, [1920, 640, 16, 1]) for name in "qkv")
    o = graph.tensor("o")
    graph.node("sdpa", q=q, k=k, v=v, o=o)
    graph.validate()
    assert parts(graph)[0]["o"]["dims"] == DIMS
    wrong = heddle.Graph(io="f32")
    wrong.node("sdpa", q=wrong.tensor("q", DIMS))
    with pytest.raises(heddle.Error) as refusal:
        wrong.validate()
    assert refusal.value.status == "ATTRIBUTE_NOT_SET" and str(refusal.value).endswith(".")


def added(graph, what):
    score = heddle.Expression(graph)
    score.apply("add", score.score, what)
    return score


@pytest.mark.parametrize("wrong, kind, sentence", [
    (lambda g: g.tensor(3), TypeError, "A tensor's name is of type int, expected a str"),
    (lambda g: g.tensor("x", [1.5]), TypeError, "Dims is of type float, expected an int"),
    (lambda g: g.tensor("x", [1] * 9), ValueError, "Dims are 9 numbers, expected 8 at most"),
    (lambda g: g.tensor("x", dtype="f31"), ValueError, "There is no data type 'f31', expected one of f64, f32"),
    (lambda g: g.tensor("x", [2**63]), ValueError, "Dims is 9223372036854775808, expected 64 bits"),
    (lambda g: g.tensor("x", uid=0), heddle.Error, "uid 0, expected another integer"),
    (lambda g: (g.tensor("x", uid=4), g.tensor("y", uid=4)), heddle.Error, "The uid 4 is given to two tensors"),
    (lambda g: g.node("attend"), heddle.Error, 'no op "attend", expected sdpa'),
    (lambda g: g.node("sdpa", q=4), heddle.Error, "'q' is given an integer, expected a tensor"),
    (lambda g: g.node("sdpa", q=heddle.Graph().tensor("q")), ValueError, "'q' is the tensor 'q' of another graph"),
    (lambda g: g.tensor("x", ragged_offset=heddle.Graph().tensor("ends")), ValueError, "'ends' of another graph"),
    (lambda g: g.tensor("x", ragged_offset=7), TypeError, "A ragged offset is of type int, expected a Tensor"),
    (lambda g: g.node("sdpa", score_mod=added(g, 3)), TypeError, "An input of 'add' is of type int, expected a Tensor"),
    (lambda g: g.tensor("x", constant="one"), TypeError, "A constant is of type str, expected a number"),
    (lambda g: g.tensor("x", constant=10**400), ValueError, "A constant is an int of 1329 bits, expected a number that a float"),
    (lambda g: g.tensor("x", 5), TypeError, "Dims are of type int, expected a sequence of ints"),
    (lambda g: g.tensor("x\0y"), ValueError, "expected no null character"),
    (lambda g: g.node("sdpa", diagonal_alignment="top_left\0"), ValueError, "expected no null character"),
    (lambda g: g.tensor("x", dtype=["f32"]), ValueError, "There is no data type ['f32']"),
    (lambda g: g.node("sdpa", querys=g.tensor("q")), heddle.Error, "querys"),
    (lambda g: g.node("sdpa", diagonal_alignment="middle"), heddle.Error, "'middle', expected one of"),
    (lambda g: g.node("sdpa", attn_scale=1j), TypeError, "'attn_scale' is of type complex, expected a Tensor, a number"),
    (lambda g: g.node("sdpa", dropout={"chance": 0.5}), heddle.Error, "chance"),
    (lambda g: heddle.Graph(io=3), ValueError, "There is no data type 3"),
])
def test_what_is_wrong_gets_its_sentence(wrong, kind, sentence):
    with pytest.raises(kind) as refusal:
        wrong(heddle.Graph(io="f32"))
    assert sentence in str(refusal.value)


def test_expressions_of_what_is_no_graph():
    with pytest.raises(TypeError, match="The graph of an expression is of type str, expected a heddle.Graph"):
        heddle.Expression("graph")


def test_many_threads_ask_for_one_text():
    graph = heddle.Graph("attention", io="f32")
    q, k, v, o = (graph.tensor(name, (2, 4, 16, 8)) for name in "qkvo")
    graph.node("sdpa", q=q, k=k, v=v, o=o, attn_scale=0.5)
    graph.validate()
    expected = graph.text
    with ThreadPoolExecutor(8) as threads:
        assert set(threads.map(lambda _: graph.text, range(4000))) == {expected}
