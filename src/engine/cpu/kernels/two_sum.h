// What sums lose (Knuth's two-sum), as long_sum.h has it, for each instruction set.
#pragma once

#include "engine/cpu/kernels/constants.h"

namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL {

/// What `next`, the rounded sum + x, lacks.
inline Float lost_by_sum(Float sum, Float x, Float next) {
  const Float added = subtract(next, sum);
  return add(subtract(sum, subtract(next, added)), subtract(x, added));
}

/// sum += x. What rounding took of it.
inline Real add_to(Real& sum, Real x) {
  const Real next = sum + x, added = next - sum;
  const Real lost = (sum - (next - added)) + (x - added);
  sum = next;
  return lost;
}

/// A sum with what it lost; of infinities nothing is known but the sum.
inline Real with_lost(Real sum, Real lost) {
  return -kInfinity < lost && lost < kInfinity ? sum + lost : sum;
}

}  // namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL
