// Softmax over keys that arrive a tile at a time, for the two rows a thread holds of a 64 x N
// accumulator. Exponents are of 2, so that every exponential is one ex2.
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

/// Raises the largest of a thread's even and odd scores in each of its rows, which begin with the
/// first four.
template <int kCount>
HEDDLE_DEVICE void largest_in(const float (&s)[kCount], float (&even)[2], float (&odd)[2]) {
#pragma unroll
  for (int i = 4; i < kCount; i += 4) {
    even[0] = ptx::max(even[0], s[i]);
    odd[0] = ptx::max(odd[0], s[i + 1]);
    even[1] = ptx::max(even[1], s[i + 2]);
    odd[1] = ptx::max(odd[1], s[i + 3]);
  }
}

/// What two rows' terms add up to. With kExact (f32) sums of tiles are added up exactly: thousands
/// of terms, each rounded, would leave a row's O, and with it delta of the backward, several times
/// the error of all else. `Lanes` are those that share a row.
template <bool kExact, class Lanes>
struct TermSums {
  float sum[2];   ///< this lane's share
  float lost[2];  ///< with kExact: what `sum` is short of

  HEDDLE_DEVICE void clear() {
    sum[0] = sum[1] = 0;
    lost[0] = lost[1] = 0;
  }
  HEDDLE_DEVICE void scale(int h, float factor) {
    sum[h] *= factor;
    if constexpr (kExact) lost[h] *= factor;
  }
  /// A tile's terms.
  template <bool kPairs, int kCount>
  HEDDLE_DEVICE void add(const float (&s)[kCount]) {
    if constexpr (kExact) {
      float part[2] = {s[0] + s[1], s[2] + s[3]};
#pragma unroll
      for (int i = 4; i < kCount; i += 2) part[tile::fragment_half(i)] += s[i] + s[i + 1];
#pragma unroll
      for (int h = 0; h < 2; ++h) add_exactly(sum[h], lost[h], part[h]);
    } else if constexpr (kPairs) {
#pragma unroll
      for (int i = 0; i < kCount; i += 2) sum[tile::fragment_half(i)] += s[i] + s[i + 1];
    } else {
      // One by one: of 512 causal rows, d 64, pairs took 128 us where these take 122 (H200, b64
      // h16), of 4096 rows 495 where these take 501.
#pragma unroll
      for (int i = 0; i < kCount; ++i) sum[tile::fragment_half(i)] += s[i];
    }
  }
  /// After the last tile: the row's whole sum.
  HEDDLE_DEVICE float total(int h) const {
    return kExact ? Lanes::sum(sum[h]) + Lanes::sum(lost[h]) : Lanes::sum(sum[h]);
  }
};

/// Of scores in log2 units or, with kNatural, as they are: exponents are their differences from the
/// reference. Equal ones stay equal and finite ones finite, however large they are.
/// With kNatural the reference lags by nothing.
/// With kLift the largest term is 2^kLift, and so are sums larger: the reference lies so much below
/// the maximum, kNatural: exponents are so much larger.
template <int kSlack, bool kExact = false, bool kNatural = false, int kLift = 0,
          class Lanes = tile::LanesOfQuad>
struct OnlineSoftmax : TermSums<kExact, Lanes> {
  using TermSums<kExact, Lanes>::sum;
  static_assert(!kNatural || kSlack == 0);
  static_assert(kLift == 0 || kSlack == 0);
  /// Below it a scaled reference is rounded by at most 2^-9 of log2 units, a part in 700 of all
  /// terms alike.
  static constexpr float kLargestRounded = 65536.0f;
  float reference[2];  ///< in log2 units, kNatural: natural; -inf while no key was seen

  HEDDLE_DEVICE void reset() {
    reference[0] = reference[1] = minus_infinity();
    this->clear();
  }

  /// s becomes 2^(scale*s - reference), kNatural: 2^(scale*(s - reference) + kLift); `correction`
  /// is what earlier sums and outputs must be multiplied by. scale is 1, kNatural: above 0.
  template <int kCount>
  HEDDLE_DEVICE void update(float (&s)[kCount], float scale, float (&correction)[2]) {
    raise(s, scale, correction);
    const float from[2] = {offset(0), offset(1)};
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int h = tile::fragment_half(i);
      float exponent = ptx::fma(s[i], scale, -from[h]);
      if constexpr (kNatural) {
        const float apart = s[i] - from[h];
        exponent = kLift > 0 ? ptx::fma(apart, scale, kLift) : apart * scale;
      }
      s[i] = ptx::exp2(exponent);
    }
    this->template add<kNatural>(s);
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

 private:
  /// The reference, and what earlier terms are multiplied by.
  template <int kCount>
  HEDDLE_DEVICE void raise(const float (&s)[kCount], float scale, float (&correction)[2]) {
    float top[2] = {s[0], s[2]}, other[2] = {s[1], s[3]};
    largest_in(s, top, other);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float most = Lanes::max(ptx::max(top[h], other[h]));
      const float seen = kNatural ? most : kLift > 0 ? scale * most - kLift : scale * most;
      const float old = reference[h];
      reference[h] = seen > old + kSlack ? seen : old;
      correction[h] = of_earlier(old - offset(h), scale);
      this->scale(h, correction[h]);
    }
  }
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
