#include "engine/cuda/rope_stages.h"

#include "engine/cuda/attention_forward_sm90.h"
#include "engine/cuda/attention_sm80.h"

namespace heddle::engine::cuda {
namespace {

using problem::AttentionBackwardProblem;
using problem::AttentionProblem;
using problem::AttentionSizes;
using problem::AttentionStructure;
using problem::kAbsent;
using problem::OperandId;
using problem::Rope;
using problem::RopeProblem;

struct Lengths {
  OperandId operand;
  bool cumulative;
};

/// The stages under construction, over the operands of `structure` and what they grow by.
class Builder {
 public:
  Builder(AttentionStructure& structure, AttentionSizes& sizes)
      : structure_(structure), sizes_(sizes) {}

  /// Notes that `x` is rotated before the attention reads it, and has that read the result.
  void rotate(OperandId& x, std::optional<Rope>& rope, double scale) {
    if (!rope) return;
    const OperandId y = rope->rotated != kAbsent ? rope->rotated : temporary_like(x, x);
    before_.push_back(stage(x, y, *rope, scale, false));
    x = y;
    rope.reset();
  }

  /// Notes that gradient `x` is turned back after the attention has written it.
  /// What follows a ragged sequence may be no gradient: it ends at its length.
  void turn_back(OperandId& x, OperandId input, std::optional<Rope>& rope, double scale,
                 const Lengths& lengths) {
    if (!rope) return;
    if (x != kAbsent) {
      const OperandId y = x;
      if (rope->rotated != kAbsent) {
        x = rope->rotated;
      } else if (type(x).dtype != type(input).dtype) {
        x = temporary_like(x, input);
      }
      after_.push_back(stage(x, y, *rope, scale, true));
      if (type(y).ragged_offsets != kAbsent) {
        after_.back().lengths = lengths.operand;
        after_.back().lengths_cumulative = lengths.cumulative;
      }
    }
    rope.reset();
  }

  /// Before, `attention` and after; each is given the whole list of operands.
  Stages finish(Problem attention) && {
    Stages stages;
    const auto add = [&](std::vector<RopeProblem>& ropes) {
      for (RopeProblem& rope : ropes) {
        rope.operands = structure_.operands;
        rope.layouts = sizes_.layouts;
        stages.steps.emplace_back(std::move(rope));
      }
    };
    add(before_);
    stages.steps.push_back(std::move(attention));
    add(after_);
    stages.temporary_bytes = std::move(temporary_bytes_);
    stages.operand_count = structure_.operands.size();
    return stages;
  }

 private:
  problem::OperandType& type(OperandId id) { return structure_.operands[static_cast<size_t>(id)]; }

  /// A dense operand with the dims of `shape` and the type of `element`.
  OperandId temporary_like(OperandId shape, OperandId element) {
    const Dims dims = sizes_.layouts[static_cast<size_t>(shape)].dims;
    const DataType dtype = type(element).dtype;
    Dims strides = *dense_strides(dims);
    for (int i = 0; i < dims.rank(); ++i) strides[i] = dims[i] == 1 ? 0 : strides[i];
    structure_.operands.push_back({.dtype = dtype});
    sizes_.layouts.push_back({.dims = dims, .strides = strides});
    temporary_bytes_.push_back(element_count(dims).value_or(0) * size_of(dtype));
    return static_cast<OperandId>(structure_.operands.size()) - 1;
  }

  static RopeProblem stage(OperandId x, OperandId y, Rope rope, double scale, bool inverse) {
    rope.rotated = kAbsent;
    RopeProblem problem;
    problem.x = x;
    problem.y = y;
    problem.rope = rope;
    problem.scale = scale;
    problem.inverse = inverse;
    return problem;
  }

  AttentionStructure& structure_;
  AttentionSizes& sizes_;
  std::vector<RopeProblem> before_, after_;
  std::vector<int64_t> temporary_bytes_;
};

Stages forward_stages(const AttentionProblem& problem, bool rotate_queries) {
  AttentionProblem attention = problem;
  AttentionStructure& structure = attention.structure;
  Builder build(structure, attention.sizes);
  if (rotate_queries) build.rotate(structure.q, structure.q_rope, attention.sizes.q_rope_scale);
  build.rotate(structure.k, structure.k_rope, attention.sizes.k_rope_scale);
  return std::move(build).finish(attention);
}

bool kernel_rotates_queries(const AttentionProblem& problem, const std::string& architecture) {
  if (architecture != kHopperArchitecture || !problem.structure.q_rope) return false;
  const Stages stages = forward_stages(problem, false);
  return configure_forward_sm90(std::get<AttentionProblem>(stages.steps.back())).is_ok();
}

}  // namespace

bool has_rope_stages(const AttentionProblem& problem, const std::string& architecture) {
  return problem.structure.k_rope ||
         (problem.structure.q_rope && !kernel_rotates_queries(problem, architecture));
}
bool has_rope_stages(const AttentionBackwardProblem& problem) {
  const problem::AttentionBackwardStructure& structure = problem.structure;
  return structure.forward.q_rope || structure.forward.k_rope || structure.d_q_rope ||
         structure.d_k_rope;
}

Stages rope_stages(const AttentionProblem& problem, const std::string& architecture) {
  return forward_stages(problem, !kernel_rotates_queries(problem, architecture));
}

Stages rope_stages(const AttentionBackwardProblem& problem) {
  AttentionBackwardProblem attention = problem;
  problem::AttentionBackwardStructure& structure = attention.structure;
  AttentionStructure& forward = structure.forward;
  Builder build(forward, attention.sizes);
  build.rotate(forward.q, forward.q_rope, attention.sizes.q_rope_scale);
  build.rotate(forward.k, forward.k_rope, attention.sizes.k_rope_scale);
  build.turn_back(structure.d_q, forward.q, structure.d_q_rope, problem.d_q_rope_scale,
                  {forward.q_lengths, forward.q_lengths_cumulative});
  build.turn_back(structure.d_k, forward.k, structure.d_k_rope, problem.d_k_rope_scale,
                  {forward.kv_lengths, forward.kv_lengths_cumulative});
  return std::move(build).finish(attention);
}

}  // namespace heddle::engine::cuda
