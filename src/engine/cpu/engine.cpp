#include "engine/cpu/engine.h"

#include "engine/cpu/backward_plan.h"
#include "engine/cpu/cache_append_plan.h"
#include "engine/cpu/channel_norm_plan.h"
#include "engine/cpu/forward_plan.h"
#include "engine/cpu/fp8_plan.h"
#include "engine/cpu/norm_plan.h"
#include "engine/cpu/pointwise_plan.h"
#include "engine/cpu/rope_plan.h"
#include "problem/check.h"

namespace heddle::engine {

namespace {

class CpuEngine final : public Engine {
 public:
  std::string_view name() const override { return "cpu"; }

  Result<std::shared_ptr<const Plan>> plan(const Problem& problem) const override {
    HEDDLE_TRY(problem::check(problem));
    if (const auto* p = std::get_if<problem::AttentionProblem>(&problem)) {
      HEDDLE_ASSIGN(const problem::AllowedPaths allowed, problem::AllowedPaths::of_environment());
      return cpu::plan_forward(*p, allowed);
    }
    if (const auto* p = std::get_if<problem::AttentionBackwardProblem>(&problem)) {
      HEDDLE_ASSIGN(const problem::AllowedPaths allowed, problem::AllowedPaths::of_environment());
      return cpu::plan_backward(*p, allowed);
    }
    if (const auto* p = std::get_if<problem::Fp8AttentionProblem>(&problem)) {
      return cpu::plan_fp8_forward(*p);
    }
    if (const auto* p = std::get_if<problem::Fp8AttentionBackwardProblem>(&problem)) {
      return cpu::plan_fp8_backward(*p);
    }
    if (const auto* p = std::get_if<problem::NormProblem>(&problem)) return cpu::plan_norm(*p);
    if (const auto* p = std::get_if<problem::NormBackwardProblem>(&problem)) {
      return cpu::plan_norm_backward(*p);
    }
    if (const auto* p = std::get_if<problem::ChannelNormProblem>(&problem)) {
      return cpu::plan_channel_norm(*p);
    }
    if (const auto* p = std::get_if<problem::ChannelNormBackwardProblem>(&problem)) {
      return cpu::plan_channel_norm_backward(*p);
    }
    if (const auto* p = std::get_if<problem::RopeProblem>(&problem)) return cpu::plan_rope(*p);
    if (const auto* p = std::get_if<problem::PointwiseProblem>(&problem)) {
      return cpu::plan_pointwise(*p);
    }
    return cpu::plan_cache_append(std::get<problem::CacheAppendProblem>(problem));
  }
  /// Planning is cheap, and has nothing to compile.
  Result<std::shared_ptr<const Plan>> resized(const Plan&, const Problem& problem) const override {
    return plan(problem);
  }
};

}  // namespace

const Engine& cpu_engine() {
  static const CpuEngine engine;
  return engine;
}

}  // namespace heddle::engine
