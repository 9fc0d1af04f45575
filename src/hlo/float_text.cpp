#include "hlo/float_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>

#include "hlo/literal.h"

namespace heddle::hlo {
namespace {

// How the bits of an IEEE-like type divide. Types whose NaN has one code have no payload to spell.
struct BitLayout {
  int mantissa_bits = 0;
  int bytes = 0;
};

BitLayout ieee_layout(ElementType type) {
  switch (type) {
    case ElementType::f64:
      return {52, 8};
    case ElementType::f32:
      return {23, 4};
    case ElementType::f16:
      return {10, 2};
    case ElementType::bf16:
      return {7, 2};
    case ElementType::f8e5m2:
      return {2, 1};
    case ElementType::f8e4m3:
      return {3, 1};
    case ElementType::f8e3m4:
      return {4, 1};
    default:
      return {};
  }
}

// Significant decimal digits that tell any two numbers of the type apart.
int enough_digits(ElementType type) {
  switch (type) {
    case ElementType::f64:
      return 17;
    case ElementType::f32:
      return 9;
    case ElementType::f16:
      return 5;
    case ElementType::bf16:
      return 4;
    case ElementType::f4e2m1fn:
    case ElementType::f8e5m2:
    case ElementType::f8e5m2fnuz:
    case ElementType::f8e8m0fnu:
      return 2;
    default:
      return 3;
  }
}

uint64_t read_bits(const std::byte* data, int64_t index, int64_t bytes) {
  uint64_t bits = 0;
  std::memcpy(&bits, data + index * bytes, bytes);
  return bits;
}

// After "nan": "(0x...)" gives the mantissa's bits. `length` is advanced over it.
FloatText read_payload(ElementType type, std::string_view text, std::byte* data, int64_t index,
                       size_t& length, bool negative) {
  if (text.substr(length, 3) != "(0x") return FloatText::ok;
  uint64_t payload = 0;
  const char* const digits = text.data() + length + 3;
  const auto [end, failure] = std::from_chars(digits, text.data() + text.size(), payload, 16);
  const size_t close = static_cast<size_t>(end - text.data());
  if (failure == std::errc::result_out_of_range) return FloatText::out_of_range;
  if (failure != std::errc() || text.substr(close, 1) != ")") return FloatText::malformed;
  length = close + 1;
  const BitLayout layout = ieee_layout(type);
  if (layout.bytes == 0) return FloatText::ok;
  const uint64_t mantissa = (uint64_t{1} << layout.mantissa_bits) - 1;
  if (payload == 0 || payload > mantissa) return FloatText::out_of_range;
  const uint64_t exponent = ((uint64_t{1} << (layout.bytes * 8 - 1)) - 1) & ~mantissa;
  const uint64_t sign = negative ? uint64_t{1} << (layout.bytes * 8 - 1) : 0;
  const uint64_t bits = sign | exponent | payload;
  std::memcpy(data + index * layout.bytes, &bits, layout.bytes);
  return FloatText::ok;
}

/// Of a number beyond f64's range, whether it is too small rather than too large: from_chars
/// reports both alike. Digits may outweigh the exponent, as in 0.00[...]1e+10.
bool is_tiny(std::string_view number) {
  const size_t mark = number.find_first_of("eE");
  const std::string_view digits = number.substr(0, mark);
  const auto point = static_cast<int64_t>(std::min(digits.find('.'), digits.size()));
  const auto first = static_cast<int64_t>(digits.find_first_of("123456789"));
  int64_t exponent = 0;
  if (mark != std::string_view::npos) {
    std::string_view power = number.substr(mark + 1);
    if (power.starts_with('+')) power.remove_prefix(1);
    const auto [end, failure] =
        std::from_chars(power.data(), power.data() + power.size(), exponent);
    if (failure == std::errc::result_out_of_range) return power.starts_with('-');
  }
  return exponent < first - point;
}

}  // namespace

FloatText read_float_text(ElementType type, std::string_view text, std::byte* data, int64_t index,
                          size_t& length) {
  const bool negative = text.starts_with('-');
  length = negative ? 1 : 0;
  const double sign = negative ? -1.0 : 1.0;
  if (text.substr(length, 3) == "inf") {
    length += 3;
    store(type, data, index, sign * std::numeric_limits<double>::infinity());
    return FloatText::ok;
  }
  if (text.substr(length, 3) == "nan") {
    length += 3;
    store(type, data, index, std::copysign(std::numeric_limits<double>::quiet_NaN(), sign));
    return read_payload(type, text, data, index, length, negative);
  }
  const char first = length < text.size() ? text[length] : '\0';
  if (!(first >= '0' && first <= '9') && first != '.') return FloatText::malformed;
  const char* const begin = text.data();
  if (type == ElementType::f32) {
    float value = 0;  // read as f32 at once: rounding twice could miss the nearest
    const auto [end, failure] = std::from_chars(begin, begin + text.size(), value);
    if (failure == std::errc()) {
      length = static_cast<size_t>(end - begin);
      store(type, data, index, value);
      return FloatText::ok;
    }
  }
  double value = 0;
  const auto [end, failure] = std::from_chars(begin, begin + text.size(), value);
  if (failure == std::errc::invalid_argument) return FloatText::malformed;
  length = static_cast<size_t>(end - begin);
  if (failure == std::errc::result_out_of_range) {
    if (!is_tiny(text.substr(0, length))) return FloatText::out_of_range;
    value = sign * 0.0;
  }
  store(type, data, index, value);
  return std::isfinite(load(type, data, index)) ? FloatText::ok : FloatText::out_of_range;
}

std::string write_float_text(ElementType type, const std::byte* data, int64_t index) {
  const double value = load(type, data, index);
  const int64_t bytes = size_of(type);
  if (std::isnan(value)) {
    const BitLayout layout = ieee_layout(type);
    const uint64_t bits = read_bits(data, index, bytes);
    const bool negative = layout.bytes > 0 && (bits >> (layout.bytes * 8 - 1)) != 0;
    std::string out = negative ? "-nan" : "nan";
    if (layout.bytes > 0) {
      const uint64_t payload = bits & ((uint64_t{1} << layout.mantissa_bits) - 1);
      if (payload != uint64_t{1} << (layout.mantissa_bits - 1)) {
        out += fmt::format("(0x{:x})", payload);
      }
    } else if (std::signbit(value) && type != ElementType::f8e4m3b11fnuz &&
               type != ElementType::f8e4m3fnuz && type != ElementType::f8e5m2fnuz) {
      out = "-nan";
    }
    return out;
  }
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  // XLA's parser takes "-0" for the integer zero and loses the sign.
  if (value == 0 && std::signbit(value)) return "-0.0";
  // Like XLA: the digits that are always enough, or fewer by a fixed step if they will do.
  const int digits = enough_digits(type);
  const int fewer = type == ElementType::f64 ? 15 : type == ElementType::f32 ? 6 : digits;
  const std::string shorter = fmt::format("{:.{}g}", value, fewer);
  std::byte again[8];
  size_t length = 0;
  const bool exact = read_float_text(type, shorter, again, 0, length) == FloatText::ok &&
                     std::memcmp(again, data + index * bytes, bytes) == 0;
  return exact ? shorter : fmt::format("{:.{}g}", value, digits);
}

}  // namespace heddle::hlo
