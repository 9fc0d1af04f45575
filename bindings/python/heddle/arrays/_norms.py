"""RMSNorm and LayerNorm of arrays.

Zhang and Sennrich, "Root Mean Square Layer Normalization", NeurIPS 2019; Ba, Kiros and Hinton, "Layer Normalization", 2016.
"""

from heddle.arrays import _calls, _new, _norm_graph
from heddle.arrays._calls import Inputs, Kind, Ready, kept
from heddle.arrays._dtypes import numpy_dtype


def rms_norm(x: object, weight: object, eps: float = 1e-5) -> object:
    """x / sqrt(mean(x^2) + eps) * weight, the mean taken over the dims that weight has.

    Args:
      x: `[..., *weight.shape]`, float64, float32, float16 or bfloat16; any number of leading dims. Arrays are NumPy's,
        CuPy's, or of any library with DLPack on the host; of torch and JAX they are served by `heddle.torch` and
        `heddle.jax`, with gradients.
      weight: its shape is that of x's last dims, one or more; its dtype is any of the four, on its own.
      eps: at least 0.

    Returns:
      An array of x's shape and weight's dtype, of x's library and on its device. Sums are taken in float32, or in float64
      if x has it.

    Raises:
      TypeError: an argument is no array or has another dtype.
      ValueError: weight's shape is not that of x's last dims, eps is negative or not finite, or devices differ.
    """
    module = _calls.own_ops(_calls.library_of(x))
    return module.rms_norm(x, weight, eps) if module else _normalised("rms_norm", {"x": x, "weight": weight}, eps)


def layer_norm(x: object, weight: object, bias: object = None, eps: float = 1e-5) -> object:
    """(x - mean(x)) / sqrt(variance(x) + eps) * weight + bias, both taken over the dims that weight has.

    Args:
      x, weight, eps: as of `rms_norm`.
      bias: of weight's shape, its dtype any of the four, on its own; None adds nothing.

    Returns:
      As of `rms_norm`. The variance is the mean square of distances to the mean, so rows far from 0 keep the digits that x
      has.

    Raises:
      TypeError, ValueError: as `rms_norm` does.
    """
    module = _calls.own_ops(_calls.library_of(x))
    if module:
        return module.layer_norm(x, weight, bias, eps)
    return _normalised("layer_norm", {"x": x, "weight": weight} | ({} if bias is None else {"bias": bias}), eps)


def _normalised(op, arrays, eps):
    inputs, ready, results = _prepared(op, _calls.described(op, arrays), eps)
    if ready is not None:
        return inputs.run(ready, [*inputs.copied(arrays).values()], results)[0]
    if 0 in results["y"].dims:
        return inputs.made(arrays["x"], results)[0]
    return _of_one_column(op, inputs, arrays, results["y"].dtype, eps)


def _of_one_column(op, inputs, arrays, dtype, eps):
    """A mean over one element, which no graph takes."""
    sums = numpy_dtype(_norm_graph.wide(*(kind.dtype for kind in inputs.kinds.values())))
    x, weight, *bias = (_new.dense(f"{op}: {name}", array).astype(sums) for name, array in arrays.items())
    if op == "rms_norm":
        y = x / (x * x + eps)**0.5 * weight
    else:
        y = (x - x) / (x - x + eps)**0.5 * weight + sum(bias)
    return _new.converted(f"{op}: y", arrays["x"], y.astype(numpy_dtype(dtype)))


@kept(_calls.KEPT)
def _prepared(op, given, eps):
    """The inputs, their plan, None where there is nothing to plan, and the result's kind."""
    inputs = Inputs(op, given, dict.fromkeys(("x", "weight", "bias"), "densely"), {})
    sizes, eps = _norm_graph.check(op, inputs.kinds, eps)
    dtypes = {name: kind.dtype for name, kind in inputs.kinds.items()}
    results = {"y": Kind.dense(dtypes["weight"], inputs.kinds["x"].dims)}
    if 0 in sizes or sizes.columns == 1:
        return inputs, None, results
    return inputs, Ready(_norm_graph.forward(op, sizes, eps, dtypes), inputs.device, len(dtypes) + 1), results
