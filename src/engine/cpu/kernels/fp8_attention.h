#pragma once

#include "engine/cpu/fp8_kernels.h"

namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL {

void fp8_forward(const Fp8Pass& pass, const Fp8Task& task, void* scratch);
void fp8_query_gradient(const Fp8BackwardPass& pass, const Fp8Task& task, void* scratch);
void fp8_key_gradient(const Fp8BackwardPass& pass, const Fp8Task& task, void* scratch);
void fp8_value_gradient(const Fp8BackwardPass& pass, const Fp8Task& task, void* scratch);

}  // namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL
