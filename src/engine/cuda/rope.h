// RoPE standing alone, forward and backward.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/cuda/lowering.h"
#include "engine/cuda/rows_step.h"
#include "problem/streaming.h"
#include "streaming/arguments.h"
#include "streaming/config.h"

namespace heddle::engine::cuda {

/// What the kernel does: a rope problem, or what it takes beside an attention, which no graph says.
struct RopeStep {
  problem::RopeProblem rope;
  /// As in RowsStep.
  problem::OperandId lengths = problem::kAbsent;
  bool lengths_cumulative = false;
  /// Cosines and sines are rounded as by a kernel that rotates queries itself.
  bool rounded = false;
};

/// Chooses the kernel, or says why there is none.
Result<streaming::RopeConfig> configure_rope(const RopeStep& step);

/// The configuration, as heddle::streaming::Config of a generated source.
std::string rope_config_source(const streaming::RopeConfig& config);

/// The launch of a problem's kernel, alone or within another one's.
class RopeLaunch {
 public:
  static Result<RopeLaunch> make(const RopeStep& step);

  const streaming::RopeConfig& config() const { return config_; }
  const Launch& grid() const { return grid_; }
  /// Nothing is to be written, and nothing launched.
  bool is_empty() const { return grid_.grid_x == 0; }
  Result<streaming::RopeArguments> bind(std::span<void* const> buffers) const;

 private:
  RopeLaunch(const problem::RopeProblem& problem, const RowsStep& rows)
      : problem_(problem), rows_(rows) {}

  problem::RopeProblem problem_;
  RowsStep rows_;
  streaming::RopeConfig config_;
  std::vector<std::pair<problem::OperandId, const char*>> used_;
  Launch grid_;
  streaming::RopeArguments arguments_{};
};

Result<Lowering> lower_rope_step(const RopeStep& step, const Target& target);
Result<Lowering> lower_rope(const problem::RopeProblem& problem, const Target& target);

}  // namespace heddle::engine::cuda
