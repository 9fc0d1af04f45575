// The Hopper attention forward kernel, kernels/sm90/attention_forward.cuh. What it does not take
// (kernels/README.md lists it) is refused with graph_not_supported, and goes to the general kernel.
#pragma once

#include <optional>

#include "attention/parameters.h"
#include "engine/cuda/lowering.h"
#include "problem/attention.h"
#include "problem/streaming.h"

namespace heddle::engine::cuda {

/// What is compiled in, as a pure function of the problem.
struct ForwardSm90Config {
  int planes = 1;     ///< 2: f32, as pairs of f16 in the workspace
  int consumers = 2;  ///< warp groups of 64 query rows
  int tile_n = 128;   ///< keys a step
  int stages = 2, q_stages = 2;
  bool output_aliases_q = false, take_turns = false;
  bool rotators = false;  ///< a warp group of its own rotates Q
  bool upwards = false;   ///< keys are visited from the first one on
  int output_rounds = 1;  ///< stagings that O takes
  bool lower_varies = false, upper_varies = false;
  bool positive_scale = true;
  bool lengths = false;                         ///< or ragged tensors
  problem::OperandId tiled = problem::kAbsent;  ///< what the score reads of its cells by tiles
  int64_t shared_bytes = 0;
  int section = 1;       ///< heads whose keys and values share L2
  bool dynamic = false;  ///< blocks draw tiles from a counter in the workspace

  int tile_m() const { return 64 * consumers; }
  int threads() const { return 128 * (1 + consumers + (rotators ? 1 : 0)); }
  /// Maps per batch entry, in the workspace. Pairs end with their sequences.
  bool sequence_maps() const { return lengths && planes == 1; }
};

/// The configuration, or which limit of the kernel the problem breaks.
Result<ForwardSm90Config> configure_forward_sm90(const problem::AttentionProblem& problem);

/// The attention once K is rotated into the operand that its rope names; and that rotation, if
/// there is one.
problem::AttentionProblem with_rotated_keys(const problem::AttentionProblem& problem);
std::optional<problem::RopeProblem> key_rotation(const problem::AttentionProblem& problem);

/// Of the attention's arguments, whose score reads so many loads.
attention::Room room_of_forward_sm90(const problem::AttentionProblem& problem,
                                     const ForwardSm90Config& config, size_t loads);
/// The attention itself, `loads` being what its score reads.
KernelUnit forward_sm90_unit(const problem::AttentionProblem& problem,
                             const ForwardSm90Config& config,
                             std::vector<problem::OperandId>& loads);
/// The kernel before it that rotates K and makes the rotations of Q's rows.
KernelUnit rotations_unit(const problem::AttentionProblem& problem);

/// Keys that are rotated get a temporary, if no operand is named for them.
Result<Lowering> lower_forward_sm90(const problem::AttentionProblem& problem, const Target& target);

}  // namespace heddle::engine::cuda
