// Loops and conditionals whose tuples can be made longer and shorter.
#pragma once

#include <unordered_map>

#include "hlo/module.h"

namespace heddle::rewrite {

/// Who calls the computations of a module, as it is when this is made.
class Callers {
 public:
  explicit Callers(const hlo::Module& module);

  /// The only instruction that calls `computation`, and does it in one way; null if there is none.
  const hlo::Instruction* only(const hlo::Computation* computation) const;

 private:
  std::unordered_map<const hlo::Computation*, const hlo::Instruction*> only_;  // null: of several
};

/// Whether a loop's state, or what a conditional gives and what its branches are given, is made and
/// taken apart element by element wherever it is seen, so that elements can be added and removed.
bool is_separable(const Callers& callers, const hlo::Instruction* x);

}  // namespace heddle::rewrite
