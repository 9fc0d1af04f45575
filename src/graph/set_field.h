// Sets a port or attribute of a node by its name in the text form, for builders that know ops by
// name.
#pragma once

#include <string_view>
#include <variant>

#include "core/status.h"
#include "graph/graph.h"

namespace heddle::graph {

/// A tensor of the graph, as a value of a field (a plain number would be an attribute).
struct TensorValue {
  TensorId id = kNone;
};
using FieldValue = std::variant<TensorValue, double, int64_t, bool, std::string_view, Dims>;

/// A node with default attributes, by its op's name in the text form.
Result<Node> make_node(std::string_view op, std::string_view name);
/// Sets the field `path` of `node`, a dot leading into a group ("dropout.seed"). Integers also set
/// numbers.
Status set_field(Node& node, std::string_view path, const FieldValue& value);
/// Appends an op to the expression `path`, "score_mod" or "score_mod_bprop", of an attention node.
Status add_pointwise(Node& node, std::string_view path, Pointwise op);

}  // namespace heddle::graph
