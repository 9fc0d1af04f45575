"""JAX on an NVIDIA GPU, with the checkout's own build of Heddle; fails at once where there is none."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "bindings" / "python"), str(ROOT / "examples" / "gpt")]


@pytest.fixture(scope="session", autouse=True)
def gpu():
    import jax

    return jax.devices("cuda")[0]
