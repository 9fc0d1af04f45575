// What the message of an instruction says beyond its attributes, for telling instructions apart.
#pragma once

#include <string>
#include <string_view>

namespace heddle::hlo {

/// The fields of `wire` (Instruction::wire(); may be empty) as they are, one after the other,
/// without those that attributes, operands, shape and literal say whole, and without those that
/// change no value.
std::string unread_fields(std::string_view wire);

}  // namespace heddle::hlo
