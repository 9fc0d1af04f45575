#include "tools/graph_file.h"

#include "graph/validate.h"
#include "tools/input_file.h"

namespace heddle::tools {

Result<graph::Graph> graph_of(const std::string& text, const std::string& path) {
  const auto named = [&path](const Status& failure) {
    return error(failure.code(), "{}: {}", path, failure.message());
  };
  Result<graph::Graph> graph = graph::read_text(text);
  if (!graph) return named(graph.status());
  if (const Status invalid = graph::validate(*graph); !invalid.is_ok()) return named(invalid);
  return graph;
}

Result<graph::Graph> read_graph_file(const std::string& path) {
  HEDDLE_ASSIGN(const std::string text, read_text_file(path, kMostGraphBytes));
  return graph_of(text, path);
}

}  // namespace heddle::tools
