"""What the ops demand of their arguments, in sentences."""

import jax
import jax.numpy as jnp
import numpy as np

FLOATS = ("float64", "float32", "float16", "bfloat16")


def as_array(op, name, x):
    """x as an array. Raises TypeError if it is none."""
    try:
        return jnp.asarray(x)
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeError(f"{op}: {name} is {type(x).__name__}, expected an array.") from error


def dtype_among(op, name, x, names):
    """Raises TypeError unless x has one of these data types."""
    if x.dtype.name not in names:
        raise TypeError(f"{op}: {name} has dtype {x.dtype.name}, expected {' or '.join(names)}.")


def real(op, name, x):
    """Raises TypeError unless x holds floating or integer numbers."""
    if not (jnp.issubdtype(x.dtype, jnp.floating) or jnp.issubdtype(x.dtype, jnp.integer)):
        raise TypeError(f"{op}: {name} has dtype {x.dtype.name}, expected a floating one.")


def flag(op, name, value):
    """A Python bool. Raises TypeError for arrays, traced ones above all, and for what is neither true nor false."""
    if not isinstance(value, (bool, np.bool_)):
        given = "a traced array" if isinstance(value, jax.core.Tracer) else type(value).__name__
        raise TypeError(f"{op}: {name} is {given}, expected True or False, known when tracing.")
    return bool(value)


def number(op, name, value):
    """A Python float. Raises TypeError for arrays being traced and what is no number, ValueError if not finite."""
    if isinstance(value, jax.core.Tracer):
        raise TypeError(f"{op}: {name} is a traced array, expected a number known when tracing.")
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        if getattr(value, "shape", None) != () or not jnp.issubdtype(value.dtype, np.number):
            raise TypeError(f"{op}: {name} is {type(value).__name__}, expected a number known when tracing.")
        if jnp.issubdtype(value.dtype, jnp.complexfloating):
            raise TypeError(f"{op}: {name} has dtype {value.dtype.name}, expected a real number.")
        value = value.item()
    try:
        number = float(value)
    except OverflowError:
        raise ValueError(f"{op}: {name} is an int of {value.bit_length()} bits, expected a number that a float holds.") from None
    if not np.isfinite(number):
        raise ValueError(f"{op}: {name} is {value}, expected a finite number.")
    return number


def one_of(op, name, value, allowed):
    """Raises ValueError unless value is one of `allowed`."""
    if not any(isinstance(value, type(x)) and value == x for x in allowed):
        raise ValueError(f"{op}: {name} is {value!r}, expected {' or '.join(map(repr, allowed))}.")
