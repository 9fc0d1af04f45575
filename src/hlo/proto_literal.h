// Constants in the protobuf form of HLO.
#pragma once

#include <string>
#include <string_view>

#include "core/status.h"
#include "hlo/literal.h"

namespace heddle::hlo::proto {

/// A LiteralProto. Values of element types that no engine computes with (8-bit floats, 4-bit
/// integers, ...) are elided: what they are stays in the bytes. Never allocates more than a small
/// multiple of the bytes given. Throws protozero's exceptions.
Result<Literal> read_literal(std::string_view bytes);
/// Fails for the types that are not read.
Result<std::string> write_literal(const Literal& literal);

}  // namespace heddle::hlo::proto
