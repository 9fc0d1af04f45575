"""Data types of other libraries by Heddle's names, and back."""

import sys

BYTES = {"f64": 8, "f32": 4, "bf16": 2, "f16": 2, "f8e4m3": 1, "f8e5m2": 1, "i64": 8, "i32": 4, "i8": 1, "u64": 8, "u32": 4,
         "u8": 1, "boolean": 1}
# What torch, NumPy (with ml_dtypes), JAX and CuPy call them.
_ELSEWHERE = {"float64": "f64", "double": "f64", "float32": "f32", "float": "f32", "bfloat16": "bf16", "float16": "f16",
              "half": "f16", "float8_e4m3fn": "f8e4m3", "float8_e5m2": "f8e5m2", "int64": "i64", "int32": "i32",
              "int8": "i8", "uint64": "u64", "uint32": "u32", "uint8": "u8", "bool": "boolean", "bool_": "boolean"}
# What sentences call them.
WORDS = {"f64": "float64", "f32": "float32", "bf16": "bfloat16", "f16": "float16", "f8e4m3": "float8_e4m3fn",
         "f8e5m2": "float8_e5m2", "i64": "int64", "i32": "int32", "i8": "int8", "u64": "uint64", "u32": "uint32",
         "u8": "uint8", "boolean": "bool", None: "one that Heddle has no name for"}


def name_elsewhere(dtype):
    """Heddle's name of another library's data type; None if it has none."""
    name = getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype)
    return _ELSEWHERE.get(name.removeprefix("torch."))


def torch_dtype(name):
    """torch's data type of Heddle's name, if torch is loaded and has one."""
    torch = sys.modules.get("torch")
    return next((getattr(torch, elsewhere) for elsewhere, ours in _ELSEWHERE.items()
                 if ours == name and hasattr(torch, elsewhere)), None) if torch else None


def numpy_dtype(name):
    """NumPy's data type of Heddle's name; those of ml_dtypes for what NumPy has none of its own for."""
    if name in ("bf16", "f8e4m3", "f8e5m2"):
        import ml_dtypes

        return {"bf16": ml_dtypes.bfloat16, "f8e4m3": ml_dtypes.float8_e4m3fn, "f8e5m2": ml_dtypes.float8_e5m2}[name]
    if name == "boolean":
        return "bool"
    return {"f": "float", "i": "int", "u": "uint"}[name[0]] + name[1:]
