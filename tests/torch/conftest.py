"""The checkout's own build of Heddle beside torch; no JAX is needed. HEDDLE_TEST_DEVICE=cuda: tensors are made on the GPU."""

import os
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "bindings" / "python")]
if "HEDDLE_TEST_DEVICE" in os.environ:
    torch.set_default_device(os.environ["HEDDLE_TEST_DEVICE"])


@pytest.fixture(autouse=True)
def seeded():
    """Numbers that are the same in every run, and compiled functions of this test alone."""
    torch.manual_seed(0)
    yield
    torch.compiler.reset()
