"""heddle explain of ONNX models: which path serves each attention, beside what a session of onnxruntime says and does."""

import re
import time

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import heddle.onnxruntime

FLOAT, INT32 = TensorProto.FLOAT, TensorProto.INT32
MICROSOFT = helper.make_opsetid("com.microsoft", 1)


def value(name, element, dims):
    return helper.make_tensor_value_info(name, element, dims)


def gqa(name, output, heads=4, **attributes):
    attributes = {"num_heads": heads, "kv_num_heads": 2} | attributes
    return helper.make_node("GroupQueryAttention", ["q", "k", "v", "", "", "lengths", "total"], [output], name=name,
                            domain="com.microsoft", **attributes)


def inputs(batch="batch", rows="sequence", element=FLOAT):
    return [value("q", element, [batch, rows, 128]), value("k", element, [batch, rows, 64]),
            value("v", element, [batch, rows, 64]), value("lengths", INT32, [batch]), value("total", INT32, [1])]


def model(nodes, given=None, outputs=(), imports=(helper.make_opsetid("", 21), MICROSOFT), functions=(), **graph):
    outputs = outputs or [value(nodes[-1].output[0], FLOAT, None)]
    made = helper.make_graph(nodes, "attentions", inputs() if given is None else given, outputs, **graph)
    return helper.make_model(made, ir_version=10, opset_imports=list(imports), functions=list(functions))


@pytest.fixture
def explain(heddle, tmp_path):
    """explain(model, ...): what the command prints; a refusal is its sentence."""

    def run(given, *arguments, name="model.onnx"):
        path = tmp_path / name
        path.write_bytes(given if isinstance(given, bytes) else given.SerializeToString())
        ended = heddle("explain", path, *arguments)
        assert (ended.returncode, ended.stderr) == (0, "") or (ended.returncode == 2 and not ended.stdout)
        return " ".join((ended.stdout or ended.stderr).split())

    return run


def test_layers_that_are_alike_are_one_line(explain):
    said = explain(model([gqa(f"layer{n}/attn", f"o{n}") for n in range(3)], inputs(2, 9)))
    assert re.sub("than [68]:", "than N:", said) == (
        "3 attentions in the model, 3 of them for Heddle layer0/attn and 2 like it (com.microsoft GroupQueryAttention) "
        "served: flash: the 18 rows that share keys are more than N: keys are packed")


def test_open_dims_are_said_and_may_be_given(explain):
    one = model([gqa("attn", "o")])
    assert explain(one) == ("1 attention in the model, 1 of them for Heddle attn (com.microsoft GroupQueryAttention) served, by "
                            "shape: the path is chosen by dims that are open here: query f32 [batch, sequence, 128], key f32 "
                            "[batch, sequence, 64], value f32 [batch, sequence, 64], seqlens_k i32 [batch]")
    assert "query f32 [batch, sequence, 128]" in explain(one, "--dim", "batch=2")
    assert "served: flash" in explain(one, "--dim", "batch=2", "--dim", "sequence=50")
    assert "served: decode" in explain(one, "--dim", "batch=2", "--dim", "sequence=1")


def test_of_gpus_that_need_not_be_here(explain):
    one, cuda = model([gqa("attn", "o")], inputs(2, 9)), ("--device", "cuda")
    assert "served: flash: Hopper's matrix instructions" in explain(one, *cuda, "--arch", "sm_90a")
    assert "served: memory_efficient: kernels of every architecture" in explain(one, *cuda, "--arch", "sm_80")
    scores = helper.make_node("GroupQueryAttention", ["q", "k", "v", "", "", "lengths", "total"],
                              ["o", "", "", "qk"], "attn", domain="com.microsoft", num_heads=4, kv_num_heads=2, qk_output=1)
    assert "not Hopper forward: cuda: the Hopper kernel writes no scores" in explain(
        model([scores], inputs(2, 9)), *cuda, "--arch", "sm_90a")
    assert "kernels need sm_80 or later" in explain(one, *cuda, "--arch", "sm_10")


