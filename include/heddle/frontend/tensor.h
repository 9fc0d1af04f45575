// A tensor as the builder knows it. Setters return the tensor, so that they chain.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "heddle/frontend/enums.h"
#include "heddle/frontend/error.h"

namespace heddle::frontend {
namespace detail {

/// The rank, with as many dims as the C interface takes: past that the library has a sentence.
inline int32_t copy_dims(const std::vector<int64_t>& from, int64_t (&to)[HEDDLE_MAX_RANK]) {
  std::copy_n(from.begin(), std::min<size_t>(from.size(), HEDDLE_MAX_RANK), to);
  return static_cast<int32_t>(from.size());
}

}  // namespace detail

namespace graph {

/// Whether a number is the program's at each execution: Heddle's are part of the graph.
enum class ScalarType { RUNTIME_PARAM, COMPILE_TIME_CONST };

class Tensor_attributes {
 public:
  using uid_t = int64_t;

  Tensor_attributes() = default;
  /// A constant, known when the graph is built and never bound.
  explicit Tensor_attributes(float value) : data_type_(DataType_t::FLOAT), constant_(value) {}
  explicit Tensor_attributes(double value) : data_type_(DataType_t::DOUBLE), constant_(value) {}
  explicit Tensor_attributes(int32_t value) : data_type_(DataType_t::INT32), constant_(value) {}
  explicit Tensor_attributes(int64_t value)
      : data_type_(DataType_t::INT64), constant_(static_cast<double>(value)) {}

  /// Of either kind the value is the one given here.
  template <class Number>
  Tensor_attributes(Number value, ScalarType) : Tensor_attributes(value) {}

  Tensor_attributes& set_name(std::string value) { return name_ = std::move(value), *this; }
  Tensor_attributes& set_data_type(DataType_t value) { return data_type_ = value, *this; }
  Tensor_attributes& set_dim(std::vector<int64_t> value) { return dim_ = std::move(value), *this; }
  /// In elements.
  Tensor_attributes& set_stride(std::vector<int64_t> value) {
    return stride_ = std::move(value), *this;
  }
  /// How packs call it; 0 is a uid like any other.
  Tensor_attributes& set_uid(uid_t value) { return uid_ = value, *this; }
  Tensor_attributes& clear_uid() { return uid_.reset(), *this; }
  Tensor_attributes& set_is_virtual(bool value) { return is_virtual_ = value, *this; }
  Tensor_attributes& set_output(bool value) { return set_is_virtual(!value); }
  Tensor_attributes& set_is_pass_by_value(bool value) { return is_pass_by_value_ = value, *this; }
  Tensor_attributes& set_ragged_offset(std::shared_ptr<Tensor_attributes> value) {
    return ragged_offset_ = std::move(value), *this;
  }
  Tensor_attributes& set_ragged_offset_multiplier(int64_t value) {
    return ragged_offset_multiplier_ = value, *this;
  }
  /// Accepted for any value: Heddle checks each buffer's alignment at execution and needs that of
  /// its elements.
  Tensor_attributes& set_alignment(int64_t value) { return alignment_ = value, *this; }

  /// Only NONE is supported; others are refused by name when the graph is validated.
  Tensor_attributes& set_reordering_type(TensorReordering_t value) {
    return reordering_ = value, *this;
  }

  /// Elements that lie together along a dim: more than 1 is refused when the graph is validated.
  Tensor_attributes& set_vector_count_and_dimension(int64_t count, int64_t dimension) {
    return vector_count_ = count, vector_dimension_ = dimension, *this;
  }

  const std::string& get_name() const { return name_; }
  DataType_t get_data_type() const { return data_type_; }
  const std::vector<int64_t>& get_dim() const { return dim_; }
  const std::vector<int64_t>& get_stride() const { return stride_; }
  /// 0 where none is set.
  uid_t get_uid() const { return uid_.value_or(0); }
  bool has_uid() const { return uid_.has_value(); }
  bool get_is_virtual() const { return is_virtual_; }
  bool get_is_pass_by_value() const { return is_pass_by_value_; }
  const std::shared_ptr<Tensor_attributes>& get_ragged_offset() const { return ragged_offset_; }
  int64_t get_ragged_offset_multiplier() const { return ragged_offset_multiplier_; }
  int64_t get_alignment() const { return alignment_; }
  TensorReordering_t get_reordering_type() const { return reordering_; }
  int64_t get_vector_count() const { return vector_count_; }
  int64_t get_vector_dimension() const { return vector_dimension_; }
  bool get_has_compile_time_constant() const { return constant_.has_value(); }
  const std::optional<double>& get_constant() const { return constant_; }
  int64_t get_volume() const {
    int64_t volume = 1;
    for (int64_t dim : dim_) volume *= dim;
    return volume;
  }

  /// The tensor as the C interface takes it, which has no uid 0: `zero` is in its place. The name,
  /// which may be null, stays the caller's.
  heddle_tensor describe(const char* name, uid_t zero) const {
    heddle_tensor tensor = {};
    tensor.uid = library_uid(zero);
    tensor.name = name;
    tensor.dtype = static_cast<heddle_dtype>(data_type_);
    tensor.rank = detail::copy_dims(dim_, tensor.dims);
    tensor.stride_rank = detail::copy_dims(stride_, tensor.strides);
    tensor.is_virtual = is_virtual_;
    tensor.pass_by_value = is_pass_by_value_;
    tensor.has_constant = constant_.has_value();
    tensor.constant = constant_.value_or(0);
    tensor.ragged_offset = ragged_offset_ ? ragged_offset_->library_uid(zero) : 0;
    tensor.ragged_offset_multiplier = ragged_offset_multiplier_;
    return tensor;
  }
  /// OK unless it is of a kind that is declined by name.
  error_t check() const {
    if (reordering_ != TensorReordering_t::NONE) {
      return {error_code_t::GRAPH_NOT_SUPPORTED,
              "The tensor '" + name_ + "' has a reordering type, expected NONE."};
    }
    if (vector_count_ > 1) {
      return {error_code_t::GRAPH_NOT_SUPPORTED, "The tensor '" + name_ + "' has vectors of " +
                                                     std::to_string(vector_count_) +
                                                     " elements, expected single ones."};
    }
    if (const char* type = detail::name_if_unknown(data_type_)) {
      return {error_code_t::GRAPH_NOT_SUPPORTED,
              "The tensor '" + name_ + "' has the data type " + type + ", which Heddle has not."};
    }
    return {};
  }
  uid_t library_uid(uid_t zero) const { return get_uid() ? get_uid() : zero; }
  /// Takes over what validation inferred.
  void adopt(const heddle_tensor& tensor) {
    data_type_ = static_cast<DataType_t>(tensor.dtype);
    dim_.assign(tensor.dims, tensor.dims + tensor.rank);
    stride_.assign(tensor.strides, tensor.strides + tensor.stride_rank);
  }

 private:
  std::string name_;
  DataType_t data_type_ = DataType_t::NOT_SET;
  std::vector<int64_t> dim_, stride_;
  std::optional<uid_t> uid_;
  bool is_virtual_ = false;
  bool is_pass_by_value_ = false;
  std::optional<double> constant_;
  std::shared_ptr<Tensor_attributes> ragged_offset_;
  int64_t ragged_offset_multiplier_ = 1;
  int64_t alignment_ = 16;
  int64_t vector_count_ = 1, vector_dimension_ = -1;
  TensorReordering_t reordering_ = TensorReordering_t::NONE;
};

using Tensor = std::shared_ptr<Tensor_attributes>;

}  // namespace graph
}  // namespace heddle::frontend
