"""Layer normalisation with a weight and a bias.

Ba, Kiros and Hinton, "Layer Normalization", 2016.
"""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from heddle.jax import _checks, _norm

OP = "layer_norm"


def layer_norm(x: ArrayLike, weight: ArrayLike, bias: ArrayLike | None = None, eps: float = 1e-5) -> jax.Array:
    """(x - mean(x)) / sqrt(variance(x) + eps) * weight + bias, both taken over the dims that weight has.

    Args:
      x: `[..., *weight.shape]`, float64, float32, float16 or bfloat16; any number of leading dims.
      weight: its shape is that of x's last dims, one or more; its dtype is any of the four, on its own.
      bias: of weight's shape, its dtype any of the four, on its own; None adds nothing.
      eps: at least 0; a number, not an array.

    Returns:
      An array of x's shape and weight's dtype. Sums are taken in float32, or in float64 if an argument has it; the
      variance is the mean square of distances to the mean, so rows far from 0 keep the digits that x has.

    Differentiable once in x, weight and bias, in reverse mode; each gradient has its argument's dtype. The gradient is
    deterministic: equal arguments give equal bits. What is saved for it beside x and weight is the mean and the inverse
    of the standard deviation of each row, under the names "heddle_mean" and "heddle_rms" for checkpoint policies. Sharded
    x stays sharded along all leading dims.

    Raises:
      TypeError: an argument is no array, has another dtype, or eps is traced.
      ValueError: weight's shape is not that of x's last dims, bias's is not weight's, or eps is negative or not finite.
    """
    x, weight = _checks.as_array(OP, "x", x), _checks.as_array(OP, "weight", weight)
    columns = (weight,) if bias is None else (weight, _checks.as_array(OP, "bias", bias))
    eps = _checks.number(OP, "eps", eps)
    _norm.check(OP, x, weight, eps)
    for one in columns[1:]:
        _checks.dtype_among(OP, "bias", one, _checks.FLOATS)
        if one.shape != weight.shape:
            raise ValueError(f"{OP}: bias has shape {one.shape}, expected that of weight, {weight.shape}.")
    if x.size == 0:
        return jnp.zeros(x.shape, weight.dtype) * sum(jnp.sum(one).astype(weight.dtype) for one in columns)
    if weight.size == 1:  # one element, less itself
        dtype = _norm.wide(x.dtype, *(one.dtype for one in columns))
        x, *wide = (one.astype(dtype) for one in (x, *columns))
        return sum(wide[1:], (x - x) * jax.lax.rsqrt(jnp.full((), eps, dtype)) * wide[0]).astype(weight.dtype)
    return _norm.normalise(_norm.Norm(OP, eps, columns[1].dtype if columns[1:] else None), x, *columns)
