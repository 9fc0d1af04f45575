"""The JAX versions that this package works with; others are refused with a sentence when it is imported."""

import re

# The tests run with the oldest, the newest, and the newest for Python 3.11. As in pyproject.toml.
OLDEST = (0, 5)
NEWEST = (0, 11)  # with every patch release of it


def refusal(version):
    """Why a version of JAX ("0.10.2") is not supported; None if it is."""
    minor = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if OLDEST <= minor <= NEWEST:
        return None
    oldest, newest = (".".join(map(str, v)) for v in (OLDEST, NEWEST))
    return f"heddle.jax works with JAX {oldest}.0 to {newest}.x, and JAX {version} is installed."


def require_supported_jax():
    """Raises ImportError if JAX is missing or of a version that is not supported."""
    try:
        import jax
    except ImportError as error:
        raise ImportError("heddle.jax needs JAX, which is not installed: pip install 'heddle[jax]'") from error
    sentence = refusal(jax.__version__)
    if sentence:
        raise ImportError(sentence)
