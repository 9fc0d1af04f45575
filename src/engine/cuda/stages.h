// A problem as a row of problems that different kernels take, one after the other. All of them
// share one list of operands: that of the problem, and temporaries after it.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "engine/cuda/queue.h"
#include "engine/engine.h"

namespace heddle::engine::cuda {

/// The stack of an execution holds as many pointers: those of api::Executable, and temporaries.
inline constexpr size_t kMostOperands = 128 + 16;

struct Stages {
  std::vector<problem::Problem> steps;   ///< in the order they run
  std::vector<int64_t> temporary_bytes;  ///< of each temporary
  size_t operand_count = 0;              ///< with the temporaries
};

using PlanProblem =
    std::function<Result<std::shared_ptr<const QueuedPlan>>(const problem::Problem&)>;

/// One plan of all steps, each planned by `plan`.
Result<std::shared_ptr<const QueuedPlan>> plan_stages(const Stages& stages,
                                                      const PlanProblem& plan);

}  // namespace heddle::engine::cuda
