// Softmax of scores that a factor takes to log2 units, dot products most of all, over keys that
// arrive a tile at a time (online_softmax.cuh).
//
// One FFMA takes a score to its exponent, of a reference whose product with the scale is rounded,
// by up to kMostRounded where it is up to 2^28: all of a row's terms are larger or smaller by that.
// Scores beyond, each an f32, are equal or lie 16 powers of two apart. They still do with a power
// of two in place of the scale, whose products are exact: so huge scores, too, weigh 1 or 0.
// (f32 has no registers for a row's factor and start, and takes scores' differences instead.)
#pragma once

#include "dot_units.h"
#include "online_softmax.cuh"

namespace heddle::attention {

inline constexpr int kMostRounded = 8;  ///< in log2 units
/// As good as no rest, but -inf of -inf: no subnormal number, which would count for 0.
inline constexpr float kLeastRest = 0x1p-126f;

/// The power of two nearest to a scale.
HEDDLE_DEVICE float power_near(float scale) {
  return __uint_as_float((__float_as_uint(scale) + 0x400000) & 0xff800000);
}

/// The reference lags if kLags. With kRest the scale is scale + rest, rest at least kLeastRest: a
/// hidden score is -inf by both.
template <bool kLags, bool kExact, bool kRest, class Lanes = tile::LanesOfQuad>
struct DotSoftmax : TermSums<kExact, Lanes> {
  float reference[2];  ///< a score; one below all while no key was seen
  float from[2];       ///< what exponents are taken from, about scale * reference; not with kRest

  HEDDLE_DEVICE void reset(const DotUnits& units) {
    // No infinity, of which hidden scores would make NaN, and in log2 units none either.
    const float per_power = __uint_as_float(0x7f000000u - __float_as_uint(units.power));
    reference[0] = reference[1] = units.power > 1 ? kLeast * per_power : kLeast;
    from[0] = from[1] = kLeast;
    this->clear();
  }

  /// s becomes 2^(scale * (s - reference)); `correction` is what earlier sums and outputs must be
  /// multiplied by.
  template <int kCount>
  HEDDLE_DEVICE void update(float (&s)[kCount], const DotUnits& units, float (&correction)[2],
                            float rest = 0) {
    float top[2] = {s[0], s[2]}, other[2] = {s[1], s[3]}, factor[2];
    largest_in(s, top, other);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float most = Lanes::max(ptx::max(top[h], other[h]));
      const float old = kRest ? reference[h] : from[h];
      reference[h] = !kLags                              ? ptx::max(reference[h], most)
                     : most > reference[h] + units.slack ? most
                                                         : reference[h];
      if constexpr (kRest) {
        correction[h] = ptx::exp2(product(old - reference[h], units.scale, rest));
      } else {
        const float scaled = product(reference[h], units.scale, rest);
        const bool huge = is_huge(scaled);
        from[h] = huge ? __fmul_rn(reference[h], units.power) : scaled;
        factor[h] = huge ? units.power : units.scale;
        correction[h] = ptx::exp2(old - from[h]);
      }
      this->scale(h, correction[h]);
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int h = tile::fragment_half(i);
      if constexpr (kRest)
        s[i] = ptx::exp2(product(s[i] - reference[h], units.scale, rest));
      else
        s[i] = ptx::exp2(ptx::fma(s[i], factor[h], -from[h]));
    }
    this->template add<false>(s);
  }

  /// How far above 0 the reference's own exponent is, by what its product was rounded by.
  HEDDLE_DEVICE float excess(int h, const DotUnits& units) const {
    if constexpr (kRest) return 0.0f;
    const bool huge = is_huge(product(reference[h], units.scale, 0));
    return ptx::fma(reference[h], huge ? units.power : units.scale, -from[h]);
  }

 private:
  static constexpr float kLeast = -3.402823466e38f;

  HEDDLE_DEVICE static bool is_huge(float scaled) { return !(fabsf(scaled) <= 0x1p28f); }
  HEDDLE_DEVICE static float product(float score, float scale, float rest) {
    if constexpr (kRest) return ptx::fma(score, scale, score * rest);
    return __fmul_rn(score, scale);
  }
};

}  // namespace heddle::attention
