// Typed access to elements: the C++ type an HLO type is stored in and the one it is computed in.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "core/dtype.h"
#include "hlo/element_type.h"

namespace heddle::hlo {

/// Of integers too, which never are.
template <class T>
bool is_nan(T x) {
  if constexpr (std::is_floating_point_v<T>) return std::isnan(x);
  return false;
}

/// Types computed in as they are stored.
template <class T>
struct Plain {
  using Stored = T;
  using Computed = T;
  static T load(T x) { return x; }
  static T store(T x) { return x; }
};

struct Pred {
  using Stored = uint8_t;
  using Computed = uint8_t;
  static uint8_t load(uint8_t x) { return x != 0; }
  static uint8_t store(uint8_t x) { return x != 0; }
};

/// bf16 and f16 compute in f32 and round once.
struct Bfloat16 {
  using Stored = uint16_t;
  using Computed = float;
  static float load(uint16_t x) { return std::bit_cast<float>(uint32_t{x} << 16); }
  static uint16_t store(float x) { return to_bfloat16(x).bits; }
};

/// The values of all f16 by their bits.
const float* float16_values();

struct Float16 {
  using Stored = uint16_t;
  using Computed = float;
  static float load(uint16_t x) { return float16_values()[x]; }
  static uint16_t store(float x) { return to_float16(x).bits; }
};

/// Calls `f.template operator()<Codec>()` for a floating type the interpreter computes in; gives
/// false for others.
template <class F>
bool with_float(ElementType type, F&& f) {
  switch (type) {
    case ElementType::f32:
      f.template operator()<Plain<float>>();
      return true;
    case ElementType::f64:
      f.template operator()<Plain<double>>();
      return true;
    case ElementType::bf16:
      f.template operator()<Bfloat16>();
      return true;
    case ElementType::f16:
      f.template operator()<Float16>();
      return true;
    default:
      return false;
  }
}

/// The same for the integers of a byte and more.
template <class F>
bool with_integer(ElementType type, F&& f) {
  switch (type) {
    case ElementType::s8:
      f.template operator()<Plain<int8_t>>();
      return true;
    case ElementType::s16:
      f.template operator()<Plain<int16_t>>();
      return true;
    case ElementType::s32:
      f.template operator()<Plain<int32_t>>();
      return true;
    case ElementType::s64:
      f.template operator()<Plain<int64_t>>();
      return true;
    case ElementType::u8:
      f.template operator()<Plain<uint8_t>>();
      return true;
    case ElementType::u16:
      f.template operator()<Plain<uint16_t>>();
      return true;
    case ElementType::u32:
      f.template operator()<Plain<uint32_t>>();
      return true;
    case ElementType::u64:
      f.template operator()<Plain<uint64_t>>();
      return true;
    default:
      return false;
  }
}

/// All of them, and pred.
template <class F>
bool with_type(ElementType type, F&& f) {
  if (type == ElementType::pred) {
    f.template operator()<Pred>();
    return true;
  }
  return with_float(type, f) || with_integer(type, f);
}

}  // namespace heddle::hlo
