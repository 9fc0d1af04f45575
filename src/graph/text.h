// The text form of a graph: JSON, described in docs/graph-text-form.md. It is what a fused custom
// call carries, what a bug report attaches and what a regression test replays.
#pragma once

#include <string>
#include <string_view>

#include "core/status.h"
#include "graph/graph.h"

namespace heddle::graph {

/// How the text is laid out; the reader takes either.
enum class TextLayout : uint8_t {
  line,      ///< one line, no spaces: for attributes of other formats, and for keys
  indented,  ///< a tensor and a node a line: for people
};

/// Writes every field of the graph that differs from its default, in a fixed order. Tensors are
/// referred to by uid; those without one are given the uids that validate() would give them, so
/// that read_text(write_text(g)) equals g once its uids are assigned.
std::string write_text(const Graph& graph, TextLayout layout = TextLayout::line);

inline constexpr size_t kMaxTextBytes = size_t{16} << 20;

/// Reads the form and checks nothing but the form. Errors (malformed_input) name line, column, what
/// was found and what was expected; texts beyond kMaxTextBytes or nested deeper than 16 levels are
/// refused.
Result<Graph> read_text(std::string_view text);

}  // namespace heddle::graph
