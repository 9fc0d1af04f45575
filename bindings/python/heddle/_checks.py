"""Arguments checked, each with a sentence for what it is not."""

import operator


def whole(what, given):
    """An int of 64 bits."""
    if isinstance(given, bool):
        raise TypeError(f"{what} is {given}, expected an int.")
    try:
        given = operator.index(given)
    except TypeError:
        raise TypeError(f"{what} is of type {type(given).__name__}, expected an int.") from None
    if not -2**63 <= given < 2**63:
        raise ValueError(f"{what} is {given}, expected 64 bits.")
    return given


def optional_whole(what, given):
    return None if given is None else whole(what, given)


def number(what, given):
    """A float; ints are taken too."""
    if isinstance(given, (str, bytes, bool)):
        raise TypeError(f"{what} is of type {type(given).__name__}, expected a number.")
    try:
        return float(given)
    except OverflowError:
        raise ValueError(f"{what} is an int of {given.bit_length()} bits, expected a number that a float holds.") from None
    except (TypeError, ValueError):
        raise TypeError(f"{what} is of type {type(given).__name__}, expected a number.") from None


def flag(what, given):
    """A bool; None is False, as programs give it for what they do not want."""
    if given is None:
        return False
    if type(given) is not bool and type(given).__name__ not in ("bool_", "bool"):
        raise TypeError(f"{what} is of type {type(given).__name__}, expected a bool.")
    return bool(given)


def text(what, given):
    if not isinstance(given, str):
        raise TypeError(f"{what} is of type {type(given).__name__}, expected a str.")
    if "\0" in given:
        raise ValueError(f"{what} is {given!r}, expected no null character.")
    return given


def dims(what, given):
    """Whole numbers, one for each dim, 8 at most; None if there are none."""
    if given is None:
        return None
    if isinstance(given, (str, bytes)):
        raise TypeError(f"{what} is of type {type(given).__name__}, expected a sequence of ints.")
    try:
        made = tuple(whole(f"A number of {what}", n) for n in given)
    except TypeError as wrong:
        if str(wrong).startswith("A number of"):
            raise
        raise TypeError(f"{what} is of type {type(given).__name__}, expected a sequence of ints.") from None
    if len(made) > 8:
        raise ValueError(f"{what} has {len(made)} numbers, expected 8 at most.")
    return made or None
