// A problem as a row of problems that different kernels take, one after the other. All of them
// share one list of operands: that of the problem, and temporaries after it.
#pragma once

#include <string_view>
#include <variant>
#include <vector>

#include "engine/cuda/copy.h"
#include "engine/cuda/factors.h"
#include "engine/cuda/lowering.h"
#include "engine/cuda/rope.h"
#include "engine/cuda/scaled_copy.h"

namespace heddle::engine::cuda {

/// The stack of an execution holds as many pointers: those of api::Executable, and temporaries.
inline constexpr size_t kMostOperands = 128 + 16;

using Stage = std::variant<problem::AttentionProblem, problem::AttentionBackwardProblem, RopeStep,
                           CopyStep, ScaledCopyStep, FactorsStep>;

struct Stages {
  std::vector<Stage> steps;              ///< in the order they run
  std::vector<int64_t> temporary_bytes;  ///< of each temporary
  size_t operand_count = 0;              ///< with the temporaries
};

/// Whether an execution takes as many operands.
Status check_operand_count(const Stages& stages);

/// All steps, each lowered by itself; the attention by `lower_attention`.
Result<Lowering> lower_stages(const Stages& stages, const Target& target,
                              Result<Lowering> (*lower_attention)(const Problem&, const Target&));

/// `parts` one after the other, in the same workspace behind the temporaries.
Lowering in_sequence(std::vector<Lowering> parts, const std::vector<int64_t>& temporary_bytes = {},
                     std::string_view between_descriptions = "; ");

}  // namespace heddle::engine::cuda
