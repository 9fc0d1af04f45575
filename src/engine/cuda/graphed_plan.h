// A plan of launches as the plan that an engine answers with.
#pragma once

#include <memory>
#include <vector>

#include "engine/cuda/loaded_plan.h"
#include "engine/engine.h"

namespace heddle::engine::cuda {

/// Executes `plan`, a problem's with these operands on the device, as one CUDA graph where that is
/// possible: on a stream that is not being captured, while no other thread is at it.
std::shared_ptr<const Plan> graphed_plan(const Driver& driver, CuDevice device, LoadedPlan plan,
                                         std::vector<problem::OperandType> operands);

/// `plan`, a graphed one, by the launches of `late`; fails if that takes other kernels. It is no
/// graph: sizes that come at an execution are others before recording them pays.
Result<std::shared_ptr<const Plan>> resized_plan(const Plan& plan, Lowering late);

}  // namespace heddle::engine::cuda
