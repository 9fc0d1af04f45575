#include "engine/cuda/problem_stages.h"

#include "engine/cuda/attention_backward_sm90.h"
#include "engine/cuda/device.h"
#include "engine/cuda/load_gradient_stages.h"
#include "engine/cuda/rope_stages.h"
#include "engine/cuda/wide_stages.h"

namespace heddle::engine::cuda {
namespace {

std::optional<Stages> stages(const problem::AttentionProblem& problem,
                             const std::string& architecture) {
  if (has_rope_stages(problem, architecture)) return rope_stages(problem, architecture);
  if (has_wide_stages(problem)) return wide_stages(problem);
  return {};
}

std::optional<Stages> stages(const problem::AttentionBackwardProblem& problem,
                             const std::string& architecture) {
  if (has_rope_stages(problem)) return rope_stages(problem);
  if (has_wide_stages(problem)) return wide_stages(problem);
  if (architecture == kHopperArchitecture && !configure_backward_sm90(problem).is_ok() &&
      has_hopper_stage(problem))
    return load_gradient_stages(problem);
  return {};
}

template <class Streaming>
std::optional<Stages> stages(const Streaming&, const std::string&) {
  return {};
}

}  // namespace

std::optional<Stages> stages_of(const Problem& problem, const std::string& architecture) {
  return std::visit([&](const auto& one) { return stages(one, architecture); }, problem);
}

}  // namespace heddle::engine::cuda
