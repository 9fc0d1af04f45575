"""Norms over the last dims of x, forward and backward: the primitives of rms_norm and layer_norm, and what both check."""

from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.experimental.custom_partitioning import ArrayMapping, SdyShardingRule
from jax.sharding import PartitionSpec

from heddle.jax import _checks, _compat, _mesh, _primitives
from heddle.jax._graphs import Graph
from heddle.jax._primitives import divisible, joint, one_by_one, spec, spec_of


@dataclass(frozen=True)
class Norm:
    """What is no array: the op and its epsilon, and the dtype of a bias if there is one."""
    op: str  # "rms_norm" or "layer_norm"
    eps: float
    bias: Any = None

    @property
    def statistics(self):
        """The names of what is kept of each row: ports of the graph, and in checkpoint policies."""
        inverse = {"inv_variance": "heddle_rms"}
        return {"mean": "heddle_mean"} | inverse if self.op == "layer_norm" else inverse


def wide(*dtypes):
    """The type of sums over rows: f64 if x is, else f32."""
    return jnp.float64 if jnp.float64 in dtypes else jnp.float32


# ---- Forward: (x [*leading, *batch, h], weight and perhaps bias [*leading, h]) -> (y, statistics [*leading, *batch]).


def _forward_results(norm, leading, x, *columns):
    operands = (x, *columns)
    shape = joint(leading, operands) + x.shape[leading:]
    return [_compat.shaped(shape, columns[0].dtype, operands),
            *(_compat.shaped(shape[:-1], wide(x.dtype), operands) for _ in norm.statistics)]


def _forward(norm, leading, platform, x, *columns):
    if any(size > 1 for column in columns for size in column.shape[:-1]):
        return one_by_one(partial(_forward, norm, leading - 1, platform), (x, *columns))
    h = x.shape[-1]
    rows = prod(x.shape[:-1])
    graph = Graph(norm.op)
    fields = {"x": graph.operand("x", x.dtype, (rows, h))}
    for port, name, column in zip(("scale", "bias"), ("weight", "bias"), columns):
        fields[port] = graph.operand(name, column.dtype, (1, h))
    fields |= {"epsilon": graph.constant("epsilon", norm.eps, 2, wide(x.dtype)),
               "y": graph.result("y", columns[0].dtype, (rows, h))}
    fields |= {port: graph.result(port, wide(x.dtype), (rows, 1)) for port in norm.statistics}
    graph.node(norm.op, **fields)
    y, *statistics = graph.run((x.reshape(rows, h), *(column.reshape(1, h) for column in columns)), platform)
    return y.reshape(x.shape), *(one.reshape(x.shape[:-1]) for one in statistics)


def _factors(leading, x):
    """The factors of x's dims: l... leading, b... batch and h."""
    return [f"l{i}" if i < leading else f"b{i}" for i in range(len(x) - 1)] + ["h"]


def _own_factors(leading, rows, shape, name):
    """Those of an array of such rows: a leading dim that it shares has a factor of its own."""
    return [f if i >= leading or shape[i] > 1 else f"{name}{i}" for i, f in enumerate(rows)]


def _column_factors(leading, column, name):
    return [f"l{i}" if column[i] > 1 else f"{name}{i}" for i in range(leading)] + ["h"]


def _shape(mlir_type):
    return tuple(mlir_type.shape)


def _forward_rule(norm, leading, mesh, operands, results):
    x, *columns = map(_shape, operands)
    rows = _factors(leading, _shape(results[0]))
    of_columns = (ArrayMapping(*_column_factors(leading, column, name)) for name, column in zip("wc", columns))
    return SdyShardingRule((ArrayMapping(*_own_factors(leading, rows, x, "x")), *of_columns),
                           (ArrayMapping(*rows), *(ArrayMapping(*rows[:-1]) for _ in norm.statistics)),
                           need_replication_factors=("h",))


def _specs(leading, mesh, x, *columns):
    """Rows are cut as x is, into equal parts: what fills up the last one would be summed with the gradients of weight and
    bias. These are whole, save for leading dims that they share with x."""
    rows = tuple(divisible(mesh, axes, size) if size > 1 else () for axes, size in zip(spec_of(x)[:-1], x.shape))
    own = lambda column: (axes if column.shape[i] > 1 and x.shape[i] > 1 else () for i, axes in enumerate(rows[:leading]))
    return rows, spec(*rows, ()), [spec(*own(column), ()) for column in columns]


def _forward_partition(norm, leading, mesh, operands):
    rows, of_x, of_columns = _specs(leading, mesh, *operands)
    return partial(_forward, norm, leading), (of_x, *(spec(*rows) for _ in norm.statistics)), (of_x, *of_columns)


# ---- Backward: (dy, x, weight, statistics) -> (dx, dweight and perhaps dbias [*leading, h] in the types of sums).


def _sums(norm, x, weight):
    """The types of the gradients of weight and bias."""
    return [wide(x.dtype, weight.dtype), *([] if norm.bias is None else [wide(x.dtype, norm.bias)])]


def _backward_results(norm, leading, dy, x, weight, *statistics):
    operands = (dy, x, weight, *statistics)
    lead = joint(leading, operands)
    return [_compat.shaped(lead + x.shape[leading:], x.dtype, operands),
            *(_compat.shaped(lead + x.shape[-1:], dtype, operands) for dtype in _sums(norm, x, weight))]


