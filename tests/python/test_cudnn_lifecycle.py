"""heddle.cudnn: from a graph to a plan: enumerations, handles, build steps, what is declined and when, bytes."""

import heddle.cudnn as cudnn
import numpy as np
import pytest
from cudnn_program import Program, drawn, forward, near, row_major, scores

IO = (2, 3, 21, 16)
FLOAT = cudnn.data_type.FLOAT


def attention(name="attention", q_name="q", **options):
    """An unbuilt graph of q, k, v and o with the uids 0, 1, 2 and 9, and Stats that are given a uid."""
    graph = Program().graph
    tensors = [graph.tensor(dim=IO, stride=row_major(IO), uid=uid, name=name) for uid, name in enumerate((q_name, "k", "v"))]
    o, stats = graph.sdpa(*tensors, **{"generate_stats": True, "name": name} | options)
    o.set_output(True).set_uid(9)
    if stats is not None:
        stats.set_output(True).set_data_type(FLOAT)
    return graph, tensors, o, stats


def steps(graph):
    yield "validate", graph.validate
    yield "build_operation_graph", graph.build_operation_graph
    yield "create_execution_plans", lambda: graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    yield "check_support", graph.check_support
    yield "build_plans", lambda: graph.build_plans(cudnn.build_plan_policy.HEURISTICS_CHOICE)


def declined_by(graph):
    """The step that declines a graph, and its sentence."""
    for name, step in steps(graph):
        try:
            step()
        except cudnn.cudnnGraphNotSupportedError as declined:
            return name, str(declined)
    return None


def test_enumerations():
    kind, member = cudnn.diagonal_alignment, cudnn.diagonal_alignment.BOTTOM_RIGHT
    assert member.TOP_LEFT is kind.TOP_LEFT and member.name == "BOTTOM_RIGHT" and str(member) == "diagonal_alignment.BOTTOM_RIGHT"
    assert kind(int(member)) is member and member.value == int(member) and not isinstance(member, int)
    assert eval(f"cudnn.{kind.__name__}.{member.name}") is member and "." in kind.__module__
    assert len({*cudnn.data_type, *cudnn.heur_mode}) == len(cudnn.data_type) + len(cudnn.heur_mode)
    assert {"HALF", "BFLOAT16", "FLOAT", "INT32", "INT64", "UINT8", "BOOLEAN", "FP8_E4M3", "FP8_E5M2", "FP8_E8M0",
            "NOT_SET"} <= set(cudnn.data_type.__members__)
    with pytest.raises(AttributeError):
        member.MIDDLE


def test_versions():
    assert cudnn.backend_version() >= 92400 and cudnn.backend_version_string() >= "9.13.0"
    assert isinstance(cudnn.__version__, str) and cudnn.__file__


def test_handles():
    handle = cudnn.create_handle(device="cpu")
    assert cudnn.get_stream(handle) == 0
    cudnn.set_stream(handle=handle, stream=1234)
    assert cudnn.get_stream(handle) == 1234
    cudnn.destroy_handle(handle)
    for wrong, kind in ((lambda: cudnn.set_stream(handle, 0), ValueError), (lambda: cudnn.destroy_handle(3), TypeError),
                        (lambda: cudnn.pygraph(handle=handle), ValueError), (lambda: cudnn.pygraph(handle=7), TypeError),
                        (lambda: cudnn.create_handle(device="tpu"), ValueError), (lambda: cudnn.create_handle(0), TypeError),
                        (lambda: cudnn.set_stream(cudnn.create_handle("cpu"), "s"), TypeError),
                        (lambda: cudnn.set_stream(cudnn.create_handle("cpu"), -1), ValueError)):
        with pytest.raises(kind):
            wrong()


def test_the_environment_names_the_device_that_nothing_else_names(monkeypatch):
    monkeypatch.setenv("HEDDLE_DEVICE", "cpu")
    assert cudnn.create_handle().device == "cpu"
    monkeypatch.setenv("HEDDLE_DEVICE", "tpu")
    with pytest.raises(ValueError, match="HEDDLE_DEVICE is 'tpu', expected cpu or cuda"):
        cudnn.create_handle()
    assert cudnn.create_handle(device="cpu").device == "cpu"


