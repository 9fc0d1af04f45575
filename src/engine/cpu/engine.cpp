#include "engine/cpu/engine.h"

#include "engine/cpu/backward_plan.h"
#include "engine/cpu/forward_plan.h"

namespace heddle::engine {

namespace {

class CpuEngine final : public Engine {
 public:
  std::string_view name() const override { return "cpu"; }

  Result<std::shared_ptr<const Plan>> plan(const Problem& problem) const override {
    if (const auto* p = std::get_if<problem::AttentionProblem>(&problem))
      return cpu::plan_forward(*p);
    if (const auto* p = std::get_if<problem::AttentionBackwardProblem>(&problem)) {
      return cpu::plan_backward(*p);
    }
    return error(Code::graph_not_supported, "the CPU engine does not run this kind of problem");
  }
};

}  // namespace

const Engine& cpu_engine() {
  static const CpuEngine engine;
  return engine;
}

}  // namespace heddle::engine
