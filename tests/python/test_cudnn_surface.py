"""heddle.cudnn: all names that programs for the package use are there; plans, filters, knobs and notes; what is declined."""

import inspect

import heddle.cudnn as cudnn
import numpy as np
import pytest
from cudnn_program import Program, drawn, forward, near, row_major, scores
from heddle.cudnn import wrapper

IO = (2, 3, 21, 16)
FLOAT, HALF = cudnn.data_type.FLOAT, cudnn.data_type.HALF
NOTE, NUMERIC = cudnn.behavior_note, cudnn.numerical_note


def attention(**options):
    """A validated graph of attention on the CPU with the uids 0, 1, 2 and 3, or as `options` of pygraph say."""
    types = {"io_data_type": FLOAT, "intermediate_data_type": FLOAT, "compute_data_type": FLOAT}
    graph = cudnn.pygraph(**types, **(options or {"handle": cudnn.create_handle(device="cpu")}))
    tensors = [graph.tensor(dim=IO, stride=row_major(IO), uid=uid) for uid in range(3)]
    graph.sdpa(*tensors, generate_stats=False)[0].set_output(True).set_uid(3).set_dim(IO).set_stride(row_major(IO))
    graph.validate()
    return graph


def built(**options):
    graph = attention(**options)
    graph.build()
    return graph


# ---- Names


@pytest.mark.parametrize("name, members", [
    ("data_type", "INT8x4 UINT8x4 INT8x32 FAST_FLOAT_FOR_FP8 FP8_E8M0 FP8_E5M3 FP4_E2M1 INT4 DOUBLE"),
    ("behavior_note", "RUNTIME_COMPILATION REQUIRES_FILTER_INT8x32_REORDER REQUIRES_BIAS_INT8x32_REORDER "
                      "SUPPORTS_CUDA_GRAPH_NATIVE_API CUBLASLT_DEPENDENCY"),
    ("numerical_note", "TENSOR_CORE DOWN_CONVERT_INPUTS REDUCED_PRECISION_REDUCTION FFT NONDETERMINISTIC WINOGRAD "
                       "WINOGRAD_TILE_4x4 WINOGRAD_TILE_6x6 WINOGRAD_TILE_13x13 STRICT_NAN_PROP"),
    ("knob_type", "SWIZZLE TILE_SIZE SPLIT_K_BUF KERNEL_CFG STAGES TILE_CGA_M TILE_CGA_N OCCUPANCY STREAM_K WARP_SPEC_CFG"),
    ("reduction_mode", "ADD MUL MIN MAX AMAX AVG NORM1 NORM2 MUL_NO_ZEROS"), ("scalar_type", "RUNTIME_PARAM COMPILE_TIME_CONST"),
    ("convolution_mode", "CONVOLUTION CROSS_CORRELATION"), ("reshape_mode", "VIEW_ONLY LOGICAL"),
    ("moe_grouped_matmul_mode", "NONE GATHER SCATTER"),
])
def test_enumerations(name, members):
    enumeration = getattr(cudnn, name)
    assert set(members.split()) <= set(enumeration.__members__)
    assert all(enumeration(int(member)) is member for member in enumeration)


def test_modules_and_classes():
    assert cudnn.wrapper.Graph is cudnn.Graph and cudnn.experimental.ops.__name__ == "heddle.cudnn.experimental.ops"
    assert cudnn.knob().type is cudnn.knob_type.NOT_SET and isinstance(cudnn.get_last_error_string(), str)
    with pytest.raises(AttributeError):
        cudnn.matmul_of_another_kind


def test_the_wrapper_has_every_op():
    theirs = {"tensor", "tensor_like", "tensor_scalar"}
    ops = {name for name, method in inspect.getmembers(cudnn.pygraph, inspect.isfunction)
           if name in wrapper._OPS or "Tensor" in str(inspect.signature(method).return_annotation)} - theirs
    assert ops - {"query_tensor_attributes_of_uid"} == wrapper._OPS >= {"sdpa_fp8", "add_square", "matmul", "conv_fprop"}


# ---- Arguments


def test_tensors():
    graph = Program().graph
    offsets = graph.tensor(dim=(3, 1, 1, 1), data_type=cudnn.data_type.INT32)
    tensor = graph.tensor(dim=IO, ragged_offset=offsets, ragged_offset_multiplier=16, uid=-1)
    assert tensor.get_uid() == 0 and tensor.get_ragged_offset_multiplier() == 16
    assert tensor.set_alignment(32).get_alignment() == 32 and tensor.get_reordering_type() is cudnn.tensor_reordering.NONE
    assert (tensor.get_vector_count(), tensor.get_vector_dimension()) == (1, -1)
    assert graph.tensor_like(input=tensor, name="another").get_ragged_offset_multiplier() == 16
    with pytest.raises(ValueError, match="alignment is 0, expected 1 byte at least"):
        tensor.set_alignment(0)


