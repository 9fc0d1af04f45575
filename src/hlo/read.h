// HLO text to module.
#pragma once

#include <memory>
#include <string_view>

#include "core/status.h"
#include "hlo/module.h"

namespace heddle::hlo {

/// Reads HLO text. A failure is malformed_input with "file:line:column: what was expected", where
/// `file` is the name given here. The module has passed verify(): nothing in it can make later code
/// index out of bounds, and no value in it was allocated beyond the size of the text.
Result<std::unique_ptr<Module>> read_text(std::string_view text, std::string_view file = "module");
/// Reads the file at `path`; io_failed if it cannot be read.
Result<std::unique_ptr<Module>> read_file(const std::string& path);

/// Reads a shape such as "(f32[2,3]{1,0}, s32[])", the whole of `text`.
Result<Shape> read_shape(std::string_view text);

}  // namespace heddle::hlo
