// What a forward leaves of a row for the backward to recompute its weights: a log-sum-exp, or the
// maximum and the sum of exponentials apart. Beside a huge maximum (a number that stands for -inf)
// an f32 holds no log(sum), and beside one of a thousand its rounding is a share of every weight;
// of a difference of scores neither is lost.
#pragma once

#include "../ptx/math.cuh"
#include "exponents.cuh"

namespace heddle::attention {

HEDDLE_DEVICE float minus_infinity() { return __int_as_float(0xff800000); }

/// src/core/lost_weights.h: whether a row's log-sum-exp, in natural units, says too little to
/// recompute its weights. Of scores that are more than dot products.
HEDDLE_DEVICE bool weights_are_lost(float log_sum_exp) { return log_sum_exp <= -8388608.0f; }

/// log(2^(reference + rest) * sum), or its log2; -inf of no terms. Without kOfLog2 the reference is
/// natural, log(e^(reference + rest) * sum). The approximate logarithm errs by 2^-22, which f32
/// problems (`kExact`) would notice.
template <bool kExact, bool kOfLog2 = true>
HEDDLE_DEVICE float log_sum_exp(float reference, float sum, bool in_log2, float rest = 0) {
  if (sum == 0.f) return minus_infinity();
  const float log2_sum = kExact ? log2f(sum) : ptx::log2(sum);
  if constexpr (!kOfLog2)
    return in_log2 ? ptx::fma(reference, kLog2E, ptx::fma(rest, kLog2E, log2_sum))
                   : reference + ptx::fma(log2_sum, kLn2, rest);
  return in_log2 ? reference + (log2_sum + rest)
                 : ptx::fma(reference, kLn2, (log2_sum + rest) * kLn2);
}

/// Below it what a maximum is rounded by, taken to other units, is a factor of a sum that f32
/// holds.
inline constexpr float kLargestExact = 8388608.0f;

/// The natural maximum of a row whose `sum` is of terms against `reference`, in log2 units; what
/// the maximum is rounded by goes into the sum.
template <bool kExact>
HEDDLE_DEVICE float natural_maximum(float reference, float& sum) {
  const float max = reference * kLn2;
  if (fabsf(reference) < kLargestExact) {
    const float rest = ptx::fma(-max, kLog2E, reference) - max * kLog2ERest;
    if constexpr (kExact)
      sum = ptx::fma(sum, expm1f(rest * kLn2), sum);
    else
      sum *= ptx::exp2(rest);
  }
  return max;
}

/// P = 2^(to_log2 * (score - reference) - log2_sum), the reference in the units of scores.
struct RowStatistic {
  float reference, log2_sum;
};

/// Of a maximum and a sum, natural both; of scores in log2 units with kLog2. Rows that saw nothing
/// get +inf, so that their weights are 0.
template <bool kExact, bool kLog2>
HEDDLE_DEVICE RowStatistic row_statistic(float max, float sum) {
  if (sum == 0.f) return {-minus_infinity(), 0.f};
  const float log2_sum = kExact ? log2f(sum) : ptx::log2(sum);
  if constexpr (!kLog2) return {max, log2_sum};
  const float reference = max * kLog2E;
  if (!(fabsf(max) < kLargestExact)) return {reference, log2_sum};
  const float rest = ptx::fma(max, kLog2E, -reference) + max * kLog2ERest;
  return {reference, log2_sum + rest};
}

/// The exponent of a weight of which score - reference is `apart`. With kMost no score is above the
/// reference: of one that was summed in another order, and rounded to the next number beside a huge
/// one, the weight would have no bound.
template <bool kMost>
HEDDLE_DEVICE float weight_exponent(float apart, float to_log2, float negative_log2_sum) {
  return ptx::fma(kMost ? fminf(apart, 0.0f) : apart, to_log2, negative_log2_sum);
}

}  // namespace heddle::attention