def test_what_the_operator_refuses_a_session_refuses_in_the_same_words(explain):
    """Attributes when the session is made, shapes at the run."""
    path = heddle.onnxruntime.library_path()
    for broken in (gqa("attn", "o", heads=3), gqa("attn", "o", causal=7), gqa("attn", "o", local_window_size=-5),
                   gqa("attn", "o", num_heads=1.5)):
        one = model([broken], inputs(2, 9))
        said = explain(one).partition(" none: ")[2]
        options = onnxruntime.SessionOptions()
        options.register_custom_ops_library(path)
        with pytest.raises(Exception) as refused:
            onnxruntime.InferenceSession(one.SerializeToString(), options)
        assert said and said in " ".join(str(refused.value).split())
    wrong = inputs(2, 9)
    wrong[1] = value("k", FLOAT, [2, 9, 60])
    said = explain(model([gqa("attn", "o")], wrong)).partition(" none: ")[2]
    session = heddle.onnxruntime.session(model([gqa("attn", "o")], [value(one.name, one.type.tensor_type.elem_type, None)
                                                                    for one in wrong]).SerializeToString())
    with pytest.raises(Exception) as refused:
        session.run(None, {"q": np.ones((2, 9, 128), np.float32), "k": np.ones((2, 9, 60), np.float32),
                           "v": np.ones((2, 9, 64), np.float32), "lengths": np.full(2, 8, np.int32),
                           "total": np.array([9], np.int32)})
    assert said and said in " ".join(str(refused.value).split())


def test_types_that_no_overload_has(explain):
    said = explain(model([gqa("attn", "o")], inputs(2, 9, TensorProto.DOUBLE)))
    assert "none: no overload of the operator has these types: query f64 [2, 9, 128]," in said


def test_imports_are_looked_at(explain):
    attention = helper.make_node("Attention", ["x", "x", "x"], ["o"], name="attn")
    given = [value("x", FLOAT, [2, 4, 9, 16])]
    old = model([attention], given, imports=[helper.make_opsetid("ai.onnx", 21)])
    assert explain(old).endswith("attn (ai.onnx Attention) none: it is of opset 23 of ai.onnx on, the model imports 21")
    for domain in ("", "ai.onnx"):
        assert "served: flash" in explain(model([attention], given, imports=[helper.make_opsetid(domain, 23)]))
    nameless = model([attention], given)
    del nameless.opset_import[:]
    nameless.opset_import.add().version = 23  # no field of a domain at all
    assert "served: flash" in explain(nameless)
    assert "none: the model does not import com.microsoft" in explain(
        model([gqa("attn", "o")], inputs(2, 9), imports=[helper.make_opsetid("", 21)]))


def test_bodies_and_functions_are_looked_into(explain):
    then = helper.make_graph([gqa("inner", "o1")], "then", [], [value("o1", FLOAT, None)])
    other = helper.make_graph([helper.make_node("Identity", ["q"], ["o2"])], "else", [], [value("o2", FLOAT, None)])
    choice = helper.make_node("If", ["condition"], ["o"], name="choice", then_branch=then, else_branch=other)
    said = explain(model([choice], [*inputs(2, 9), value("condition", TensorProto.BOOL, [])]))
    assert "choice then_branch: inner (com.microsoft GroupQueryAttention) served: flash" in said

    function = helper.make_function("local", "Attend", ["q", "k", "v", "lengths", "total"], ["o"], [gqa("attn", "o")],
                                    [helper.make_opsetid("", 21), MICROSOFT])
    call = helper.make_node("Attend", ["q", "k", "v", "lengths", "total"], ["y"], domain="local", name="call")
    said = explain(model([call], inputs(2, 9), [value("y", FLOAT, None)],
                         imports=[helper.make_opsetid("", 21), helper.make_opsetid("local", 1)], functions=[function]))
    assert "1 attention in the model, 1 of them" in said
    assert "function Attend: attn (com.microsoft GroupQueryAttention) served, by shape: " in said
    assert "query of an unknown type [of unknown dims]" in said
    reference = next(one for one in function.node[0].attribute if one.name == "num_heads")
    reference.Clear()
    reference.name, reference.ref_attr_name, reference.type = "num_heads", "heads", onnx.AttributeProto.INT
    said = explain(model([call], inputs(2, 9), [value("y", FLOAT, None)],
                         imports=[helper.make_opsetid("", 21), helper.make_opsetid("local", 1)], functions=[function]))
    assert "none: its num_heads is the attribute heads of the function's calls" in said


