// The Hopper attention backward, kernels/sm90/attention_backward.cuh (above head_dim 128
// attention_backward_by_gradient.cuh) and its passes before and after: which problems it takes, and
// what is compiled for them. What it does not take (kernels/README.md lists it) is refused with
// graph_not_supported, and goes to the general kernels.
#pragma once

#include <string_view>
#include <vector>

#include "attention/parameters.h"
#include "engine/cuda/lowering.h"
#include "problem/facts.h"
#include "sm90/backward_config.h"

namespace heddle::engine::cuda {

/// The kernels' configuration, and what of the choice is not compiled in.
struct BackwardSm90Config : sm90::BackwardConfig {
  problem::OperandId tiled_operand = problem::kAbsent;  ///< what comes by tiles
  bool load_gradient = false;  ///< of that; by a kernel of its own, unless tiled_gradient
  int head_group = 1;          ///< heads whose blocks run together
  int64_t q_rounded = 0;       ///< q_length rounded up to tile_m

  int shared_bytes() const { return sm90::layout_of(*this).bytes; }
  int load_shared_bytes() const { return sm90::load_layout_of(*this).bytes; }
};

/// Where the workspace holds what (kernels/sm90/backward_arguments.h), in bytes; linear in the
/// lengths. `turns` is there only if the order of the sums is kept, `head_units` only for f32,
/// whose pairs follow, `maps` only with sequence maps.
struct BackwardSm90Workspace {
  int64_t negative_lse = 0, delta = 0, d_q_sum = 0, turns = 0, maps = 0, head_units = 0, bytes = 0;
};

/// Of f32: the widest heads whose gradients they compute, of such a forward, in any order.
int most_columns_of_pairs_backward(const problem::AttentionStructure& forward,
                                   const problem::AttentionFacts& facts);

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
/// Of a block of the first of them.
inline constexpr int kRowsOfPrepare = 64;

/// Of the arguments of the kernel of that name, of a problem whose score reads so many loads.
attention::ArgumentLayout argument_layout_of_backward_sm90(
    const problem::AttentionBackwardStructure& structure, const BackwardSm90Config& config,
    size_t loads, std::string_view name);

/// Those of them that run, the longest to compile first; `loads` is what the score reads.
std::vector<KernelUnit> backward_sm90_units(const problem::AttentionBackwardStructure& structure,
                                            const problem::AttentionFacts& facts,
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
