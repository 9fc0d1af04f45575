// The stages of an attention under construction: what is done to its tensors before and after it.
#pragma once

#include "engine/cuda/sequence.h"

namespace heddle::engine::cuda {

class StagesBuilder {
 public:
  /// Over the operands of `structure` and what they grow by.
  StagesBuilder(problem::AttentionStructure& structure, problem::AttentionSizes& sizes)
      : structure_(structure), sizes_(sizes) {}

  problem::OperandType& type(problem::OperandId id) { return structure_.type(id); }
  /// A dense operand with the dims of `shape`, but for its columns if another number is given.
  problem::OperandId temporary_like(problem::OperandId shape, DataType dtype, int64_t columns = 0);

  /// An f32 for kernels to find in memory.
  problem::OperandId temporary_number();

  /// Steps over the operands as they are at the end.
  using Step = std::variant<RopeStep, CopyStep, ScaledCopyStep, FactorsStep>;
  void before(Step step) { before_.push_back(std::move(step)); }
  void after(Step step) { after_.push_back(std::move(step)); }

  /// Before, `attention` and after; each is given the whole list of operands.
  Stages finish(Stage attention) &&;

 private:
  void add(std::vector<Step>& steps, Stages& stages);

  problem::AttentionStructure& structure_;
  problem::AttentionSizes& sizes_;
  std::vector<Step> before_, after_;
  std::vector<int64_t> temporary_bytes_;
};

/// The lengths of a side of an attention, if it has some.
struct SideLengths {
  problem::OperandId operand = problem::kAbsent;
  bool cumulative = false;

  static SideLengths of_queries(const problem::AttentionStructure& structure) {
    return {structure.q_lengths, structure.q_lengths_cumulative};
  }
  static SideLengths of_keys(const problem::AttentionStructure& structure) {
    return {structure.kv_lengths, structure.kv_lengths_cumulative};
  }
};

/// Has a step leave rows at and past the lengths alone.
template <class Step>
void end_at(const SideLengths& lengths, Step& step) {
  step.lengths = lengths.operand;
  step.lengths_cumulative = lengths.cumulative;
}

}  // namespace heddle::engine::cuda