@pytest.mark.parametrize("value, kind, expected", [
    (2, cudnn.scalar_type.COMPILE_TIME_CONST, "INT32"), (2**40, cudnn.scalar_type.RUNTIME_PARAM, "INT64"),
    (0.5, cudnn.scalar_type.RUNTIME_PARAM, "FLOAT"), (3, HALF, "HALF")])
def test_numbers_of_the_graph(value, kind, expected):
    made = Program().graph.tensor_scalar(value, kind)
    assert made.get_data_type().name == expected and made.get_has_compile_time_constant()


def test_tensors_of_vectors_are_declined():
    graph = Program().graph
    q, k, v = (graph.tensor(dim=IO, name=name) for name in "qkv")
    graph.sdpa(q.set_vector_count_and_dimension(4, 1), k, v, generate_stats=False)[0].set_output(True)
    with pytest.raises(cudnn.cudnnGraphNotSupportedError, match="'q' has vectors of 4 elements"):
        graph.validate()


def test_a_kernel_cache_and_the_word_of_replay_are_taken():
    cache = cudnn.create_kernel_cache()
    cache.deserialize(cudnn.create_kernel_cache().serialize())
    cpu = cudnn.create_handle(device="cpu")
    assert built(kernel_cache=cache, is_dynamic_shape_enabled=True, handle=cpu,
                 is_cuda_graph_replay_expected=True).get_execution_plan_count() == 1
    with pytest.raises(TypeError, match="kernel_cache is of type dict, expected what cudnn.create_kernel_cache gives"):
        cudnn.pygraph(kernel_cache={})
    with pytest.raises(ValueError, match="The text is that of no kernel cache"):
        cache.deserialize("{}")


def test_a_graph_shows_its_text():
    graph = cudnn.pygraph(name="of mine")
    assert repr(graph) == "<cudnn graph 'of mine' of 0 ops, not validated>" and '"sdpa"' in repr(attention())


# ---- Plans, engines, knobs, notes


def test_one_engine_without_knobs():
    graph = attention()
    assert graph.get_engine_count() == 1 and graph.get_knobs_for_engine(0) == []
    with pytest.raises(ValueError, match="expected create_execution_plans before"):
        graph.get_engine_and_knobs_at_index(0)
    graph.create_execution_plan(0, {})
    engine, knobs = graph.get_engine_and_knobs_at_index(0)
    again = attention()
    again.create_execution_plan(engine, knobs)
    again.check_support(), again.build_plan_at_index(0)
    again.warmup(), again.autotune({}, None)
    assert again.get_autotune_workspace_size() == again.get_workspace_size() and again.get_plan_name_at_index(0)
    for wrong, kind, sentence in (
            (lambda: graph.get_knobs_for_engine(1), ValueError, "There is no engine 1, expected 0"),
            (lambda: graph.create_execution_plan(1, {}), ValueError, "There is no engine 1"),
            (lambda: graph.create_execution_plan(0, 3), TypeError, "knobs is of type int"),
            (lambda: graph.create_execution_plan(0, {"TILE_SIZE": 3}), TypeError, "A knob is 'TILE_SIZE', expected a member"),
            (lambda: graph.create_execution_plan(0, {cudnn.knob_type.TILE_SIZE: 3}), cudnn.cudnnGraphNotSupportedError,
             "the knob TILE_SIZE = 3, expected none"),
            (lambda: graph.get_engine_and_knobs_at_index(1), ValueError, "There is no plan at index 1"),
            (lambda: again.get_workspace_size_plan_at_index(1), ValueError, "There is no plan at index 1"),
            (lambda: graph.autotune({}, None), ValueError, "has no plan yet, expected build_plans before")):
        with pytest.raises(kind, match=sentence):
            wrong()


