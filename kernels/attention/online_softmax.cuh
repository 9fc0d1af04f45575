// Softmax over keys that arrive a tile at a time, for the two rows a thread holds of a 64 x N
// accumulator. Scores are kept in log2 units, so that every exponential is one ex2.
//
// `reference` is what exponents are taken against: a recent row maximum. It may lag behind the true
// one by kSlack (in log2 units): then terms grow to at most 2^kSlack, which f32 sums and 16-bit
// probabilities hold without loss, and the correction factor stays exactly 1.
#pragma once

#include "../ptx/math.cuh"
#include "../tile/fragment.cuh"
#include "row_statistics.cuh"

namespace heddle::attention {

/// A score of any size in log2 units, where equal ones stay equal, finite ones finite. Cutting off
/// costs one instruction; f32 problems (`kExact`) would notice.
template <bool kExact>
HEDDLE_DEVICE float in_log2(float score, float to_log2) {
  if constexpr (!kExact) return ptx::multiply_toward_zero(score, to_log2);
  const float least = __int_as_float(0xff7fffff), product = __fmul_rn(score, to_log2);
  return score == minus_infinity() ? score : ptx::max_or_nan(product, least);
}

/// Keys outside lo[h] <= column < hi[h] get score -inf; bounds count from the thread's column 0.
template <int kCount>
HEDDLE_DEVICE void mask_scores(float (&s)[kCount], const int (&lo)[2], const int (&hi)[2],
                               bool lower_needed) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int column = tile::fragment_column_step(i);
    if (column >= hi[tile::fragment_half(i)]) s[i] = minus_infinity();
  }
  if (!lower_needed) return;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int column = tile::fragment_column_step(i);
    if (column < lo[tile::fragment_half(i)]) s[i] = minus_infinity();
  }
}

/// sum += x; what that loses to rounding goes to `lost`.
HEDDLE_DEVICE void add_exactly(float& sum, float& lost, float x) {
  const float before = sum;
  sum += x;
  const float added = sum - before;
  lost += (before - (sum - added)) + (x - added);
}

/// With kExact (f32) sums of tiles are added up exactly: thousands of terms, each rounded, would
/// leave a row's O, and with it delta of the backward, several times the error of all else.
/// With kNatural `reference` is a score, natural as they are, and exponents are differences of
/// scores: equal ones stay equal and finite ones finite, however large they are. It lags by
/// nothing.
/// With kLift the largest term is 2^kLift, and so are sums larger: the reference lies so much below
/// the maximum, kNatural: exponents are so much larger.
/// `Lanes` are those that share a row.
template <int kSlack, bool kExact = false, bool kNatural = false, int kLift = 0,
          class Lanes = tile::LanesOfQuad>
struct OnlineSoftmax {
  static_assert(!kNatural || kSlack == 0);
  static_assert(kLift == 0 || kSlack == 0);
  /// Below it a scaled reference is rounded by at most 2^-9 of log2 units, a part in 700 of all
  /// terms alike.
  static constexpr float kLargestRounded = 65536.0f;
  float reference[2];  ///< in log2 units, kNatural: natural; -inf while no key was seen
  float sum[2];        ///< this lane's share
  float lost[2];       ///< with kExact: what `sum` is short of

  HEDDLE_DEVICE void reset() {
    reference[0] = reference[1] = minus_infinity();
    sum[0] = sum[1] = 0;
    lost[0] = lost[1] = 0;
  }

  /// s becomes 2^(scale*s - reference), kNatural: 2^(scale*(s - reference) + kLift); `correction`
  /// is what earlier sums and outputs must be multiplied by. scale > 0. With kRest the scale is
  /// scale + rest.
  template <bool kRest = false, int kCount>
  HEDDLE_DEVICE void update(float (&s)[kCount], float scale, float (&correction)[2],
                            float rest = 0) {
    raise(s, scale, correction);
    exponentiate<kRest>(s, scale, rest);
  }

  /// The first half of it: the reference.
  template <int kCount>
  HEDDLE_DEVICE void raise(const float (&s)[kCount], float scale, float (&correction)[2]) {
    float top[2] = {s[0], s[2]}, other[2] = {s[1], s[3]};
#pragma unroll
    for (int i = 4; i < kCount; i += 4) {
      top[0] = ptx::max(top[0], s[i]);
      other[0] = ptx::max(other[0], s[i + 1]);
      top[1] = ptx::max(top[1], s[i + 2]);
      other[1] = ptx::max(other[1], s[i + 3]);
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float most = Lanes::max(ptx::max(top[h], other[h]));
      const float seen = kNatural ? most : kLift > 0 ? scale * most - kLift : scale * most;
      const float old = reference[h];
      reference[h] = seen > old + kSlack ? seen : old;
      correction[h] = of_earlier(old - offset(h), scale);
      sum[h] *= correction[h];
      if constexpr (kExact) lost[h] *= correction[h];
    }
  }

