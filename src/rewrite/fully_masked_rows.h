// Rows that see no key. A fused call gives them 0; a program that fills masked scores with a finite
// number gives all their keys the same weight. What the call lacks is added to its results.
#pragma once

#include "rewrite/labelled.h"
#include "rewrite/plan.h"

namespace heddle::rewrite {

/// O of a call, which in the rows that see no key is the mean of the values. `predicates`: those of
/// the plan's fully masked rows, in its home.
Result<hlo::Instruction*> with_means_of_values(const Elements& elements, const Plan& plan,
                                               const Labelled& o, const Labelled& v,
                                               const std::vector<hlo::Instruction*>& predicates);
/// dV of a call, whose every key receives its share of the dO of rows that see no key. dV calls the
/// digits of the values' depth `columns`; `all`: the labels of dO, along some of which `d_o` may be
/// the same.
Result<hlo::Instruction*> with_shares_of_gradients(
    const Elements& elements, const Plan& plan, const Labelled& d_v, const Index& columns,
    const Labelled& d_o, const Index& all, const std::vector<hlo::Instruction*>& predicates);

}  // namespace heddle::rewrite
