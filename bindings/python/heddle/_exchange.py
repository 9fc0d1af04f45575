"""Executions on torch's tensors that the library reads by itself, where torch gives C functions for that (DLPack's exchange
API; 2.11 and 2.15 have it): asked in Python for address, type and strides, each tensor takes a third of a microsecond.
"""

import ctypes
from collections.abc import Callable, Sequence
from ctypes import (POINTER, PYFUNCTYPE, Structure, c_char_p, c_int, c_int32, c_int64, c_size_t, c_uint32, c_void_p,
                    py_object)
from functools import cache

from heddle._graph import DTYPES
from heddle._library import DEVICES, failure, load
from heddle._plan import Plan


class _Api(Structure):
    """DLPackExchangeAPI of DLPack 1.3."""

    _fields_ = [("major", c_uint32), ("minor", c_uint32), ("previous", c_void_p), ("allocator", c_void_p),
                ("managed_from_object", c_void_p), ("managed_to_object", c_void_p), ("tensor_from_object", c_void_p),
                ("current_stream", c_void_p)]


class _Python(Structure):
    """heddle_python of include/heddle/heddle.h."""

    _fields_ = [(name, c_void_p) for name in ("tuple_item", "type_of", "release", "clear_error", "let_others_run", "run_again",
                                              "array_type", "read_array")]


class _Array(Structure):
    """heddle_python_array."""

    _fields_ = [("dtype", c_int), ("device", c_int), ("elements", c_int64)]


class _Call(Structure):
    """heddle_python_call."""

    _fields_ = [("python", POINTER(_Python)), ("plan", c_void_p), ("uids", POINTER(c_int64)), ("arrays", POINTER(_Array)),
                ("count", c_size_t), ("device", c_int), ("workspace_bytes", c_size_t)]


# The interpreter's lock is kept on the way in: the library lets go of it while the plan runs.
_Execute = PYFUNCTYPE(c_int32, c_void_p, py_object, py_object, c_void_p)
_pointer = PYFUNCTYPE(c_void_p, py_object, c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))


def launcher(plan: Plan, uids: Sequence[int], expected: Sequence[tuple[str, str, int]], device: str,
             array_type: type | None) -> Callable[[tuple, object, int | None], bool] | None:
    """A function of (values, workspace, stream) that runs the plan if the values, in the order of `uids`, and the workspace are
    arrays of the type as expected, and else returns False; it raises Error. None where the type has no such functions.

    expected: data type, device, and elements that the array has to reach over, of each uid.
    """
    python = array_type and _python(array_type)
    if not python:
        return None
    own_uids = (c_int64 * len(uids))(*uids)
    arrays = (_Array * len(uids))(*[(DTYPES[dtype], DEVICES[place], elements) for dtype, place, elements in expected])
    call = _Call(ctypes.pointer(python), plan._plan.value, own_uids, arrays, len(uids), DEVICES[device], plan.workspace_bytes)
    execute, address = _Execute(("heddle_python_execute", load())), ctypes.addressof(call)

    def launch(values: tuple, workspace: object, stream: int | None, kept: object = (plan, call)) -> bool:
        status = execute(address, values, workspace, stream)
        if status > 0:
            raise failure(status)
        return status == 0

    return launch


@cache
def _python(array_type):
    """What the library asks of this Python for arrays of the type."""
    capsule = getattr(array_type, "__dlpack_c_exchange_api__", None)
    if capsule is None:
        return None
    api = ctypes.cast(_pointer(capsule, b"dlpack_exchange_api"), POINTER(_Api)).contents
    if api.major != 1 or not api.tensor_from_object:
        return None
    functions = [ctypes.cast(getattr(ctypes.pythonapi, name), c_void_p) for name in (
        "PyTuple_GetItem", "PyObject_Type", "Py_DecRef", "PyErr_Clear", "PyEval_SaveThread", "PyEval_RestoreThread")]
    return _Python(*functions, id(array_type), api.tensor_from_object)
