"""Cells as graphs in their text form: uids by name, the same in every graph."""

import json

from cells import SOFT_CAP

UIDS = {name: uid for uid, name in enumerate(
    ("q", "k", "v", "o", "stats", "d_o", "d_q", "d_k", "d_v", "cosines", "sines", "q_rotated", "k_rotated",
     "score", "cap", "scaled", "bounded", "capped", "x", "y", "weight", "epsilon", "inv_variance", "dy", "dx", "d_weight",
     "bias", "d_bias", "mask", "hidden", "shown", "ends", "lengths", "seed", "offset",
     "max", "sum_exp"), 1)}


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


def _rows(cell, name, heads):
    """A tensor of queries, keys, values or their gradients."""
    tensor = _tensor(name, (cell.batch, heads, cell.length, cell.dim))
    if cell.packed:
        token = heads * cell.dim
        tensor |= {"strides": [cell.length * token, cell.dim, token, 1], "ragged_offset": UIDS["ends"],
                   "ragged_offset_multiplier": token}
    return tensor


def _in_memory(cell):
    """Tensors and attributes of what is read beside Q, K and V."""
    tensors, attributes = [], {}
    if cell.packed:
        tensors.append(_tensor("ends", (cell.batch + 1, 1, 1, 1), dtype="i32"))
        attributes |= {"padding_mask": True, "cu_seq_len_q": UIDS["ends"], "cu_seq_len_kv": UIDS["ends"]}
    elif cell.lengths:
        tensors.append(_tensor("lengths", (cell.batch, 1, 1, 1), dtype="i32"))
        attributes |= {"padding_mask": True, "seq_len_q": UIDS["lengths"], "seq_len_kv": UIDS["lengths"]}
    if cell.bias:
        tensors.append(_tensor("bias", (1, cell.heads, cell.length, cell.length)))
        attributes["bias"] = UIDS["bias"]
    if cell.mask:
        tensors += [_tensor("mask", (1, 1, cell.length, cell.length), dtype="boolean"), _tensor("hidden", constant="-inf"),
                    *(_tensor(name, virtual=True) for name in ("score", "shown"))]
        attributes["score_mod"] = {"score_in": UIDS["score"], "score_out": UIDS["shown"], "ops": [
            {"op": "binary_select", "name": "shown", "inputs": [UIDS[name] for name in ("mask", "score", "hidden")],
             "output": UIDS["shown"]}]}
    if cell.dropout:
        tensors += [_tensor(name, (1, 1, 1, 1), dtype="i64") for name in ("seed", "offset")]
        attributes["dropout"] = {"probability": cell.dropout, "seed": UIDS["seed"], "offset": UIDS["offset"]}
    return tensors, attributes


def attention(cell, backward):
    """The cell's attention forward, with the rows' statistics, or its backward."""
    tensors, attributes = _in_memory(cell)
    tensors += [_rows(cell, "q", cell.heads), _rows(cell, "k", cell.groups), _rows(cell, "v", cell.groups)]
    attributes, nodes = attributes | {"attn_scale": cell.dim**-0.5}, []
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
    statistics = ("max", "sum_exp") if cell.apart else ("stats",)
    tensors.append(_rows(cell, "o", cell.heads))
    tensors += [_tensor(name, (cell.batch, cell.heads, cell.length, 1), dtype="f32") for name in statistics]
    ports |= {name: name for name in ("o", *statistics)}
    if not backward:
        nodes.append(_node("sdpa", ports, **attributes))
    else:
        tensors += [_rows(cell, "d_o", cell.heads), _rows(cell, "d_q", cell.heads), _rows(cell, "d_k", cell.groups),
                    _rows(cell, "d_v", cell.groups)]
        ports |= {name: name for name in ("d_o", "d_q", "d_k", "d_v")}
        if cell.bias_gradient:
            tensors.append(_tensor("d_bias", (1, cell.heads, cell.length, cell.length)))
            ports["d_bias"] = "d_bias"
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
