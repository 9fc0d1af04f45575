// Which tensors a node reads and makes, and which tensors a caller binds.
#pragma once

#include <string_view>
#include <vector>

#include "graph/graph.h"

namespace heddle::graph {

struct Port {
  std::string_view name;  ///< the field's name in the text form
  TensorId tensor = kNone;
  bool output = false;
  bool inner = false;  ///< inside a score expression, whose own values are made and read there
};

/// The node's ports that hold a tensor, in the order of its fields.
std::vector<Port> ports(const Node& node);

/// The tensors a caller must bind at execution, in ascending uid: those that a node reads and none
/// makes (their ragged offsets included), less constants. Uids must be assigned (validate).
std::vector<TensorId> bound_inputs(const Graph& graph);
/// The tensors that nodes make and that are not virtual, in ascending uid.
std::vector<TensorId> bound_outputs(const Graph& graph);

}  // namespace heddle::graph
