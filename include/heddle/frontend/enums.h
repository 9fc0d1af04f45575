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
};

enum class DiagonalAlignment_t { TOP_LEFT, BOTTOM_RIGHT };
enum class AttentionImplementation_t { AUTO, COMPOSITE, UNIFIED };
enum class NormFwdPhase_t { NOT_SET, INFERENCE, TRAINING };
enum class RopePairing_t { HALVES, INTERLEAVED };  ///< NeoX and GPT-J; Heddle's own
enum class TensorReordering_t { NONE, INT8x32, F16x16, F8_128x4 };
enum class HeurMode_t { A, B, FALLBACK, OPENSOURCE };
enum class BuildPlanPolicy_t { HEURISTICS_CHOICE, ALL };

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
};

namespace detail {

/// The text form's name of a pointwise op.
inline const char* name(PointwiseMode_t mode) {
  constexpr const char* kNames[] = {"",           "identity",    "add",           "sub",
                                    "mul",        "div",         "min",           "max",
                                    "pow",        "mod",         "neg",           "abs",
                                    "exp",        "log",         "sqrt",          "rsqrt",
                                    "reciprocal", "tanh_fwd",    "sigmoid_fwd",   "erf",
                                    "sin",        "cos",         "tan",           "floor",
                                    "ceil",       "cmp_eq",      "cmp_neq",       "cmp_lt",
                                    "cmp_le",     "cmp_gt",      "cmp_ge",        "logical_and",
                                    "logical_or", "logical_not", "binary_select", "gen_index"};
  return kNames[static_cast<int>(mode)];
}

}  // namespace detail
}  // namespace heddle::frontend
