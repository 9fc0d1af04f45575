#include "graph/validate.h"

#include <queue>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "graph/names.h"
#include "graph/ports.h"
#include "graph/rules.h"
#include "graph/uids.h"
#include "graph/validate_tensor.h"

namespace heddle::graph {
namespace {

Status validate_ids(const Graph& graph) {
  const auto in_graph = [&](TensorId id) {
    return id >= 0 && static_cast<size_t>(id) < graph.tensors.size();
  };
  for (const Node& node : graph.nodes) {
    for (const Port& port : ports(node)) {
      if (in_graph(port.tensor)) continue;
      return error(Code::invalid_value,
                   "The port {} of {} '{}' refers to tensor number {} of a graph with {}.",
                   port.name, op_name(node), node.name, port.tensor, graph.tensors.size());
    }
  }
  for (const Tensor& tensor : graph.tensors) {
    if (tensor.ragged_offset == kNone || in_graph(tensor.ragged_offset)) continue;
    return error(Code::invalid_value,
                 "The ragged offset of {} refers to tensor number {} of a graph with {}.",
                 describe(tensor), tensor.ragged_offset, graph.tensors.size());
  }
  return {};
}

Status validate_identities(const Graph& graph) {
  std::unordered_map<int64_t, const Tensor*> by_uid;
  std::unordered_map<std::string_view, const Tensor*> by_name;
  for (const Tensor& tensor : graph.tensors) {
    if (tensor.uid != 0) {
      const auto [found, fresh] = by_uid.emplace(tensor.uid, &tensor);
      if (!fresh) {
        return error(Code::invalid_value, "The uid {} is given to two tensors, '{}' and '{}'.",
                     tensor.uid, found->second->name, tensor.name);
      }
    }
    if (!tensor.name.empty() && !by_name.emplace(tensor.name, &tensor).second) {
      return error(Code::invalid_tensor_name, "The name '{}' is given to two tensors.",
                   tensor.name);
    }
  }
  return {};
}

/// The node that makes each tensor (or -1), from every node's output ports.
Result<std::vector<int>> find_makers(const Graph& graph) {
  std::vector<int> maker(graph.tensors.size(), -1);
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    for (const Port& port : ports(graph.nodes[n])) {
      if (!port.output) continue;
      const Tensor& tensor = graph[port.tensor];
      if (maker[port.tensor] != -1) {
        return error(Code::invalid_value, "The {} is made twice: by {} and as {} of {}.",
                     describe(tensor), op_name(graph.nodes[maker[port.tensor]]), port.name,
                     op_name(graph.nodes[n]));
      }
      if (tensor.constant || tensor.pass_by_value) {
        return error(Code::invalid_value, "The {} is {} and cannot be {} of {}.", describe(tensor),
                     tensor.constant ? "a constant" : "passed by value", port.name,
                     op_name(graph.nodes[n]));
      }
      if (port.inner && !tensor.is_virtual) {
        return error(Code::invalid_value,
                     "The {} is a value inside a score expression, which must be virtual.",
                     describe(tensor));
      }
      maker[port.tensor] = static_cast<int>(n);
    }
  }
  return maker;
}

/// Puts the nodes in dependency order, keeping the given order where it is free.
Status order_nodes(Graph& graph) {
  HEDDLE_ASSIGN(const std::vector<int> maker, find_makers(graph));
  const size_t count = graph.nodes.size();
  std::unordered_set<TensorId> inner;  // what score expressions make, for themselves alone
  for (const Node& node : graph.nodes) {
    for (const Port& port : ports(node)) {
      if (port.output && port.inner) inner.insert(port.tensor);
    }
  }
  std::vector<std::vector<int>> readers(count);
  std::vector<int> waits(count);
  for (size_t n = 0; n < count; ++n) {
    for (const Port& port : ports(graph.nodes[n])) {
      if (port.output) continue;
      const Tensor& tensor = graph[port.tensor];
      const int from = maker[port.tensor];
      if (from == -1 && tensor.is_virtual) {
        return error(Code::invalid_value, "The {}, {} of {}, is virtual and no op makes it.",
                     describe(tensor), port.name, op_name(graph.nodes[n]));
      }
      if (from == static_cast<int>(n) && !port.inner) {
        return error(Code::invalid_value, "The {} is both {} and an output of the same {}.",
                     describe(tensor), port.name, op_name(graph.nodes[n]));
      }
      if (from == -1 || from == static_cast<int>(n)) continue;
      if (inner.contains(port.tensor)) {
        return error(Code::invalid_value,
                     "The {}, {} of {}, is a value inside the score expression of another op.",
                     describe(tensor), port.name, op_name(graph.nodes[n]));
      }
      readers[from].push_back(static_cast<int>(n));
      ++waits[n];
    }
  }

  std::priority_queue<int, std::vector<int>, std::greater<>> ready;
  for (size_t n = 0; n < count; ++n) {
    if (waits[n] == 0) ready.push(static_cast<int>(n));
  }
  std::vector<Node> ordered;
  while (!ready.empty()) {
    const int n = ready.top();
    ready.pop();
    ordered.push_back(std::move(graph.nodes[n]));
    for (int reader : readers[n]) {
      if (--waits[reader] == 0) ready.push(reader);
    }
  }
  if (ordered.size() < count) {
    for (size_t n = 0; n < count; ++n) {
      if (waits[n] == 0) continue;
      return error(Code::invalid_value,
                   "The ops depend on each other in a circle: {} '{}' is on it.",
                   op_name(graph.nodes[n]), graph.nodes[n].name);
    }
  }
  graph.nodes = std::move(ordered);
  return {};
}

Status validate_op(const Rules& rules, Sdpa& op) { return validate_sdpa(rules, op); }
Status validate_op(const Rules& rules, SdpaBackward& op) {
  return validate_sdpa_backward(rules, op);
}
Status validate_op(const Rules& rules, SdpaFp8& op) { return validate_sdpa_fp8(rules, op); }
Status validate_op(const Rules& rules, SdpaFp8Backward& op) {
  return validate_sdpa_fp8_backward(rules, op);
}
Status validate_op(const Rules& rules, Rope& op) { return validate_rope(rules, op); }
Status validate_op(const Rules& rules, RmsNorm& op) { return validate_rms_norm(rules, op); }
Status validate_op(const Rules& rules, RmsNormBackward& op) {
  return validate_rms_norm_backward(rules, op);
}
Status validate_op(const Rules& rules, LayerNorm& op) { return validate_layer_norm(rules, op); }
Status validate_op(const Rules& rules, LayerNormBackward& op) {
  return validate_layer_norm_backward(rules, op);
}
Status validate_op(const Rules& rules, InstanceNorm& op) {
  return validate_instance_norm(rules, op);
}
Status validate_op(const Rules& rules, InstanceNormBackward& op) {
  return validate_instance_norm_backward(rules, op);
}
Status validate_op(const Rules& rules, BatchNorm& op) { return validate_batch_norm(rules, op); }
Status validate_op(const Rules& rules, BatchNormBackward& op) {
  return validate_batch_norm_backward(rules, op);
}
Status validate_op(const Rules& rules, CacheAppend& op) { return validate_cache_append(rules, op); }
Status validate_op(const Rules& rules, PointwiseNode& op) { return validate_pointwise(rules, op); }

Status validate_node(Graph& graph, Node& node) {
  const std::vector<Port> all = ports(node);
  std::unordered_set<TensorId> inner;  // a score expression's own values are checked with it
  for (const Port& port : all) {
    if (port.output && port.inner) inner.insert(port.tensor);
  }
  for (const Port& port : all) {
    if (port.output || inner.contains(port.tensor)) continue;
    HEDDLE_TRY(validate_tensor(graph, port.tensor));
    if (const TensorId offset = graph[port.tensor].ragged_offset; offset != kNone) {
      HEDDLE_TRY(validate_tensor(graph, offset));
    }
  }
  const Rules rules(graph, node);
  HEDDLE_TRY(std::visit([&](auto& op) { return validate_op(rules, op); }, node.op));
  for (const Port& port : all) {
    if (!port.output || port.inner) continue;
    HEDDLE_TRY(validate_tensor(graph, port.tensor));
    HEDDLE_TRY(validate_written(graph[port.tensor]));
  }
  return {};
}

/// Tensors that some op reads or makes, less the values inside score expressions.
std::set<TensorId> used_tensors(const Graph& graph) {
  std::set<TensorId> used, inner;
  for (const Node& node : graph.nodes) {
    for (const Port& port : ports(node)) {
      (port.output && port.inner ? inner : used).insert(port.tensor);
      if (const TensorId offset = graph[port.tensor].ragged_offset; offset != kNone)
        used.insert(offset);
    }
  }
  for (TensorId id : inner) used.erase(id);
  return used;
}

Status validate_in_place(Graph& graph) {
  HEDDLE_TRY(validate_ids(graph));
  HEDDLE_TRY(validate_identities(graph));
  assign_uids(graph);
  if (graph.nodes.empty())
    return error(Code::invalid_value, "The graph '{}' has no ops.", graph.name);
  HEDDLE_TRY(order_nodes(graph));
  for (TensorId id : used_tensors(graph)) HEDDLE_TRY(infer_tensor(graph, graph[id]));
  for (Node& node : graph.nodes) HEDDLE_TRY(validate_node(graph, node));
  return {};
}

}  // namespace

Status validate(Graph& graph) {
  Graph checked = graph;
  HEDDLE_TRY(validate_in_place(checked));
  graph = std::move(checked);
  return {};
}

}  // namespace heddle::graph
