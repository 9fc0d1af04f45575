// Looks at every softmax of a module and says what attention it belongs to. Nothing is changed.
#pragma once

#include <string>
#include <vector>

#include "rewrite/match.h"

namespace heddle::rewrite {

/// Something that looked like attention and was left alone.
struct Refusal {
  std::string computation;
  std::string instruction;
  std::string reason;
};

struct Findings {
  std::vector<Match> matches;  // all forwards first
  std::vector<Refusal> refusals;
};

Findings find_attention(Elements& elements);

}  // namespace heddle::rewrite
