#pragma once

#include "engine/cpu/kernels.h"
#include "engine/cpu/kernels/vector.h"

namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL {

int64_t product_sample(Products products, float* memory);

}  // namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL
