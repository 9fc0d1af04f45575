"""Arrays made for results and workspaces, by the library of a program's own arrays."""

import sys

from heddle.cudnn import _arrays
from heddle.cudnn._types import NAMES, torch_dtype


def like(tensor, sample):
    """An array with a tensor's dims, strides and type, of the library of `sample`, an array, and where that lies."""
    dims, strides, name = tensor.get_dim(), tensor.get_stride(), NAMES[tensor.get_data_type()]
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(sample, torch.Tensor):
        return torch.empty_strided(dims, strides, dtype=torch_dtype(name), device=sample.device)
    library = type(sample).__module__.partition(".")[0]
    if library not in ("numpy", "cupy"):
        raise TypeError(f"The output {tensor.get_name()!r} is not given, and Heddle makes no arrays of {library} to write it "
                        "to, expected it in a dict that the graph is called with.")
    module = sys.modules[library]
    base = module.empty(_arrays.span(dims, strides), _numpy_dtype(name))
    return module.lib.stride_tricks.as_strided(base, dims, [step * base.itemsize for step in strides])


def gpu_workspace(size):
    """Bytes of the GPU, torch's or CuPy's."""
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    if torch is not None:
        return torch.empty(size, dtype=torch.uint8, device="cuda")
    if cupy is not None:
        return cupy.empty(size, "uint8")
    raise RuntimeError(f"The graph takes a workspace of {size} bytes on the GPU and neither torch nor CuPy is there to make "
                       "it, expected `workspace` in the call.")


def _numpy_dtype(name):
    if name in ("bf16", "f8e4m3", "f8e5m2"):
        import ml_dtypes

        return {"bf16": ml_dtypes.bfloat16, "f8e4m3": ml_dtypes.float8_e4m3fn, "f8e5m2": ml_dtypes.float8_e5m2}[name]
    if name == "boolean":
        return "bool"
    return {"f": "float", "i": "int", "u": "uint"}[name[0]] + name[1:]
