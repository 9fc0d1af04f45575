// RMSNorm and LayerNorm standing alone, backward: the same inputs give the same bits.
#pragma once

#include <string>
#include <vector>

#include "engine/cuda/lowering.h"
#include "engine/cuda/norm_shape.h"
#include "problem/streaming.h"
#include "streaming/config.h"

namespace heddle::engine::cuda {

struct NormBackwardConfig : streaming::NormBackwardConfig {
  bool in_registers = true;  ///< a row stays there; else x and dY are read twice

  /// Whether a gradient of weight or bias is wanted.
  bool sums() const { return wants_d_weight || wants_d_bias; }
};

/// Names and threads of the kernels, in the order in which they run; those not needed are left out.
struct NormBackwardStep {
  enum class Part : uint8_t { means, main, combine };
  Part part;
  std::string name;
  int threads;
};
std::vector<NormBackwardStep> steps_of(const problem::NormBackwardProblem& problem,
                                       const NormBackwardConfig& config);

/// Fills `shape` in and chooses kernels, or says why there are none.
Result<NormBackwardConfig> configure_norm_backward(const problem::NormBackwardProblem& problem,
                                                   NormShape& shape);

Result<Lowering> lower_norm_backward(const problem::NormBackwardProblem& problem,
                                     const Target& target);

}  // namespace heddle::engine::cuda
