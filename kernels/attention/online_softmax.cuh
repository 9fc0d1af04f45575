// Softmax over keys that arrive a tile at a time, for the two rows a thread holds of a 64 x N
// accumulator. A factor takes scores to log2 units, so that every exponential is one ex2.
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

/// How a row's scores become exponents: fma(score, scale, -from), with a rest score * rest besides.
struct RowUnits {
  float scale, rest, from;
};

/// With kExact (f32) sums of tiles are added up exactly: thousands of terms, each rounded, would
/// leave a row's O, and with it delta of the backward, several times the error of all else.
/// With kNatural exponents are differences of scores: equal ones stay equal and finite ones finite,
/// however large they are. The reference lags by nothing. Without, one FFMA takes a score to its
/// exponent, of a product that is rounded (see units_of).
/// With kLift the largest term is 2^kLift, and so are sums larger: exponents are so much larger.
/// `Lanes` are those that share a row.
template <int kSlack, bool kExact = false, bool kNatural = false, int kLift = 0,
          class Lanes = tile::LanesOfQuad>
struct OnlineSoftmax {
  static_assert(!kNatural || kSlack == 0);
  static_assert(kLift == 0 || kNatural);
  /// Below it a scaled reference is rounded by at most 2^-9 of log2 units, a part in 700 of all
  /// terms alike.
  static constexpr float kLargestRounded = 65536.0f;
  /// Of a product of up to 2^28, in log2 units, which all of a row's terms are larger or smaller
  /// by.
  static constexpr int kMostRounded = 8;
  /// Terms are at most two to this.
  static constexpr int kMostExponent = kSlack + kLift + (kNatural ? 0 : kMostRounded);
  float reference[2];  ///< a score; -inf while no key was seen
  float sum[2];        ///< this lane's share
  float lost[2];       ///< with kExact: what `sum` is short of

  HEDDLE_DEVICE void reset() {
    reference[0] = reference[1] = minus_infinity();
    sum[0] = sum[1] = 0;
    lost[0] = lost[1] = 0;
  }

  /// s becomes 2^(scale * (s - reference) + kLift); `correction` is what earlier sums and outputs
  /// must be multiplied by. scale > 0. With kRest the scale is scale + rest, rest > 0.
  template <bool kRest = false, int kCount>
  HEDDLE_DEVICE void update(float (&s)[kCount], float scale, float (&correction)[2],
                            float rest = 0) {
    raise<kRest>(s, scale, correction, rest);
    exponentiate<kRest>(s, scale, rest);
  }

  /// The first half of it: the reference.
  template <bool kRest = false, int kCount>
  HEDDLE_DEVICE void raise(const float (&s)[kCount], float scale, float (&correction)[2],
                           float rest = 0) {
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
      const float old = reference[h];
      if constexpr (kSlack == 0)
        reference[h] = ptx::max(old, most);
      else
        reference[h] = (most - old) * scale > kSlack ? most : old;
      correction[h] = ptx::exp2(kNatural ? (old - offset(h)) * scale
                                         : earlier_exponent<kRest>(old, h, scale, rest));
      sum[h] *= correction[h];
      if constexpr (kExact) lost[h] *= correction[h];
    }
  }

  /// The second half: the terms, and their sum.
  template <bool kRest = false, int kCount>
  HEDDLE_DEVICE void exponentiate(float (&s)[kCount], float scale, float rest = 0) {
    const RowUnits units[2] = {units_of<kRest>(0, scale, rest), units_of<kRest>(1, scale, rest)};
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int h = tile::fragment_half(i);
      float exponent;
      if constexpr (kNatural) {
        const float apart = s[i] - offset(h);
        exponent = kLift > 0 ? ptx::fma(apart, scale, kLift) : apart * scale;
      } else {
        exponent = ptx::fma(s[i], units[h].scale, -units[h].from);
        if constexpr (kRest) exponent = ptx::fma(s[i], units[h].rest, exponent);
      }
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

  /// Without kNatural: how far above 0 the reference's own exponent is, by what its product was
  /// rounded by.
  template <bool kRest = false>
  HEDDLE_DEVICE float excess(int h, float scale, float rest = 0) const {
    const RowUnits units = units_of<kRest>(h, scale, rest);
    const float exponent = ptx::fma(offset(h), units.scale, -units.from);
    return kRest ? ptx::fma(offset(h), units.rest, exponent) : exponent;
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

  /// After the last tile: the row's whole sum.
  HEDDLE_DEVICE float total(int h) const {
    return kExact ? Lanes::sum(sum[h]) + Lanes::sum(lost[h]) : Lanes::sum(sum[h]);
  }

 private:
  /// A row that has seen no key has exponents of -inf, and not NaN.
  HEDDLE_DEVICE float offset(int h) const {
    return reference[h] == minus_infinity() ? 0.f : reference[h];
  }
  template <bool kRest>
  HEDDLE_DEVICE static float product(float score, float scale, float rest) {
    if constexpr (kRest) return ptx::fma(score, scale, score * rest);
    return __fmul_rn(score, scale);
  }
  /// A product of up to 2^28 is rounded by up to kMostRounded. Scores beyond, each an f32, are
  /// equal or lie 16 powers of two apart: they still do with a power of two in place of the scale,
  /// whose products are exact. (A rest of 0 would make NaN of -inf.)
  template <bool kRest>
  HEDDLE_DEVICE RowUnits units_of(int h, float scale, float rest) const {
    const float scaled = product<kRest>(offset(h), scale, rest);
    const float power = __uint_as_float((__float_as_uint(scale) + 0x400000) & 0xff800000);
    const bool huge = !(fabsf(scaled) <= 0x1p28f);
    return {huge ? power : scale, huge ? 0x1p-126f : rest, huge ? offset(h) * power : scaled};
  }
  /// Of a term that was taken against `old`.
  template <bool kRest>
  HEDDLE_DEVICE float earlier_exponent(float old, int h, float scale, float rest) const {
    const RowUnits units = units_of<kRest>(h, scale, rest);
    return product<kRest>(old, units.scale, units.rest) - units.from;
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
