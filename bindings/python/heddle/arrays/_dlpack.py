"""What a DLPack capsule says of an array, read without taking it over."""

import ctypes
from ctypes import POINTER, Structure, c_char_p, c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p, py_object

CPU, CUDA, PINNED, MANAGED = 1, 2, 3, 13
_NAMES = {(0, 8): "i8", (0, 32): "i32", (0, 64): "i64", (1, 8): "u8", (1, 32): "u32", (1, 64): "u64", (2, 16): "f16",
          (2, 32): "f32", (2, 64): "f64", (4, 16): "bf16", (6, 8): "boolean", (10, 8): "f8e4m3", (12, 8): "f8e5m2"}


class _Tensor(Structure):
    """DLTensor."""

    _fields_ = [("data", c_void_p), ("device", c_int32), ("device_id", c_int32), ("rank", c_int32), ("code", c_uint8),
                ("bits", c_uint8), ("lanes", c_uint16), ("dims", POINTER(c_int64)), ("strides", POINTER(c_int64)),
                ("byte_offset", c_uint64)]


class _Versioned(Structure):
    """DLManagedTensorVersioned."""

    _fields_ = [("major", c_uint32), ("minor", c_uint32), ("context", c_void_p), ("deleter", c_void_p),
                ("flags", c_uint64), ("tensor", _Tensor)]


_READ_ONLY = 1
_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.restype, _is_valid.argtypes = ctypes.c_int, [py_object, c_char_p]
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = c_void_p, [py_object, c_char_p]


def read(what, array):
    """Address, type's name (None if Heddle has none), device, dims, strides in elements, and whether it may be written.

    Memory is the array's own before and after: the capsule is not consumed.
    """
    try:
        capsule = _capsule(array)
    except Exception as refused:  # whatever a library raises of an array that it does not hand on
        raise TypeError(f"{what}, a {type(array).__name__}, is not handed on by its library: {str(refused) or type(refused).__name__}, "
                        "expected an array with DLPack.") from refused
    if _is_valid(capsule, b"dltensor_versioned"):
        managed = _Versioned.from_address(_pointer(capsule, b"dltensor_versioned"))
        tensor, writable = managed.tensor, not managed.flags & _READ_ONLY
    elif _is_valid(capsule, b"dltensor"):
        tensor, writable = _Tensor.from_address(_pointer(capsule, b"dltensor")), True
    else:
        raise TypeError(f"{what}, a {type(array).__name__}, has a __dlpack__ that gives no DLPack capsule.")
    dims = tuple(tensor.dims[:tensor.rank])
    strides = tuple(tensor.strides[:tensor.rank]) if tensor.strides else row_major(dims)
    name = _NAMES.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    return (tensor.data or 0) + tensor.byte_offset, name, tensor.device, dims, strides, writable


def _capsule(array):
    # -1: nothing waits for anything, as the caller's streams are in order already.
    queue = {"stream": -1} if array.__dlpack_device__()[0] in (CUDA, MANAGED) else {}
    try:
        return array.__dlpack__(max_version=(1, 0), **queue)
    except TypeError:
        return array.__dlpack__(**queue)


def row_major(dims):
    strides, step = [], 1
    for dim in reversed(dims):
        strides.append(step)
        step *= max(dim, 1)
    return tuple(reversed(strides))
