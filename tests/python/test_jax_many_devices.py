"""Partitioning and ring attention on eight virtual devices, in processes of their own: JAX counts devices once."""

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "many_devices"


@pytest.mark.parametrize("name", ["partitioning", "ring"])
def test_eight_devices(name):
    found = subprocess.run([sys.executable, "-m", "pytest", "-q", "--no-header", FOLDER / f"{name}.py"], capture_output=True,
                           text=True, timeout=600, stdin=subprocess.DEVNULL)
    assert found.returncode == 0, found.stdout + found.stderr
    assert " passed" in found.stdout
