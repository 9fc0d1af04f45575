#include "graph/ports.h"

#include <algorithm>

#include "graph/fields.h"

namespace heddle::graph {
namespace {

/// Walks a node's fields and keeps the tensors.
class PortCollector {
 public:
  explicit PortCollector(std::vector<Port>& ports, bool inner = false)
      : ports_(ports), inner_(inner) {}

  void input(const char* name, TensorId id) { add(name, id, false); }
  void output(const char* name, TensorId id) { add(name, id, true); }
  void inputs(const char* name, const std::vector<TensorId>& ids) {
    for (TensorId id : ids) add(name, id, false);
  }
  template <class T>
  void object(const char*, const T& value) {
    fields(*this, value);
  }
  void object(const char*, const std::optional<ScoreModifier>& value) {
    PortCollector inner(ports_, true);
    if (value) fields(inner, *value);
  }
  template <class T>
  void list(const char*, const std::vector<T>& values) {
    for (const T& value : values) fields(*this, value);
  }
  template <class T>
  void flag(const char*, const T&) {}
  template <class T>
  void number(const char*, const T&) {}
  template <class T>
  void integer(const char*, const T&) {}
  template <class T>
  void choice(const char*, const T&) {}
  template <class T>
  void dims(const char*, const T&) {}
  template <class T>
  void text(const char*, const T&) {}

 private:
  void add(const char* name, TensorId id, bool output) {
    if (id != kNone) ports_.push_back({name, id, output, inner_});
  }

  std::vector<Port>& ports_;
  bool inner_;
};

enum Use : uint8_t { kRead = 1, kMade = 2 };

std::vector<uint8_t> uses(const Graph& graph) {
  std::vector<uint8_t> uses(graph.tensors.size());
  for (const Node& node : graph.nodes) {
    for (const Port& port : ports(node)) {
      uses[port.tensor] |= port.output ? kMade : kRead;
      if (const TensorId offsets = graph[port.tensor].ragged_offset; offsets != kNone)
        uses[offsets] |= kRead;
    }
  }
  return uses;
}

template <class Predicate>
std::vector<TensorId> tensors_where(const Graph& graph, Predicate&& predicate) {
  const std::vector<uint8_t> use = uses(graph);
  std::vector<TensorId> ids;
  for (TensorId id = 0; id < static_cast<TensorId>(graph.tensors.size()); ++id) {
    if (predicate(graph[id], use[id])) ids.push_back(id);
  }
  std::sort(ids.begin(), ids.end(),
            [&](TensorId a, TensorId b) { return graph[a].uid < graph[b].uid; });
  return ids;
}

}  // namespace

std::vector<Port> ports(const Node& node) {
  std::vector<Port> ports;
  PortCollector collector(ports);
  std::visit([&](const auto& op) { fields(collector, op); }, node.op);
  return ports;
}

std::vector<TensorId> bound_inputs(const Graph& graph) {
  return tensors_where(graph, [](const Tensor& tensor, uint8_t use) {
    return use == kRead && !tensor.is_virtual && !tensor.constant;
  });
}

std::vector<TensorId> bound_outputs(const Graph& graph) {
  return tensors_where(
      graph, [](const Tensor& tensor, uint8_t use) { return (use & kMade) && !tensor.is_virtual; });
}

}  // namespace heddle::graph
