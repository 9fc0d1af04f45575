// The floating types of one byte and less, by their bits.
#pragma once

#include <cstdint>

#include "hlo/element_type.h"

namespace heddle::hlo {

/// Whether `type` is a floating type of at most 8 bits.
bool is_minifloat(ElementType type);
double minifloat_to_double(ElementType type, uint8_t bits);
/// To nearest, ties to even. Past the largest value: infinity where the type has one, else NaN
/// where it has one, else the largest value.
uint8_t double_to_minifloat(ElementType type, double value);

}  // namespace heddle::hlo
