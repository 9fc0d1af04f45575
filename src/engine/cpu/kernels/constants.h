#pragma once

#include "engine/cpu/kernels/vector.h"

namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL {

inline constexpr double kLog2E = 1.44269504088896340736;
inline constexpr double kLn2 = 0.693147180559945309417;
inline constexpr Real kInfinity = static_cast<Real>(__builtin_inf());

}  // namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL
