// The rewriter's report as JSON.
#pragma once

#include <string>

#include "rewrite/rewrite.h"

namespace heddle::rewrite {

/// {"module", "instructions", "fusions": [...], "refusals": [...]}, and "failure" if there was one;
/// of a refusal also "operation" and "source" ("file:line") where the program's metadata say them.
/// Without a closing line.
std::string to_json(const Report& report);

}  // namespace heddle::rewrite
