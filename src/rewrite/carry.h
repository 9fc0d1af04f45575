// Loop state, and what conditionals give and take, made longer: what one loop's body computes is
// kept for the body of another that reads its iterations back, the way JAX's scan keeps residuals.
// A stack with a row an iteration is written at the induction variable, handed through the loops
// around the reader unchanged, and read at the very index at which the reader reads the other
// stacks. What a branch computes is one more result of its conditional, where the others give 0.
#pragma once

#include <map>
#include <tuple>
#include <unordered_map>

#include "core/status.h"
#include "rewrite/element.h"

namespace heddle::rewrite {

/// Whether values of frame `from`, one around `home` or a forward iteration that `home` or a loop
/// around it reads back, can be brought to `home`: every loop and conditional that would grow is
/// made and taken apart element by element.
bool can_carry(const Elements& elements, int from, int home);

class Carrier {
 public:
  /// `mutable_of`: the module's instructions by what the elements call them.
  using Instructions = std::unordered_map<const hlo::Instruction*, hlo::Instruction*>;
  Carrier(const Elements& elements, const Instructions& mutable_of)
      : elements_(elements), mutable_of_(mutable_of) {}

  /// In `home`, the array `value` of frame `from`.
  Result<hlo::Instruction*> carry(hlo::Instruction* value, int from, int home);

 private:
  Result<hlo::Instruction*> stacked(hlo::Instruction* value, hlo::Instruction* loop,
                                    const ReadBack& way);
  Result<hlo::Instruction*> handed_into(hlo::Instruction* value, int frame);

  const Elements& elements_;
  const Instructions& mutable_of_;
  /// By value, where it comes from and where it is brought.
  std::map<std::tuple<hlo::Instruction*, int, int>, hlo::Instruction*> carried_;
};

}  // namespace heddle::rewrite
