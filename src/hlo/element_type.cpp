#include "hlo/element_type.h"

#include <array>

namespace heddle::hlo {
namespace {

enum class Kind : uint8_t { pred, signed_integer, unsigned_integer, floating, complex, other };

struct Properties {
  std::string_view name;
  Kind kind;
  int8_t size;
};

constexpr std::array<Properties, kElementTypeCount> kTypes = {{
    {"pred", Kind::pred, 1},
    {"s2", Kind::signed_integer, 1},
    {"s4", Kind::signed_integer, 1},
    {"s8", Kind::signed_integer, 1},
    {"s16", Kind::signed_integer, 2},
    {"s32", Kind::signed_integer, 4},
    {"s64", Kind::signed_integer, 8},
    {"u2", Kind::unsigned_integer, 1},
    {"u4", Kind::unsigned_integer, 1},
    {"u8", Kind::unsigned_integer, 1},
    {"u16", Kind::unsigned_integer, 2},
    {"u32", Kind::unsigned_integer, 4},
    {"u64", Kind::unsigned_integer, 8},
    {"f4e2m1fn", Kind::floating, 1},
    {"f8e3m4", Kind::floating, 1},
    {"f8e4m3", Kind::floating, 1},
    {"f8e4m3fn", Kind::floating, 1},
    {"f8e4m3b11fnuz", Kind::floating, 1},
    {"f8e4m3fnuz", Kind::floating, 1},
    {"f8e5m2", Kind::floating, 1},
    {"f8e5m2fnuz", Kind::floating, 1},
    {"f8e8m0fnu", Kind::floating, 1},
    {"f16", Kind::floating, 2},
    {"bf16", Kind::floating, 2},
    {"f32", Kind::floating, 4},
    {"f64", Kind::floating, 8},
    {"c64", Kind::complex, 8},
    {"c128", Kind::complex, 16},
    {"token", Kind::other, 0},
    {"opaque", Kind::other, 0},
    {"tuple", Kind::other, 0},
}};

const Properties& properties(ElementType type) { return kTypes[static_cast<int>(type)]; }

}  // namespace

std::string_view name(ElementType type) { return properties(type).name; }

std::optional<ElementType> element_type_from_name(std::string_view name) {
  for (int i = 0; i < static_cast<int>(ElementType::tuple); ++i) {
    if (kTypes[i].name == name) return static_cast<ElementType>(i);
  }
  return std::nullopt;
}

bool is_floating(ElementType type) { return properties(type).kind == Kind::floating; }
bool is_signed_integral(ElementType type) { return properties(type).kind == Kind::signed_integer; }
bool is_unsigned_integral(ElementType type) {
  return properties(type).kind == Kind::unsigned_integer;
}
bool is_integral(ElementType type) {
  return is_signed_integral(type) || is_unsigned_integral(type);
}
bool is_complex(ElementType type) { return properties(type).kind == Kind::complex; }
bool is_array_type(ElementType type) { return properties(type).kind != Kind::other; }
int64_t size_of(ElementType type) { return properties(type).size; }
int64_t bits_of(ElementType type) {
  switch (type) {
    case ElementType::s2:
    case ElementType::u2:
      return 2;
    case ElementType::s4:
    case ElementType::u4:
    case ElementType::f4e2m1fn:
      return 4;
    default:
      return 8 * size_of(type);
  }
}

}  // namespace heddle::hlo
