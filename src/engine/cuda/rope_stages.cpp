#include "engine/cuda/rope_stages.h"

#include "engine/cuda/attention_forward_sm90.h"
#include "engine/cuda/stages_builder.h"

namespace heddle::engine::cuda {
namespace {

using problem::AttentionBackwardProblem;
using problem::AttentionProblem;
using problem::AttentionStructure;
using problem::kAbsent;
using problem::OperandId;
using problem::Rope;
using problem::RopeProblem;

RopeStep rotation(OperandId x, OperandId y, Rope rope, double scale, bool inverse) {
  rope.rotated = kAbsent;
  RopeProblem problem;
  problem.structure.x = x;
  problem.structure.y = y;
  problem.structure.rope = rope;
  problem.sizes.scale = scale;
  problem.structure.inverse = inverse;
  return {problem};
}

/// Rotates `x` before the attention reads it, and has that read the result.
void rotate(StagesBuilder& build, OperandId& x, std::optional<Rope>& rope, double scale,
            bool rounded) {
  if (!rope) return;
  const OperandId y =
      rope->rotated != kAbsent ? rope->rotated : build.temporary_like(x, build.type(x).dtype);
  RopeStep step = rotation(x, y, *rope, scale, false);
  step.rounded = rounded;
  build.before(std::move(step));
  x = y;
  rope.reset();
}

/// Turns gradient `x` back after the attention has written it.
void turn_back(StagesBuilder& build, OperandId& x, OperandId input, std::optional<Rope>& rope,
               double scale, const SideLengths& lengths) {
  if (!rope) return;
  if (x != kAbsent) {
    const OperandId y = x;
    if (rope->rotated != kAbsent) {
      x = rope->rotated;
    } else if (const DataType type = build.type(x).dtype;
               type != build.type(input).dtype && type != DataType::f32) {
      x = build.temporary_like(x, DataType::f32);  // rounded once
    }
    RopeStep step = rotation(x, y, *rope, scale, true);
    // What an attention left behind them in a ragged tensor is no result of its.
    if (build.type(y).storage.is_ragged()) end_at(lengths, step);
    build.after(std::move(step));
  }
  rope.reset();
}

/// Q and K. A backward's queries must be the numbers that its forward had, which may have rotated
/// them itself.
void rotate_both(StagesBuilder& build, AttentionStructure& structure,
                 const problem::AttentionSizes& sizes) {
  const bool rounded = rotates_queries(structure, sizes).is_ok();
  rotate(build, structure.q, structure.q_rope, sizes.q_rope_scale, rounded);
  rotate(build, structure.k, structure.k_rope, sizes.k_rope_scale, false);
}

}  // namespace

std::optional<Stages> rope_stages(const AttentionProblem& problem) {
  AttentionProblem attention = problem;
  AttentionStructure& structure = attention.structure;
  if (!structure.q_rope && !structure.k_rope) return {};
  StagesBuilder build(structure, attention.sizes);
  rotate_both(build, structure, problem.sizes);
  return std::move(build).finish(attention);
}

std::optional<Stages> rope_stages(const AttentionBackwardProblem& problem) {
  AttentionBackwardProblem attention = problem;
  problem::AttentionBackwardStructure& structure = attention.structure;
  AttentionStructure& forward = structure.forward;
  if (!forward.q_rope && !forward.k_rope && !structure.d_q_rope && !structure.d_k_rope) return {};
  StagesBuilder build(forward, attention.sizes);
  rotate_both(build, forward, problem.sizes);
  turn_back(build, structure.d_q, forward.q, structure.d_q_rope, problem.d_q_rope_scale,
            SideLengths::of_queries(forward));
  turn_back(build, structure.d_k, forward.k, structure.d_k_rope, problem.d_k_rope_scale,
            SideLengths::of_keys(forward));
  return std::move(build).finish(attention);
}

}  // namespace heddle::engine::cuda
