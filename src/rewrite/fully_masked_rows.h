// Rows that see no key. A fused call gives them 0; a program that fills masked scores with a finite
// number gives all their keys the same weight. What the call lacks is added to its results.
#pragma once

#include "rewrite/labelled.h"
#include "rewrite/plan.h"

namespace heddle::rewrite {

/// `value`, O or dV of the call labelled as the result's place, with what fully masked rows add: O
/// is the mean of the values there, and dV of every key receives its share of their dO. `source` is
/// V or dO, labelled as its operand; `predicates` those of the plan's fully masked rows, in its
/// home.
Result<hlo::Instruction*> with_fully_masked_rows(const Elements& elements, const Plan& plan,
                                                 const CallResult& result, hlo::Instruction* value,
                                                 hlo::Instruction* source,
                                                 const std::vector<hlo::Instruction*>& predicates);

}  // namespace heddle::rewrite
