"""Root-mean-square normalisation with a weight, forward and backward.

Zhang and Sennrich, "Root Mean Square Layer Normalization", NeurIPS 2019.
"""

from functools import partial
from math import prod

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.experimental.custom_partitioning import ArrayMapping, SdyShardingRule
from jax.sharding import PartitionSpec
from jax.typing import ArrayLike

from heddle.jax import _checks, _compat, _mesh, _primitives
from heddle.jax._graphs import Graph
from heddle.jax._primitives import joint, one_by_one, spec, spec_of

OP = "rms_norm"


def _wide(*dtypes):
    """The type of sums over rows: f64 if x is, else f32."""
    return jnp.float64 if jnp.float64 in dtypes else jnp.float32


# ---- Forward: (x [*leading, *batch, h], weight [*leading, h]) -> (y, 1/rms [*leading, *batch]); config is epsilon.


def _forward_results(eps, leading, x, weight):
    shape = joint(leading, (x, weight)) + x.shape[leading:]
    return [_compat.shaped(shape, weight.dtype, (x, weight)),
            _compat.shaped(shape[:-1], _wide(x.dtype), (x, weight))]


def _forward(eps, leading, platform, x, weight):
    if any(size > 1 for size in weight.shape[:-1]):
        return one_by_one(partial(_forward, eps, leading - 1, platform), (x, weight))
    h = x.shape[-1]
    rows = prod(x.shape[:-1])
    graph = Graph("rms_norm")
    fields = {"x": graph.operand("x", x.dtype, (rows, h)), "scale": graph.operand("weight", weight.dtype, (1, h)),
              "epsilon": graph.constant("epsilon", eps, 2, _wide(x.dtype)),
              "y": graph.result("y", weight.dtype, (rows, h)),
              "inv_variance": graph.result("inv_rms", _wide(x.dtype), (rows, 1))}
    graph.node("rms_norm", **fields)
    y, inverse = graph.run((x.reshape(rows, h), weight.reshape(1, h)), platform)
    return y.reshape(x.shape), inverse.reshape(x.shape[:-1])


def _factors(leading, x):
    """The factors of x's dims: l... leading, b... batch and h."""
    return [f"l{i}" if i < leading else f"b{i}" for i in range(len(x) - 1)] + ["h"]


def _weight_factors(leading, weight):
    return [f"l{i}" if weight[i] > 1 else f"w{i}" for i in range(leading)] + ["h"]


def _shape(mlir_type):
    return tuple(mlir_type.shape)


def _forward_rule(eps, leading, mesh, operands, results):
    x, weight = map(_shape, operands)
    rows = _factors(leading, x)
    return SdyShardingRule((ArrayMapping(*rows), ArrayMapping(*_weight_factors(leading, weight))),
                           (ArrayMapping(*rows), ArrayMapping(*rows[:-1])), need_replication_factors=("h",))


def _specs(leading, x, weight):
    """Rows are cut as x is; the weight is whole, save for leading dims that it shares with x."""
    rows = spec_of(x)[:-1]
    own = tuple(axes if weight.shape[i] > 1 and x.shape[i] > 1 else () for i, axes in enumerate(rows[:leading]))
    return rows, spec(*rows, ()), spec(*own, ())


def _forward_partition(eps, leading, mesh, operands):
    rows, of_x, of_weight = _specs(leading, *operands)
    return partial(_forward, eps, leading), (of_x, spec(*rows)), (of_x, of_weight)


# ---- Backward: (dy, x, weight, 1/rms) -> (dx, dweight [*leading, h] in the type of sums).


def _backward_results(_, leading, dy, x, weight, inverse):
    lead = joint(leading, (dy, x, weight, inverse))
    like = (dy, x, weight, inverse)
    return [_compat.shaped(lead + x.shape[leading:], x.dtype, like),
            _compat.shaped(lead + x.shape[-1:], _wide(x.dtype, weight.dtype), like)]


def _backward(_, leading, platform, dy, x, weight, inverse):
    if leading:
        return one_by_one(partial(_backward, _, leading - 1, platform), (dy, x, weight, inverse))
    h = x.shape[-1]
    rows = prod(x.shape[:-1])
    sums = _wide(x.dtype, weight.dtype)
    graph = Graph("rms_norm_backward")
    fields = {"dy": graph.operand("dy", dy.dtype, (rows, h)), "x": graph.operand("x", x.dtype, (rows, h)),
              "scale": graph.operand("weight", weight.dtype, (1, h)),
              "inv_variance": graph.operand("inv_rms", inverse.dtype, (rows, 1)),
              "dx": graph.result("dx", x.dtype, (rows, h)), "d_scale": graph.result("dweight", sums, (1, h))}
    graph.node("rms_norm_backward", **fields)
    operands = dy.reshape(rows, h), x.reshape(rows, h), weight.reshape(1, h), inverse.reshape(rows, 1)
    dx, dweight = graph.run(operands, platform)
    return dx.reshape(x.shape), dweight.reshape(h)


