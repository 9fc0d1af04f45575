// Graphs in their text form, in files.
#pragma once

#include <cstdint>
#include <string>

#include "core/status.h"
#include "graph/graph.h"
#include "graph/text.h"

namespace heddle::tools {

inline constexpr auto kMostGraphBytes = static_cast<int64_t>(graph::kMaxTextBytes);

/// Reads and validates a graph; what is wrong with it begins with `path`.
Result<graph::Graph> graph_of(const std::string& text, const std::string& path);

/// Of a file; of standard input if `path` is "-".
Result<graph::Graph> read_graph_file(const std::string& path);

}  // namespace heddle::tools
