// What `heddle fuse` and `heddle explain` say of a module or a graph.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "rewrite/rewrite.h"
#include "tools/verify.h"

namespace heddle::tools {

/// The rewriter's report as JSON with the verification's outcome, if there was one; indented, a
/// newline at the end.
std::string to_json(const rewrite::Report& report, const std::optional<Verification>& verification);

/// The report as tables and sentences, each refusal with the way out.
std::string to_people(const rewrite::Report& report);

/// What was compared on which inputs, a line for each, and what is wrong.
std::string to_people(const Verification& verification);

/// A line for each fusion.
std::string fusions_table(const std::vector<rewrite::Fusion>& fusions);

/// A graph with one attention op, in the words of the report; nothing if it has none.
std::optional<rewrite::Fusion> describe(const graph::Graph& graph);

}  // namespace heddle::tools
