// The kernel that writes the exact keep mask (rng_dump), kernels/attention/dropout.cuh.
#pragma once

#include <string>

#include "attention/parameters.h"
#include "engine/cuda/kernel.h"
#include "problem/attention.h"

namespace heddle::engine::cuda {

/// `parameters` is the type of its block, `forward` the expression of the forward parameters
/// within.
std::string dump_source(const problem::AttentionStructure& structure, const char* parameters,
                        const char* forward, const std::string& name);
attention::ArgumentLayout argument_layout_of_dump();
Launch dump_launch(const problem::AttentionSizes& sizes);

}  // namespace heddle::engine::cuda