def test_steps_and_what_they_find():
    graph, (q, *_), o, stats = attention()
    assert graph.get_execution_plan_count() == 0 and o.get_dim() == [] and stats.get_uid() == 0
    for _, step in steps(graph):
        step()
    assert graph.get_execution_plan_count() == 1
    assert isinstance(graph.get_workspace_size(), int) and graph.get_workspace_size_plan_at_index(0) == graph.get_workspace_size()
    assert o.get_dim() == list(IO) and stats.get_dim() == [2, 3, 21, 1] and stats.get_stride() == [63, 21, 1, 1]
    assert q.get_uid() == 0 and o.get_uid() == 9 and stats.get_uid() not in (0, 1, 2, 9)
    assert graph.query_tensor_attributes_of_uid(0) is q and "attention" in graph.get_plan_name()
    graph.validate()  # again, and nothing changes
    assert o.get_uid() == 9 and graph.query_tensor_attributes_of_uid(9) is o


def test_a_programs_uid_wins_over_one_that_was_found():
    graph, _, o, stats = attention()
    graph.validate()
    found = stats.get_uid()
    o.set_uid(found)
    graph.validate()
    assert o.get_uid() == found != stats.get_uid()


def test_names_need_not_differ():
    graph, tensors, *_ = attention(q_name="k")
    assert declined_by(graph) is None and [x.get_name() for x in tensors] == ["k", "k", "v"]


@pytest.mark.parametrize("steps_before, step, kind", [
    ((), lambda g: g.execute({}, None), ValueError),
    ((), lambda g: g.get_workspace_size(), ValueError),
    ((), lambda g: g.check_support(), ValueError),
    ((), lambda g: g.create_execution_plans([cudnn.heur_mode.A]), ValueError),
    (("validate",), lambda g: g.check_support(), ValueError),
    (("validate",), lambda g: g.create_execution_plans([]), ValueError),
    (("validate",), lambda g: g.create_execution_plans(["A"]), TypeError),
    (("validate",), lambda g: g.create_execution_plans(3), TypeError),
    (("validate",), lambda g: g.build_plans(cudnn.heur_mode.A), TypeError),
    (("validate",), lambda g: g.build_plan_at_index(1), ValueError),
    (("validate",), lambda g: g.build_operation_graph(3), TypeError),
])
def test_steps_out_of_order(steps_before, step, kind):
    graph, *_ = attention()
    for name, one in steps(graph):
        if name in steps_before:
            one()
    with pytest.raises(kind):
        step(graph)


def fp8(graph):
    x = graph.tensor(dim=IO, stride=row_major(IO), data_type=cudnn.data_type.FP8_E4M3)
    one = graph.tensor(dim=(1, 1, 1, 1), stride=(1, 1, 1, 1), data_type=cudnn.data_type.FLOAT)
    o, stats, amax_o = graph.sdpa_fp8(q=x, k=x, v=x, descale_q=one, descale_k=one, descale_v=one, bias=one,
                                      generate_stats=False, name="eighths")
    o.set_output(True).set_dim(IO)
    assert stats is None and o is not amax_o


@pytest.mark.parametrize("make, step, sentence", [
    (fp8, "validate", "a bias is given, expected none"),
    (lambda g: g.sdpa_mxfp8_backward(1, 2, name="mx"), "validate", "Blackwell"),
    (lambda g: g.adalayernorm_backward(name="AN"), "create_execution_plans", "adalayernorm_backward 'AN' is not supported"),
    (lambda g: g.matmul(g.tensor(), g.tensor()).set_output(True), "create_execution_plans", "matmul"),
    (lambda g: g.sdpa(*[g.tensor(dim=IO)] * 3, generate_stats=False, softmax_precision=cudnn.data_type.HALF), "validate",
     "softmax_precision"),
    (lambda g: g.sdpa(*[g.tensor(dim=IO, data_type=cudnn.data_type.FP8_E8M0)] * 3, generate_stats=False), "validate", "FP8_E8M0"),
    (lambda g: g.sdpa(*[g.tensor(dim=IO, reordering_type=cudnn.tensor_reordering.F8_128x4)] * 3, generate_stats=False),
     "validate", "F8_128x4"),
    (lambda g: g.sdpa(*[g.tensor(dim=IO, stride=[1008, 336, 1, 21])] * 3, generate_stats=False), "validate",
     "The stride for the last dimension"),
    (lambda g: g.sdpa(g.tensor(dim=IO), *[g.tensor(dim=(2, 2, 21, 16))] * 2, generate_stats=False), "validate",
     "number of heads for key and query must be a factor"),
])
def test_what_is_declined_and_when(make, step, sentence):
    graph = Program().graph
    made = make(graph)
    if isinstance(made, tuple) and graph._nodes[0].op == "sdpa":
        made[0].set_output(True)
    found = declined_by(graph)
    assert found is not None and found[0] == step and sentence in found[1]
    with pytest.raises((cudnn.cudnnGraphNotSupportedError, ValueError)):
        graph.execute({}, None)


