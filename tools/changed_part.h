// What of a computation the rewriter changed, for people to look at.
#pragma once

#include <set>

#include "hlo/computation.h"

namespace heddle::tools {

using Instructions = std::set<const hlo::Instruction*>;

/// One forward and one backward call of a computation, and what they took the place of.
struct ChangedPart {
  Instructions before, after;
  int calls = 0;  // that are in `after`
  int of = 0;     // that the rewriter put into the computation
};

/// Of the first forward and the first backward call in `after`: what was made for them, and what of
/// `before` is gone that led to their results. Instructions are told apart by their names, which
/// the rewriter keeps.
ChangedPart changed_part(const hlo::Computation& before, const hlo::Computation& after);

}  // namespace heddle::tools
