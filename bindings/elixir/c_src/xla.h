// Heddle's custom call, made known to an XLA of this process.
#pragma once

#include <optional>
#include <string>

#include "terms.h"

namespace heddle::elixir {

/// Registers "heddle" for CPUs and CUDA with the XLA of a library that is loaded, as EXLA's is;
/// says what is wrong, if anything is.
std::optional<Error> register_xla(const std::string& library);

}  // namespace heddle::elixir
