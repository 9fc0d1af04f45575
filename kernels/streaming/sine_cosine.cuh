// Sine and cosine of an f32 angle of any size, to f32 or f64 accuracy, without local memory.
#pragma once

#include "../ptx/types.cuh"

namespace heddle::streaming {

/// Bits of 2/pi, the first of them worth 2^31: a word of zeros, then the fraction.
__constant__ const u32 kTwoOverPi[9] = {0,          0xa2f9836e, 0x4e441529, 0xfc2757d1, 0xf534ddc0,
                                        0xdb629599, 0x3c439041, 0xfe5163ab, 0xdebbc561};

/// x = quarters * pi/2 + rest, |rest| <= pi/4, for |x| >= 2^16: x * 2/pi modulo 4 in integers, of
/// which only the 128 bits of 2/pi count that do not make multiples of 4.
HEDDLE_DEVICE int reduce_large(float x, double& rest) {
  const u32 bits = __float_as_uint(x), mantissa = (bits & 0x7fffff) | 0x800000;
  const int first = static_cast<int>(bits >> 23 & 0xff) - 150 + 30;  // bit of the table
  const u32* word = kTwoOverPi + first / 32;
  const int shift = first % 32;
  u32 window[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) window[i] = __funnelshift_l(word[i + 1], word[i], shift);
  const u64 a = static_cast<u64>(mantissa) * window[3];
  const u64 b = static_cast<u64>(mantissa) * window[2] + (a >> 32);
  const u64 c = static_cast<u64>(mantissa) * window[1] + (b >> 32);
  const u32 d = mantissa * window[0] + static_cast<u32>(c >> 32);
  const u64 high = static_cast<u64>(d) << 32 | static_cast<u32>(c);
  const u64 low = b << 32 | static_cast<u32>(a);
  // Quarters in the two highest bits; what follows, read as signed, is the nearest rest.
  const i64 signed_rest = static_cast<i64>(high << 2 | low >> 62);
  int quarters = static_cast<int>(d >> 30) + (signed_rest < 0);
  constexpr double kWord = 1.0 / 18446744073709551616.0, kHalfPi = 1.5707963267948966;
  rest = (static_cast<double>(signed_rest) + static_cast<double>(low << 2) * kWord) *
         (kWord * kHalfPi);
  rest += static_cast<double>(x - x);  // NaN for infinities and NaN
  if (x < 0) {
    rest = -rest;
    quarters = -quarters;
  }
  return quarters;
}

/// The same for any x: pi/2 in parts, whose products with up to 16 bits are exact in a fused
/// multiply-add.
HEDDLE_DEVICE int reduce(float x, float& rest) {
  if (fabsf(x) < 65536.0f) {
    const float quarters = rintf(x * 0.636619772f);
    rest = fmaf(quarters, -1.5707962513e+0f, x);
    rest = fmaf(quarters, -7.5497894159e-8f, rest);
    rest = fmaf(quarters, -5.3903029534e-15f, rest);
    return static_cast<int>(quarters);
  }
  double exact;
  const int quarters = reduce_large(x, exact);
  rest = static_cast<float>(exact);
  return quarters;
}
HEDDLE_DEVICE int reduce(float x, double& rest) {
  if (fabsf(x) < 65536.0f) {
    const double quarters = rint(x * 0.63661977236758134);
    rest = fma(quarters, -1.5707963267948966, static_cast<double>(x));
    rest = fma(quarters, -6.123233995736766e-17, rest);
    return static_cast<int>(quarters);
  }
  return reduce_large(x, rest);
}

/// Sine and cosine of |r| <= pi/4: polynomials fitted by least squares, errors about 2 ulp of 1.
HEDDLE_DEVICE void sine_cosine_of_rest(float r, float& s, float& c) {
  const float z = r * r;
  s = fmaf(fmaf(fmaf(-1.9515295891e-4f, z, 8.3321608736e-3f), z, -1.6666654611e-1f), z * r, r);
  c = fmaf(fmaf(fmaf(2.443315711809948e-5f, z, -1.388731625493765e-3f), z, 4.166664568298827e-2f),
           z * z, fmaf(-0.5f, z, 1.0f));
}
/// Taylor's series as far as f64 sees them.
HEDDLE_DEVICE void sine_cosine_of_rest(double r, double& s, double& c) {
  const double z = r * r;
  s = c = 0;
#pragma unroll
  for (int n = 17; n > 1; n -= 2) s = (1 + s) * (z * (-1.0 / (n * (n - 1))));
  s = fma(s, r, r);
#pragma unroll
  for (int n = 18; n > 0; n -= 2) c = (1 + c) * (z * (-1.0 / (n * (n - 1))));
  c = 1 + c;
}

template <typename Number>
HEDDLE_DEVICE void sine_cosine(float x, Number& sine, Number& cosine) {
  Number rest, s, c;
  const int quarters = reduce(x, rest);
  sine_cosine_of_rest(rest, s, c);
  sine = quarters & 1 ? c : s;
  cosine = quarters & 1 ? s : c;
  if (quarters & 2) sine = -sine;
  if ((quarters + 1) & 2) cosine = -cosine;
}

}  // namespace heddle::streaming
