"""Heddle under the names of NVIDIA's Python package `cudnn`: an attention program written for that runs unchanged.

    import heddle.cudnn as cudnn

    handle = cudnn.create_handle()          # an NVIDIA GPU where there is one; create_handle(device="cpu")
    graph = cudnn.pygraph(io_data_type=cudnn.data_type.HALF, intermediate_data_type=cudnn.data_type.FLOAT,
                          compute_data_type=cudnn.data_type.FLOAT, handle=handle)

docs/cudnn.md says what runs and what is declined. Nothing of NVIDIA's is needed.
"""

from heddle._library import version
from heddle.cudnn import yarn
from heddle.cudnn._backend import backend_version, backend_version_string
from heddle.cudnn._errors import cudnnGraphNotSupportedError
from heddle.cudnn._handle import Handle, create_handle, destroy_handle, get_stream, set_stream
from heddle.cudnn._jit import graph, graph_cache, jit
from heddle.cudnn._properties import create_device_properties
from heddle.cudnn._pygraph import pygraph
from heddle.cudnn._tensor import Tensor
from heddle.cudnn._types import (
    attention_implementation,
    build_plan_policy,
    data_type,
    diagonal_alignment,
    heur_mode,
    norm_forward_phase,
    tensor_reordering,
)
from heddle.cudnn._wrapper import Graph

tensor = Tensor
__version__ = version()

__all__ = ["Graph", "Handle", "Tensor", "attention_implementation", "backend_version", "backend_version_string",
           "build_plan_policy", "create_device_properties", "create_handle", "cudnnGraphNotSupportedError", "data_type",
           "destroy_handle", "diagonal_alignment", "get_stream", "graph", "graph_cache", "heur_mode", "jit",
           "norm_forward_phase", "pygraph", "set_stream", "tensor", "tensor_reordering", "yarn"]
