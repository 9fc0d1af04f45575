"""Eight virtual CPU devices, for a process of its own: run by test_jax_many_devices.py."""

import os
import re
import sys
from pathlib import Path

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
sys.path.insert(0, str(Path(__file__).parents[3] / "bindings" / "python"))

import jax
import pytest

jax.config.update("jax_platforms", "cpu")

COLLECTIVES = ("all-gather", "all-reduce", "all-to-all", "reduce-scatter", "collective-permute")


@pytest.fixture(scope="session")
def collectives():
    """The collectives that a compiled function contains, {name: count} without those that it does not."""

    def count(function, *arguments):
        text = jax.jit(function).lower(*arguments).compile().as_text()
        assert 'custom_call_target="heddle"' in text
        found = {name: len(re.findall(rf" {name}(?:-start)?\(", text)) for name in COLLECTIVES}
        return {name: number for name, number in found.items() if number}

    return count


@pytest.fixture(scope="session", autouse=True)
def eight_devices():
    assert jax.device_count() == 8
