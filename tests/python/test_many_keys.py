"""Gradients of attention over many keys lose nothing that a program's own do not: beside NumPy in more digits.

The gradients of a row's scores are what P dP leaves beside P D, far less than either where values have something in
common: then dQ is as exact as O, of which D is made, and as D itself."""

import numpy as np
import pytest

import heddle

KEYS = 1 << 14


def given(heads, rows, width, spread, offset, dtype):
    """Q, K, V and dO of [1, N, T, H]."""
    random = np.random.default_rng(0)
    q, k, v = (random.standard_normal((1, heads, length, width)) * spread for length in (rows, KEYS, KEYS))
    return [x.astype(dtype) for x in (q, k, v + offset, random.standard_normal(q.shape))]


def formula(q, k, v, d_o, scale):
    """O, dQ, dK and dV."""
    s = q @ k.swapaxes(2, 3) * scale
    p = np.exp(s - s.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    d_p = d_o @ v.swapaxes(2, 3)
    d_s = p * (d_p - (p * d_p).sum(-1, keepdims=True)) * scale
    return p @ v, d_s @ k, d_s.swapaxes(2, 3) @ q, p.swapaxes(2, 3) @ d_o


def run(op, name, inputs, outputs, **attributes):
    graph = heddle.Graph(io=name, intermediate=name)
    arrays = {**inputs, **outputs}
    ports = {port: graph.tensor(port, list(array.shape), dtype=name) for port, array in arrays.items()}
    graph.node(op, "attention", **ports, **attributes)
    plan = heddle.Plan(graph, "cpu")
    plan.execute({ports[port].uid: array for port, array in arrays.items()}, np.zeros(plan.workspace_bytes, np.uint8))


@pytest.mark.parametrize("dtype, name", [(np.float32, "f32"), (np.float64, "f64")])
@pytest.mark.parametrize("heads, rows, width, spread, offset, most", [
    (16, 9, 8, 0.25, 1, (6, 50, 16, 10)),  # rounded sums of O left dQ 90 roundings off, a row's differences dV 12
    (4, 16, 64, 1, 1, (6, 40, 16, 20)),  # and D's dQ 60
])
def test_gradients(heads, rows, width, spread, offset, most, dtype, name):
    q, k, v, d_o = given(heads, rows, width, spread, offset, dtype)
    o, stats = np.zeros_like(q), np.zeros((1, heads, rows, 1), dtype)
    scale = width**-0.5
    run("sdpa", name, {"q": q, "k": k, "v": v}, {"o": o, "stats": stats}, attn_scale=scale)
    found = [o, *(np.zeros_like(x) for x in (q, k, v))]
    run("sdpa_backward", name, {"q": q, "k": k, "v": v, "o": o, "stats": stats, "d_o": d_o},
        dict(zip(("d_q", "d_k", "d_v"), found[1:], strict=True)), attn_scale=scale, whole_rows=True)
    wide = np.float64 if dtype == np.float32 else np.longdouble
    truth = formula(*(x.astype(wide) for x in (q, k, v, d_o)), wide(scale))
    rounding = np.finfo(dtype).eps / 2
    errors = [np.abs(x - y).max() / np.abs(y).max() / rounding for x, y in zip(found, truth, strict=True)]
    assert all(error < bound for error, bound in zip(errors, most, strict=True)), errors
