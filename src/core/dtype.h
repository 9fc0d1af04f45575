// The element types Heddle computes on or carries, and their conversions to and from wider types.
// Rounding is to nearest, ties to even; NaN stays NaN; f8e4m3 saturates to NaN (it has no
// infinity).
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace heddle {

enum class DataType : uint8_t {
  f64,
  f32,
  bf16,
  f16,
  f8e4m3,
  f8e5m2,
  i64,
  i32,
  i8,
  u64,
  u32,
  u8,
  boolean
};

/// Bytes of one element.
int64_t size_of(DataType type);
/// "f32", "bf16", ...: the spelling of the text form and of error sentences.
std::string_view name(DataType type);
std::optional<DataType> data_type_from_name(std::string_view name);
bool is_floating(DataType type);

/// A bf16 number by its bits (sign, 8 exponent bits, 7 mantissa bits).
struct bfloat16 {
  uint16_t bits = 0;
};
/// An IEEE half by its bits.
struct float16 {
  uint16_t bits = 0;
};

float to_float(bfloat16 x);
float to_float(float16 x);
bfloat16 to_bfloat16(float x);
float16 to_float16(float x);
float f8e4m3_to_float(uint8_t bits);
float f8e5m2_to_float(uint8_t bits);
uint8_t float_to_f8e4m3(float x);
uint8_t float_to_f8e5m2(float x);

/// Element `index` of an array of `type`, as f64 (integers and booleans convert by value).
double load(DataType type, const void* data, int64_t index);
/// Stores `value` rounded once to `type` (from f64, not via f32). Integers truncate and saturate;
/// NaN is their 0.
void store(DataType type, void* data, int64_t index, double value);

}  // namespace heddle
