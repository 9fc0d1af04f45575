"""heddle.cudnn: functions that change scores, and their derivatives, judged by numpy in f64."""

import heddle.cudnn as cudnn
import numpy as np
import pytest
from cudnn_program import Program, backward, drawn, forward, near, scores

B, HQ, HK, SQ, SKV, D = 2, 4, 2, 33, 47, 16
FLOAT, INT32, BOOLEAN = cudnn.data_type.FLOAT, cudnn.data_type.INT32, cudnn.data_type.BOOLEAN


@pytest.fixture
def rng():
    return np.random.default_rng(20262)


def scalar(program, value):
    return program.give(np.full((1, 1, 1, 1), value, np.float32), is_pass_by_value=True)


def soft_cap(program):
    cap = scalar(program, 3.0)

    def modify(graph, score):
        share = graph.div(a=score, b=cap, compute_data_type=FLOAT, name="share")
        share.set_data_type(FLOAT)
        bent = graph.tanh(input=share)
        bent.set_data_type(FLOAT)
        return graph.scale(input=bent, scale=cap)

    return modify


def window(program):
    low, reach = scalar(program, -np.inf), program.give(np.full((1, 1, 1, 1), 6, np.int32), is_pass_by_value=True)

    def modify(graph, score):
        row, column = (graph.gen_index(input=score, axis=axis, compute_data_type=INT32) for axis in (2, 3))
        row.set_data_type(INT32), column.set_data_type(INT32)
        past = graph.cmp_le(input=column, comparison=row, compute_data_type=BOOLEAN)
        near_by = graph.cmp_ge(input=graph.add(a=column, b=reach), comparison=row, compute_data_type=BOOLEAN)
        past.set_data_type(BOOLEAN), near_by.set_data_type(INT32)
        first = graph.cmp_eq(input=column, comparison=graph.sub(row, row))
        seen = graph.logical_or(graph.logical_and(past, near_by), first)
        return graph.binary_select(input0=score, input1=low, mask=seen)

    return modify


def weighted(program):
    """Numbers of the caller's for heads and columns, and the score used twice."""
    rng = np.random.default_rng(5)
    weights, shift = rng.standard_normal((1, HQ, 1, 1)).astype(np.float32), rng.standard_normal((B, 1, 1, SKV)).astype(np.float32)
    one, other = program.give(weights), program.give(shift)
    program.arrays = weights.astype(np.float64), shift.astype(np.float64)
    return lambda graph, score: graph.add(a=graph.mul(a=score, b=one), b=graph.mul(a=score, b=graph.add(score, other)))


def windowed(s):
    row, column = np.arange(SQ)[:, None], np.arange(SKV)
    return np.where(((column <= row) & (column + 6 >= row)) | (column == 0), s, -np.inf)


# name -> the function's maker, what it does to scores in f64, and its derivative.
MODIFIERS = {
    "soft cap": (soft_cap, lambda s, _: 3 * np.tanh(s / 3), lambda s, _: 1 - np.tanh(s / 3)**2),
    "window": (window, lambda s, _: windowed(s), lambda s, _: np.isfinite(windowed(s)) * 1.0),
    "weighted": (weighted, lambda s, arrays: s * arrays[0] + s * (s + arrays[1]),
                 lambda s, arrays: arrays[0] + 2 * s + arrays[1]),
}


@pytest.mark.parametrize("make, change, slope", MODIFIERS.values(), ids=MODIFIERS)
def test_forward_and_its_derivative(rng, make, change, slope):
    q, k, v, d_o = (drawn(rng, B, heads, length, D) for heads, length in ((HQ, SQ), (HK, SKV), (HK, SKV), (HQ, SQ)))
    program = Program()
    program.arrays = None
    given = [program.give(x) for x in (q, k, v)]
    o, stats = program.graph.sdpa(*given, attn_scale=0.2, generate_stats=True, score_mod=make(program))
    o, stats = program.take(o, q.shape), program.take(stats, (B, HQ, SQ, 1))
    program.build().run()
    plain = scores(q, k, 0.2)
    s = change(plain, program.arrays)
    truth, lse, *_ = forward(s, v)
    near(o, truth)
    near(stats, lse)

    program = Program()
    given = [program.give(np.ascontiguousarray(x)) for x in (q, k, v, o, d_o, stats)]
    gradients = program.graph.sdpa_backward(*given, attn_scale=0.2, score_mod=make(program))
    found = [program.take(x, like.shape) for x, like in zip(gradients, (q, k, v), strict=True)]
    program.build().run()
    for one, true in zip(found, backward(s, q, k, v, d_o, 0.2, slope=slope(plain, getattr(program, "arrays", None)))[:3],
                         strict=True):
        near(one, true)


def test_a_derivative_of_ones_own_that_reads_what_score_mod_made(rng):
    q, k, v, d_o = (drawn(rng, B, 2, 20, D) for _ in range(4))
    s = 3 * np.tanh(scores(q, k) / 3)
    o, stats, *_ = forward(s, v)
    program = Program()
    given = [program.give(x.astype(np.float32)) for x in (q, k, v, o, d_o, stats)]
    cap, one, kept = scalar(program, 3.0), scalar(program, 1.0), {}

    def modify(graph, score):
        kept["bent"] = graph.tanh(graph.div(score, cap))
        return graph.mul(kept["bent"], cap)

    def derivative(graph, gradient):
        return graph.mul(gradient, graph.sub(one, graph.mul(kept["bent"], kept["bent"])))

    gradients = program.graph.sdpa_backward(*given, score_mod=modify, score_mod_bprop=derivative)
    found = [program.take(x, q.shape) for x in gradients]
    program.build().run()
    for one, true in zip(found, backward(s, q, k, v, d_o, slope=1 - (s / 3)**2)[:3], strict=True):
        near(one, true)


def attend(program, score_mod):
    given = [program.give(np.zeros((1, 1, 4, 8), np.float32)) for _ in range(3)]
    program.take(program.graph.sdpa(*given, generate_stats=False, score_mod=score_mod)[0], (1, 1, 4, 8))
    program.build()


@pytest.mark.parametrize("score_mod, kind, sentence", [
    (3, TypeError, "score_mod is of type int, expected a function of a graph and a score"),
    (lambda graph, score: None, TypeError, "score_mod returned None, expected the tensor that scores become"),
    (lambda graph, score: 3, TypeError, "The result of score_mod is of type int, expected a tensor of the graph"),
    (lambda graph, score: graph.add(score), TypeError, "missing a required argument: 'b'"),
    (lambda graph, score: graph.add(score, 2.0), TypeError, "b of add is of type float, expected a tensor of the graph"),
    (lambda graph, score: graph.add(score, None), TypeError, "b of add is None"),
    (lambda graph, score: graph.tanh(Program().graph.tensor(name="x")), ValueError, "input of tanh is the tensor 'x' of another"),
    (lambda graph, score: graph.gen_index(score, 4), ValueError, "gen_index has axis 4, expected 0 (batch)"),
    (lambda graph, score: graph.gen_index(score, "row"), TypeError, "axis of gen_index is of type str, expected an int"),
    (lambda graph, score: graph.tanh(score, compute_data_type="f32"), TypeError, "compute_data_type of tanh is 'f32'"),
    (lambda graph, score: graph.tensor(dim=[1, 1, 1, 1], name="given"), ValueError, "returns the tensor 'given', expected"),
])
def test_what_is_wrong_gets_its_sentence(score_mod, kind, sentence):
    with pytest.raises(kind) as refusal:
        attend(Program(), score_mod)
    assert sentence in str(refusal.value)