def test_operators_that_heddle_lacks_and_attentions_spelled_out(explain):
    packed = helper.make_node("PackedMultiHeadAttention", ["a"], ["b"], name="packed", domain="com.microsoft", num_heads=2)
    nodes = [packed, helper.make_node("Transpose", ["x"], ["t"], perm=[0, 1, 3, 2]), helper.make_node("MatMul", ["x", "t"], ["s"]),
             helper.make_node("Mul", ["s", "scale"], ["scaled"]), helper.make_node("Add", ["scaled", "mask"], ["masked"]),
             helper.make_node("Softmax", ["masked"], ["p"], axis=-1, name="softmax"), helper.make_node("MatMul", ["p", "x"], ["y"]),
             helper.make_node("Softmax", ["y"], ["probabilities"], axis=-1, name="the loss's")]
    said = explain(model(nodes, [value("x", FLOAT, [1, 2, 9, 8]), value("a", FLOAT, [1]), value("mask", FLOAT, [9, 9])],
                         initializer=[numpy_helper.from_array(np.float32(0.5), "scale")]))
    assert said.startswith("2 attentions in the model, 0 of them for Heddle packed (com.microsoft PackedMultiHeadAttention) none: ")
    assert "softmax (MatMul, Softmax, MatMul) none: an attention spelled out" in said and "the loss's" not in said
    norm = helper.make_node("Softmax", ["x"], ["y"])
    assert explain(model([norm], [value("x", FLOAT, [2, 3])])) == "There is no attention in the model."


def test_weights_may_lie_elsewhere(explain, tmp_path):
    nodes = [helper.make_node("MatMul", ["x", "weight"], ["q"]), gqa("attn", "o")]
    weight = numpy_helper.from_array(np.ones((32, 128), np.float32), "weight")
    given = [value("x", FLOAT, [2, 9, 32]), *inputs(2, 9)[1:]]
    one = model(nodes, given, initializer=[weight], value_info=[inputs(2, 9)[0]])
    onnx.save_model(one, str(tmp_path / "outside.onnx"), save_as_external_data=True, location="weights.bin", size_threshold=0)
    (tmp_path / "weights.bin").unlink()  # never read
    assert "served: flash" in explain((tmp_path / "outside.onnx").read_bytes())


def test_the_total_of_the_model_counts(explain):
    total = numpy_helper.from_array(np.array([0], np.int32), "total")
    assert "none: total_sequence_length must be positive, got 0" in explain(
        model([gqa("attn", "o")], inputs(2, 9)[:4], initializer=[total]))


def test_files_that_are_no_models_get_a_sentence(explain):
    whole = model([gqa(f"layer{n}/attn", f"o{n}") for n in range(2)], inputs(2, 9)).SerializeToString()
    for cut in range(1, len(whole) - 1, 7):
        said = explain(whole[:cut])
        assert "model.onnx: it is no ONNX model" in said or "attention" in said
    rng = np.random.default_rng(3)
    for _ in range(60):
        damaged = bytearray(whole)
        for at in rng.integers(0, len(whole), 4):
            damaged[at] = rng.integers(0, 256)
        explain(bytes(damaged))
    assert "it is no ONNX model: it has no graph" in explain(b"")
    assert "it is no ONNX model" in explain(b"HloModule m", name="text.onnx")


def test_graphs_within_graphs_end(explain):
    """Written by hand: onnx itself makes none so deep."""
    def field(number, content):
        size, length = len(content), b""
        while size > 127:
            length, size = length + bytes([size % 128 + 128]), size // 128
        return bytes([8 * number + 2]) + length + bytes([size]) + content

    def nested(depth):
        graph = b""
        for _ in range(depth):
            graph = field(1, field(4, b"If") + field(5, field(1, b"then_branch") + field(6, graph)))
        return bytes([8, 10]) + field(7, graph)

    assert explain(nested(64)) == "There is no attention in the model."
    for depth in (65, 5000):
        assert "bodies of its nodes lie more than 64 deep in each other" in explain(nested(depth))


def test_dims_have_numbers(explain, heddle, tmp_path):
    one = model([gqa("attn", "o")])
    for wrong in ("batch", "batch=", "=3", "batch=-1", "batch=2x", "batch=99999999999999999999"):
        assert f"--dim is given '{wrong}', expected NAME=NUMBER" in explain(one, "--dim", wrong)
    (tmp_path / "module.hlo").write_text("HloModule m")
    assert "is no ONNX model" in heddle("explain", tmp_path / "module.hlo", "--dim", "a=1").stderr


def test_a_model_of_many_nodes_takes_no_time(explain):
    """20000 softmaxes that all read one value, and as many attentions."""
    nodes = [helper.make_node("Add", ["x", "x"], ["a"])]
    nodes += [helper.make_node("Softmax", ["a"], [f"p{n}"]) for n in range(20000)]
    nodes += [gqa(f"layer{n}/attn", f"o{n}") for n in range(20000)]
    begin = time.perf_counter()
    assert "20000 attentions in the model, 20000 of them" in explain(model(nodes, [value("x", FLOAT, [2, 9]), *inputs(2, 9)]))
    assert time.perf_counter() - begin < 20
