"""Heddle under the names of NVIDIA's Python package `cudnn`: an attention program written for that runs unchanged.

    import heddle.cudnn as cudnn

    handle = cudnn.create_handle()          # an NVIDIA GPU where there is one; create_handle(device="cpu")
    graph = cudnn.pygraph(io_data_type=cudnn.data_type.HALF, intermediate_data_type=cudnn.data_type.FLOAT,
                          compute_data_type=cudnn.data_type.FLOAT, handle=handle)

docs/cudnn.md says what runs and what is declined. Nothing of NVIDIA's is needed.
"""

from importlib import import_module

from heddle._library import version
from heddle.cudnn import wrapper, yarn
from heddle.cudnn._backend import backend_version, backend_version_string
from heddle.cudnn._errors import cudnnGraphNotSupportedError, get_last_error_string
from heddle.cudnn._handle import Handle, create_handle, destroy_handle, get_stream, set_stream
from heddle.cudnn._jit import graph, graph_cache, jit
from heddle.cudnn._kernel_cache import KernelCache, create_kernel_cache
from heddle.cudnn._knobs import Knob
from heddle.cudnn._properties import DeviceProperties, create_device_properties
from heddle.cudnn._pygraph import pygraph
from heddle.cudnn._tensor import Tensor
from heddle.cudnn._types import (
    attention_implementation,
    behavior_note,
    build_plan_policy,
    convolution_mode,
    data_type,
    diagonal_alignment,
    heur_mode,
    knob_type,
    moe_grouped_matmul_mode,
    norm_forward_phase,
    numerical_note,
    reduction_mode,
    reshape_mode,
    scalar_type,
    tensor_reordering,
)
from heddle.cudnn.wrapper import Graph

tensor, knob, kernel_cache, device_properties = Tensor, Knob, KernelCache, DeviceProperties
__version__ = version()


def __getattr__(name):
    # `cudnn.experimental` without an import of its own; its operators load torch only as they are imported.
    if name == "experimental":
        return import_module("heddle.cudnn.experimental")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["DeviceProperties", "Graph", "Handle", "KernelCache", "Knob", "Tensor", "attention_implementation",
           "backend_version", "backend_version_string", "behavior_note", "build_plan_policy", "convolution_mode",
           "create_device_properties", "create_handle", "create_kernel_cache", "cudnnGraphNotSupportedError", "data_type",
           "destroy_handle", "device_properties", "diagonal_alignment", "get_last_error_string", "get_stream", "graph",
           "graph_cache", "heur_mode", "jit", "kernel_cache", "knob", "knob_type", "moe_grouped_matmul_mode",
           "norm_forward_phase", "numerical_note", "pygraph", "reduction_mode", "reshape_mode", "scalar_type", "set_stream",
           "tensor", "tensor_reordering", "wrapper", "yarn"]
