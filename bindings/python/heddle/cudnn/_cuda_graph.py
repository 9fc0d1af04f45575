"""CUDA graphs of a program's own: a call's launches put into one, and its nodes given another call's arguments."""

import ctypes
from collections.abc import Callable
from ctypes import byref, c_char_p, c_int, c_size_t, c_void_p

_NON_BLOCKING, _RELAXED, _KERNEL = 1, 2, 0
_PARAMETERS = 128  # bytes, more than the driver's description of a kernel's launch takes


def populate(graph: int, queue: Callable[[int], None]) -> None:
    """Adds the launches of `queue`, a function of a CUstream, to a CUgraph of the program's."""
    _capture(c_void_p(graph), queue)


def update(graph: int, queue: Callable[[int], None]) -> None:
    """Gives the nodes that `populate` made the launches that `queue` would make now.

    Raises ValueError if those are others.
    """
    made = c_void_p()
    _call("cuGraphCreate", byref(made), 0)
    try:
        _capture(made, queue)
        old, new = _kernel_nodes(c_void_p(graph)), _kernel_nodes(made)
        if len(old) != len(new):
            raise ValueError(f"The CUDA graph has {len(old)} kernels and the call {len(new)}, expected the graph that "
                             "populate_cuda_graph filled with a call of this graph.")
        parameters = ctypes.create_string_buffer(_PARAMETERS)
        for one, other in zip(old, new, strict=True):
            _call("cuGraphKernelNodeGetParams_v2", c_void_p(other), parameters)
            _call("cuGraphKernelNodeSetParams_v2", c_void_p(one), parameters)
    finally:
        _call("cuGraphDestroy", made)


def _capture(graph, queue):
    stream, captured = c_void_p(), c_void_p()
    _call("cuStreamCreate", byref(stream), _NON_BLOCKING)
    try:
        _call("cuStreamBeginCaptureToGraph", stream, graph, None, None, c_size_t(0), _RELAXED)
        try:
            queue(stream.value)
        finally:
            _call("cuStreamEndCapture", stream, byref(captured))
    finally:
        _call("cuStreamDestroy_v2", stream)


def _kernel_nodes(graph):
    """In the order in which they were made."""
    count, kind = c_size_t(), c_int()
    _call("cuGraphGetNodes", graph, None, byref(count))
    nodes = (c_void_p * count.value)()
    _call("cuGraphGetNodes", graph, nodes, byref(count))
    found = []
    for node in nodes[:count.value]:
        _call("cuGraphNodeGetType", c_void_p(node), byref(kind))
        if kind.value != _KERNEL:
            raise ValueError(f"The CUDA graph has a node of the driver's kind {kind.value}, expected kernels alone, as "
                             "populate_cuda_graph makes them.")
        found.append(node)
    return found


def _call(function, *arguments):
    driver = ctypes.CDLL("libcuda.so.1")
    call = getattr(driver, function, None)
    if call is None:
        raise RuntimeError(f"The driver has no {function}, expected one of CUDA 12.3 or later.")
    failure = call(*arguments)
    if failure:
        name = c_char_p()
        driver.cuGetErrorName(failure, byref(name))
        raise RuntimeError(f"{function} failed: {(name.value or b'an unknown error').decode()}.")
