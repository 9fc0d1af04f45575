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

inline std::vector<std::string> sources_of(const Problem& problem,
                                           const std::string& architecture) {
  std::vector<std::string> all;
  const Result<std::vector<KernelUnit>> units = units_of(problem, architecture);
  if (!units.is_ok()) return {units.status().message()};
  for (const KernelUnit& unit : *units) all.push_back(unit.source);
  return all;
}

/// Why the first way that was asked is not taken, or nothing is; empty if it is taken.
inline std::string why_passed_over(const Problem& problem, const std::string& architecture) {
  const Result<Lowering> lowering = lowered(problem, architecture);
  if (!lowering.is_ok()) return lowering.status().message();
  return lowering->passed_over.empty() ? "" : lowering->passed_over.front().reason;
}

}  // namespace heddle::engine::cuda
