// The Hopper attention backward, kernels/sm90/attention_backward.cuh (above head_dim 128
// attention_backward_wide.cuh) and its passes before and after: which problems it takes, and what
// is compiled for them. What it does not take (kernels/README.md lists it) is refused with
// graph_not_supported, and goes to the general kernels.
#pragma once

#include <string_view>
#include <vector>

#include "attention/parameters.h"
#include "engine/cuda/lowering.h"
#include "problem/attention.h"

namespace heddle::engine::cuda {

/// What is compiled in, as a pure function of the problem.
struct BackwardSm90Config {
  int planes = 1;           ///< 2: f32, as pairs of f16 in the workspace
  bool wide = false;        ///< head dims above 128
  int tile_n = 128;         ///< keys of a block
  int threads = 384;        ///< of the main kernel
  int turns = 2;            ///< counters of a query tile, if the order of the sums is kept
  int tile_m = 64;          ///< query rows a step
  bool dk_under_dp = true;  ///< dP is issued with dK in flight
  bool lower_varies = false, upper_varies = false;
  bool lengths = false;        ///< or ragged tensors
  bool unit_slope = true;      ///< d score / d dot is 1
  bool max_and_sum = false;    ///< rows come with them, not with log-sum-exps
  bool few_registers = false;  ///< f32 and what the score reads leave the wide kernel few
  problem::OperandId tiled = problem::kAbsent;  ///< what the score reads of its cells by tiles
  int tiled_stages = 1;
  bool load_gradient = false;  ///< of `tiled`, by a kernel of its own
  bool downwards = false;      ///< from the last query tile down
  int section = 1;             ///< heads whose blocks run together
  int dq_width = 128;          ///< f32 sums of a query row, in the workspace
  int64_t q_rounded = 0;       ///< q_length rounded up to tile_m
  int64_t shared_bytes = 0, load_shared_bytes = 0;

  /// Maps per batch entry, in the workspace. Pairs end with their sequences.
  bool sequence_maps() const { return lengths && planes == 1; }
};

/// Where the workspace holds what (kernels/sm90/backward_arguments.h), in bytes; linear in the
/// lengths. `turns` is there only if the order of the sums is kept, `head_units` only for f32,
/// whose pairs follow, `maps` only with sequence maps.
struct BackwardSm90Workspace {
  int64_t negative_lse = 0, delta = 0, d_q_sum = 0, turns = 0, maps = 0, head_units = 0, bytes = 0;
};

/// The configuration, or which limit of the kernels the problem breaks.
Result<BackwardSm90Config> configure_backward_sm90(
    const problem::AttentionBackwardProblem& problem);

BackwardSm90Workspace workspace_of(const problem::AttentionBackwardProblem& problem,
                                   const BackwardSm90Config& config);

/// The kernels in the order they run; the last three if their gradients are wanted.
inline constexpr const char* kBackwardSm90Names[] = {
    "attention_backward_prepare", "attention_backward_main", "attention_backward_finish",
    "attention_backward_sink", "attention_backward_load"};
inline constexpr int kBackwardSm90RowThreads = 256, kBackwardSm90LoadThreads = 288;

/// Of the arguments of the kernel of that name, of a problem whose score reads so many loads.
attention::Room room_of_backward_sm90(const problem::AttentionBackwardProblem& problem,
                                      const BackwardSm90Config& config, size_t loads,
                                      std::string_view name);

/// Those of them that run, the longest to compile first; `loads` is what the score reads.
std::vector<KernelUnit> backward_sm90_units(const problem::AttentionBackwardProblem& problem,
                                            const BackwardSm90Config& config,
                                            std::vector<problem::OperandId>& loads);

struct BackwardSm90Launch {
  const char* name;
  Launch launch;
};

/// The launches in order. The grid of one that has nothing to do is empty.
std::vector<BackwardSm90Launch> launches_of_backward_sm90(
    const problem::AttentionBackwardProblem& problem, const BackwardSm90Config& config);

Result<Lowering> lower_backward_sm90(const problem::AttentionBackwardProblem& problem,
                                     const Target& target);
}  // namespace heddle::engine::cuda
