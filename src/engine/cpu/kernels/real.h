// What the kernels are told, in the numbers that they compute in.
#pragma once

#include "engine/cpu/kernels.h"
#include "engine/cpu/kernels/vector.h"

namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL {

using ForwardPass = cpu::ForwardPass<Real>;
using BackwardPass = cpu::BackwardPass<Real>;
using RopePass = cpu::RopePass<Real>;
using RowStatistics = cpu::RowStatistics<Real>;
using ScoreValue = cpu::ScoreValue<Real>;

}  // namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL
