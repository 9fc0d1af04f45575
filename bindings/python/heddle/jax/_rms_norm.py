"""Root-mean-square normalisation with a weight.

Zhang and Sennrich, "Root Mean Square Layer Normalization", NeurIPS 2019.
"""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from heddle.jax import _checks, _norm

OP = "rms_norm"


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
    _norm.check(OP, x, weight, eps)
    if x.size == 0:
        return jnp.zeros(x.shape, weight.dtype) * jnp.sum(weight)
    if weight.size == 1:  # a mean over one element
        wide = x.astype(_norm.wide(x.dtype, weight.dtype))
        return (wide * jax.lax.rsqrt(wide * wide + eps) * weight.astype(wide.dtype)).astype(weight.dtype)
    return _norm.normalise(_norm.Norm(OP, eps), x, weight)
