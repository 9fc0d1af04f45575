// A kernel's parameter block under construction: sizes and strides are filled in when the plan is
// made, and which of its pointers an execution must set is noted.
#pragma once

#include <vector>

#include "attention/parameters.h"
#include "engine/cuda/launch_operands.h"
#include "problem/attention.h"
#include "sm90/forward_arguments.h"

namespace heddle::engine::cuda {

template <class Parameters>
class ParameterBlock {
 public:
  ParameterBlock(const problem::AttentionStructure& structure, const problem::AttentionSizes& sizes)
      : structure_(structure), sizes_(sizes) {}

  void tensor(attention::Tensor& target, problem::OperandId id) {
    if (id == problem::kAbsent) return;
    target = tensor_of(structure_, sizes_, id);
    pointer(target.data, id);
    if (const problem::OperandId offsets = type(id).ragged_offsets; offsets != problem::kAbsent) {
      pointer(target.offsets, offsets);
    }
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

  Parameters parameters{};
  std::vector<Entry> entries;

 private:
  template <class T>
  void entry(T& target, problem::OperandId id, Entry::Kind kind) {
    const char* begin = reinterpret_cast<const char*>(&parameters);
    const auto offset = static_cast<size_t>(reinterpret_cast<const char*>(&target) - begin);
    entries.push_back({offset, id, kind, type(id).dtype});
  }
  const problem::OperandType& type(problem::OperandId id) const { return structure_.type(id); }
  const problem::AttentionStructure& structure_;
  const problem::AttentionSizes& sizes_;
};

/// Fills `target`, the forward part of the block, from a forward problem whose score reads `loads`.
template <class Parameters>
void fill_forward(ParameterBlock<Parameters>& block, attention::ForwardParameters& target,
                  const problem::AttentionStructure& structure,
                  const problem::AttentionSizes& sizes,
                  const std::vector<problem::OperandId>& loads);

extern template void fill_forward(ParameterBlock<attention::ForwardParameters>&,
                                  attention::ForwardParameters&, const problem::AttentionStructure&,
                                  const problem::AttentionSizes&,
                                  const std::vector<problem::OperandId>&);
extern template void fill_forward(ParameterBlock<sm90::ForwardArguments>&,
                                  attention::ForwardParameters&, const problem::AttentionStructure&,
                                  const problem::AttentionSizes&,
                                  const std::vector<problem::OperandId>&);
extern template void fill_forward(ParameterBlock<attention::BackwardParameters>&,
                                  attention::ForwardParameters&, const problem::AttentionStructure&,
                                  const problem::AttentionSizes&,
                                  const std::vector<problem::OperandId>&);

/// Fills a backward's block: its forward part, gradients and the sink's. `delta` and `d_load` are
/// the planner's.
void fill_backward(ParameterBlock<attention::BackwardParameters>& block,
                   const problem::AttentionBackwardStructure& structure,
                   const problem::AttentionSizes& sizes,
                   const std::vector<problem::OperandId>& loads);

}  // namespace heddle::engine::cuda
