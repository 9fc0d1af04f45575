#include "core/dtype.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace heddle {
namespace {

struct Description {
  std::string_view name;
  int64_t size;
  bool floating;
};

constexpr std::array<Description, 13> kDescriptions{{{"f64", 8, true},
                                                     {"f32", 4, true},
                                                     {"bf16", 2, true},
                                                     {"f16", 2, true},
                                                     {"f8e4m3", 1, true},
                                                     {"f8e5m2", 1, true},
                                                     {"i64", 8, false},
                                                     {"i32", 4, false},
                                                     {"i8", 1, false},
                                                     {"u64", 8, false},
                                                     {"u32", 4, false},
                                                     {"u8", 1, false},
                                                     {"boolean", 1, false}}};

const Description& describe(DataType type) { return kDescriptions[static_cast<size_t>(type)]; }

// A small float format: sign, exponent bits, mantissa bits. Finite-only formats (e4m3) use the top
// exponent for numbers too and keep only the all-ones pattern for NaN.
struct Format {
  int exponent_bits;
  int mantissa_bits;
  bool has_infinity;

  constexpr int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  constexpr uint32_t exponent_mask() const { return (1u << exponent_bits) - 1; }
  constexpr uint32_t nan() const {
    return has_infinity ? (exponent_mask() << mantissa_bits) | (1u << (mantissa_bits - 1))
                        : (1u << (exponent_bits + mantissa_bits)) - 1;
  }
  constexpr uint32_t infinity() const {
    return has_infinity ? exponent_mask() << mantissa_bits : nan();
  }
  constexpr uint32_t largest() const { return infinity() - 1; }
};

constexpr Format kBfloat16{8, 7, true};
constexpr Format kFloat16{5, 10, true};
constexpr Format kF8e4m3{4, 3, false};
constexpr Format kF8e5m2{5, 2, true};

// The definition converts billions of numbers in a test: both ways are integer operations, without
// ldexp, ilogb and nearbyint.
constexpr int kDoubleBias = 1023, kDoubleMantissa = 52;

double power_of_two(int exponent) {
  return std::bit_cast<double>(static_cast<uint64_t>(exponent + kDoubleBias) << kDoubleMantissa);
}

double decode(const Format& format, uint32_t bits) {
  const uint32_t sign = bits >> (format.exponent_bits + format.mantissa_bits);
  const int exponent = static_cast<int>((bits >> format.mantissa_bits) & format.exponent_mask());
  const uint32_t mantissa = bits & ((1u << format.mantissa_bits) - 1);
  const uint32_t magnitude_bits =
      bits & ((1u << (format.exponent_bits + format.mantissa_bits)) - 1);
  double magnitude;
  if (format.has_infinity && exponent == static_cast<int>(format.exponent_mask())) {
    magnitude = mantissa ? std::numeric_limits<double>::quiet_NaN()
                         : std::numeric_limits<double>::infinity();
  } else if (!format.has_infinity && magnitude_bits == format.nan()) {
    magnitude = std::numeric_limits<double>::quiet_NaN();
  } else if (exponent == 0) {
    magnitude = mantissa * power_of_two(1 - format.bias() - format.mantissa_bits);
  } else {
    magnitude = std::bit_cast<double>(
        static_cast<uint64_t>(exponent - format.bias() + kDoubleBias) << kDoubleMantissa |
        static_cast<uint64_t>(mantissa) << (kDoubleMantissa - format.mantissa_bits));
  }
  return sign ? -magnitude : magnitude;
}

uint32_t encode(const Format& format, double x) {
  const uint32_t sign = std::signbit(x) ? 1u << (format.exponent_bits + format.mantissa_bits) : 0;
  if (std::isnan(x)) return sign | format.nan();
  if (std::isinf(x)) return sign | format.infinity();
  const uint64_t number = std::bit_cast<uint64_t>(std::fabs(x));
  const int double_exponent = static_cast<int>(number >> kDoubleMantissa) - kDoubleBias;
  if (double_exponent == -kDoubleBias) return sign;  // 0, or far below half the smallest number
  // The unit in the last place at this magnitude (the subnormal one below the normal range) is bit
  // `unit` of the double's significand. It rounds to nearest even, and a carry into the next binade
  // is the right bits.
  const int exponent = std::max(double_exponent, 1 - format.bias());
  const int unit = kDoubleMantissa - format.mantissa_bits + exponent - double_exponent;
  if (unit > kDoubleMantissa + 1) return sign;  // below half a unit
  const uint64_t implicit = uint64_t{1} << kDoubleMantissa;
  const uint64_t significand = implicit | (number & (implicit - 1));
  const uint64_t half_or_less = (uint64_t{1} << (unit - 1)) - 1 + (significand >> unit & 1);
  const auto units = static_cast<int64_t>((significand + half_or_less) >> unit);
  const int64_t hidden = int64_t{1} << format.mantissa_bits;
  const int64_t bits =
      (static_cast<int64_t>(exponent + format.bias()) << format.mantissa_bits) + units - hidden;
  return sign | (bits > static_cast<int64_t>(format.largest()) ? format.infinity()
                                                               : static_cast<uint32_t>(bits));
}

template <class T>
T read(const void* data, int64_t index) {
  T value;
  std::memcpy(&value, static_cast<const char*>(data) + index * static_cast<int64_t>(sizeof(T)),
              sizeof(T));
  return value;
}

template <class T>
void write(void* data, int64_t index, T value) {
  std::memcpy(static_cast<char*>(data) + index * static_cast<int64_t>(sizeof(T)), &value,
              sizeof(T));
}

/// The integer nearest to `value` towards zero; a cast from beyond the type's range is undefined.
template <class T>
T saturate(double value) {
  using Limits = std::numeric_limits<T>;
  if (std::isnan(value)) return 0;
  if (value <= static_cast<double>(Limits::min())) return Limits::min();
  if (value >= static_cast<double>(Limits::max())) return Limits::max();
  return static_cast<T>(value);
}

}  // namespace