def _backward_rule(_, leading, mesh, operands, results):
    dy, x, weight, _inverse = map(_shape, operands)
    rows = _factors(leading, _shape(results[0]))
    own = lambda shape, name: [f if i >= leading or shape[i] > 1 else f"{name}{i}" for i, f in enumerate(rows)]
    return SdyShardingRule(
        (ArrayMapping(*own(dy, "g")), ArrayMapping(*own(x, "x")), ArrayMapping(*_weight_factors(leading, weight)),
         ArrayMapping(*own(_inverse, "r")[:-1])),
        (ArrayMapping(*rows), ArrayMapping(*rows[:leading], "h")), need_replication_factors=("h",))


def _backward_partition(_, leading, mesh, operands):
    dy, x, weight, inverse = operands
    rows, of_x, of_weight = _specs(leading, x, weight)
    fit = lambda array: tuple(axes if i >= leading or array.shape[i] == x.shape[i] else ()
                              for i, axes in enumerate(rows))
    summed = tuple(name for axes in rows[leading:] for name in axes)

    def local(platform, *parts):
        dx, dweight = _backward(None, leading, platform, *parts)
        return dx, jax.lax.psum(dweight, summed) if summed else dweight

    return (local, (of_x, spec(*rows[:leading], ())),
            (spec(*fit(dy), ()), of_x, of_weight, spec(*fit(inverse))))


_bind_forward = _primitives.define("heddle_rms_norm", _forward_results, _forward, _forward_rule, _forward_partition)
_bind_backward = _primitives.define("heddle_rms_norm_backward", _backward_results, _backward, _backward_rule,
                                    _backward_partition)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _normalised(x, weight, eps):
    return _save(x, weight, eps)[0]


def _save(x, weight, eps):
    y, inverse = _bind_forward(eps, *_compat.all_varying((x, weight)))
    return y, (x, weight, checkpoint_name(inverse, "heddle_rms"))


def _differentiate(eps, saved, dy):
    x, weight, inverse = saved
    dx, dweight = _bind_backward(None, *_compat.all_varying((dy, x, weight, inverse)))
    return _compat.summed_like(dx, x), _compat.summed_like(dweight, weight).astype(weight.dtype)


_normalised.defvjp(_save, _differentiate)


def _check(x, weight, eps):
    _checks.dtype_among(OP, "x", x, _checks.FLOATS)
    _checks.dtype_among(OP, "weight", weight, _checks.FLOATS)
    if weight.ndim < 1 or weight.ndim > x.ndim or x.shape[x.ndim - weight.ndim:] != weight.shape:
        raise ValueError(f"{OP}: weight has shape {weight.shape}, expected the last dims of x, whose shape is "
                         f"{x.shape}.")
    if eps < 0:
        raise ValueError(f"{OP}: eps is {eps}, expected a number of at least 0.")


def rms_norm(x: ArrayLike, weight: ArrayLike, eps: float = 1e-5) -> jax.Array:
    """x / sqrt(mean(x^2) + eps) * weight, the mean taken over the dims that weight has.

    Args:
      x: `[..., *weight.shape]`, float64, float32, float16 or bfloat16; any number of leading dims.
      weight: its shape is that of x's last dims, one or more; its dtype is any of the four, on its own.
      eps: at least 0; a number, not an array.

    Returns:
      An array of x's shape and weight's dtype. Sums are taken in float32, or in float64 if x or weight has it.

    Differentiable once in x and weight, in reverse mode; dx has x's dtype and dweight weight's. The gradient is
    deterministic: equal arguments give equal bits. What is saved for it beside x and weight is 1/rms of each row, under
    the name "heddle_rms" for checkpoint policies. Sharded x stays sharded along all leading dims.

    Raises:
      TypeError: an argument is no array, has another dtype, or eps is traced.
      ValueError: weight's shape is not that of x's last dims, or eps is negative or not finite.
    """
    x, weight = _checks.as_array(OP, "x", x), _checks.as_array(OP, "weight", weight)
    eps = _checks.number(OP, "eps", eps)
    _check(x, weight, eps)
    h = weight.size
    if x.size == 0:
        return jnp.zeros(x.shape, weight.dtype) * jnp.sum(weight)
    if h == 1:  # a mean over one element
        wide = x.astype(_wide(x.dtype, weight.dtype))
        return (wide * jax.lax.rsqrt(wide * wide + eps) * weight.astype(wide.dtype)).astype(weight.dtype)

    def flat(x, weight):
        batch = x.shape[:x.ndim - weight.ndim]
        return _normalised(x.reshape(*batch, h), weight.reshape(h), eps).reshape(x.shape)

    if _mesh.explicit_mesh((x, weight)) is None:
        return flat(x, weight)
    of_weight = (None,) * weight.ndim
    of_x = _mesh.declared(x)[:x.ndim - weight.ndim] + of_weight
    return _mesh.per_device(flat, (x, weight), (of_x, of_weight), PartitionSpec(*of_x))
