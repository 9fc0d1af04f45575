"""heddle.cudnn: rmsnorm, layernorm, rope and their backwards, judged by numpy in f64."""

import heddle.cudnn as cudnn
import ml_dtypes
import numpy as np
import pytest
from cudnn_program import Program, drawn, forward, near, scores

N, C, EPSILON = 13, 40, 1e-2
TRAINING, INFERENCE = cudnn.norm_forward_phase.TRAINING, cudnn.norm_forward_phase.INFERENCE


@pytest.fixture
def rng():
    return np.random.default_rng(20263)


def epsilon(program):
    return program.give(np.full((1, 1, 1, 1), EPSILON, np.float32), is_pass_by_value=True)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16], ids=["f32", "f16", "bf16"])
@pytest.mark.parametrize("biased", [False, True])
def test_rmsnorm(rng, dtype, biased):
    x, scale, dy = drawn(rng, N, C, 1, 1, dtype=dtype), drawn(rng, 1, C, 1, 1, dtype=dtype), drawn(rng, N, C, 1, 1, dtype=dtype)
    bias = drawn(rng, 1, C, 1, 1, dtype=dtype) if biased else None
    program = Program(dtype)
    y, inv_variance = program.graph.rmsnorm(name="norm", norm_forward_phase=TRAINING, input=program.give(x),
                                            scale=program.give(scale), bias=program.give(bias), epsilon=epsilon(program))
    y, inv_variance = program.take(y, x.shape, dtype), program.take(inv_variance, (N, 1, 1, 1))
    program.build().run()
    x64, g64, dy64 = x.astype(np.float64), scale.astype(np.float64), dy.astype(np.float64)
    r = 1 / np.sqrt((x64**2).mean(1, keepdims=True) + EPSILON)
    near(y, x64 * r * g64 + (bias.astype(np.float64) if biased else 0), dtype)
    near(inv_variance, r)

    program = Program(dtype)
    gradients = program.graph.rmsnorm_backward(name="norm", grad=program.give(dy), input=program.give(x),
                                               scale=program.give(scale), inv_variance=program.give(r.astype(np.float32)),
                                               has_dbias=biased)
    assert (gradients[2] is None) is not biased
    found = [program.take(one, dims, dtype) for one, dims in zip(gradients, (x.shape, scale.shape, scale.shape), strict=True)
             if one is not None]
    program.build().run()
    g, xh = dy64 * g64, x64 * r
    true = [r * (g - xh * (g * xh).mean(1, keepdims=True)), (dy64 * xh).sum(0, keepdims=True), dy64.sum(0, keepdims=True)]
    for one, other in zip(found, true, strict=False):
        near(one, other, dtype)


def test_rmsnorm_of_rank_3_in_inference_with_a_number_for_epsilon(rng):
    x, scale = drawn(rng, 3, 5, 24), drawn(rng, 1, 1, 24)
    program = Program()
    y, inv_variance = program.graph.rmsnorm(INFERENCE, program.give(x), program.give(scale), None, EPSILON)
    assert inv_variance is None
    y = program.take(y, x.shape)
    program.build().run()
    near(y, x.astype(np.float64) / np.sqrt((x.astype(np.float64)**2).mean(-1, keepdims=True) + np.float32(EPSILON)) * scale)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16], ids=["f32", "f16", "bf16"])
def test_layernorm(rng, dtype):
    x = (drawn(rng, N, C, 1, 1) + 3).astype(dtype)
    scale, bias, dy = (drawn(rng, n, C, 1, 1, dtype=dtype) for n in (1, 1, N))
    program = Program(dtype)
    results = program.graph.layernorm(name="norm", norm_forward_phase=TRAINING, input=program.give(x), scale=program.give(scale),
                                      bias=program.give(bias), epsilon=epsilon(program))
    found = [program.take(results[0], x.shape, dtype), *(program.take(one, (N, 1, 1, 1)) for one in results[1:])]
    program.build().run()
    x64, g64, b64, dy64 = (one.astype(np.float64) for one in (x, scale, bias, dy))
    mean = x64.mean(1, keepdims=True)
    r = 1 / np.sqrt(x64.var(1, keepdims=True) + EPSILON)
    xh = (x64 - mean) * r
    near(found[0], xh * g64 + b64, dtype)
    near(found[1], mean)
    near(found[2], r)

    program = Program(dtype)
    statistics = [program.give(one.astype(np.float32)) for one in (mean, r)]
    gradients = program.graph.layernorm_backward(program.give(dy), program.give(x), program.give(scale), *statistics)
    found = [program.take(one, dims, dtype) for one, dims in zip(gradients, (x.shape, scale.shape, scale.shape), strict=True)]
    program.build().run()
    g = dy64 * g64
    true = (r * (g - g.mean(1, keepdims=True) - xh * (g * xh).mean(1, keepdims=True)), (dy64 * xh).sum(0, keepdims=True),
            dy64.sum(0, keepdims=True))
    for one, other in zip(found, true, strict=True):
        near(one, other, dtype)


