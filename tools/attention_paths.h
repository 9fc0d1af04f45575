// Which path serves an attention where, as tables for a document: what the engines themselves
// answer for nodes of each kind.
#pragma once

#include <string>

#include "core/status.h"

namespace heddle::tools {

/// In Markdown. The same on every machine: of CUDA it asks architectures, no device. As the
/// environment leaves the paths on a CPU; all of them on CUDA.
Result<std::string> attention_path_tables();

}  // namespace heddle::tools
