// Pointwise ops: one kernel whose code is the problem's program.
#pragma once

#include "engine/cuda/lowering.h"
#include "problem/pointwise.h"

namespace heddle::engine::cuda {

Result<Lowering> lower_pointwise(const problem::PointwiseProblem& problem, const Target& target);

}  // namespace heddle::engine::cuda
