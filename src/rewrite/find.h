// Looks at every softmax of a module and says what attention it belongs to. Nothing is changed.
#pragma once

#include <string>
#include <vector>

#include "hlo/source.h"
#include "rewrite/match.h"

namespace heddle::rewrite {

/// Something that looked like attention and was left alone.
struct Refusal {
  std::string computation;
  std::string instruction;
  std::string reason;
  hlo::Source source;  // of the instruction
};

struct Findings {
  std::vector<Match> matches;  // all forwards first
  std::vector<Refusal> refusals;
  bool has_softmax = false;  // any exponential that is summed
  /// Softmaxes whose gradients are there and weigh no values, as in a loss or a router: none of the
  /// refusals, for there is nothing to fuse.
  int without_values = 0;
};

/// What is left alone at `at`.
Refusal refusal(const hlo::Instruction& at, std::string reason);

Findings find_attention(Elements& elements);

}  // namespace heddle::rewrite
