// What no kernel here loads or writes of a problem's operands, by how they are stored.
#pragma once

#include "core/status.h"
#include "problem/problem.h"

namespace heddle::engine::cuda {

Status check_storage(const problem::Problem& problem);

}  // namespace heddle::engine::cuda