@pytest.mark.parametrize("where, choose, sentence", [
    ("cpu", lambda g: g.deselect_engines(["cpu"]), "The engine cpu supports it, but is deselected"),
    ("cpu", lambda g: g.deselect_engines(["cuda"]), None),
    ("cpu", lambda g: g.deselect_workspace_greater_than(-1), "bytes of workspace, and plans over -1 are deselected"),
    ("cpu", lambda g: g.deselect_shared_mem_greater_than(0), None),
    ("gpu", lambda g: g.deselect_shared_mem_greater_than(48 * 1024), "How much shared memory a plan takes is not known"),
    ("gpu", lambda g: g.deselect_shared_mem_greater_than(227 * 1024), None),
    ("cpu", lambda g: g.select_behavior_notes([NOTE.RUNTIME_COMPILATION]), "has not the behavior note RUNTIME_COMPILATION"),
    ("gpu", lambda g: g.select_behavior_notes([NOTE.SUPPORTS_CUDA_GRAPH_NATIVE_API]), None),
    ("gpu", lambda g: g.deselect_behavior_notes([NOTE.RUNTIME_COMPILATION]), "has the behavior note RUNTIME_COMPILATION"),
    ("cpu", lambda g: g.deselect_behavior_notes([NOTE.RUNTIME_COMPILATION]), None),
    ("cpu", lambda g: g.select_numeric_notes([NUMERIC.FFT]), "No plan has the numeric note FFT, which is selected"),
    ("cpu", lambda g: g.select_numeric_notes([NUMERIC.TENSOR_CORE]), "TENSOR_CORE is not known, and it is selected"),
    ("cpu", lambda g: g.deselect_numeric_notes([NUMERIC.WINOGRAD]), None),
    ("cpu", lambda g: g.deselect_numeric_notes([NUMERIC.NONDETERMINISTIC]), "NONDETERMINISTIC is not known, and it is desel"),
])
def test_filters_decline_in_check_support(where, choose, sentence):
    graph = attention(**({"sm_version": 90} if where == "gpu" else {}))
    before = graph.key()
    assert choose(graph) is graph and graph.key() != before
    graph.create_execution_plans([cudnn.heur_mode.A])
    if sentence is None:
        graph.check_support()
        return
    with pytest.raises(cudnn.cudnnGraphNotSupportedError, match=f"No execution plans support the graph.*{sentence}"):
        graph.check_support()


@pytest.mark.parametrize("choose", [lambda g: g.select_behavior_notes([NUMERIC.FFT]), lambda g: g.deselect_engines("cpu"),
                                    lambda g: g.select_numeric_notes(NUMERIC.FFT), lambda g: g.deselect_engines([3]),
                                    lambda g: g.deselect_workspace_greater_than("much")])
def test_filters_of_another_kind(choose):
    with pytest.raises(TypeError, match="expected"):
        choose(attention())


def test_behavior_notes():
    assert built().get_behavior_notes() == [] == built().get_behavior_notes_for_plan_at_index(0)
    assert NOTE.SUPPORTS_CUDA_GRAPH_NATIVE_API in built(sm_version=90).get_behavior_notes()


# ---- Sizes of an execution


def test_workspace_and_an_execution_at_index_0_of_larger_sizes():
    rng = np.random.default_rng(202611)
    graph, larger = built(), (4, 3, 21, 16)
    sizes = {"override_uids": [0, 1, 2, 3], "override_shapes": [larger] * 4, "override_strides": [row_major(larger)] * 4}
    small = graph.get_workspace_size()
    needed = graph.get_workspace_size(handle=cudnn.create_handle(device="cpu"), **sizes)
    assert needed == graph.get_workspace_size_plan_at_index(0, **sizes) and needed >= small == graph.get_workspace_size()
    arrays, o = [drawn(rng, *larger) for _ in range(3)], np.full(larger, np.nan, np.float32)
    graph.execute_plan_at_index({**dict(enumerate(arrays)), 3: o}, np.empty(needed, np.uint8), 0, **sizes)
    near(o, forward(scores(*arrays[:2], 1.0), arrays[2])[0])


def test_deserialize_by_either_name():
    data, cpu = built().serialize(), cudnn.create_handle(device="cpu")
    for given in ({"handle_": cpu, "pyobj": data}, {"handle": cpu, "data": data}):
        graph = cudnn.pygraph()
        graph.deserialize(**given)
        assert graph.get_execution_plan_count() == 1
    with pytest.raises(cudnn.cudnnGraphNotSupportedError, match="enforce_precompiled is True"):
        cudnn.pygraph().deserialize(cpu, data, enforce_precompiled=True)
    with pytest.raises(TypeError, match="deserialize takes a handle"):
        cudnn.pygraph().deserialize(cpu, data, handle=cpu)


# ---- Ops


def test_add_square_in_a_graph_and_in_a_score():
    rng = np.random.default_rng(202612)
    program = Program()
    a, b = drawn(rng, *IO), drawn(rng, *IO)
    y = program.take(program.graph.add_square(program.give(a), program.give(b), name="squares"), IO)
    program.build().run()
    near(y, a.astype(np.float64) + b.astype(np.float64)**2)
    program = Program()
    q, k, v = (drawn(rng, *IO) for _ in range(3))
    o, _ = program.graph.sdpa(program.give(q), program.give(k), program.give(v), attn_scale=0.25, generate_stats=False,
                              score_mod=lambda graph, score: graph.add_square(a=score, b=score))
    taken, raw = program.take(o, IO), scores(q, k, 0.25)
    program.build().run()
    near(taken, forward(raw + raw**2, v)[0])