def test_cuda_graphs_are_of_a_gpu():
    graph, *_ = attention()
    graph.build()
    for fill in (graph.populate_cuda_graph, graph.update_cuda_graph):
        with pytest.raises(ValueError, match="handle is of the CPU, expected one of a GPU"):
            fill(cudnn.create_handle(device="cpu"), {}, None, 7)
        with pytest.raises(TypeError, match="handle is of type int"):
            fill(7, {}, None, 7)


@pytest.mark.parametrize("named", [{"sm_version": 90}, {"sm_version": 80},
                                   {"device_property": cudnn.create_device_properties('{"sm_version": 120, "sm_count": 9}')}])
def test_plans_for_a_gpu_that_is_not_here(named):
    rng = np.random.default_rng(20267)
    arrays = [drawn(rng, *IO) for _ in range(3)]

    def made(**options):
        graph = cudnn.pygraph(io_data_type=FLOAT, intermediate_data_type=FLOAT, compute_data_type=FLOAT, **named)
        q, k, v = (graph.tensor(dim=IO, uid=uid, **options) for uid in range(3))
        graph.sdpa(q, k, v, generate_stats=False)[0].set_output(True).set_uid(3)
        return graph

    graph = made()
    assert declined_by(graph) is None and graph.get_workspace_size() >= 0 and "threads" in graph.get_plan_name()
    o = np.full(IO, np.nan, np.float32)
    graph.execute({0: arrays[0], 1: arrays[1], 2: arrays[2], 3: o}, None)
    near(o, forward(scores(*arrays[:2]), arrays[2])[0])
    step, sentence = declined_by(made(data_type=cudnn.data_type.DOUBLE))
    assert step == "validate" and "cuda" in sentence


def test_a_gpu_that_runs_no_kernels():
    graph = cudnn.pygraph(io_data_type=FLOAT, sm_version=70)
    graph.sdpa(*(graph.tensor(dim=IO) for _ in range(3)), generate_stats=False)[0].set_output(True)
    with pytest.raises(cudnn.cudnnGraphNotSupportedError, match="sm_70', but kernels need sm_80"):
        graph.validate()


def test_a_workspace_that_is_too_large_is_declined():
    graph, *_ = attention()
    assert graph.deselect_workspace_greater_than(0) is graph
    assert declined_by(graph)[0] == "check_support"


def sdpa(graph, *tensors, **options):
    return graph.sdpa(*tensors or [graph.tensor(dim=IO) for _ in range(3)], **{"generate_stats": False} | options)


