"""RMSNorm and LayerNorm as graphs, forward and backward, and what they demand of their arguments, of whatever arrays."""

import math
from collections.abc import Mapping
from typing import NamedTuple

from heddle._graph import Graph
from heddle.arrays import _calls
from heddle.arrays._calls import Kind, bound, dtype_among

FLOATS = ("f64", "f32", "f16", "bf16")
_PORTS = {"weight": "scale", "d_weight": "d_scale"}  # what a graph calls them


class Sizes(NamedTuple):
    """x is `rows` rows of `columns` elements."""

    rows: int
    columns: int


def statistics(op: str) -> tuple[str, ...]:
    """What is kept of each row for the backward."""
    return ("mean", "inv_variance") if op == "layer_norm" else ("inv_variance",)


def wide(*dtypes: str) -> str:
    """The type of sums over rows: f64 if x is, else f32."""
    return "f64" if "f64" in dtypes else "f32"


def check(op: str, kinds: Mapping[str, Kind], eps: object) -> tuple[Sizes, float]:
    """Raises TypeError or ValueError in a sentence if x cannot be normalised over the dims of weight."""
    for name, kind in kinds.items():
        dtype_among(op, name, kind, FLOATS)
    x, weight = kinds["x"].dims, kinds["weight"].dims
    if not 1 <= len(weight) <= len(x) or x[len(x) - len(weight):] != weight:
        raise ValueError(f"{op}: weight has shape {weight}, expected the last dims of x, whose shape is {x}.")
    if "bias" in kinds and kinds["bias"].dims != weight:
        raise ValueError(f"{op}: bias has shape {kinds['bias'].dims}, expected that of weight, {weight}.")
    eps = _calls.number(op, "eps", eps)
    if not math.isfinite(eps) or eps < 0:
        raise ValueError(f"{op}: eps is {eps}, expected a finite number of at least 0.")
    return Sizes(math.prod(x[:len(x) - len(weight)]), math.prod(weight)), eps


def forward(op: str, sizes: Sizes, eps: float, dtypes: Mapping[str, str], wanted: tuple[str, ...] = ()) -> Graph:
    """Operands x, weight and perhaps bias of these types, results y of weight's and the `wanted` statistics, all dense."""
    rows, columns = sizes
    graph = Graph(op, intermediate="f32")
    kinds = {name: Kind.dense(dtype, (rows if name == "x" else 1, columns)) for name, dtype in dtypes.items()}
    kinds["y"] = Kind.dense(dtypes["weight"], (rows, columns))
    kinds |= {name: Kind.dense(wide(dtypes["x"]), (rows, 1)) for name in wanted}
    tensors = bound(graph, kinds)
    graph.node(op, epsilon=graph.tensor("epsilon", (1, 1), dtype=wide(dtypes["x"]), constant=eps), **_ports(tensors))
    return graph


def backward(op: str, sizes: Sizes, dtypes: Mapping[str, str]) -> Graph:
    """Operands dy, x, weight and the statistics, and perhaps results d_weight and d_bias beside dx, of these types, dense."""
    rows, columns = sizes
    graph = Graph(f"{op}_backward", intermediate="f32")
    of_columns = {"weight", "d_weight", "d_bias"}
    dims = {name: (1, columns) if name in of_columns else (rows, 1 if name in statistics(op) else columns) for name in dtypes}
    tensors = bound(graph, {name: Kind.dense(dtype, dims[name]) for name, dtype in dtypes.items()})
    graph.node(f"{op}_backward", **_ports(tensors))
    return graph


def _ports(tensors):
    return {_PORTS.get(name, name): tensor for name, tensor in tensors.items()}
