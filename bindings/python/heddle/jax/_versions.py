"""The JAX versions that this package works with; others are refused with a sentence when it is imported."""

import re

# The oldest and the newest are the ones that the tests run with.
OLDEST = (0, 5, 0)
NEWEST = (0, 10)  # the newest minor release


def parsed(version):
    """(0, 10, 2) of "0.10.2.dev3"."""
    return tuple(int(part) for part in re.match(r"[0-9.]+", version).group().strip(".").split("."))


def refusal(version):
    """Why a version of JAX is not supported; None if it is."""
    if parsed(version) >= OLDEST and parsed(version)[:2] <= NEWEST:
        return None
    oldest, newest = (".".join(map(str, v)) for v in (OLDEST, NEWEST))
    return f"heddle.jax works with JAX {oldest} to {newest}.x, and JAX {version} is installed."


def require_supported_jax():
    """Raises ImportError if JAX is missing or of a version that is not supported."""
    try:
        import jax
    except ImportError as error:
        raise ImportError("heddle.jax needs JAX, which is not installed: pip install jax") from error
    sentence = refusal(jax.__version__)
    if sentence:
        raise ImportError(sentence)