def x_of(graph):
    return graph.tensor(dim=(4, 8, 1, 1))


@pytest.mark.parametrize("op, make, results", [
    ("matmul", lambda g: g.matmul(A=x_of(g), B=x_of(g), padding=0.0), 1),
    ("conv_fprop", lambda g: g.conv_fprop(image=x_of(g), weight=x_of(g), padding=[1, 1], stride=[1, 1], dilation=[1, 1],
                                          convolution_mode=cudnn.convolution_mode.CROSS_CORRELATION), 1),
    ("conv_dgrad", lambda g: g.conv_dgrad(loss=x_of(g), filter=x_of(g), pre_padding=[0, 0], post_padding=[0, 0]), 1),
    ("conv_wgrad", lambda g: g.conv_wgrad(image=x_of(g), loss=x_of(g)), 1),
    ("reduction", lambda g: g.reduction(input=x_of(g), mode=cudnn.reduction_mode.ADD), 1),
    ("reshape", lambda g: g.reshape(input=x_of(g), reshape_mode=cudnn.reshape_mode.LOGICAL), 1),
    ("transpose", lambda g: g.transpose(input=x_of(g), permutation=[1, 0, 2, 3]), 1),
    ("slice", lambda g: g.slice(x_of(g), [slice(0, 2)] * 4), 1),
    ("concatenate", lambda g: g.concatenate(inputs=[x_of(g), x_of(g)], axis=0), 1),
    ("genstats", lambda g: g.genstats(x_of(g)), 2),
    ("adalayernorm", lambda g: g.adalayernorm(cudnn.norm_forward_phase.TRAINING, *[x_of(g)] * 4), 3),
    ("block_scale_quantize", lambda g: g.block_scale_quantize(x_of(g), block_size=32, axis=1), 2),
    ("block_scale_dequantize", lambda g: g.block_scale_dequantize(x_of(g), x_of(g), block_size=[1, 32]), 1),
    ("moe_grouped_matmul", lambda g: g.moe_grouped_matmul(*[x_of(g)] * 3, mode=cudnn.moe_grouped_matmul_mode.NONE), 1),
    ("moe_grouped_matmul_bwd", lambda g: g.moe_grouped_matmul_bwd(*[x_of(g)] * 3), 1),
    ("rmsnorm", lambda g: g.rmsnorm(cudnn.norm_forward_phase.INFERENCE, x_of(g), None, None, 1e-5)[0], 1),
    ("layernorm", lambda g: g.layernorm(cudnn.norm_forward_phase.TRAINING, x_of(g), epsilon=1e-5), 3),
])
def test_other_ops_are_declined_by_name_when_plans_are_sought(op, make, results):
    graph = Program().graph
    made = make(graph)
    made = made if isinstance(made, tuple) else (made,)
    assert len(made) == results and len({*made}) == results
    for tensor in made:
        tensor.set_output(True).set_data_type(FLOAT).set_name("of theirs")
    graph.validate(), graph.build_operation_graph()
    with pytest.raises(cudnn.cudnnGraphNotSupportedError, match=f"{op} ''"):
        graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    for step in (graph.check_support, graph.build_plans, graph.serialize, graph.get_engine_count):
        with pytest.raises(cudnn.cudnnGraphNotSupportedError, match=op):
            step()


def test_a_layernorm_whose_scale_is_centred_at_0():
    rng = np.random.default_rng(202614)
    program, x, scale, bias = Program(), drawn(rng, 4, 8, 1, 1), drawn(rng, 1, 8, 1, 1), drawn(rng, 1, 8, 1, 1)
    y, *_ = program.graph.layernorm(cudnn.norm_forward_phase.INFERENCE, program.give(x), program.give(scale), program.give(bias),
                                    1e-5, zero_centered_gamma=True)
    taken = program.take(y, x.shape)
    program.build().run()
    left = x.astype(np.float64) - x.astype(np.float64).mean(1, keepdims=True)
    near(taken, (1 + scale.astype(np.float64)) * left / np.sqrt((left**2).mean(1, keepdims=True) + 1e-5) + bias)


def test_a_layernorm_without_a_bias():
    rng = np.random.default_rng(202613)
    program, x = Program(), drawn(rng, 4, 8, 1, 1)
    scale = drawn(rng, 1, 8, 1, 1)
    y, *_ = program.graph.layernorm(cudnn.norm_forward_phase.INFERENCE, program.give(x), program.give(scale), epsilon=1e-5)
    taken = program.take(y, x.shape)
    program.build().run()
    wide = x.astype(np.float64)
    left = wide - wide.mean(1, keepdims=True)
    near(taken, scale * left / np.sqrt((left**2).mean(1, keepdims=True) + 1e-5))
