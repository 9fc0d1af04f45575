"""Registers Heddle's custom call with JAX's XLA: one C symbol of libheddle, by ctypes; no extension module."""

import ctypes
import os
from pathlib import Path

import jax

TARGET = "heddle"
HANDLER = "heddle_xla_ffi_handler"


def library_path():
    """libheddle.so: $HEDDLE_LIBRARY, or the checkout's own build."""
    named = os.environ.get("HEDDLE_LIBRARY")
    return Path(named) if named else Path(__file__).parents[3] / "build" / "lib" / "libheddle.so"


def register(path=None):
    """Lets XLA on the CPU call Heddle; returns the loaded library. Raises OSError if it is not there."""
    path = Path(path) if path else library_path()
    if not path.is_file():
        raise OSError(f"{path} is not there; build it with make, or name it in HEDDLE_LIBRARY")
    library = ctypes.CDLL(str(path))
    handler = getattr(library, HANDLER)
    jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(handler), platform="cpu")
    return library
