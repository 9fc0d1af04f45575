// Floating numbers as HLO text spells them: decimal, inf, nan, nan(0xPAYLOAD).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "hlo/element_type.h"

namespace heddle::hlo {

enum class FloatText : uint8_t { ok, malformed, out_of_range };

/// Reads the number that `text` begins with into element `index` of an array of the floating
/// `type`; `length` receives how many characters it takes. A finite number beyond the type's
/// largest one is out of range.
FloatText read_float_text(ElementType type, std::string_view text, std::byte* data, int64_t index,
                          size_t& length);
/// The shortest spelling XLA would print that reads back to the same bits.
std::string write_float_text(ElementType type, const std::byte* data, int64_t index);

}  // namespace heddle::hlo
