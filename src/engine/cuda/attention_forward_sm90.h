// Plans the Hopper attention forward kernel, kernels/sm90/attention_forward.cuh. What it does not
// take (kernels/README.md lists it) is refused with graph_not_supported, and goes to the general
// kernel.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "attention/parameters.h"
#include "engine/cuda/device.h"
#include "engine/cuda/kernel_unit.h"
#include "engine/cuda/queue.h"
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

/// The attention itself, and the kernel before it that rotates K and makes the rotations of Q's
/// rows.
inline constexpr const char* kForwardSm90Name = "attention_forward";
inline constexpr const char* kRotationsName = "rope_rotations";
/// Of the attention's arguments, whose score reads so many loads.
attention::Room room_of_forward_sm90(const problem::AttentionProblem& problem,
                                     const ForwardSm90Config& config, size_t loads);
std::string source_of_forward_sm90(const problem::AttentionProblem& problem,
                                   const ForwardSm90Config& config,
                                   std::vector<problem::OperandId>& loads);
KernelUnit rotations_unit(const problem::AttentionProblem& problem);
/// The attention, and what the problem has run before it: these, sequence_maps_sm90.h, f16_pairs.h.
std::vector<KernelUnit> units_of_forward_sm90(const problem::AttentionProblem& problem,
                                              const ForwardSm90Config& config,
                                              std::vector<problem::OperandId>& loads);

Result<std::shared_ptr<const QueuedPlan>> plan_forward_sm90(
    const Driver& driver, const Device& device, const problem::AttentionProblem& problem);

}  // namespace heddle::engine::cuda
