// Plans the general attention forward kernel, kernels/sm80/attention_forward.cuh: every feature, on
// every device from sm_80 on.
#pragma once

#include <memory>
#include <string>

#include "engine/cuda/device.h"
#include "engine/cuda/kernel_units.h"
#include "engine/cuda/queue.h"
#include "problem/attention.h"

namespace heddle::engine::cuda {

/// What is compiled in, as a pure function of the problem.
struct ForwardSm80Config {
  int warps = 8;        ///< 16 query rows each
  int tile_n = 64;      ///< keys per step
  bool aligned = true;  ///< rows start on 16 bytes: asynchronous 16-byte copies
  int64_t shared_bytes = 0;
};

/// The configuration, or which limit of the kernel the problem breaks.
Result<ForwardSm80Config> configure_forward_sm80(const problem::AttentionProblem& problem);

/// The translation unit that instantiates the kernel as `attention_forward`.
std::string source_of_forward_sm80(const problem::AttentionStructure& structure,
                                   const ForwardSm80Config& config,
                                   std::vector<problem::OperandId>& loads);

/// The kernel that writes the exact keep mask, where the structure wants it.
KernelUnit dump_unit(const problem::AttentionStructure& structure);

/// With `after_pairs` it is the second of plan_f32's.
Result<std::shared_ptr<const QueuedPlan>> plan_forward_sm80(
    const Driver& driver, const Device& device, const problem::AttentionProblem& problem,
    bool after_pairs = false);

}  // namespace heddle::engine::cuda
