// Lowerings for an architecture by its name.
#pragma once

#include <string>
#include <vector>

#include "engine/cuda/lowering.h"

namespace heddle::engine::cuda {

inline Result<Lowering> lowered(const Problem& problem, const std::string& architecture) {
  HEDDLE_ASSIGN(const Target target, target_named(architecture));
  return lower(problem, target);
}

inline Result<std::vector<KernelUnit>> units_of(const Problem& problem,
                                                const std::string& architecture) {
  HEDDLE_ASSIGN(Lowering lowering, lowered(problem, architecture));
  return std::move(lowering.units);
}

}  // namespace heddle::engine::cuda
