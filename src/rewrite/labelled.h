// Arrays of the module by their labels: each dimension is one digit.
#pragma once

#include "core/status.h"
#include "rewrite/element.h"

namespace heddle::rewrite {

struct Labelled {
  hlo::Instruction* x = nullptr;  // of any shape that holds these digits in this order
  Index labels;
};

std::vector<int64_t> sizes(const Elements& elements, const Index& labels);

/// The array with the digits of `to` as its dimensions, in that order; broadcast along those that
/// it lacks. `to` must have all of its labels.
Result<hlo::Instruction*> reordered(const Elements& elements, const Labelled& array,
                                    const Index& to);

/// Combined along `over` by add or or, from 0 or false.
Result<Labelled> reduced(const Elements& elements, const Labelled& array, const Index& over,
                         hlo::Opcode by);

}  // namespace heddle::rewrite
