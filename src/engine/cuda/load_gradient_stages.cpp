#include "engine/cuda/load_gradient_stages.h"

#include "engine/cuda/attention_backward_sm90.h"

namespace heddle::engine::cuda {

using problem::AttentionBackwardProblem;
using problem::AttentionBackwardStructure;
using problem::kAbsent;

namespace {
AttentionBackwardProblem without_loads(AttentionBackwardProblem problem) {
  problem.structure.load_gradients.clear();
  return problem;
}
}  // namespace

bool has_hopper_stage(const AttentionBackwardProblem& problem) {
  return !problem.structure.load_gradients.empty() &&
         configure_backward_sm90(without_loads(problem)).is_ok();
}

Stages load_gradient_stages(const AttentionBackwardProblem& problem) {
  AttentionBackwardProblem loads = problem;
  AttentionBackwardStructure& s = loads.structure;
  s.d_q = s.d_k = s.d_v = s.d_sink = kAbsent;
  return {.steps = {without_loads(problem), std::move(loads)},
          .operand_count = problem.structure.forward.operands.size()};
}

}  // namespace heddle::engine::cuda
