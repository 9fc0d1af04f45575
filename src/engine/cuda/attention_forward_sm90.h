// The Hopper attention forward kernel, kernels/sm90/attention_forward.cuh. What it does not take
// (kernels/README.md lists it) is refused with graph_not_supported, and goes to the general kernel.
#pragma once

#include <optional>

#include "attention/parameters.h"
#include "engine/cuda/lowering.h"
#include "engine/cuda/rope.h"
#include "problem/facts.h"
#include "problem/streaming.h"
#include "sm90/forward_config.h"

namespace heddle::engine::cuda {

/// The kernel's configuration, and what of the choice is not compiled in.
struct ForwardSm90Config : sm90::ForwardConfig {
  problem::OperandId tiled_operand = problem::kAbsent;  ///< what comes by tiles
  int head_group = 1;                                   ///< heads whose keys and values share L2
  bool dynamic = false;  ///< blocks draw tiles from a counter in the workspace

  int shared_bytes() const { return sm90::layout_of(*this).bytes; }
};

/// The configuration, or which limit of the kernel the problem breaks.
Result<ForwardSm90Config> configure_forward_sm90(const problem::AttentionProblem& problem);

/// Whether the kernel rotates such queries, if they are to be rotated, on their way in.
Status rotates_queries(const problem::AttentionStructure& structure,
                       const problem::AttentionSizes& sizes);

/// The attention once K is rotated into the operand that its rope names; and that rotation, if
/// there is one.
problem::AttentionProblem with_rotated_keys(const problem::AttentionProblem& problem);
std::optional<RopeStep> key_rotation(const problem::AttentionProblem& problem);

/// Of the attention's arguments, whose score reads so many loads.
attention::ArgumentLayout argument_layout_of_forward_sm90(
    const problem::AttentionStructure& structure, const ForwardSm90Config& config, size_t loads);
/// The attention itself, `loads` being what its score reads.
KernelUnit forward_sm90_unit(const problem::AttentionStructure& structure,
                             const problem::AttentionFacts& facts, const ForwardSm90Config& config,
                             std::vector<problem::OperandId>& loads);
/// The kernel before it that rotates K and makes the rotations of Q's rows.
KernelUnit rotations_unit(const problem::AttentionProblem& problem);

/// Keys that are rotated get a temporary, if no operand is named for them.
Result<Lowering> lower_forward_sm90(const problem::AttentionProblem& problem, const Target& target);

}  // namespace heddle::engine::cuda
