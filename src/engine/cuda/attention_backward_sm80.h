// Plans the general attention backward, kernels/sm80/attention_backward.cuh: every gradient, on
// every device from sm_80 on, deterministic whether asked or not.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/cuda/attention_sm80.h"
#include "engine/cuda/device.h"
#include "engine/cuda/queue.h"
#include "problem/attention.h"

namespace heddle::engine::cuda {

/// One launch of the backward: which part it computes, with what tiles.
struct BackwardSm80Step {
  enum class Part { delta, keys, queries, sink, load, dump };
  Part part = Part::delta;
  Sm80Tiles tiles;
  int64_t shared_bytes = 0;
  size_t load_gradient = 0;  ///< of Part::load: index into the structure's load_gradients
};

/// The launches the wanted gradients need, in order, or which limit the problem breaks.
Result<std::vector<BackwardSm80Step>> configure_backward_sm80(
    const problem::AttentionBackwardProblem& problem);

/// The translation unit of one launch, with the kernel's name in `name`.
std::string source_of_backward_sm80(const problem::AttentionBackwardStructure& structure,
                                    const BackwardSm80Step& step,
                                    std::vector<problem::OperandId>& loads, std::string& name);

/// With `after_pairs` it is the second of plan_f32's.
Result<std::shared_ptr<const QueuedPlan>> plan_backward_sm80(
    const Driver& driver, const Device& device, const problem::AttentionBackwardProblem& problem,
    bool after_pairs = false);

}  // namespace heddle::engine::cuda
