"""What the ops demand of their arguments, in sentences."""

import jax.numpy as jnp
import numpy as np

FLOATS = ("float64", "float32", "float16", "bfloat16")


def as_array(op, name, x):
    """x as an array. Raises TypeError if it is none."""
    try:
        return jnp.asarray(x)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{op}: {name} is {type(x).__name__}, expected an array.") from error


def dtype_among(op, name, x, names):
    """Raises TypeError unless x has one of these data types."""
    if x.dtype.name not in names:
        raise TypeError(f"{op}: {name} has dtype {x.dtype.name}, expected {' or '.join(names)}.")


def number(op, name, value):
    """A Python float. Raises TypeError for arrays being traced and what is no number, ValueError if not finite."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        if getattr(value, "shape", None) != () or not hasattr(value, "item"):
            raise TypeError(f"{op}: {name} is {type(value).__name__}, expected a number known when tracing.")
        try:
            value = value.item()
        except Exception as error:
            raise TypeError(f"{op}: {name} is a traced array, expected a number known when tracing.") from error
    if not np.isfinite(value):
        raise ValueError(f"{op}: {name} is {value}, expected a finite number.")
    return float(value)


def one_of(op, name, value, allowed):
    """Raises ValueError unless value is one of `allowed`."""
    if value not in allowed:
        raise ValueError(f"{op}: {name} is {value!r}, expected {' or '.join(map(repr, allowed))}.")
