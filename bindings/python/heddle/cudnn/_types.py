"""The frontend's enumerations, and data types of other libraries as its own."""

import sys
from enum import Enum


class _Enumeration(Enum):
    """Members have a number, and programs read other members through one of them."""

    def __int__(self):
        return self.value

    def __getattr__(self, name):
        members = type(self).__members__
        if name in members:
            return members[name]
        raise AttributeError(f"{type(self).__name__} has no {name}, expected one of {', '.join(members)}.")


class data_type(_Enumeration):
    NOT_SET, FLOAT, DOUBLE, HALF, INT8, INT32, UINT8, BFLOAT16, INT64, BOOLEAN, FP8_E4M3, FP8_E5M2, FP8_E8M0 = range(13)


class heur_mode(_Enumeration):
    A, B, FALLBACK, OPENSOURCE = range(4)


class build_plan_policy(_Enumeration):
    HEURISTICS_CHOICE, ALL = range(2)


class diagonal_alignment(_Enumeration):
    TOP_LEFT, BOTTOM_RIGHT = range(2)


class attention_implementation(_Enumeration):
    AUTO, COMPOSITE, UNIFIED = range(3)


class norm_forward_phase(_Enumeration):
    NOT_SET, INFERENCE, TRAINING = range(3)


class tensor_reordering(_Enumeration):
    NONE, INT8x32, F16x16, F8_128x4 = range(4)


# Heddle's names of the types that its graphs have; FP8_E8M0 is not among them.
NAMES = {data_type.NOT_SET: None, data_type.FLOAT: "f32", data_type.DOUBLE: "f64", data_type.HALF: "f16",
         data_type.INT8: "i8", data_type.INT32: "i32", data_type.UINT8: "u8", data_type.BFLOAT16: "bf16",
         data_type.INT64: "i64", data_type.BOOLEAN: "boolean", data_type.FP8_E4M3: "f8e4m3",
         data_type.FP8_E5M2: "f8e5m2"}
MEMBERS = {name: member for member, name in NAMES.items()}
BYTES = {"f64": 8, "f32": 4, "bf16": 2, "f16": 2, "f8e4m3": 1, "f8e5m2": 1, "i64": 8, "i32": 4, "i8": 1, "u64": 8, "u32": 4,
         "u8": 1, "boolean": 1}
# What torch, NumPy (with ml_dtypes), JAX and CuPy call them.
_ELSEWHERE = {"float64": "f64", "double": "f64", "float32": "f32", "float": "f32", "bfloat16": "bf16", "float16": "f16",
              "half": "f16", "float8_e4m3fn": "f8e4m3", "float8_e5m2": "f8e5m2", "int64": "i64", "int32": "i32",
              "int8": "i8", "uint64": "u64", "uint32": "u32", "uint8": "u8", "bool": "boolean", "bool_": "boolean"}


def name_elsewhere(dtype):
    """Heddle's name of another library's data type; None if it has none."""
    name = getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype)
    return _ELSEWHERE.get(name.removeprefix("torch."))


def as_data_type(what, given):
    """A member of data_type, or another library's data type as one; None is NOT_SET."""
    if isinstance(given, data_type):
        return given
    if given is None:
        return data_type.NOT_SET
    member = None if isinstance(given, (str, int, float)) else MEMBERS.get(name_elsewhere(given) or "")
    if member is None:
        raise TypeError(f"{what} is {given!r}, expected a cudnn.data_type or a data type of torch or NumPy.")
    return member


def member_of(enumeration, what, given):
    if not isinstance(given, enumeration):
        raise TypeError(f"{what} is {given!r}, expected a member of cudnn.{enumeration.__name__}: "
                        f"{', '.join(enumeration.__members__)}.")
    return given


def torch_dtype(name):
    """torch's data type of Heddle's name, if torch is loaded and has one."""
    torch = sys.modules.get("torch")
    return next((getattr(torch, elsewhere) for elsewhere, ours in _ELSEWHERE.items()
                 if ours == name and hasattr(torch, elsewhere)), None) if torch else None
