// Every kind of kernel by programs that it runs: what tests of all kinds go through.
#pragma once

#include <vector>

#include "support/program.h"
#include "support/random.h"

namespace heddle::testing {

/// Programs of `draw` whose plan's description has all of these words.
struct Kind {
  const char* name;
  Program (*draw)(Random&);
  std::vector<const char*> words;
};

const std::vector<Kind>& kinds();

}  // namespace heddle::testing
