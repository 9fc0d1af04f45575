// Products of pairs of f16, each step of 16 rounded to f32. An accumulator is cut off where f32
// arithmetic rounds: what a sum of equal sign lacks thereby grows with the steps. Here it is the
// same share of every sum, of one step or of many.
#pragma once

#include "../ptx/math.cuh"
#include "../ptx/wgmma.cuh"

namespace heddle::tile {

/// The share of itself that a sum of steps lacks: of dot products, and of P V (measured).
inline constexpr float kDotLacks = 0.30f * 0x1p-23f, kOutputLacks = 0.36f * 0x1p-23f;
/// The factor that makes up for it in sums of 4 to 8 steps in a row.
inline constexpr float kTileFactor = 1 + 0x1p-23f;

/// Sums (64 x kN) over kSlices steps. issue(d, i, j, k, accumulate) queues plane i of a times plane
/// j of b for slice k; take(d, k) is given what slice k came to. The products of second planes come
/// with slice 0. The warp group's earlier products are waited for.
template <int kN, int kSlices, int kBuffers, class Issue, class Take>
HEDDLE_DEVICE void sum_by_steps(Issue issue, Take take) {
  float step[kBuffers][kN / 2];
#pragma unroll
  for (int k = 0; k < kSlices; ++k) {
    ptx::wgmma_fence();
    if (k == 0) {
#pragma unroll
      for (int n = 0; n < kSlices; ++n) {
        issue(step[0], 0, 1, n, n > 0);
        issue(step[0], 1, 0, n, true);
      }
    }
    issue(step[k % kBuffers], 0, 0, k, k == 0);
    ptx::wgmma_commit();
    const int last = k - (kBuffers - 1);
    if (last < 0) continue;
    ptx::wgmma_wait<kBuffers - 1>();
    ptx::pin(step[last % kBuffers]);
    take(step[last % kBuffers], last);
  }
  if constexpr (kBuffers > 1) {
    ptx::wgmma_wait<0>();
    ptx::pin(step[(kSlices - 1) % kBuffers]);
    take(step[(kSlices - 1) % kBuffers], kSlices - 1);
  }
}

/// d = a * b, tiles of two planes, from slice kFirst on. kTransposed: rounded as b * a is, to the
/// same numbers.
template <typename T, int kN, int kSlices, int kBuffers, bool kTransposed = false, int kFirst = 0,
          class A, class B>
HEDDLE_DEVICE void product_by_steps(float (&d)[kN / 2], const A& a, const B& b) {
  const auto issue = [&](float(&step)[kN / 2], int i, int j, int k, bool accumulate) {
    ptx::Wgmma<kN>::template ss<T, A::kMajor, B::kMajor>(
        step, a.plane(kTransposed ? j : i).slice(kFirst + k),
        b.plane(kTransposed ? i : j).slice(kFirst + k), accumulate);
  };
  sum_by_steps<kN, kSlices, kBuffers>(issue, [&](const float(&step)[kN / 2], int k) {
#pragma unroll
    for (int i = 0; i < kN / 2; ++i) d[i] = k == 0 ? step[i] : d[i] + step[i];
  });
}

/// d += a * b, with a in registers.
template <typename T, int kN, int kSlices, class B>
HEDDLE_DEVICE void add_product_by_steps(float (&d)[kN / 2], const u32 (&a)[2][kSlices][4],
                                        const B& b) {
  const auto issue = [&](float(&step)[kN / 2], int i, int j, int k, bool accumulate) {
    ptx::Wgmma<kN>::template rs<T, B::kMajor>(step, a[i][k], b.plane(j).slice(k), accumulate);
  };
  sum_by_steps<kN, kSlices, (kN > 64 ? 1 : 2)>(issue, [&](const float(&step)[kN / 2], int) {
#pragma unroll
    for (int i = 0; i < kN / 2; ++i) d[i] += step[i];
  });
}

/// The factor from dot products of pairs to scores, as the sum of two f32: one alone would err by a
/// share of every score. The rest of a positive one is positive, and both make -inf of -inf.
struct StepwiseScale {
  float high, rest;
};
/// A unit of scores, in others: what f32 holds of it, and the rest.
inline constexpr StepwiseScale kSame{1.0f, 0.0f}, kLog2E{1.4426950408889634f, 1.92596303e-8f},
    kLn2{0.6931471805599453f, -1.90465430e-9f};
/// `scale`, a problem's, times `factor`; `unit` is a power of two.
HEDDLE_DEVICE StepwiseScale stepwise_scale(float scale, StepwiseScale factor, float unit) {
  const float high = ptx::multiply_toward_zero(scale, factor.high);
  const float rest = ptx::fma(scale, factor.high, -high) + scale * factor.rest;
  return {high * unit, ptx::fma(high, kDotLacks, rest) * unit};
}

}  // namespace heddle::tile
