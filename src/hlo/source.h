// Where in the user's program an instruction was written, as far as its metadata say.
#pragma once

#include <cstdint>
#include <string>

#include "hlo/instruction.h"

namespace heddle::hlo {

/// A field that nothing is said of is empty, or 0.
struct Source {
  std::string operation;  // "jit(step)/encoder/softmax/exp"
  std::string file;
  int64_t line = 0;
};

/// From the instruction's metadata and, for a stack frame's number, the module's tables, in text or
/// in protobuf form. Metadata that cannot be read say nothing.
Source source_of(const Instruction& instruction);

}  // namespace heddle::hlo