@pytest.mark.parametrize("wrong, kind, sentence", [
    (lambda g: g.tensor(dim=5), TypeError, "dim is of type int, expected a sequence of ints"),
    (lambda g: g.tensor(dim=[1.5]), TypeError, "A number of dim is of type float, expected an int"),
    (lambda g: g.tensor(dim=[1] * 9), ValueError, "dim has 9 numbers, expected 8 at most"),
    (lambda g: g.tensor(dim=[2, 3], stride=[1]), ValueError, "expected as many numbers of each"),
    (lambda g: g.tensor(dim=[2**63]), ValueError, "expected 64 bits"),
    (lambda g: g.tensor(name=3), TypeError, "name is of type int, expected a str"),
    (lambda g: g.tensor(name="x\0"), ValueError, "expected no null character"),
    (lambda g: g.tensor(data_type="half"), TypeError, "data_type is 'half', expected a cudnn.data_type"),
    (lambda g: g.tensor(data_type=3), TypeError, "data_type is 3, expected a cudnn.data_type"),
    (lambda g: g.tensor(data_type=np.complex64), TypeError, "expected a cudnn.data_type"),
    (lambda g: g.tensor(uid="q"), TypeError, "uid is of type str, expected an int"),
    (lambda g: (g.tensor(uid=0), g.tensor(uid=0)), ValueError, "The uid 0 is given to two tensors"),
    (lambda g: g.tensor(uid=4) and g.tensor().set_uid(4), ValueError, "The uid 4 is given to two tensors"),
    (lambda g: g.tensor(is_pass_by_value="yes"), TypeError, "is_pass_by_value is of type str, expected a bool"),
    (lambda g: g.tensor(reordering_type=1), TypeError, "reordering_type is 1, expected a member of cudnn.tensor_reordering"),
    (lambda g: g.tensor(ragged_offset=3), TypeError, "ragged_offset is of type int, expected a tensor of the graph"),
    (lambda g: g.tensor(dims=[1]), TypeError, "dims"),
    (lambda g: g.tensor_like(3), TypeError, "input is an address, expected an array"),
    (lambda g: g.tensor_like("q"), TypeError, "input is of type str, expected an array"),
    (lambda g: g.tensor_like(np.zeros(3, np.complex64)), TypeError, "input has a data type that the graph has none for"),
    (lambda g: g.tensor().set_output("yes"), TypeError, "is_output is of type str, expected a bool"),
    (lambda g: g.tensor().set_ragged_offset_multiplier(1.5), TypeError, "multiplier is of type float, expected an int"),
    (lambda g: g.sdpa(g.tensor(), g.tensor(), g.tensor()), ValueError, "Neither generate_stats nor is_inference is given"),
    (lambda g: sdpa(g, is_inference=True), ValueError, "generate_stats and is_inference are both given"),
    (lambda g: sdpa(g, generate_stats=1), TypeError, "generate_stats is of type int, expected a bool"),
    (lambda g: sdpa(g, g.tensor(), None, g.tensor()), TypeError, "k is None, expected a tensor of the graph"),
    (lambda g: sdpa(g, g.tensor(), g.tensor(), np.zeros(IO)), TypeError, "v is of type ndarray, expected a tensor of the graph"),
    (lambda g: sdpa(g, *[cudnn.pygraph().tensor(name="far")] * 3), ValueError, "q is the tensor 'far' of another graph"),
    (lambda g: sdpa(g, attn_scale="1"), TypeError, "attn_scale is of type str, expected a number"),
    (lambda g: sdpa(g, use_padding_mask="no"), TypeError, "use_padding_mask is of type str, expected a bool"),
    (lambda g: sdpa(g, diagonal_alignment=1), TypeError, "diagonal_alignment is 1, expected a member"),
    (lambda g: sdpa(g, diagonal_band_left_bound=1.5), TypeError, "diagonal_band_left_bound is of type float, expected an int"),
    (lambda g: sdpa(g, use_causal_mask=True, use_causal_mask_bottom_right=True), ValueError, "are both True"),
    (lambda g: sdpa(g, use_causal_mask=True, diagonal_band_right_bound=3), ValueError, "beside a diagonal_band_right_bound of 3"),
    (lambda g: sdpa(g, use_causal_mask=True, diagonal_alignment=cudnn.diagonal_alignment.BOTTOM_RIGHT), ValueError,
     "beside a diagonal_alignment of BOTTOM_RIGHT"),
    (lambda g: sdpa(g, sliding_window_length=3, diagonal_band_left_bound=4), ValueError, "sliding_window_length is 3 beside"),
    (lambda g: sdpa(g, implementation="AUTO"), TypeError, "implementation is 'AUTO', expected a member"),
    (lambda g: sdpa(g, dropout=0.5), TypeError, "dropout is 0.5, expected (p, seed, offset)"),
    (lambda g: sdpa(g, dropout=(0.5, g.tensor())), TypeError, "dropout begins with a float, expected (p, seed, offset)"),
    (lambda g: sdpa(g, dropout=(0.5, g.tensor(), None)), TypeError, "The offset of dropout is None"),
    (lambda g: sdpa(g, dropout=("p", g.tensor(), g.tensor())), TypeError, "The probability of dropout is of type str"),
    (lambda g: sdpa(g, name=7), TypeError, "name is of type int, expected a str"),
    (lambda g: sdpa(g, compute_data_type="f32"), TypeError, "compute_data_type is 'f32'"),
    (lambda g: sdpa(g, softmax="fast"), TypeError, "softmax"),
    (lambda g: g.sdpa_backward(*[g.tensor()] * 5, None), TypeError, "stats of sdpa_backward is None"),
    (lambda g: cudnn.pygraph(io_data_type="half"), TypeError, "io_data_type is 'half', expected a cudnn.data_type"),
    (lambda g: cudnn.pygraph(sm_version=-3), ValueError, "sm_version is -3"),
    (lambda g: cudnn.pygraph(device_property=90), TypeError, "device_property is of type int, expected what"),
    (lambda g: cudnn.pygraph(sm_version="90"), TypeError, "sm_version is of type str"),
    (lambda g: g.query_tensor_attributes_of_uid(0), ValueError, "has not been validated yet"),
    (lambda g: g.deserialize(b"{}"), ValueError, "are no serialized graph"),
    (lambda g: g.deserialize(b"\xff\x00"), ValueError, "are no serialized graph"),
    (lambda g: g.deserialize(3.5), TypeError, "is of type float, expected bytes"),
    (lambda g: g.deserialize(["x"]), TypeError, "something else than bytes"),
    (lambda g: g.deserialize(1, 2, 3), TypeError, "deserialize takes a handle"),
])
def test_what_is_wrong_gets_its_sentence(wrong, kind, sentence):
    with pytest.raises(kind) as refusal:
        wrong(Program().graph)
    assert sentence in str(refusal.value)


