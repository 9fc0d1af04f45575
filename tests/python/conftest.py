"""What every Python test may use: the checkout's own build and Heddle's JAX binding."""

import os
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "bindings" / "python"), str(ROOT / "examples" / "gpt"), str(ROOT / "tests" / "support")]

import quick_xla

quick_xla.prepare()


def pytest_collection_modifyitems(config, items):
    """HEDDLE_TEST_PART=2/3 asks for the second of three parts, which together are all, as in tests/support/part.h."""
    index, count = map(int, os.environ.get("HEDDLE_TEST_PART", "1/1").split("/"))
    if not 1 <= index <= count:
        raise pytest.UsageError("HEDDLE_TEST_PART is not a part, as 2/3 is")
    others = [item for item in items if zlib.crc32(item.nodeid.encode()) % count != index - 1]
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if zlib.crc32(item.nodeid.encode()) % count == index - 1]


@pytest.fixture(scope="session", autouse=True)
def products_of_f32_in_f32():
    """On a GPU, XLA takes them in tf32 unless told otherwise, and what is compared with them would be closer to the truth."""
    import jax

    if jax.default_backend() == "gpu":
        jax.config.update("jax_default_matmul_precision", "highest")


@pytest.fixture(scope="session")
def root():
    return ROOT


@pytest.fixture(scope="session")
def heddle():
    """Runs the heddle command: heddle("fuse", path, ...) gives its status, stdout and stderr."""
    from heddle._library import command_path

    command = command_path()

    def run(*arguments, timeout=300):
        return subprocess.run([command, *map(str, arguments)], capture_output=True, text=True, timeout=timeout,
                              stdin=subprocess.DEVNULL)

    return run
