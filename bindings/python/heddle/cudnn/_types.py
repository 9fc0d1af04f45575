"""The frontend's enumerations, and data types of other libraries as its own."""

from enum import Enum

from heddle.arrays._dtypes import name_elsewhere


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
    (NOT_SET, FLOAT, DOUBLE, HALF, INT8, INT32, UINT8, BFLOAT16, INT64, BOOLEAN, FP8_E4M3, FP8_E5M2, FP8_E8M0, FP8_E5M3,
     FP4_E2M1, INT4, INT8x4, UINT8x4, INT8x32, FAST_FLOAT_FOR_FP8) = range(20)


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


class scalar_type(_Enumeration):
    RUNTIME_PARAM, COMPILE_TIME_CONST = range(2)


class behavior_note(_Enumeration):
    (NOT_SET, RUNTIME_COMPILATION, REQUIRES_FILTER_INT8x32_REORDER, REQUIRES_BIAS_INT8x32_REORDER,
     SUPPORTS_CUDA_GRAPH_NATIVE_API, CUBLASLT_DEPENDENCY) = range(6)


class numerical_note(_Enumeration):
    (NOT_SET, TENSOR_CORE, DOWN_CONVERT_INPUTS, REDUCED_PRECISION_REDUCTION, FFT, NONDETERMINISTIC, WINOGRAD,
     WINOGRAD_TILE_4x4, WINOGRAD_TILE_6x6, WINOGRAD_TILE_13x13, STRICT_NAN_PROP) = range(11)


class knob_type(_Enumeration):
    (NOT_SET, SWIZZLE, TILE_SIZE, EDGE, MULTIPLY, SPLIT_K_BUF, TILEK, STAGES, REDUCTION_MODE, SPLIT_K_SLC, IDX_MODE, SPECFILT,
     KERNEL_CFG, WORKSPACE, TILE_CGA_M, TILE_CGA_N, BLOCK_SIZE, OCCUPANCY, ARRAY_SIZE_PER_THREAD, SPLIT_COLS, TILE_ROWS,
     TILE_COLS, LOAD_SIZE, CTA_COUNT, STREAM_K, SPLIT_P_SLC, TILE_M, TILE_N, WARP_SPEC_CFG, SWAP_AB, INPUT_TMA_ENABLE,
     OUTPUT_TMA_ENABLE) = range(32)


# Of ops that are declined.


class reduction_mode(_Enumeration):
    NOT_SET, ADD, MUL, MIN, MAX, AMAX, AVG, NORM1, NORM2, MUL_NO_ZEROS = range(10)


class convolution_mode(_Enumeration):
    CONVOLUTION, CROSS_CORRELATION = range(2)


class reshape_mode(_Enumeration):
    VIEW_ONLY, LOGICAL = range(2)


class moe_grouped_matmul_mode(_Enumeration):
    NONE, GATHER, SCATTER = range(3)


# Heddle's names of the types that its graphs have; a tensor of another is declined by name.
NAMES = {data_type.NOT_SET: None, data_type.FLOAT: "f32", data_type.DOUBLE: "f64", data_type.HALF: "f16",
         data_type.INT8: "i8", data_type.INT32: "i32", data_type.UINT8: "u8", data_type.BFLOAT16: "bf16",
         data_type.INT64: "i64", data_type.BOOLEAN: "boolean", data_type.FP8_E4M3: "f8e4m3",
         data_type.FP8_E5M2: "f8e5m2"}
MEMBERS = {name: member for member, name in NAMES.items()}


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
