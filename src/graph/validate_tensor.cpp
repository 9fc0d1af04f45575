#include "graph/validate_tensor.h"

#include <array>
#include <cmath>
#include <cstddef>

#include "core/packed.h"
#include "graph/rules.h"

namespace heddle::graph {
namespace {

Status validate_ragged_offset(const Graph& graph, const Tensor& tensor) {
  const Tensor& offset = graph[tensor.ragged_offset];
  if (offset.is_virtual || offset.ragged_offset != kNone) {
    return error(Code::invalid_value,
                 "The ragged offset of {}, {}, {}, expected a dense tensor that is bound.",
                 describe(tensor), describe(offset),
                 offset.is_virtual ? "is virtual" : "has a ragged offset itself");
  }
  if (tensor.dims.rank() != 4) {
    return error(Code::invalid_value, "The {} has a ragged offset and dims {}, expected rank 4.",
                 describe(tensor), to_string(tensor.dims));
  }
  if (offset.dtype != DataType::i32 && offset.dtype != DataType::i64) {
    return error(Code::invalid_value,
                 "The ragged offset of {}, {}, has data type {}, expected i32 or i64.",
                 describe(tensor), describe(offset), name(*offset.dtype));
  }
  if (offset.dims.empty() || offset.dims[0] != tensor.dims[0] + 1 ||
      element_count(offset.dims) != tensor.dims[0] + 1) {
    return error(Code::invalid_value,
                 "The ragged offset of {}, {}, has dims {}, expected [{}, 1, 1, 1].",
                 describe(tensor), describe(offset), to_string(offset.dims), tensor.dims[0] + 1);
  }
  if (tensor.ragged_offset_multiplier < 1 || tensor.ragged_offset_multiplier > INT32_MAX) {
    return error(Code::invalid_value, "The ragged offset multiplier of {} is {}, expected 1 to {}.",
                 describe(tensor), tensor.ragged_offset_multiplier, INT32_MAX);
  }
  return {};
}

/// Whether a type has this number, a floating one perhaps rounded, yet neither to 0 nor to
/// infinity.
bool is_held(double number, DataType type) {
  if (type == DataType::boolean) return true;
  if (is_floating(type)) {
    std::array<std::byte, sizeof(double)> memory;
    store(type, memory.data(), 0, number);
    const double held = load(type, memory.data(), 0);
    return std::isfinite(held) == std::isfinite(number) && (held == 0) == (number == 0);
  }
  const bool is_signed = type == DataType::i8 || type == DataType::i32 || type == DataType::i64;
  const int bits = static_cast<int>(size_of(type)) * 8;
  const double end = std::ldexp(1.0, is_signed ? bits - 1 : bits);
  return number == std::trunc(number) && number >= (is_signed ? -end : 0) && number < end;
}

Status validate_scalar(const Tensor& tensor) {
  if (tensor.constant && !is_held(*tensor.constant, *tensor.dtype)) {
    return error(Code::invalid_value, "The {} is the constant {}, expected a number that {} holds.",
                 describe(tensor), *tensor.constant, name(*tensor.dtype));
  }
  if (element_count(tensor.dims) != 1) {
    return error(Code::invalid_value, "The {} is {} and has dims {}, expected one element.",
                 describe(tensor), tensor.constant ? "a constant" : "passed by value",
                 to_string(tensor.dims));
  }
  if (tensor.is_virtual) {
    return error(Code::invalid_value, "The {} is {} and virtual, which cannot both be.",
                 describe(tensor), tensor.constant ? "a constant" : "passed by value");
  }
  return {};
}

}  // namespace

Status infer_tensor(const Graph& graph, Tensor& tensor) {
  if (!tensor.dtype && tensor.constant) tensor.dtype = DataType::f32;
  if (!tensor.dtype) {
    tensor.dtype = tensor.is_virtual ? graph.intermediate_dtype : graph.io_dtype;
    if (!tensor.dtype && tensor.is_virtual) {
      return error(Code::attribute_not_set,
                   "Intermediate tensor data type needs to be set as internal tensors require it: "
                   "the {} is virtual "
                   "and has no data type of its own.",
                   describe(tensor));
    }
    if (!tensor.dtype) {
      return error(Code::attribute_not_set,
                   "The {} has no data type and the graph no io data type to give it.",
                   describe(tensor));
    }
  }
  if (tensor.dims.empty() && (tensor.constant || tensor.pass_by_value)) tensor.dims = {1, 1, 1, 1};
  if (!tensor.dims.empty() && tensor.strides.empty()) {
    if (const std::optional<Dims> strides = dense_strides(tensor.dims)) tensor.strides = *strides;
  }
  return {};
}

Status validate_tensor(const Graph& graph, TensorId id) {
  const Tensor& tensor = graph[id];
  if (tensor.dims.empty()) {
    return error(Code::attribute_not_set, "The {} has no dims, and no op to infer them from.",
                 describe(tensor));
  }
  for (int64_t dim : tensor.dims) {
    if (dim >= 1 && dim <= INT32_MAX) continue;
    return error(Code::invalid_value, "The {} has dims {}, expected each from 1 to {}.",
                 describe(tensor), to_string(tensor.dims), INT32_MAX);
  }
  // Those that are not given have been inferred, where the elements can be counted.
  if (tensor.strides.empty()) {
    return error(Code::invalid_value, "The {} has dims {}, more elements than 63 bits count.",
                 describe(tensor), to_string(tensor.dims));
  }
  if (tensor.strides.rank() != tensor.dims.rank()) {
    return error(Code::attribute_not_set,
                 "The {} has dims {} and strides {}, expected as many strides as dims.",
                 describe(tensor), to_string(tensor.dims), to_string(tensor.strides));
  }
  for (int i = 0; i < tensor.dims.rank(); ++i) {
    if (tensor.dims[i] == 1 || tensor.strides[i] >= 0)
      continue;  // strides of size-1 dims mean nothing
    return error(Code::invalid_value, "The {} has strides {}, expected none to be negative.",
                 describe(tensor), to_string(tensor.strides));
  }
  const std::optional<int64_t> span = span_of(tensor.dims, tensor.strides);
  int64_t bytes;
  if (!span || !element_count(tensor.dims) ||
      __builtin_mul_overflow(*span, size_of(*tensor.dtype), &bytes)) {
    return error(Code::invalid_value,
                 "The {} with dims {} and strides {} reaches beyond what 63 bits address.",
                 describe(tensor), to_string(tensor.dims), to_string(tensor.strides));
  }
  if (tensor.constant || tensor.pass_by_value) HEDDLE_TRY(validate_scalar(tensor));
  if (tensor.ragged_offset != kNone) HEDDLE_TRY(validate_ragged_offset(graph, tensor));
  return {};
}

Status validate_written(const Tensor& tensor) {
  if (!(tensor.ragged_offset != kNone ? packed_overlaps_itself(tensor.dims, tensor.strides)
                                      : overlaps_itself(tensor.dims, tensor.strides)))
    return {};
  return error(
      Code::invalid_value,
      "The {} is written, and its strides {} put elements of dims {} on top of each other.",
      describe(tensor), to_string(tensor.strides), to_string(tensor.dims));
}

}  // namespace heddle::graph
