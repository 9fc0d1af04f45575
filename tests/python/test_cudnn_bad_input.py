"""heddle.cudnn: every argument of every public function given what it is not: a sentence of the right kind, nothing else."""

import inspect

import heddle.cudnn as cudnn
import numpy as np
import pytest
from cudnn_program import row_major
from heddle.cudnn import yarn

IO = (1, 2, 4, 8)
ALLOWED = (TypeError, ValueError, cudnn.cudnnGraphNotSupportedError)
JUNK = [None, object(), object, "x", "\0", b"x", -1, 2**70, 1.5, float("nan"), 1j, True, [], [None], [2**70], (), (1, 2), {}, {"x": 1},
        range(3), np.zeros(3), np.float64(2), np.int64(-7), np.array(["x"]), np.zeros((), np.complex64), cudnn.data_type.HALF,
        cudnn.heur_mode.A, cudnn.diagonal_alignment, lambda *_: None, iter(()), Ellipsis]


def tensor(graph, dims=IO):
    return graph.tensor(dim=dims, stride=row_major(dims), data_type=cudnn.data_type.FLOAT)


def graph():
    return cudnn.pygraph(io_data_type=cudnn.data_type.FLOAT, intermediate_data_type=cudnn.data_type.FLOAT,
                         handle=cudnn.create_handle(device="cpu"))


def built():
    made = graph()
    q, k, v = (made.tensor(dim=IO, uid=uid) for uid in range(3))
    made.sdpa(q, k, v, generate_stats=False)[0].set_output(True).set_uid(3)
    made.build()
    return made


# What is called with good arguments but one: a maker of the function, and the good arguments it needs.
def ops():
    kept = {"is_inference", "args", "kwargs"}
    for name, method in inspect.getmembers(cudnn.pygraph, inspect.isfunction):
        if name.startswith("_") or name in ("tensor", "tensor_like", "tensor_scalar") or name in LIFECYCLE:
            continue
        parameters = inspect.signature(method).parameters
        needed = [one for one, p in parameters.items() if p.default is p.empty and one not in ("self", *kept)]
        yield name, needed, [one for one in parameters if one not in ("self", *kept)]


LIFECYCLE = {"validate", "build_operation_graph", "create_execution_plans", "check_support", "build_plans", "build", "execute",
             "build_plan_at_index", "deselect_workspace_greater_than", "get_execution_plan_count", "get_plan_name",
             "get_plan_name_at_index", "get_workspace_size", "get_workspace_size_plan_at_index", "execute_plan_at_index",
             "query_tensor_attributes_of_uid", "serialize", "deserialize", "key", "populate_cuda_graph", "update_cuda_graph"}
GOOD = {"generate_stats": lambda g: False, "norm_forward_phase": lambda g: cudnn.norm_forward_phase.TRAINING,
        "has_dbias": lambda g: True, "axis": lambda g: 0, "epsilon": lambda g: 1e-5}


@pytest.mark.parametrize("op, needed, parameters", list(ops()), ids=lambda x: x if isinstance(x, str) else "")
def test_ops(op, needed, parameters):
    for changed in parameters:
        for junk in [*JUNK, tensor(cudnn.pygraph())]:
            made = graph()
            names = [*needed, *[one for one in ("generate_stats", "epsilon") if one in parameters]]
            arguments = {name: GOOD.get(name, tensor)(made) for name in names} | {changed: junk}
            try:
                getattr(made, op)(**arguments)
                made.validate()
            except ALLOWED as refusal:
                assert str(refusal), (op, changed, junk)


CALLS = {
    "tensor": lambda: graph().tensor, "tensor_like": lambda: graph().tensor_like, "tensor_scalar": lambda: graph().tensor_scalar,
    "pygraph": lambda: cudnn.pygraph, "create_handle": lambda: cudnn.create_handle, "destroy_handle": lambda: cudnn.destroy_handle,
    "set_stream": lambda: cudnn.set_stream, "get_stream": lambda: cudnn.get_stream, "jit": lambda: cudnn.jit,
    "graph_cache": lambda: cudnn.graph_cache, "create_device_properties": lambda: cudnn.create_device_properties,
    "yarn_get_mscale": lambda: yarn.yarn_get_mscale, "deserialize": lambda: graph().deserialize,
    **{name: (lambda name=name: getattr(built(), name)) for name in LIFECYCLE - {"deserialize"}},
    **{name: (lambda name=name: getattr(tensor(graph()), name)) for name in dir(cudnn.Tensor) if name.startswith("set_")},
}
NEEDED = {"set_stream": {"handle": cudnn.create_handle(device="cpu"), "stream": 0}, "yarn_get_mscale": {"scaling_factor": 2.0},
          "graph_cache": {"key_fn": id}, "execute": {"variant_pack": {}, "workspace": None},
          "execute_plan_at_index": {"variant_pack": {}, "workspace": None, "index": 0},
          "populate_cuda_graph": {"handle": None, "variant_pack": {}, "workspace": None, "cuda_graph": 1},
          "update_cuda_graph": {"handle": None, "variant_pack": {}, "workspace": None, "cuda_graph": 1}}


@pytest.mark.parametrize("name", sorted(CALLS))
def test_calls(name):
    parameters = [one for one, p in inspect.signature(CALLS[name]()).parameters.items()
                  if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    for changed in parameters:
        for junk in JUNK:
            try:
                CALLS[name]()(**NEEDED.get(name, {}) | {changed: junk})
            except ALLOWED as refusal:
                assert str(refusal), (name, changed, junk)


@pytest.mark.parametrize("changed", ["max_seq_len", "head_dim", "base", "scaling_factor", "original_max_position", "beta_fast",
                                     "beta_slow", "mscale_factor", "mscale_all_dim_factor", "dtype"])
def test_yarn(changed):
    for junk in [one for one in JUNK if not callable(one)]:
        try:
            yarn.compute_yarn_freqs(**{"max_seq_len": 3, "head_dim": 8, "scaling_factor": 4.0, "device": "cpu"} | {changed: junk})
        except ALLOWED as refusal:
            assert str(refusal), junk


@pytest.mark.parametrize("place", ["0", "3", "workspace"])
def test_packs(place):
    made = built()
    for junk in JUNK:
        pack = {uid: np.zeros(IO, np.float32) for uid in range(4)}
        workspace = np.empty(made.get_workspace_size(), np.uint8)
        # A number is an address, which nobody can tell from a good one.
        if isinstance(junk, (int, np.integer)) and not isinstance(junk, bool) and 0 < junk < 2**64:
            continue
        with pytest.raises(ALLOWED):
            made.execute(pack if place == "workspace" else pack | {int(place): junk}, junk if place == "workspace" else workspace)
