"""Arrays made for results and workspaces, by the library of a program's own arrays."""

import ctypes
import sys
import threading

from heddle.arrays import _memory
from heddle.arrays._dtypes import WORDS, numpy_dtype, torch_dtype

MOST_OF_A_THREAD = 1 << 20  # bytes of workspace that a thread keeps: making an array takes a tenth of a small call


class _OfThread(threading.local):
    memory, size, address = None, 0, None


_own = _OfThread()


def of_this_thread(size):
    """The address of host memory of `size` bytes, at most MOST_OF_A_THREAD: the thread's own, until it asks again."""
    if size > _own.size:
        _own.size = 1 << (size - 1).bit_length()
        _own.memory = ctypes.create_string_buffer(_own.size)
        _own.address = ctypes.addressof(_own.memory)
    return _own.address


def empty(what, sample, dims, dtype, strides=None):
    """An array of the library of `sample`, an array, where that lies. Strides, in elements, are row major if left out.

    Raises TypeError, about `what`, for a library that makes none.
    """
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if strides is None and numpy is not None and type(sample) is numpy.ndarray:
        return numpy.empty(dims, numpy_dtype(dtype))
    library = type(sample).__module__.partition(".")[0]
    if torch is not None and isinstance(sample, torch.Tensor):
        if strides is None:
            return torch.empty(dims, dtype=torch_dtype(dtype), device=sample.device)
        return torch.empty_strided(dims, strides, dtype=torch_dtype(dtype), device=sample.device)
    if library == "cupy" or (numpy is not None and isinstance(sample, numpy.ndarray)):
        module = sys.modules["cupy"] if library == "cupy" else numpy
        if strides is None:
            return module.empty(dims, numpy_dtype(dtype))
        base = module.empty(_memory.span(dims, strides), numpy_dtype(dtype))
        return module.lib.stride_tricks.as_strided(base, dims, [step * base.itemsize for step in strides])
    if strides is None and hasattr(sample, "__array_namespace__"):
        namespace = sample.__array_namespace__()
        if hasattr(namespace, WORDS[dtype]):
            return namespace.empty(dims, dtype=getattr(namespace, WORDS[dtype]), device=sample.device)
    raise _makes_none(what, sample)


def _makes_none(what, sample):
    library = type(sample).__module__.partition(".")[0]
    return TypeError(f"{what} would be an array of {library}, which Heddle makes none of, expected arrays of NumPy, torch, JAX, "
                     "CuPy or a library with Python's array API.")


def dense(what, array):
    """An array without gaps, row major and at an address of whole elements: a copy, unless it lies so. It is of no subclass: a
    product of two of NumPy's matrices would be none of elements.

    Raises TypeError, about `what`, for a library that cannot make one.
    """
    numpy, library = sys.modules.get("numpy"), type(array).__module__.partition(".")[0]
    if library == "cupy":
        return sys.modules["cupy"].ascontiguousarray(array)
    try:
        if numpy is None:
            import numpy
        return numpy.require(array if isinstance(array, numpy.ndarray) else numpy.from_dlpack(array), requirements="CAE")
    except (ImportError, BufferError, RuntimeError, TypeError) as error:
        raise TypeError(f"{what} has rows that do not lie element beside element, and NumPy copies no such array of {library}: "
                        f"{error}") from None


def converted(what, sample, array):
    """An array of NumPy or CuPy as one of the library of `sample`. Raises TypeError, about `what`, as `empty` does."""
    if type(array).__module__.partition(".")[0] == type(sample).__module__.partition(".")[0]:
        return array
    if not hasattr(sample, "__array_namespace__"):
        raise _makes_none(what, sample)
    return sample.__array_namespace__().asarray(array)


def gpu_workspace(size):
    """Bytes of the GPU, torch's or CuPy's."""
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    if torch is not None:
        return torch.empty(size, dtype=torch.uint8, device="cuda")
    if cupy is not None:
        return cupy.empty(size, "uint8")
    raise RuntimeError(f"The graph takes a workspace of {size} bytes on the GPU and neither torch nor CuPy is there to make "
                       "it, expected `workspace` in the call.")
