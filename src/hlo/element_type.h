// The element types of HLO and their properties.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace heddle::hlo {

/// HLO's primitive types. `tuple`, `token` and `opaque` have no elements of their own.
enum class ElementType : uint8_t {
  pred,
  s2,
  s4,
  s8,
  s16,
  s32,
  s64,
  u2,
  u4,
  u8,
  u16,
  u32,
  u64,
  f4e2m1fn,
  f8e3m4,
  f8e4m3,
  f8e4m3fn,
  f8e4m3b11fnuz,
  f8e4m3fnuz,
  f8e5m2,
  f8e5m2fnuz,
  f8e8m0fnu,
  f16,
  bf16,
  f32,
  f64,
  c64,
  c128,
  token,
  opaque,
  tuple,
};
inline constexpr int kElementTypeCount = static_cast<int>(ElementType::tuple) + 1;

/// The spelling in HLO text ("bf16", "s32", "pred"); "tuple" for tuples.
std::string_view name(ElementType type);
/// From the spelling in HLO text; nothing for an unknown one (and for "tuple", which text spells
/// with parentheses).
std::optional<ElementType> element_type_from_name(std::string_view name);

bool is_floating(ElementType type);
/// Signed and unsigned integers; pred is neither.
bool is_integral(ElementType type);
bool is_signed_integral(ElementType type);
bool is_unsigned_integral(ElementType type);
bool is_complex(ElementType type);
/// Whether arrays of the type exist: everything but token, opaque and tuple.
bool is_array_type(ElementType type);
/// Bytes one element takes in a Literal; types narrower than a byte take one. 0 for non-arrays.
int64_t size_of(ElementType type);
/// Bits one element takes where elements are packed: less than 8 for the types narrower than a
/// byte.
int64_t bits_of(ElementType type);

}  // namespace heddle::hlo
