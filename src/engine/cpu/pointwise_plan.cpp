#include "engine/cpu/pointwise_plan.h"

#include <algorithm>

#include "core/rounding.h"
#include "engine/cpu/attention_binding.h"
#include "engine/cpu/isa.h"
#include "engine/cpu/parallel.h"

namespace heddle::engine::cpu {

using problem::PointwiseProblem;
using problem::ScoreNode;

namespace {

/// Strips of a task: some hundred microseconds of cheap ops, and few tasks to hand out.
constexpr int64_t kStripsPerTask = 64;
/// Elements there are for each task at least: so the scratch of fewer elements is no larger,
/// however they lie and so are cut into strips.
constexpr int64_t kElementsPerTask = 4096;

class PointwisePlan final : public Plan {
 public:
  /// Of a problem in memory order.
  explicit PointwisePlan(PointwiseProblem problem)
      : problem_(std::move(problem)), isa_(active_isa().isa), workers_(worker_count()) {}

  int64_t workspace_bytes() const override {
    WorkspaceCursor cursor(nullptr);
    carve(cursor);
    return cursor.used();
  }
  Status execute(std::span<void* const> buffers, void* workspace, void*) const override;
  std::string description() const override {
    return fmt::format("pointwise, {} steps, {}, {}", nodes().size(), name(isa_),
                       to_string(problem_.dims()));
  }

 private:
  struct Memory {
    View* views;
    ScoreStep* steps;
    PointwisePass::Result* results;
    Workers workers;
  };
  const std::vector<ScoreNode>& nodes() const { return problem_.structure.nodes; }
  int64_t count() const { return static_cast<int64_t>(nodes().size()); }
  int64_t strips_of_row() const { return divide_up(problem_.dims()[3], kPointwiseStrip); }
  int64_t strips() const {
    const Dims& dims = problem_.dims();
    return dims[0] * dims[1] * dims[2] * strips_of_row();
  }
  int64_t most_tasks() const {
    return divide_up(*element_count(problem_.dims()), kElementsPerTask);
  }
  int64_t strips_per_task() const {
    return std::max(kStripsPerTask, divide_up(strips(), std::max<int64_t>(most_tasks(), 1)));
  }
  int64_t scratch_bytes() const {
    return round_up(count() * static_cast<int64_t>(sizeof(ScoreValue<float>)), 64) +
           count() * kPointwiseStrip * static_cast<int64_t>(sizeof(float));
  }
  Memory carve(WorkspaceCursor& cursor) const;
  PointwisePass bind(const Memory& memory) const;

  PointwiseProblem problem_;
  Isa isa_;
  int workers_;
};

PointwisePlan::Memory PointwisePlan::carve(WorkspaceCursor& cursor) const {
  const problem::PointwiseStructure& s = problem_.structure;
  Memory memory{};
  memory.views = cursor.take<View>(static_cast<int64_t>(s.operands.size()));
  memory.steps = cursor.take<ScoreStep>(count());
  memory.results = cursor.take<PointwisePass::Result>(static_cast<int64_t>(s.results.size()));
  const int64_t bytes = std::min<int64_t>(most_tasks(), kMostWorkers) * scratch_bytes();
  memory.workers = {workers_, cursor.take<char>(bytes), bytes};
  return memory;
}

PointwisePass PointwisePlan::bind(const Memory& memory) const {
  for (size_t n = 0; n < nodes().size(); ++n) {
    const ScoreNode& node = nodes()[n];
    memory.steps[n] = {static_cast<uint8_t>(node.op),
                       node.a,
                       node.b,
                       node.c,
                       node.value,
                       node.operand == problem::kAbsent ? nullptr : &memory.views[node.operand]};
  }
  const auto& results = problem_.structure.results;
  for (size_t n = 0; n < results.size(); ++n)
    memory.results[n] = {results[n].node, &memory.views[results[n].y]};
  const auto steps = static_cast<int32_t>(nodes().size());
  return {{memory.steps, steps, steps - 1, false},
          memory.results,
          static_cast<int32_t>(results.size())};
}

Status PointwisePlan::execute(std::span<void* const> buffers, void* workspace, void*) const {
  if (strips() == 0) return {};
  HEDDLE_TRY(check_workspace(workspace));
  WorkspaceCursor cursor(workspace);
  const Memory memory = carve(cursor);
  HEDDLE_TRY(views_of("pointwise", problem_.structure, problem_.sizes, buffers, memory.views));
  const PointwisePass pass = bind(memory);
  const Kernels& kernels = kernels_of(isa_);
  const Dims& dims = problem_.dims();
  const int64_t each = strips_per_task(), tasks = divide_up(strips(), each);
  for_each_task(tasks, memory.workers, scratch_bytes(), [&](int64_t task, char* scratch) {
    const int64_t last = std::min(strips(), (task + 1) * each);
    for (int64_t strip = task * each; strip < last; ++strip) {
      const int64_t rows = strip / strips_of_row(),
                    first = strip % strips_of_row() * kPointwiseStrip;
      const int64_t head = rows / dims[2];
      kernels.pointwise_strip(pass,
                              {head / dims[1], head % dims[1], rows % dims[2], first,
                               std::min(kPointwiseStrip, dims[3] - first)},
                              scratch);
    }
  });
  return {};
}

}  // namespace

Result<std::shared_ptr<const Plan>> plan_pointwise(const PointwiseProblem& problem) {
  return std::shared_ptr<const Plan>(
      std::make_shared<PointwisePlan>(problem::in_memory_order(problem)));
}

}  // namespace heddle::engine::cpu
