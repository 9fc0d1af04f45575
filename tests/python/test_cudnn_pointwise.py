"""heddle.cudnn: pointwise ops outside a score_mod, judged by numpy in f64."""

import heddle.cudnn as cudnn
import ml_dtypes
import numpy as np
import pytest
from cudnn_program import Program, drawn, layout, near

FLOAT, BOOLEAN, INT32 = cudnn.data_type.FLOAT, cudnn.data_type.BOOLEAN, cudnn.data_type.INT32
ONE = {"identity": lambda x: x, "neg": np.negative, "abs": np.abs, "exp": np.exp, "tanh": np.tanh, "floor": np.floor,
       "ceil": np.ceil, "sin": np.sin, "cos": np.cos, "tan": np.tan, "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
       "log": lambda x: np.log(np.abs(x)), "sqrt": lambda x: np.sqrt(np.abs(x)), "rsqrt": lambda x: 1 / np.sqrt(np.abs(x)),
       "reciprocal": lambda x: 1 / np.abs(x)}
TWO = {"add": ("a", "b", np.add), "sub": ("a", "b", np.subtract), "mul": ("a", "b", np.multiply), "div": ("a", "b", np.divide),
       "scale": ("input", "scale", np.multiply), "bias": ("input", "bias", np.add), "max": ("input0", "input1", np.maximum),
       "min": ("input0", "input1", np.minimum), "mod": ("input0", "input1", np.fmod),
       "cmp_eq": ("input", "comparison", np.equal), "cmp_neq": ("input", "comparison", np.not_equal),
       "cmp_lt": ("input", "comparison", np.less), "cmp_le": ("input", "comparison", np.less_equal),
       "cmp_gt": ("input", "comparison", np.greater), "cmp_ge": ("input", "comparison", np.greater_equal)}
DIMS = (2, 3, 5, 16)


@pytest.fixture
def rng():
    return np.random.default_rng(20267)


@pytest.mark.parametrize("method", ONE)
def test_methods_of_one_tensor(rng, method):
    x = drawn(rng, *DIMS) * 2
    if method in ("log", "sqrt", "rsqrt", "reciprocal"):
        x = np.abs(x) + np.float32(0.1)
    if method == "tan":
        x = np.clip(x, -1, 1)
    program = Program()
    y = program.take(getattr(program.graph, method)(input=program.give(x), compute_data_type=FLOAT, name="op"), DIMS)
    program.build().run()
    near(y, ONE[method](x.astype(np.float64)))


@pytest.mark.parametrize("method", TWO)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16], ids=["f32", "f16", "bf16"])
def test_methods_of_two_tensors(rng, method, dtype):
    x, z = drawn(rng, *DIMS, dtype=dtype), drawn(rng, 1, 3, 1, 16, dtype=dtype)
    z[np.abs(z.astype(np.float32)) < 0.25] = 0.5
    x[0, :, 0] = z[0, :, 0]  # equal somewhere
    one, other, function = TWO[method]
    program = Program(dtype)
    y = getattr(program.graph, method)(**{one: program.give(x), other: program.give(z)}, compute_data_type=FLOAT)
    y = program.take(y, DIMS, dtype)
    program.build().run()
    near(y, function(x.astype(np.float64), z.astype(np.float64)), dtype)


def test_masks_of_indices(rng):
    """A causal mask with a window as programs build one, INT32 and BOOLEAN on the way."""
    x = drawn(rng, *DIMS)
    program = Program()
    graph, given = program.graph, program.give(x)
    row = graph.gen_index(input=given, axis=2, compute_data_type=INT32).set_data_type(INT32)
    column = graph.gen_index(input=given, axis=3, compute_data_type=INT32).set_data_type(INT32)
    causal = graph.cmp_ge(input=row, comparison=column, compute_data_type=BOOLEAN).set_data_type(BOOLEAN)
    distance = graph.sub(a=row, b=column, compute_data_type=INT32).set_data_type(INT32)
    near_by = graph.cmp_lt(input=distance, comparison=graph.tensor_scalar(3)).set_data_type(INT32)
    mask = graph.logical_and(causal, near_by).set_data_type(BOOLEAN)
    y = graph.binary_select(input0=given, input1=graph.tensor_scalar(-1e30), mask=mask, name="select")
    y = program.take(y, DIMS)
    program.build().run()
    i, j = np.indices(DIMS)[2:]
    np.testing.assert_array_equal(y, np.where((i >= j) & (i - j < 3), x, np.float32(-1e30)))


