// The rewriter's report as JSON.
#pragma once

#include <string>

#include "rewrite/rewrite.h"

namespace heddle::rewrite {

/// {"module", "instructions", "fusions": [...], "refusals": [...]}, and "failure" if there was one;
/// without a closing line.
std::string to_json(const Report& report);

}  // namespace heddle::rewrite
