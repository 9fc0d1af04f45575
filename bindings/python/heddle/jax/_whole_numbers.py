"""Between what the whole numbers of a score function lie: XLA wraps them at their type's ends, a graph computes them as floats."""

from math import inf
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

LARGEST = 2**24  # up to here a float of 32 bits holds every whole number
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


class Range(NamedTuple):
    """From low to high. Of what only a running program knows it is taken, where its type goes beyond, that no number is above
    LARGEST in magnitude: `assumed`."""

    low: int
    high: int
    assumed: bool = False

    @property
    def is_held(self):
        return -LARGEST <= self.low and self.high <= LARGEST


def of_array(array, known_now):
    """The range of an array of whole numbers."""
    if known_now:
        numbers = np.asarray(array)
        return Range(int(numbers.min()), int(numbers.max())) if numbers.size else Range(0, 0)
    kind = jnp.iinfo(array.dtype)
    if kind.max <= LARGEST:
        return Range(int(kind.min), int(kind.max))
    return Range(max(int(kind.min), -LARGEST), LARGEST, True)


def range_after(name, parameters, operands, dtype):
    """The range of what a primitive makes of ranges, and what is wrong with it as a sentence's object, or None.

    `operands` has None for what is no whole number; `dtype` is the result's, and the range None where that is none.
    """
    ranges = [x for x in (operands[1:] if name == "select_n" else operands) if x is not None]
    if name in _COMPARISONS:
        # Of two numbers of which one is held exactly, rounding keeps the order.
        beyond = len(ranges) == 2 and (min(x.high for x in ranges) > LARGEST or max(x.low for x in ranges) < -LARGEST)
        return None, "compares whole numbers beyond 2**24 in magnitude" if beyond else None
    if not ranges or not jnp.issubdtype(dtype, jnp.integer):
        return None, None
    low, high, is_rounded = _RULES.get(name, _unchanged)(ranges, parameters)
    are_held, assumed = all(x.is_held for x in ranges), any(x.assumed for x in ranges)
    if assumed and are_held:
        low, high = max(low, -LARGEST), min(high, LARGEST)
    made, kind = Range(low, high, assumed), jnp.iinfo(dtype)
    if low < kind.min or high > kind.max:
        return made, f"makes {dtype}s that wrap ({name} of numbers that may give {low if low < kind.min else high})"
    if is_rounded and not (are_held and made.is_held):
        return made, f"computes with whole numbers beyond 2**24 in magnitude ({name})"
    return made, None


# ---- (low, high, whether large numbers are rounded on the way to it) of ranges.


def _unchanged(ranges, _):
    """Of selections and conversions."""
    return min(x.low for x in ranges), max(x.high for x in ranges), False


def _product(ranges, _):
    a, b = ranges
    corners = [one * other for one in a[:2] for other in b[:2]]
    return min(corners), max(corners), True


def _power(ranges, parameters):
    a, = ranges
    ends = [a.low**parameters["y"], a.high**parameters["y"]]
    least = 0 if parameters["y"] % 2 == 0 and a.low < 0 < a.high else min(ends)
    return least, max(ends), True


def _remainder(ranges, _):
    a, b = ranges
    most = max(abs(b.low), abs(b.high)) - 1
    if b.low <= 0 <= b.high:
        most = inf  # by 0 it is the number itself
    return max(min(a.low, 0), -most), min(max(a.high, 0), most), True


def _magnitude(ranges, _):
    a, = ranges
    return 0 if a.low < 0 < a.high else min(abs(a.low), abs(a.high)), max(abs(a.low), abs(a.high)), False


_RULES = {
    "add": lambda x, _: (x[0].low + x[1].low, x[0].high + x[1].high, True),
    "sub": lambda x, _: (x[0].low - x[1].high, x[0].high - x[1].low, True),
    "neg": lambda x, _: (-x[0].high, -x[0].low, False),
    "max": lambda x, _: (max(one.low for one in x), max(one.high for one in x), False),
    "min": lambda x, _: (min(one.low for one in x), min(one.high for one in x), False),
    "mul": _product,
    "square": lambda x, _: _power(x, {"y": 2}),
    "integer_pow": _power,
    "rem": _remainder,
    "abs": _magnitude,
}
