"""Registers Heddle's custom call with JAX's XLA: two C symbols of libheddle, one a platform."""

import ctypes
from functools import cache

import jax

from heddle import _library
from heddle.jax import _internals

TARGET = "heddle"
# Platform -> the C symbol and when XLA calls it. On a GPU it plans before the stream gets there, or a CUDA graph is made.
HANDLERS = {"cpu": ("heddle_xla_ffi_handler", ("execute",)),
            "CUDA": ("heddle_xla_ffi_handler_cuda", ("initialize", "execute"))}


@cache
def register() -> ctypes.CDLL:
    """Lets XLA call Heddle, on the CPU and on NVIDIA GPUs; returns the loaded library.

    Done once; later calls return the same. Raises OSError if the library is not there.
    """
    library = _library.load()
    for platform, (handler, stages) in HANDLERS.items():
        capsule = jax.ffi.pycapsule(getattr(library, handler))
        jax.ffi.register_ffi_target(TARGET, dict.fromkeys(stages, capsule), platform=platform)
    # In a loop, it has a call write straight into the stack that one of its results goes to, in a copy of the call, and
    # keeps the call itself for its other results: attention would run twice in every layer of a scan (jaxlib 0.11).
    _internals.leave_out_hlo_pass("dynamic-slice-fusion-rewriter-v2")
    return library
