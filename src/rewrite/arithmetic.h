// The elementwise operations that programs make masks and constants of, computed as the program
// computes them: every value in its own type, wrapped, truncated or rounded to it.
#pragma once

#include <optional>
#include <vector>

#include "hlo/interpreter/evaluate.h"
#include "hlo/interpreter/machine.h"
#include "hlo/module.h"

namespace heddle::rewrite {

class Arithmetic {
 public:
  Arithmetic();
  /// The machines hold on to their options.
  Arithmetic(const Arithmetic&) = delete;

  /// Whether `x` is such an operation, on types of a byte and more.
  static bool knows(const hlo::Instruction* x);

  /// What a known `x` gives for operands of one size; nothing if that cannot be computed.
  std::optional<hlo::Literal> apply(const hlo::Instruction* x, std::vector<hlo::Literal> operands);

  /// The same; nothing also if a floating number had to be rounded: then a compiler that keeps a
  /// wider type between two operations, or divides by multiplying, gets another one.
  std::optional<hlo::Literal> apply_exactly(const hlo::Instruction* x,
                                            std::vector<hlo::Literal> operands);

 private:
  hlo::EvaluateOptions options_;
  hlo::Machine own_, wide_;
};

/// Whether a type's numbers can be computed with: pred, whole numbers and floating ones of a byte
/// and more, but no 8-bit floats.
bool is_computed_in(hlo::ElementType type);
/// The whole numbers from -n to n that a floating type holds are exact; 0 for other types.
int64_t largest_exact(hlo::ElementType type);
/// The largest number that such a type holds; 0 for other types.
double largest_finite(hlo::ElementType type);

}  // namespace heddle::rewrite
