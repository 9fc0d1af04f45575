"""Registers Heddle's custom call with JAX's XLA: two C symbols of libheddle, one a platform."""

from functools import cache

import jax

from heddle import _library

TARGET = "heddle"
HANDLERS = {"cpu": "heddle_xla_ffi_handler", "CUDA": "heddle_xla_ffi_handler_cuda"}


@cache
def register():
    """Lets XLA call Heddle, on the CPU and on NVIDIA GPUs; returns the loaded library.

    Done once; later calls return the same. Raises OSError if the library is not there.
    """
    library = _library.load()
    for platform, handler in HANDLERS.items():
        jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(getattr(library, handler)), platform=platform)
    return library
