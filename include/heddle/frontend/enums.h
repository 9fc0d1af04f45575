// Enumerations, spelled as in cuDNN's frontend.
#pragma once

#include "heddle/heddle.h"

namespace heddle::frontend {

enum class DataType_t {
  NOT_SET = HEDDLE_DTYPE_UNSET,
  DOUBLE = HEDDLE_F64,
  FLOAT = HEDDLE_F32,
  BFLOAT16 = HEDDLE_BF16,
  HALF = HEDDLE_F16,
  FP8_E4M3 = HEDDLE_F8E4M3,
  FP8_E5M2 = HEDDLE_F8E5M2,
  INT64 = HEDDLE_I64,
  INT32 = HEDDLE_I32,
  INT8 = HEDDLE_I8,
  UINT64 = HEDDLE_U64,
  UINT32 = HEDDLE_U32,
  UINT8 = HEDDLE_U8,
  BOOLEAN = HEDDLE_BOOLEAN,
  // Types that the library has none of: tensors of them are declined by name.
  FP8_E8M0 = 100,
  FP8_E5M3,
  FP4_E2M1,
  INT4,
  INT8x4,
  UINT8x4,
  INT8x32,
  FAST_FLOAT_FOR_FP8,
};

enum class DiagonalAlignment_t { TOP_LEFT, BOTTOM_RIGHT };
enum class AttentionImplementation_t { AUTO, COMPOSITE, UNIFIED };
enum class NormFwdPhase_t { NOT_SET, INFERENCE, TRAINING };
enum class RopePairing_t { HALVES, INTERLEAVED };  ///< NeoX and GPT-J; Heddle's own
enum class TensorReordering_t { NONE, INT8x32, F16x16, F8_128x4 };
enum class HeurMode_t { A, B, FALLBACK, OPENSOURCE };
enum class BuildPlanPolicy_t { HEURISTICS_CHOICE, ALL };
enum class BehaviorNote_t {
  NOT_SET,
  RUNTIME_COMPILATION,
  REQUIRES_FILTER_INT8x32_REORDER,
  REQUIRES_BIAS_INT8x32_REORDER,
  SUPPORTS_CUDA_GRAPH_NATIVE_API,
  CUBLASLT_DEPENDENCY,
};

enum class NumericalNote_t {
  NOT_SET,
  TENSOR_CORE,
  DOWN_CONVERT_INPUTS,
  REDUCED_PRECISION_REDUCTION,
  FFT,
  NONDETERMINISTIC,
  WINOGRAD,
  WINOGRAD_TILE_4x4,
  WINOGRAD_TILE_6x6,
  WINOGRAD_TILE_13x13,
  STRICT_NAN_PROP,
};

enum class PointwiseMode_t {
  NOT_SET,
  IDENTITY,
  ADD,
  SUB,
  MUL,
  DIV,
  MIN,
  MAX,
  POW,
  MOD,
  NEG,
  ABS,
  EXP,
  LOG,
  SQRT,
  RSQRT,
  RECIPROCAL,
  TANH_FWD,
  SIGMOID_FWD,
  ERF,
  SIN,
  COS,
  TAN,
  FLOOR,
  CEIL,
  RELU_FWD,
  RELU_BWD,
  TANH_BWD,
  SIGMOID_BWD,
  ELU_FWD,
  ELU_BWD,
  GELU_FWD,
  GELU_BWD,
  GELU_APPROX_TANH_FWD,
  GELU_APPROX_TANH_BWD,
  SOFTPLUS_FWD,
  SOFTPLUS_BWD,
  SWISH_FWD,
  SWISH_BWD,
  CMP_EQ,
  CMP_NEQ,
  CMP_LT,
  CMP_LE,
  CMP_GT,
  CMP_GE,
  LOGICAL_AND,
  LOGICAL_OR,
  LOGICAL_NOT,
  BINARY_SELECT,
  GEN_INDEX,
  ADD_SQUARE,  ///< a + b b, two ops of Heddle's
};

namespace detail {

/// For sentences: the name of a type that the library has none of, null for those it has.
inline const char* name_if_unknown(DataType_t type) {
  switch (type) {
    case DataType_t::FP8_E8M0:
      return "FP8_E8M0";
    case DataType_t::FP8_E5M3:
      return "FP8_E5M3";
    case DataType_t::INT8x4:
      return "INT8x4";
    case DataType_t::UINT8x4:
      return "UINT8x4";
    case DataType_t::INT8x32:
      return "INT8x32";
    case DataType_t::FAST_FLOAT_FOR_FP8:
      return "FAST_FLOAT_FOR_FP8";
    case DataType_t::FP4_E2M1:
      return "FP4_E2M1";
    case DataType_t::INT4:
      return "INT4";
    default:
      return nullptr;
  }
}

/// For sentences.
inline const char* name(BehaviorNote_t note) {
  constexpr const char* kNames[] = {"NOT_SET",
                                    "RUNTIME_COMPILATION",
                                    "REQUIRES_FILTER_INT8x32_REORDER",
                                    "REQUIRES_BIAS_INT8x32_REORDER",
                                    "SUPPORTS_CUDA_GRAPH_NATIVE_API",
                                    "CUBLASLT_DEPENDENCY"};
  return kNames[static_cast<int>(note)];
}

/// For sentences.
inline const char* name(NumericalNote_t note) {
  constexpr const char* kNames[] = {"NOT_SET",
                                    "TENSOR_CORE",
                                    "DOWN_CONVERT_INPUTS",
                                    "REDUCED_PRECISION_REDUCTION",
                                    "FFT",
                                    "NONDETERMINISTIC",
                                    "WINOGRAD",
                                    "WINOGRAD_TILE_4x4",
                                    "WINOGRAD_TILE_6x6",
                                    "WINOGRAD_TILE_13x13",
                                    "STRICT_NAN_PROP"};
  return kNames[static_cast<int>(note)];
}
/// Convolutions alone have it.
inline bool is_of_convolutions(NumericalNote_t note) {
  return note == NumericalNote_t::FFT ||
         (note >= NumericalNote_t::WINOGRAD && note <= NumericalNote_t::WINOGRAD_TILE_13x13);
}

/// The text form's name of a pointwise op.
inline const char* name(PointwiseMode_t mode) {
  constexpr const char* kNames[] = {"",
                                    "identity",
                                    "add",
                                    "sub",
                                    "mul",
                                    "div",
                                    "min",
                                    "max",
                                    "pow",
                                    "mod",
                                    "neg",
                                    "abs",
                                    "exp",
                                    "log",
                                    "sqrt",
                                    "rsqrt",
                                    "reciprocal",
                                    "tanh_fwd",
                                    "sigmoid_fwd",
                                    "erf",
                                    "sin",
                                    "cos",
                                    "tan",
                                    "floor",
                                    "ceil",
                                    "relu_fwd",
                                    "relu_bwd",
                                    "tanh_bwd",
                                    "sigmoid_bwd",
                                    "elu_fwd",
                                    "elu_bwd",
                                    "gelu_fwd",
                                    "gelu_bwd",
                                    "gelu_approx_tanh_fwd",
                                    "gelu_approx_tanh_bwd",
                                    "softplus_fwd",
                                    "softplus_bwd",
                                    "swish_fwd",
                                    "swish_bwd",
                                    "cmp_eq",
                                    "cmp_neq",
                                    "cmp_lt",
                                    "cmp_le",
                                    "cmp_gt",
                                    "cmp_ge",
                                    "logical_and",
                                    "logical_or",
                                    "logical_not",
                                    "binary_select",
                                    "gen_index",
                                    "add_square"};
  return kNames[static_cast<int>(mode)];
}

}  // namespace detail
}  // namespace heddle::frontend