  /// The second half: the terms, and their sum.
  template <bool kRest = false, int kCount>
  HEDDLE_DEVICE void exponentiate(float (&s)[kCount], float scale, float rest = 0) {
    const float from[2] = {offset(0), offset(1)};
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int h = tile::fragment_half(i);
      float exponent = ptx::fma(s[i], scale, -from[h]);
      if constexpr (kNatural) {
        const float apart = s[i] - from[h];
        exponent = kLift > 0 ? ptx::fma(apart, scale, kLift) : apart * scale;
      }
      if constexpr (kRest) exponent = ptx::fma(s[i], rest, exponent);
      s[i] = ptx::exp2(exponent);
    }
    if constexpr (kExact) {
      float part[2] = {s[0] + s[1], s[2] + s[3]};
#pragma unroll
      for (int i = 4; i < kCount; i += 2) part[tile::fragment_half(i)] += s[i] + s[i + 1];
#pragma unroll
      for (int h = 0; h < 2; ++h) add_exactly(sum[h], lost[h], part[h]);
    } else if constexpr (kNatural) {
#pragma unroll
      for (int i = 0; i < kCount; i += 2) sum[tile::fragment_half(i)] += s[i] + s[i + 1];
    } else {
      // One by one: of 512 causal rows, d 64, pairs took 128 us where these take 122 (H200, b64
      // h16), of 4096 rows 495 where these take 501.
#pragma unroll
      for (int i = 0; i < kCount; ++i) sum[tile::fragment_half(i)] += s[i];
    }
  }

  /// update() with kNatural, of scores that are dots: one FFMA takes each to its exponent, whose
  /// reference is then a rounded product, unless that is large. The same of all threads of a warp;
  /// `may_be_large` of a whole grid.
  template <int kCount>
  HEDDLE_DEVICE void update_dots(float (&s)[kCount], float scale, float (&correction)[2],
                                 bool may_be_large) {
    static_assert(kNatural);
    raise(s, scale, correction);
    const float from[2] = {offset(0), offset(1)};
    float shift[2] = {ptx::fma(-scale, from[0], kLift), ptx::fma(-scale, from[1], kLift)};
    if (may_be_large && __any_sync(0xffffffffu, !(fabsf(shift[0]) < kLargestRounded) ||
                                                    !(fabsf(shift[1]) < kLargestRounded))) {
      shift[0] = shift[1] = kLift;
#pragma unroll
      for (int i = 0; i < kCount; ++i) s[i] -= from[tile::fragment_half(i)];
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int h = tile::fragment_half(i);
      s[i] = ptx::exp2(ptx::fma(s[i], scale, shift[h]));
      sum[h] += s[i];
    }
  }

  /// One more term in the denominator, counted once per row (by lane 0 of the quad).
  /// The logit in the units of references.
  HEDDLE_DEVICE void add_sink(float logit, bool first_lane, float (&correction)[2]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float old = reference[h];
      reference[h] = ptx::max(old, logit);
      correction[h] =
          reference[h] == minus_infinity() ? 1.f : of_earlier(old - reference[h], kLog2E);
      sum[h] *= correction[h];
      if constexpr (kExact) lost[h] *= correction[h];
      if (first_lane && reference[h] != minus_infinity())
        sum[h] += of_earlier(logit - reference[h], kLog2E);
    }
  }

  /// After the last tile: the row's whole sum.
  HEDDLE_DEVICE float total(int h) const {
    return kExact ? Lanes::sum(sum[h]) + Lanes::sum(lost[h]) : Lanes::sum(sum[h]);
  }

 private:
  /// A row that has seen no key has exponents of -inf, and not NaN.
  HEDDLE_DEVICE float offset(int h) const {
    return reference[h] == minus_infinity() ? 0.f : reference[h];
  }
  /// A term whose reference lies so far below another, taken against that; kNatural: scores that
  /// `scale` makes exponents of 2.
  HEDDLE_DEVICE static float of_earlier(float apart, float scale) {
    return ptx::exp2(kNatural ? apart * scale : apart);
  }
};

template <int kCount>
HEDDLE_DEVICE void clear(float (&out)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) out[i] = 0;
}

/// Row h of a 64 x N accumulator times factor[h].
template <int kCount>
HEDDLE_DEVICE void scale_rows(float (&out)[kCount], const float (&factor)[2]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) out[i] *= factor[tile::fragment_half(i)];
}

}  // namespace heddle::attention
