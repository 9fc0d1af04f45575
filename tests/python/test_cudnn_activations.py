"""heddle.cudnn: activations and their backwards under NVIDIA's names, judged by numpy in f64."""

import heddle.cudnn as cudnn
import numpy as np
import pytest
from cudnn_program import Program, drawn, near, scores
from cudnn_program import forward as attention
from test_activations import ACTIVATIONS

FLOAT = cudnn.data_type.FLOAT
DIMS = (2, 3, 5, 16)
# Method -> the mode it is of, and its numbers by NVIDIA's names and the text form's.
METHODS = [
    ("relu", "relu", {}, {}),
    ("relu", "relu", {"negative_slope": 0.1, "lower_clip": -0.5, "upper_clip": 1.5},
     {"relu_lower_clip_slope": 0.1, "relu_lower_clip": -0.5, "relu_upper_clip": 1.5}),
    ("leaky_relu", "relu", {"negative_slope": 0.2}, {"relu_lower_clip_slope": 0.2}),
    ("elu", "elu", {}, {}), ("gelu", "gelu", {}, {}), ("gelu_approx_tanh", "gelu_approx_tanh", {}, {}),
    ("softplus", "softplus", {}, {}), ("swish", "swish", {}, {}),
    ("swish", "swish", {"swish_beta": 1.7}, {"swish_beta": 1.7}),
    ("tanh", "tanh", {}, {}), ("sigmoid", "sigmoid", {}, {})]


@pytest.mark.parametrize("method, mode, given, numbers", METHODS)
def test_forward_and_backward(method, mode, given, numbers):
    rng = np.random.default_rng(20311)
    x, loss = drawn(rng, *DIMS) * 2, drawn(rng, *DIMS)
    program = Program()
    graph, of_x, of_loss = program.graph, program.give(x), program.give(loss)
    y = program.take(getattr(graph, method)(input=of_x, **given, compute_data_type=FLOAT, name="op"), DIMS)
    d_x = program.take(getattr(graph, f"{method}_backward")(of_loss, of_x, **given, name="backward"), DIMS)
    program.build().run()
    value, slope, _ = ACTIVATIONS[mode]
    x64 = x.astype(np.float64)
    near(y, {"tanh": np.tanh, "sigmoid": lambda x: 1 / (1 + np.exp(-x))}.get(mode, value)(x64, **numbers))
    near(d_x, loss * slope(x64, **numbers))


def test_numbers_by_place_and_what_is_wrong():
    x = drawn(np.random.default_rng(3), *DIMS)
    program = Program()
    y = program.take(program.graph.relu(program.give(x), 0.5, -1.0, 1.0, FLOAT, "clipped"), DIMS)
    program.build().run()
    near(y, np.where(x < -1, -1 + 0.5 * (x.astype(np.float64) + 1), np.minimum(x, 1)))
    graph = cudnn.pygraph(io_data_type=FLOAT, handle=cudnn.create_handle(device="cpu"))
    given = graph.tensor(dim=(2, 3), stride=(3, 1))
    with pytest.raises(TypeError, match="negative_slope"):
        graph.leaky_relu(given)
    with pytest.raises(TypeError, match="swish_beta of swish is of type str, expected a number"):
        graph.swish(given, swish_beta="1")
    graph.relu(given, lower_clip=2, upper_clip=1).set_output(True)
    with pytest.raises(ValueError, match="a relu_upper_clip of 1 below its relu_lower_clip of 2"):
        graph.validate()


def test_of_scores():
    rng = np.random.default_rng(20312)
    q, k, v = drawn(rng, 2, 4, 9, 16), drawn(rng, 2, 2, 11, 16), drawn(rng, 2, 2, 11, 16)
    program = Program()
    o, _ = program.graph.sdpa(q=program.give(q), k=program.give(k), v=program.give(v), attn_scale=0.25,
                              generate_stats=False,
                              score_mod=lambda inner, score: inner.swish(inner.gelu(score), swish_beta=2.0))
    o = program.take(o, (2, 4, 9, 16))
    program.build().run()

    def change(s):
        g = ACTIVATIONS["gelu"][0](s)
        return g / (1 + np.exp(-2 * g))

    near(o, attention(scores(q, k, 0.25, change), v)[0])
