// Module to HLO text that XLA's parser and read_text() accept.
#pragma once

#include <string>

#include "core/status.h"
#include "hlo/module.h"

namespace heddle::hlo {

/// The text of the module in its style(). Computations come callees first, instructions in
/// dependency order; constants are printed in full, floats so that they read back to the same bits.
/// Text read in and written without a change comes back as the same characters where its spacing
/// and constants were spelled as XLA prints them.
std::string write_text(const Module& module);
/// io_failed if the file cannot be written.
Status write_file(const Module& module, const std::string& path);

std::string to_string(const Instruction& instruction);
std::string to_string(const Computation& computation);
/// A literal as in constant(...), without its shape: "{ { 1, 2 }, { 3, 4 } }".
std::string to_string(const Literal& literal);

}  // namespace heddle::hlo
