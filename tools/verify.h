// Whether a rewritten module still computes what the original does.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/status.h"
#include "hlo/module.h"

namespace heddle::tools {

/// One output (tuples flattened) of both modules against the original evaluated in f64. Errors are
/// relative, in the Euclidean norm; infinite where infinities or NaN stand elsewhere.
struct OutputError {
  std::string shape;
  double original = 0;  ///< of the original, each value rounded to its own type
  double fused = 0;
  double allowed = 0;  ///< twice the original's, plus one rounding of the output's type
  bool ok = false;
};

struct Verification {
  bool ok = false;
  double max_relative_error = 0;  ///< the largest of OutputError::fused
  std::vector<OutputError> outputs;
};

/// Evaluates both modules on the same random inputs; Heddle's calls run on the CPU engine. Fails if
/// one of the modules cannot be evaluated, with the interpreter's reason.
Result<Verification> verify(const hlo::Module& original, const hlo::Module& fused, uint64_t seed);

}  // namespace heddle::tools
