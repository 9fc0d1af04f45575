#include "api/c_values.h"

namespace heddle::api {

// The C interface numbers the data types one after DataType, 0 being "unset".
static_assert(static_cast<int>(DataType::f64) + 1 == HEDDLE_F64);
static_assert(static_cast<int>(DataType::bf16) + 1 == HEDDLE_BF16);
static_assert(static_cast<int>(DataType::boolean) + 1 == HEDDLE_BOOLEAN);

Result<std::optional<DataType>> data_type(heddle_dtype given) {
  if (given == HEDDLE_DTYPE_UNSET) return std::optional<DataType>();
  if (given < HEDDLE_DTYPE_UNSET || given > HEDDLE_BOOLEAN) {
    return error(Code::invalid_value, "There is no data type number {}.", static_cast<int>(given));
  }
  return std::optional(static_cast<DataType>(given - 1));
}

Result<engine::Device> device_from(heddle_device given) {
  if (given == HEDDLE_CPU) return engine::Device::cpu;
  if (given == HEDDLE_CUDA) return engine::Device::cuda;
  return error(Code::invalid_value,
               "There is no device number {}, expected HEDDLE_CPU or HEDDLE_CUDA.",
               static_cast<int>(given));
}

Result<Dims> dims_from(const int64_t* values, int32_t rank, const char* what) {
  if (rank < 0 || rank > kMaxRank) {
    return error(Code::invalid_value, "{} of rank {} are given, expected 0 to {}.", what, rank,
                 kMaxRank);
  }
  return Dims(values, values + rank);
}

}  // namespace heddle::api
