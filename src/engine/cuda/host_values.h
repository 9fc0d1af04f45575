// Operands passed by value that kernels read from device memory, as any other of their role: a
// kernel before them writes them into the workspace. What kernels take by value stays where it is.
#pragma once

#include <memory>
#include <vector>

#include "engine/cuda/kernel_unit.h"
#include "engine/cuda/queue.h"
#include "engine/engine.h"

namespace heddle::engine::cuda {

struct HostValue {
  problem::OperandId id = problem::kAbsent;
  DataType dtype = DataType::f32;
};

/// Those of the problem.
std::vector<HostValue> host_values(const Problem& problem);

/// The problem with them in device memory.
Problem with_values_on_device(Problem problem, const std::vector<HostValue>& values);

/// What writes so many.
KernelUnit host_values_unit(size_t count);

/// `plan` is of that problem.
Result<std::shared_ptr<const QueuedPlan>> plan_host_values(const Driver& driver,
                                                           const Device& device,
                                                           std::shared_ptr<const QueuedPlan> plan,
                                                           std::vector<HostValue> values);

}  // namespace heddle::engine::cuda