def test_rotary_embedding_in_place_on_strided_views(rng):
    """Halves of heads are views of one array, and results lie where they do."""
    whole = drawn(rng, 2, 7, 3, 32, dtype=np.float16).transpose(0, 2, 1, 3)  # BSHD in memory
    was = whole.astype(np.float64)
    angles = rng.uniform(-3, 3, (1, 1, 7, 16))
    cosine, sine = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    program = Program(np.float16)
    graph, halves = program.graph, (whole[..., :16], whole[..., 16:])
    x1, x2 = (program.give(half) for half in halves)
    c, s = program.give(cosine), program.give(sine)
    y1 = graph.sub(a=graph.mul(a=x1, b=c), b=graph.mul(a=x2, b=s))
    y2 = graph.add(a=graph.mul(a=x2, b=c), b=graph.mul(a=x1, b=s))
    for y, half in ((y1, halves[0]), (y2, halves[1])):
        uid = len(program.pack)
        program.pack[uid] = half
        y.set_output(True).set_uid(uid).set_dim(half.shape).set_stride(layout(half)).set_data_type(cudnn.data_type.HALF)
    program.build().run()
    assert graph.get_plan_name().count("\n") == 1
    a, b, cosine, sine = was[..., :16], was[..., 16:], cosine.astype(np.float64), sine.astype(np.float64)
    near(whole[..., :16], a * cosine - b * sine, np.float16)
    near(whole[..., 16:], b * cosine + a * sine, np.float16)


def test_around_a_norm(rng):
    """silu of what rmsnorm makes of a sum: virtual tensors between ops."""
    x, residual, weight = drawn(rng, 6, 40, 1, 1), drawn(rng, 6, 40, 1, 1), drawn(rng, 1, 40, 1, 1)
    program = Program()
    graph = program.graph
    total = graph.add(a=program.give(x), b=program.give(residual), name="residual")
    normed, _ = graph.rmsnorm(cudnn.norm_forward_phase.INFERENCE, total, program.give(weight), None, 1e-5)
    y = program.take(graph.mul(a=graph.sigmoid(input=normed), b=normed), x.shape)
    program.build().run()
    s = x.astype(np.float64) + residual
    n = s / np.sqrt((s * s).mean(1, keepdims=True) + 1e-5) * weight
    near(y, n / (1 + np.exp(-n)))


def test_the_wrapper_and_jit(rng):
    a, b = drawn(rng, *DIMS), drawn(rng, 1, 1, 1, 16)
    with cudnn.Graph(io_data_type=FLOAT, intermediate_data_type=FLOAT, compute_data_type=FLOAT,
                     handle=cudnn.create_handle(device="cpu"), inputs=["sum::a", "sum::b"], outputs=["y"]) as graph:
        total = graph.add(a=a, b=b, name="sum")
        graph.tanh(input=total).set_output(True).set_name("y")
    near(graph(a, b), np.tanh(a.astype(np.float64) + b))

    @cudnn.jit(heur_modes=[cudnn.heur_mode.A])
    def make():
        with cudnn.graph(cudnn.create_handle(device="cpu"), intermediate_data_type=FLOAT, compute_data_type=FLOAT) as (g, _):
            x = g.tensor(dim=DIMS, stride=layout(a), data_type=FLOAT)
            y = g.exp(input=x).set_output(True).set_data_type(FLOAT)
        return g, [x, y]

    graph, (x, y) = make()
    found = np.full(DIMS, np.nan, np.float32)
    graph.execute({x: a, y: found}, np.empty(graph.get_workspace_size(), np.uint8))
    near(found, np.exp(a.astype(np.float64)))


def test_what_is_wrong_is_a_value_error():
    graph = cudnn.pygraph(io_data_type=FLOAT, intermediate_data_type=FLOAT, handle=cudnn.create_handle(device="cpu"))
    x, z = graph.tensor(dim=(2, 3, 4), stride=(12, 4, 1)), graph.tensor(dim=(2, 3, 5), stride=(15, 5, 1))
    graph.add(a=x, b=z).set_output(True)
    with pytest.raises(ValueError, match=r"an input of dims \[2, 3, 5\] beside one of dims \[2, 3, 4\]"):
        graph.validate()


def test_a_pack_of_one():
    """A graph that reads numbers of its own alone binds its result, by tensor, by uid or by address."""
    handle = cudnn.create_handle(device="cpu")
    graph = cudnn.pygraph(io_data_type=FLOAT, intermediate_data_type=FLOAT, compute_data_type=FLOAT, handle=handle)
    y = graph.neg(graph.tensor_scalar(2.5)).set_output(True).set_dim([1, 1, 1, 1]).set_stride([1, 1, 1, 1]).set_data_type(FLOAT)
    graph.build([cudnn.heur_mode.A])
    workspace = np.empty(graph.get_workspace_size(), np.uint8)
    found = np.full((1, 1, 1, 1), np.nan, np.float32)
    for pack in ({y: found}, {y.get_uid(): found}, {y: found.ctypes.data}, [found]):
        found.fill(np.nan)
        graph.execute(pack, workspace, handle=handle)
        assert found.item() == -2.5
    with pytest.raises(ValueError, match="missing a buffer for tensor uid"):
        graph.execute({}, workspace, handle=handle)
