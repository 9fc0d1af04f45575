// How the operands of a problem are stored that no kernel here loads.
#pragma once

#include "core/status.h"
#include "problem/problem.h"

namespace heddle::engine::cuda {

Status check_storage(const problem::Problem& problem);

}  // namespace heddle::engine::cuda
