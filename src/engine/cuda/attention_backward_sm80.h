// The general attention backward, kernels/sm80/attention_backward.cuh: every gradient, on
// every device from sm_80 on, deterministic whether asked or not.
#pragma once

#include <vector>

#include "engine/cuda/attention_sm80.h"
#include "engine/cuda/lowering.h"
#include "problem/attention.h"

namespace heddle::engine::cuda {

/// One launch of the backward: which part it computes, and its kernel's configuration.
struct BackwardSm80Step {
  enum class Part { delta, keys, queries, sink, load, dump };
  Part part = Part::delta;
  sm80::GeneralConfig config;
  size_t load_gradient = 0;  ///< of Part::load: index into the structure's load_gradients

  int shared_bytes() const;
};

/// The launches the wanted gradients need, in order, or which limit the problem breaks.
Result<std::vector<BackwardSm80Step>> configure_backward_sm80(
    const problem::AttentionBackwardProblem& problem, const Target& target);

Result<Lowering> lower_backward_sm80(const problem::AttentionBackwardProblem& problem,
                                     const Target& target);
/// In f32 beside Hopper's kernels, where these do not compute
/// (attention::ForwardParameters::fallback).
Result<Lowering> lower_backward_sm80_after_pairs(const problem::AttentionBackwardProblem& problem,
                                                 const Target& target);

}  // namespace heddle::engine::cuda