@pytest.mark.parametrize("options, kind, sentence", [
    ({"diagonal_band_right_bound": -1}, ValueError, "Right bound needs to be larger than or equal to zero"),
    ({"diagonal_band_left_bound": 0}, ValueError, "Left bound (Sliding window length) should be greater than zero"),
    ({"use_padding_mask": True}, ValueError, "Padding mask requires seq_len_q and seq_len_kv"),
    ({"use_alibi_mask": True}, cudnn.cudnnGraphNotSupportedError, "diagonal_band_right_bound needs to be set to 0"),
    ({"attn_scale": float("nan")}, ValueError, "attn_scale is nan, expected a finite number"),
    ({"paged_attention_max_seq_len_kv": 8}, cudnn.cudnnGraphNotSupportedError, "not using paged attention"),
    ({"max_total_seq_len_q": 8}, cudnn.cudnnGraphNotSupportedError, "only supported with packed layout"),
])
def test_rules_are_checked_by_validate(options, kind, sentence):
    graph, *_ = attention(**options)
    with pytest.raises(kind) as refusal:
        graph.validate()
    assert sentence in str(refusal.value)


def test_the_first_program_of_the_docs(root):
    text = (root / "docs" / "cudnn.md").read_text(encoding="utf-8").partition("## A first program")[2]
    names = {}
    exec(text.partition("```python\n")[2].partition("```")[0], names)
    q, k, v = (names[name] for name in "qkv")
    near(names["o"], forward(scores(q, k, 0.125, hidden=np.triu(np.ones((128, 128), bool), 1)), v)[0], np.float16)


def test_bytes_and_keys():
    rng = np.random.default_rng(20265)
    arrays = [drawn(rng, *IO) for _ in range(3)]
    graph, *_, stats = attention(attn_scale=0.3)
    graph.build([cudnn.heur_mode.A])
    data, uid = graph.serialize(), stats.get_uid()
    for given in (data, bytearray(data), list(data), memoryview(data)):
        for arguments in ((given,), (cudnn.create_handle(device="cpu"), given)):
            other = cudnn.pygraph(handle=None if len(arguments) == 2 else cudnn.create_handle(device="cpu"))
            other.deserialize(*arguments)
            o, lse = np.full(IO, np.nan, np.float32), np.full((*IO[:3], 1), np.nan, np.float32)
            other.execute(dict(enumerate(arrays)) | {9: o, uid: lse}, np.empty(other.get_workspace_size(), np.uint8))
            true, true_lse, *_ = forward(scores(*arrays[:2], 0.3), arrays[2])
            near(o, true), near(lse, true_lse)
    assert other.query_tensor_attributes_of_uid(0).get_dim() == list(IO) and other.serialize() == data
    with pytest.raises(ValueError, match="missing a buffer for tensor uid 0"):
        other.execute({}, 1)
    for cut in range(0, len(data), 7):
        with pytest.raises(ValueError):
            cudnn.pygraph().deserialize(data[:cut])
    for place in range(0, len(data), 7):
        changed = bytearray(data)
        changed[place] ^= 1  # a 2 of a stride or a scale is a 3, and the graph another
        with pytest.raises(ValueError):
            cudnn.pygraph().deserialize(changed)
    assert graph.key() == attention("renamed", "query", attn_scale=0.3)[0].key() == other.key()
    keys = {attention(**options)[0].key() for options in (
        {}, {"attn_scale": 0.3}, {"use_causal_mask": True}, {"generate_stats": False})}
    assert len(keys) == 4
    with pytest.raises(ValueError, match="has ops already"):
        graph.deserialize(data)
