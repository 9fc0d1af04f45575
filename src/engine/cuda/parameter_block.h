// What is noted of a kernel's arguments while they are made: sizes and strides are filled in with
// the plan, and which of their pointers an execution must set is remembered.
#pragma once

#include <vector>

#include "attention/parameters.h"
#include "engine/cuda/launch_operands.h"
#include "problem/attention.h"

namespace heddle::engine::cuda {

class ParameterBlock {
 public:
  /// Of arguments that begin at `begin`, as what they are bound by must.
  ParameterBlock(const void* begin, const problem::AttentionStructure& structure,
                 const problem::AttentionSizes& sizes)
      : begin_(static_cast<const char*>(begin)), structure_(structure), sizes_(sizes) {}

  void tensor(attention::Tensor& target, problem::OperandId id) {
    if (id == problem::kAbsent) return;
    target = tensor_of(structure_, sizes_, id);
    pointer(target.data, id);
    pointer(target.offsets, type(id).storage.offsets());
  }
  void lengths(attention::Lengths& target, problem::OperandId id, bool cumulative, int64_t full) {
    target = {.data = nullptr, .full = static_cast<int>(full)};
    if (id == problem::kAbsent) return;
    target.is_64_bit = type(id).dtype == DataType::i64;
    target.cumulative = cumulative;
    pointer(target.data, id);
  }
  void scalar(attention::Scalar& target, problem::OperandId id) {
    if (id == problem::kAbsent) return;
    target.is_64_bit = type(id).dtype == DataType::i64 || type(id).dtype == DataType::u64;
    if (type(id).on_host) {
      entry(target.value, id, Entry::Kind::integer);
    } else {
      pointer(target.data, id);
    }
  }
  /// A real scalar: its address if it is on the device, else its value.
  void real(const float*& address, float& value, problem::OperandId id) {
    if (id == problem::kAbsent) return;
    if (type(id).on_host) {
      entry(value, id, Entry::Kind::real);
    } else {
      pointer(address, id);
    }
  }
  template <class T>
  void pointer(T*& target, problem::OperandId id) {
    if (id != problem::kAbsent) entry(target, id, Entry::Kind::address);
  }

  std::vector<Entry> entries;

 private:
  template <class T>
  void entry(T& target, problem::OperandId id, Entry::Kind kind) {
    const auto offset = static_cast<size_t>(reinterpret_cast<const char*>(&target) - begin_);
    entries.push_back({offset, id, kind, type(id).dtype});
  }
  const problem::OperandType& type(problem::OperandId id) const { return structure_.type(id); }
  const char* begin_;
  const problem::AttentionStructure& structure_;
  const problem::AttentionSizes& sizes_;
};

/// Fills forward parameters, of the block's arguments, for a score that reads `loads`.
void fill_forward(ParameterBlock& block, attention::ForwardParameters& p,
                  const problem::AttentionStructure& structure,
                  const problem::AttentionSizes& sizes,
                  const std::vector<problem::OperandId>& loads);

/// Fills a backward's: its forward part, gradients and the sink's. `delta` and `d_load` are the
/// planner's.
void fill_backward(ParameterBlock& block, attention::BackwardParameters& p,
                   const problem::AttentionBackwardStructure& structure,
                   const problem::AttentionSizes& sizes,
                   const std::vector<problem::OperandId>& loads);

}  // namespace heddle::engine::cuda
