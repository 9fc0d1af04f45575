// Element types in the numbering of three: ONNX Runtime's, Heddle's C interface's and its own.
#pragma once

#include <optional>

#include "core/dtype.h"
#include "heddle/heddle.h"
#include "onnxruntime/abi.h"

namespace heddle::onnxruntime {

inline std::optional<DataType> data_type(abi::ElementType type) {
  switch (type) {
    case abi::ElementType::f64:
      return DataType::f64;
    case abi::ElementType::f32:
      return DataType::f32;
    case abi::ElementType::f16:
      return DataType::f16;
    case abi::ElementType::bf16:
      return DataType::bf16;
    case abi::ElementType::f8e4m3:
      return DataType::f8e4m3;
    case abi::ElementType::i64:
      return DataType::i64;
    case abi::ElementType::i32:
      return DataType::i32;
    case abi::ElementType::i8:
      return DataType::i8;
    case abi::ElementType::u8:
      return DataType::u8;
    case abi::ElementType::boolean:
      return DataType::boolean;
    case abi::ElementType::undefined:
      return std::nullopt;
  }
  return std::nullopt;
}

/// The C interface numbers types in the order of DataType, from 1 on.
inline heddle_dtype c_type(DataType type) {
  return static_cast<heddle_dtype>(static_cast<int>(type) + 1);
}
inline DataType data_type(heddle_dtype type) {
  return static_cast<DataType>(static_cast<int>(type) - 1);
}
static_assert(static_cast<int>(DataType::f64) + 1 == HEDDLE_F64);
static_assert(static_cast<int>(DataType::i32) + 1 == HEDDLE_I32);
static_assert(static_cast<int>(DataType::boolean) + 1 == HEDDLE_BOOLEAN);

}  // namespace heddle::onnxruntime