def _backward(norm, leading, platform, dy, x, weight, *statistics):
    if leading:
        return one_by_one(partial(_backward, norm, leading - 1, platform), (dy, x, weight, *statistics))
    h = x.shape[-1]
    rows = prod(x.shape[:-1])
    graph = Graph(f"{norm.op}_backward")
    fields = {"dy": graph.operand("dy", dy.dtype, (rows, h)), "x": graph.operand("x", x.dtype, (rows, h)),
              "scale": graph.operand("weight", weight.dtype, (1, h))}
    fields |= {port: graph.operand(port, one.dtype, (rows, 1)) for port, one in zip(norm.statistics, statistics)}
    fields["dx"] = graph.result("dx", x.dtype, (rows, h))
    fields |= {port: graph.result(port, dtype, (1, h)) for port, dtype in zip(("d_scale", "d_bias"), _sums(norm, x, weight))}
    graph.node(f"{norm.op}_backward", **fields)
    operands = (dy.reshape(rows, h), x.reshape(rows, h), weight.reshape(1, h),
                *(one.reshape(rows, 1) for one in statistics))
    dx, *of_columns = graph.run(operands, platform)
    return dx.reshape(x.shape), *(one.reshape(h) for one in of_columns)


def _backward_rule(norm, leading, mesh, operands, results):
    dy, x, weight, *statistics = map(_shape, operands)
    rows = _factors(leading, _shape(results[0]))
    own = partial(_own_factors, leading, rows)
    return SdyShardingRule(
        (ArrayMapping(*own(dy, "g")), ArrayMapping(*own(x, "x")), ArrayMapping(*_column_factors(leading, weight, "w")),
         *(ArrayMapping(*own((*one, 1), name)[:-1]) for name, one in zip("rm", statistics))),
        (ArrayMapping(*rows), *(ArrayMapping(*rows[:leading], "h") for _ in results[1:])), need_replication_factors=("h",))


def _backward_partition(norm, leading, mesh, operands):
    dy, x, weight, *statistics = operands
    rows, of_x, (of_weight,) = _specs(leading, mesh, x, weight)
    fit = lambda array: tuple(axes if i >= leading or array.shape[i] == x.shape[i] else ()
                              for i, axes in enumerate(rows))
    summed = tuple(name for axes in rows[leading:] for name in axes)

    def local(platform, *parts):
        dx, *of_columns = _backward(norm, leading, platform, *parts)
        return dx, *(jax.lax.psum(of_columns, summed) if summed else of_columns)

    of_sums = spec(*rows[:leading], ())
    return (local, (of_x, *(of_sums for _ in _sums(norm, x, weight))),
            (spec(*fit(dy), ()), of_x, of_weight, *(spec(*fit(one)) for one in statistics)))


_bind = {op: (_primitives.define(f"heddle_{op}", _forward_results, _forward, _forward_rule, _forward_partition),
              _primitives.define(f"heddle_{op}_backward", _backward_results, _backward, _backward_rule, _backward_partition))
         for op in ("rms_norm", "layer_norm")}


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _normalised(norm, x, columns):
    return _save(norm, x, columns)[0]


def _save(norm, x, columns):
    forward, _ = _bind[norm.op]
    y, *statistics = forward(norm, *_compat.all_varying((x, *columns)))
    named = [checkpoint_name(one, name) for one, name in zip(statistics, norm.statistics.values())]
    return y, (x, columns, named)


def _differentiate(norm, saved, dy):
    x, columns, statistics = saved
    _, backward = _bind[norm.op]
    dx, *of_columns = backward(norm, *_compat.all_varying((dy, x, columns[0], *statistics)))
    return _compat.summed_like(dx, x), tuple(_compat.summed_like(one, column).astype(column.dtype)
                                             for one, column in zip(of_columns, columns))


_normalised.defvjp(_save, _differentiate)


def check(op, x, weight, eps):
    """Raises TypeError or ValueError in a sentence if x cannot be normalised over the dims of weight."""
    _checks.dtype_among(op, "x", x, _checks.FLOATS)
    _checks.dtype_among(op, "weight", weight, _checks.FLOATS)
    if weight.ndim < 1 or weight.ndim > x.ndim or x.shape[x.ndim - weight.ndim:] != weight.shape:
        raise ValueError(f"{op}: weight has shape {weight.shape}, expected the last dims of x, whose shape is "
                         f"{x.shape}.")
    if eps < 0:
        raise ValueError(f"{op}: eps is {eps}, expected a number of at least 0.")


def normalise(norm, x, *columns):
    """x, of rows of more than one element, normalised over the dims of weight, the first of the columns; a bias follows."""
    of_columns = columns[0].shape

    def flat(x, *columns):
        batch = x.shape[:x.ndim - len(of_columns)]
        one_dim = tuple(column.reshape(prod(of_columns)) for column in columns)
        return _normalised(norm, x.reshape(*batch, prod(of_columns)), one_dim).reshape(x.shape)

    if _mesh.explicit_mesh((x, *columns)) is None:
        return flat(x, *columns)
    whole = (None,) * len(of_columns)
    of_x = _mesh.declared(x)[:x.ndim - len(of_columns)] + whole
    return _mesh.per_device(flat, (x, *columns), (of_x, *(whole for _ in columns)), PartitionSpec(*of_x))
