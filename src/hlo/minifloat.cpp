#include "hlo/minifloat.h"

#include <array>
#include <cmath>
#include <limits>

namespace heddle::hlo {
namespace {

// What the codes outside the finite numbers mean.
enum class Special : uint8_t {
  ieee,  // the top exponent holds infinity and NaNs
  fn,    // finite; all ones is NaN
  fnuz,  // finite; the code of -0 is NaN, zero has one sign
  none,  // finite, no NaN
};

struct Format {
  int exponent_bits;
  int mantissa_bits;
  int bias;
  Special special;
};

constexpr Format format_of(ElementType type) {
  switch (type) {
    case ElementType::f4e2m1fn:
      return {2, 1, 1, Special::none};
    case ElementType::f8e3m4:
      return {3, 4, 3, Special::ieee};
    case ElementType::f8e4m3:
      return {4, 3, 7, Special::ieee};
    case ElementType::f8e4m3fn:
      return {4, 3, 7, Special::fn};
    case ElementType::f8e4m3b11fnuz:
      return {4, 3, 11, Special::fnuz};
    case ElementType::f8e4m3fnuz:
      return {4, 3, 8, Special::fnuz};
    case ElementType::f8e5m2:
      return {5, 2, 15, Special::ieee};
    default:
      return {5, 2, 16, Special::fnuz};
  }
}

// f8e8m0fnu has no sign and no mantissa: the code is the exponent, 255 is NaN.
double e8m0_to_double(uint8_t bits) {
  return bits == 255 ? std::numeric_limits<double>::quiet_NaN() : std::ldexp(1.0, bits - 127);
}

uint8_t double_to_e8m0(double value) {
  if (!(value > 0) || std::isinf(value)) return value == 0 ? 0 : 255;
  int exponent = 0;
  const double fraction = std::frexp(value, &exponent);  // in [1/2, 1)
  // Halfway between 2^(e-1) and 2^e lies 3/4 * 2^e; the tie goes to the even code.
  int code = exponent - 1 + 127;
  if (fraction > 0.75 || (fraction == 0.75 && code % 2 != 0)) ++code;
  if (code < 0) return 0;
  return code > 254 ? 255 : static_cast<uint8_t>(code);
}

double magnitude(const Format& format, int code) {
  const int mantissa = code & ((1 << format.mantissa_bits) - 1);
  const int exponent = code >> format.mantissa_bits;
  if (exponent == 0) return std::ldexp(mantissa, 1 - format.bias - format.mantissa_bits);
  return std::ldexp(mantissa + (1 << format.mantissa_bits),
                    exponent - format.bias - format.mantissa_bits);
}

int largest_finite_code(const Format& format) {
  const int codes = 1 << (format.exponent_bits + format.mantissa_bits);
  switch (format.special) {
    case Special::ieee:
      return codes - (1 << format.mantissa_bits) - 1;
    case Special::fn:
      return codes - 2;
    default:
      return codes - 1;
  }
}

}  // namespace

bool is_minifloat(ElementType type) {
  return type >= ElementType::f4e2m1fn && type <= ElementType::f8e8m0fnu;
}

double minifloat_to_double(ElementType type, uint8_t bits) {
  if (type == ElementType::f8e8m0fnu) return e8m0_to_double(bits);
  const Format format = format_of(type);
  const int sign_bit = 1 << (format.exponent_bits + format.mantissa_bits);
  const bool negative = bits & sign_bit;
  const int code = bits & (sign_bit - 1);
  const double nan = std::copysign(std::numeric_limits<double>::quiet_NaN(), negative ? -1.0 : 1.0);
  if (format.special == Special::fnuz && negative && code == 0) return nan;
  if (code > largest_finite_code(format)) {
    const bool infinite =
        format.special == Special::ieee && (code & ((1 << format.mantissa_bits) - 1)) == 0;
    if (!infinite) return nan;
    return negative ? -std::numeric_limits<double>::infinity()
                    : std::numeric_limits<double>::infinity();
  }
  return negative ? -magnitude(format, code) : magnitude(format, code);
}

uint8_t double_to_minifloat(ElementType type, double value) {
  if (type == ElementType::f8e8m0fnu) return double_to_e8m0(value);
  const Format format = format_of(type);
  const int sign_bit = 1 << (format.exponent_bits + format.mantissa_bits);
  const int sign = std::signbit(value) ? sign_bit : 0;
  const int largest = largest_finite_code(format);
  int overflow = largest;
  int nan = 0;
  switch (format.special) {
    case Special::ieee:
      overflow = sign | (largest + 1);
      nan = sign | (largest + 1) | 1 << (format.mantissa_bits - 1);
      break;
    case Special::fn:
      overflow = nan = sign | (sign_bit - 1);
      break;
    case Special::fnuz:
      overflow = nan = sign_bit;
      break;
    case Special::none:
      overflow = sign | largest;
      nan = sign_bit;  // a type without NaN takes -0 for it
      break;
  }
  if (std::isnan(value)) return static_cast<uint8_t>(nan);
  const double x = std::fabs(value);
  // Codes grow with their magnitudes: find the largest one not above x, then round.
  int low = 0;
  int high = largest;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (magnitude(format, middle) <= x) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  // magnitude(largest + 1) is where the next number would be, so the halfway point exists there
  // too.
  const double halfway = (magnitude(format, low) + magnitude(format, low + 1)) / 2;
  if (x > halfway || (x == halfway && low % 2 != 0)) ++low;
  if (low > largest) return static_cast<uint8_t>(overflow);
  if (low == 0 && format.special == Special::fnuz) return 0;
  return static_cast<uint8_t>(sign | low);
}

}  // namespace heddle::hlo
