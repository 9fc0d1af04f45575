"""Cells as graphs: uids by name, the same in every graph."""

import heddle

from cells import SOFT_CAP

UIDS = {name: uid for uid, name in enumerate(
    ("q", "k", "v", "o", "stats", "d_o", "d_q", "d_k", "d_v", "cosines", "sines", "x", "y", "weight", "inv_variance", "dy",
     "dx", "d_weight", "bias", "d_bias", "mask", "ends", "lengths", "seed", "offset", "max", "sum_exp",
     "mean"), 1)}


class Cell(heddle.Graph):
    """A graph whose bound tensors have the uids of their names; the others come after these."""

    def __init__(self, dtype="bf16"):
        super().__init__(io=dtype, intermediate="f32", compute="f32")
        self._last = len(UIDS)

    def tensor(self, name="", dims=None, strides=None, dtype=None, **more):
        if name not in UIDS:
            self._last += 1
        if dims is not None and strides is None:
            strides, step = [], 1
            for dim in reversed(dims):
                strides.insert(0, step)
                step *= dim
        return super().tensor(name, dims, strides, dtype, uid=UIDS.get(name, self._last), **more)

    def table(self, length, dim):
        """cosines or sines of positions by half of the head's dim."""
        return {name: self.tensor(name, (length, 1, 1, dim // 2), dtype="f32") for name in ("cosines", "sines")}


def _attributes(graph, cell):
    """What says how Q, K and V are attended, and what is read beside them."""
    attributes = {"attn_scale": cell.dim**-0.5, "right_bound": 0 if cell.causal else None, "left_bound": cell.window or None,
                  "alibi_mask": cell.score == "alibi"}
    if cell.lengths and not cell.packed:
        lengths = graph.tensor("lengths", (cell.batch, 1, 1, 1), dtype="i32")
        attributes |= {"padding_mask": True, "seq_len_q": lengths, "seq_len_kv": lengths}
    if cell.bias:
        attributes["bias"] = graph.tensor("bias", (1, cell.heads, cell.length, cell.length))
    if cell.dropout:
        attributes["dropout"] = {"probability": cell.dropout} | {
            name: graph.tensor(name, (1, 1, 1, 1), dtype="i64") for name in ("seed", "offset")}
    if cell.mask:
        score = attributes["score_mod"] = heddle.Expression(graph)
        mask = graph.tensor("mask", (1, 1, cell.length, cell.length), dtype="boolean")
        score.apply("binary_select", mask, score.score, graph.tensor("hidden", constant=float("-inf")))
    elif cell.score == "soft_cap":
        score, cap = heddle.Expression(graph), graph.tensor("cap", constant=SOFT_CAP)
        score.apply("mul", score.apply("tanh_fwd", score.apply("div", score.score, cap)), cap)
        attributes["score_mod"] = score
    return attributes


def attention(cell, backward):
    """The text form of the cell's attention forward, with the rows' statistics, or of its backward."""
    graph = Cell(cell.dtype)
    ends = graph.tensor("ends", (cell.batch + 1, 1, 1, 1), dtype="i32") if cell.packed else None

    def rows(name, heads):
        """Queries, keys, values, results or their gradients."""
        columns = cell.values if name in ("v", "o", "d_v", "d_o") else cell.dim
        dims, token = (cell.batch, heads, cell.length, columns), heads * columns
        if not cell.packed:
            return graph.tensor(name, dims)
        return graph.tensor(name, dims, [cell.length * token, columns, token, 1], ragged_offset=ends,
                            ragged_offset_multiplier=token)

    of = {"q": cell.heads, "k": cell.groups, "v": cell.groups}
    ports = {name: rows(name, heads) for name, heads in of.items()}
    attributes = _attributes(graph, cell)
    if cell.packed:
        attributes |= {"padding_mask": True, "cu_seq_len_q": ends, "cu_seq_len_kv": ends}
    if cell.rope:
        table = graph.table(cell.length, cell.dim)
        for name in ("q", "k"):
            rotated = graph.tensor(f"{name} rotated", dtype=cell.dtype, virtual=True)
            graph.node("rope", x=ports[name], y=rotated, **table, pairing="halves")
            ports[name] = rotated
    ports["o"] = rows("o", cell.heads)
    for name in ("max", "sum_exp") if cell.apart else ("stats",):
        ports[name] = graph.tensor(name, (cell.batch, cell.heads, cell.length, 1), dtype="f32")
    if backward:
        ports |= {"d_o": rows("d_o", cell.heads), **{f"d_{name}": rows(f"d_{name}", heads) for name, heads in of.items()}}
        if cell.bias_gradient:
            ports["d_bias"] = graph.tensor("d_bias", (1, cell.heads, cell.length, cell.length))
        attributes["deterministic"] = cell.deterministic
    graph.node("sdpa_backward" if backward else "sdpa", **ports, **attributes)
    return graph.text


def streaming(cell):
    """The text form of a norm or a rotation."""
    graph = Cell()
    if cell.op == "rope":
        x, table = graph.tensor("x", cell.dims), graph.table(cell.dims[2], cell.dims[3])
        graph.node("rope", x=x, y=graph.tensor("y", cell.dims), **table, pairing="halves")
        return graph.text
    rows, columns = cell.dims
    x, one_row = (rows, columns, 1, 1), (1, columns, 1, 1)
    ports = {"x": graph.tensor("x", x), "scale": graph.tensor("weight", one_row),
             "inv_variance": graph.tensor("inv_variance", (rows, 1, 1, 1), dtype="f32")}
    if cell.op.startswith("layer_norm"):
        ports["mean"] = graph.tensor("mean", (rows, 1, 1, 1), dtype="f32")
        bias = "d_bias" if cell.op.endswith("_backward") else "bias"
        ports[bias] = graph.tensor(bias, one_row)
    if not cell.op.endswith("_backward"):
        ports |= {"epsilon": graph.tensor("epsilon", constant=1e-6), "y": graph.tensor("y", x)}
    else:
        ports |= {"dy": graph.tensor("dy", x), "dx": graph.tensor("dx", x), "d_scale": graph.tensor("d_weight", one_row)}
    graph.node(cell.op, **ports)
    return graph.text
