// Which problems no kernel here takes, whatever their features.
#pragma once

#include "core/status.h"
#include "problem/problem.h"

namespace heddle::engine::cuda {

Status check_storage(const problem::Problem& problem);

}  // namespace heddle::engine::cuda
