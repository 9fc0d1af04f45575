"""Cells as graphs in their text form: uids by name, the same in every graph."""

import json

from cells import SOFT_CAP

UIDS = {name: uid for uid, name in enumerate(
    ("q", "k", "v", "o", "stats", "d_o", "d_q", "d_k", "d_v", "cosines", "sines", "q_rotated", "k_rotated",
     "score", "cap", "scaled", "bounded", "capped", "x", "y", "weight", "epsilon", "inv_variance", "dy", "dx", "d_weight"), 1)}


def _tensor(name, dims=None, **more):
    tensor = {"uid": UIDS[name], "name": name, **more}
    if dims is not None:
        strides, step = [], 1
        for dim in reversed(dims):
            strides.insert(0, step)
            step *= dim
        tensor |= {"dims": list(dims), "strides": strides}
    return tensor


def _node(op, ports, **attributes):
    return {"op": op, **{port: UIDS[name] for port, name in ports.items()}, **attributes}


def _graph(tensors, nodes, dtype="bf16"):
    return json.dumps({"heddle_graph": 1, "io_dtype": dtype, "intermediate_dtype": "f32", "compute_dtype": "f32",
                       "tensors": tensors, "nodes": nodes})


def attention(cell, backward):
    """The cell's attention forward, with log-sum-exp, or its backward."""
    query = (cell.batch, cell.heads, cell.length, cell.dim)
    key = (cell.batch, cell.groups, cell.length, cell.dim)
    tensors = [_tensor("q", query), _tensor("k", key), _tensor("v", key)]
    attributes, nodes = {"attn_scale": cell.dim**-0.5}, []
    if cell.causal:
        attributes["right_bound"] = 0
    if cell.window:
        attributes["left_bound"] = cell.window
    if cell.score == "alibi":
        attributes["alibi_mask"] = True
    if cell.score == "soft_cap":
        tensors += [_tensor(name, virtual=True) for name in ("score", "scaled", "bounded", "capped")]
        tensors.append(_tensor("cap", constant=SOFT_CAP))
        ops = (("div", ("score", "cap"), "scaled"), ("tanh_fwd", ("scaled",), "bounded"), ("mul", ("bounded", "cap"), "capped"))
        attributes["score_mod"] = {"score_in": UIDS["score"], "score_out": UIDS["capped"], "ops": [
            {"op": op, "name": op, "inputs": [UIDS[name] for name in inputs], "output": UIDS[output]}
            for op, inputs, output in ops]}
    ports = {name: name for name in ("q", "k", "v")}
    if cell.rope:
        tensors += [_tensor(name, (cell.length, 1, 1, cell.dim // 2), dtype="f32") for name in ("cosines", "sines")]
        for name in ("q", "k"):
            tensors.append(_tensor(f"{name}_rotated", dtype=cell.dtype, virtual=True))
            ports[name] = f"{name}_rotated"
            nodes.append(_node("rope", {"x": name, "cosines": "cosines", "sines": "sines", "y": f"{name}_rotated"},
                               pairing="halves"))
    rows = (*query[:3], 1)
    if not backward:
        tensors += [_tensor("o", query), _tensor("stats", rows, dtype="f32")]
        nodes.append(_node("sdpa", {**ports, "o": "o", "stats": "stats"}, **attributes))
    else:
        tensors += [_tensor("o", query), _tensor("stats", rows, dtype="f32"), _tensor("d_o", query),
                    _tensor("d_q", query), _tensor("d_k", key), _tensor("d_v", key)]
        ports |= {name: name for name in ("o", "stats", "d_o", "d_q", "d_k", "d_v")}
        nodes.append(_node("sdpa_backward", ports, **attributes, deterministic=cell.deterministic))
    return _graph(tensors, nodes, cell.dtype)


def streaming(cell):
    if cell.op == "rope":
        tables = [_tensor(name, (cell.dims[2], 1, 1, cell.dims[3] // 2), dtype="f32") for name in ("cosines", "sines")]
        return _graph([_tensor("x", cell.dims), *tables, _tensor("y", cell.dims)],
                      [_node("rope", {name: name for name in ("x", "cosines", "sines", "y")}, pairing="halves")])
    rows, columns = cell.dims
    x, one_row, one_column = (rows, columns, 1, 1), (1, columns, 1, 1), (rows, 1, 1, 1)
    tensors = [_tensor("x", x), _tensor("weight", one_row), _tensor("inv_variance", one_column, dtype="f32")]
    if cell.op == "rms_norm":
        tensors += [_tensor("epsilon", constant=1e-6), _tensor("y", x)]
        ports = {"x": "x", "scale": "weight", "epsilon": "epsilon", "y": "y", "inv_variance": "inv_variance"}
    else:
        tensors += [_tensor("dy", x), _tensor("dx", x), _tensor("d_weight", one_row)]
        ports = {"dy": "dy", "x": "x", "scale": "weight", "inv_variance": "inv_variance", "dx": "dx", "d_scale": "d_weight"}
    return _graph(tensors, [_node(cell.op, ports)])
