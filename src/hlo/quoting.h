// Quoted strings of HLO text.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace heddle::hlo {

/// With quotes around and backslash escapes inside: " \ and control characters.
std::string quote(std::string_view text);
/// The characters between the quotes of `text`, escapes decoded; nothing if it is not a quoted
/// string.
std::optional<std::string> unquote(std::string_view text);

}  // namespace heddle::hlo