int64_t size_of(DataType type) { return describe(type).size; }
std::string_view name(DataType type) { return describe(type).name; }
bool is_floating(DataType type) { return describe(type).floating; }

std::optional<DataType> data_type_from_name(std::string_view name) {
  for (size_t i = 0; i < kDescriptions.size(); ++i) {
    if (kDescriptions[i].name == name) return static_cast<DataType>(i);
  }
  return std::nullopt;
}

float to_float(bfloat16 x) { return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16); }

// Halves come a row at a time where a model's nodes add them: both ways are a few operations on
// 32 bits.
float to_float(float16 x) {
  constexpr uint32_t kInfinity = 0x7c00, kBiases = (127 - 15) << 23;
  const uint32_t magnitude = x.bits & 0x7fffu, sign = (x.bits & 0x8000u) << 16;
  const uint32_t moved = magnitude << 13;
  if (magnitude >= kInfinity)  // a NaN becomes a quiet one without what it held
    return std::bit_cast<float>(sign | (magnitude > kInfinity ? 0x7fc00000u : 0x7f800000u));
  if (magnitude < 0x400)
    return std::bit_cast<float>(sign |
                                std::bit_cast<uint32_t>(static_cast<float>(magnitude) * 0x1p-24F));
  return std::bit_cast<float>(sign | (moved + kBiases));
}

bfloat16 to_bfloat16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if (std::isnan(x)) return {static_cast<uint16_t>((bits >> 16) | 0x40)};
  return {static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};
}

float16 to_float16(float x) {
  constexpr uint32_t kBiases = (127 - 15) << 23, kLeastNormal = 0x38800000, kBeyond = 0x477ff000;
  const uint32_t bits = std::bit_cast<uint32_t>(x), magnitude = bits & 0x7fffffffu;
  const uint32_t sign = bits >> 16 & 0x8000u;
  uint32_t half;
  if (magnitude > 0x7f800000) {
    half = kFloat16.nan();
  } else if (magnitude >= kBeyond) {
    half = kFloat16.infinity();
  } else if (magnitude < kLeastNormal) {
    // A half's smallest unit is that of the numbers from 0.5 on: the sum rounds to it.
    half = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) -
           std::bit_cast<uint32_t>(0.5F);
  } else {
    const uint32_t moved = magnitude - kBiases;
    half = (moved + 0xfff + (moved >> 13 & 1)) >> 13;
  }
  return {static_cast<uint16_t>(sign | half)};
}
float f8e4m3_to_float(uint8_t bits) { return static_cast<float>(decode(kF8e4m3, bits)); }
float f8e5m2_to_float(uint8_t bits) { return static_cast<float>(decode(kF8e5m2, bits)); }
uint8_t float_to_f8e4m3(float x) { return static_cast<uint8_t>(encode(kF8e4m3, x)); }
uint8_t float_to_f8e5m2(float x) { return static_cast<uint8_t>(encode(kF8e5m2, x)); }

double load(DataType type, const void* data, int64_t index) {
  switch (type) {
    case DataType::f64:
      return read<double>(data, index);
    case DataType::f32:
      return read<float>(data, index);
    case DataType::bf16:
      return to_float(bfloat16{read<uint16_t>(data, index)});
    case DataType::f16:
      return decode(kFloat16, read<uint16_t>(data, index));
    case DataType::f8e4m3:
      return decode(kF8e4m3, read<uint8_t>(data, index));
    case DataType::f8e5m2:
      return decode(kF8e5m2, read<uint8_t>(data, index));
    case DataType::i64:
      return static_cast<double>(read<int64_t>(data, index));
    case DataType::i32:
      return read<int32_t>(data, index);
    case DataType::i8:
      return read<int8_t>(data, index);
    case DataType::u64:
      return static_cast<double>(read<uint64_t>(data, index));
    case DataType::u32:
      return read<uint32_t>(data, index);
    case DataType::u8:
      return read<uint8_t>(data, index);
    case DataType::boolean:
      return read<uint8_t>(data, index) != 0;
  }
  return 0;
}

void store(DataType type, void* data, int64_t index, double value) {
  switch (type) {
    case DataType::f64:
      return write<double>(data, index, value);
    case DataType::f32:
      return write<float>(data, index, static_cast<float>(value));
    case DataType::bf16:
      return write<uint16_t>(data, index, static_cast<uint16_t>(encode(kBfloat16, value)));
    case DataType::f16:
      return write<uint16_t>(data, index, static_cast<uint16_t>(encode(kFloat16, value)));
    case DataType::f8e4m3:
      return write<uint8_t>(data, index, static_cast<uint8_t>(encode(kF8e4m3, value)));
    case DataType::f8e5m2:
      return write<uint8_t>(data, index, static_cast<uint8_t>(encode(kF8e5m2, value)));
    case DataType::i64:
      return write<int64_t>(data, index, saturate<int64_t>(value));
    case DataType::i32:
      return write<int32_t>(data, index, saturate<int32_t>(value));
    case DataType::i8:
      return write<int8_t>(data, index, saturate<int8_t>(value));
    case DataType::u64:
      return write<uint64_t>(data, index, saturate<uint64_t>(value));
    case DataType::u32:
      return write<uint32_t>(data, index, saturate<uint32_t>(value));
    case DataType::u8:
      return write<uint8_t>(data, index, saturate<uint8_t>(value));
    case DataType::boolean:
      return write<uint8_t>(data, index, value != 0);
  }
}

}  // namespace heddle