def test_layernorm_in_inference_gives_no_statistics(rng):
    x, scale, bias = drawn(rng, 3, 5, 24), drawn(rng, 1, 1, 24), drawn(rng, 1, 1, 24)
    program = Program()
    y, *statistics = program.graph.layernorm(INFERENCE, *(program.give(one) for one in (x, scale, bias)), EPSILON)
    assert statistics == [None, None]
    y = program.take(y, x.shape)
    program.build().run()
    x64 = x.astype(np.float64)
    near(y, (x64 - x64.mean(-1, keepdims=True)) / np.sqrt(x64.var(-1, keepdims=True) + EPSILON) * scale + bias)


def rotated(x, angles, scale=1.0, rope_dim=0, sign=1):
    n = rope_dim or x.shape[-1]
    y, first, half = x.astype(np.float64).copy(), x.shape[-1] - n, n // 2
    t = angles[:x.shape[2], 0, 0, :half].astype(np.float64) * sign
    low, high = y[..., first:first + half].copy(), y[..., first + half:].copy()
    y[..., first:first + half] = low * np.cos(t) - high * np.sin(t)
    y[..., first + half:] = high * np.cos(t) + low * np.sin(t)
    return scale * y


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("rope_dim", [0, 12])
def test_rope(rng, backwards, rope_dim):
    x, angles = drawn(rng, 2, 3, 19, 32), 50 * drawn(rng, 23, 1, 1, rope_dim or 32)
    program = Program()
    op = program.graph.rope_backward if backwards else program.graph.rope
    y = op(program.give(x), program.give(angles), output_scale=1.5, rope_dim=rope_dim, name="turn")
    y = program.take(y, x.shape)
    program.build().run()
    near(y, rotated(x, angles, 1.5, rope_dim, -1 if backwards else 1))


def test_rope_of_query_and_key_that_stay_virtual(rng):
    """Their uids are in the pack all the same."""
    q, k, v = (drawn(rng, 1, 2, n, 16) for n in (9, 14, 14))
    angles = 5 * drawn(rng, 14, 1, 1, 16)
    program = Program()
    freqs = program.give(angles)
    turned = []
    for x in (q, k):
        y = program.graph.rope(program.give(x), freqs, output_scale=0.5)
        y.set_dim(x.shape).set_stride([s // 4 for s in x.strides]).set_data_type(cudnn.data_type.FLOAT).set_uid(len(program.pack))
        program.pack[len(program.pack)] = np.empty(x.shape, np.float32)
        turned.append(y)
    o, _ = program.graph.sdpa(*turned, program.give(v), generate_stats=False, use_causal_mask=True)
    o = program.take(o, q.shape)
    program.build().run()
    hidden = np.arange(14) > np.arange(9)[:, None]
    near(o, forward(scores(rotated(q, angles, 0.5), rotated(k, angles, 0.5), hidden=hidden), v)[0])


def norm(graph, **changed):
    x, scale, one = (graph.tensor(dim=dims, name=name) for name, dims in (("x", [4, 8, 1, 1]), ("scale", [1, 8, 1, 1]),
                                                                          ("one", [1, 1, 1, 1])))
    graph.rmsnorm(**{"norm_forward_phase": TRAINING, "input": x, "scale": scale, "epsilon": one} | changed)
    graph.validate()


@pytest.mark.parametrize("wrong, kind, sentence", [
    (lambda g: norm(g, norm_forward_phase=None), TypeError, "norm_forward_phase of rmsnorm is None, expected a member of cudnn."),
    (lambda g: norm(g, norm_forward_phase=cudnn.norm_forward_phase.NOT_SET), ValueError, "is NOT_SET, expected INFERENCE or"),
    (lambda g: norm(g, epsilon=None), TypeError, "epsilon of rmsnorm is None, expected a tensor of the graph"),
    (lambda g: norm(g, epsilon="small"), TypeError, "epsilon is of type str, expected a number"),
    (lambda g: norm(g, scale=g.tensor(dim=[1, 7, 1, 1])), ValueError, "expected each to be 1 or that of X"),
    (lambda g: norm(g, input=3), TypeError, "input of rmsnorm is of type int, expected a tensor"),
    (lambda g: g.rmsnorm_backward(*(g.tensor() for _ in range(4)), has_dbias=None), TypeError, "has_dbias"),
    (lambda g: g.layernorm(TRAINING, g.tensor(), g.tensor(), 3, 0.1), TypeError, "bias of layernorm is of type int, expected a"),
    (lambda g: g.layernorm_backward(*[g.tensor()] * 4, 3), TypeError, "inv_variance of layernorm_backward is of type int"),
    (lambda g: g.rope(g.tensor(), g.tensor(), output_scale="1"), TypeError, "output_scale is of type str, expected a number"),
    (lambda g: g.rope(g.tensor(), g.tensor(), rope_dim=2.0), TypeError, "rope_dim is of type float, expected an int"),
    (lambda g: g.rope(None, g.tensor()), TypeError, "input of rope is None, expected a tensor of the graph"),
    (lambda g: (g.rope(g.tensor(dim=[1, 1, 4, 6]), g.tensor(dim=[4, 1, 1, 6]), rope_dim=3), g.validate()), ValueError,
     "rope_dim is 3, expected an even number"),
])
def test_what_is_wrong_gets_its_sentence(wrong, kind, sentence):
    with pytest.raises(kind) as refusal:
        wrong(Program().graph)
    assert sentence in str(refusal.value)
