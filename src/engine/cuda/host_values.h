// Operands passed by value that kernels read from device memory, as any other of their role: an
// execution writes them into its workspace first. What kernels take by value stays where it is.
#pragma once

#include <memory>
#include <vector>

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

/// `plan` is of that problem.
std::shared_ptr<const QueuedPlan> plan_host_values(std::shared_ptr<const QueuedPlan> plan,
                                                   std::vector<HostValue> values);

}  // namespace heddle::engine::cuda
