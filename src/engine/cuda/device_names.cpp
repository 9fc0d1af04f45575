#include "engine/cuda/device_names.h"

namespace heddle::engine::cuda {

std::string device_type(DataType type) {
  switch (type) {
    case DataType::f32:
      return "float";
    case DataType::bf16:
      return "bf16";
    case DataType::f16:
      return "f16";
    case DataType::f64:
      return "double";
    case DataType::i64:
      return "i64";
    case DataType::i32:
      return "i32";
    case DataType::u64:
      return "u64";
    case DataType::u32:
      return "u32";
    case DataType::u8:
    case DataType::boolean:
      return "u8";
    case DataType::i8:
      return "signed char";
    case DataType::f8e4m3:
    case DataType::f8e5m2:
      return "";
  }
  return "";
}

const char* dropout_name(problem::Dropout::Kind kind) {
  constexpr const char* kNames[] = {"none", "philox", "threefry", "mask"};
  return kNames[static_cast<int>(kind)];
}

}  // namespace heddle::engine::cuda
