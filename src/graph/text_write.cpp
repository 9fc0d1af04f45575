#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "graph/fields.h"
#include "graph/names.h"
#include "graph/text.h"
#include "graph/uids.h"

namespace heddle::graph {
namespace {

using Json = nlohmann::ordered_json;

/// JSON has no infinities and no NaN: they are written as words.
Json number(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return value;
}

/// Writes the fields of a value that differ from those of a default one.
class FieldWriter {
 public:
  FieldWriter(const Graph& graph, Json& out) : graph_(graph), out_(out) {}

  void input(const char* name, TensorId id) {
    if (id != kNone) out_[name] = uid(id);
  }
  void output(const char* name, TensorId id) { input(name, id); }
  void inputs(const char* name, const std::vector<TensorId>& ids) {
    Json list = Json::array();
    for (TensorId id : ids) list.push_back(uid(id));
    if (!ids.empty()) out_[name] = std::move(list);
  }
  void flag(const char* name, bool value) {
    if (value) out_[name] = true;
  }
  void number(const char* name, const std::optional<double>& value) {
    if (value) out_[name] = graph::number(*value);
  }
  void number(const char* name, double value) { out_[name] = graph::number(value); }
  void integer(const char* name, const std::optional<int64_t>& value) {
    if (value) out_[name] = *value;
  }
  void integer(const char* name, int64_t value) {
    if (value != 0) out_[name] = value;
  }
  template <class Enum>
  void choice(const char* key, Enum value) {
    out_[key] = name(value);
  }
  void dims(const char* name, const Dims& value) {
    if (!value.empty()) out_[name] = std::vector<int64_t>(value.begin(), value.end());
  }
  void text(const char* name, const std::string& value) {
    if (!value.empty()) out_[name] = value;
  }
  template <class T>
  void object(const char* name, const T& value) {
    Json inner = Json::object();
    FieldWriter writer(graph_, inner);
    fields(writer, value);
    if (!inner.empty()) out_[name] = std::move(inner);
  }
  template <class T>
  void object(const char* name, const std::optional<T>& value) {
    if (!value) return;
    out_[name] = Json::object();
    FieldWriter writer(graph_, out_[name]);
    fields(writer, *value);
  }
  template <class T>
  void list(const char* name, const std::vector<T>& values) {
    Json list = Json::array();
    for (const T& value : values) {
      Json inner = Json::object();
      FieldWriter writer(graph_, inner);
      fields(writer, value);
      list.push_back(std::move(inner));
    }
    if (!values.empty()) out_[name] = std::move(list);
  }

 private:
  /// A reference to no tensor of the graph is written as null, which no reader takes.
  Json uid(TensorId id) const {
    if (id < 0 || static_cast<size_t>(id) >= graph_.tensors.size()) return nullptr;
    return graph_[id].uid;
  }

  const Graph& graph_;
  Json& out_;
};

/// JSON's writer checks it, and can be told what to do with other bytes: of UTF-8 it is all one.
bool is_utf8(const std::string& text) {
  const Json json = text;
  const auto dumped = [&](Json::error_handler_t of_others) {
    return json.dump(-1, ' ', false, of_others);
  };
  return dumped(Json::error_handler_t::replace) == dumped(Json::error_handler_t::ignore);
}

Json write_tensor(const Graph& graph, const Tensor& tensor) {
  Json out = {{"uid", tensor.uid}};
  FieldWriter writer(graph, out);
  // With other bytes in place of those that are no UTF-8, names of two tensors could be one.
  if (is_utf8(tensor.name)) writer.text("name", tensor.name);
  if (tensor.dtype) out["dtype"] = heddle::name(*tensor.dtype);
  writer.dims("dims", tensor.dims);
  writer.dims("strides", tensor.strides);
  writer.flag("virtual", tensor.is_virtual);
  writer.flag("pass_by_value", tensor.pass_by_value);
  writer.number("constant", tensor.constant);
  writer.input("ragged_offset", tensor.ragged_offset);
  if (tensor.ragged_offset_multiplier != 1)
    out["ragged_offset_multiplier"] = tensor.ragged_offset_multiplier;
  return out;
}

Json write_node(const Graph& graph, const Node& node) {
  Json out = {{"op", op_name(node)}};
  FieldWriter writer(graph, out);
  writer.text("name", node.name);
  std::visit([&](const auto& op) { fields(writer, op); }, node.op);
  return out;
}

std::string dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string dump_lines(const std::vector<Json>& items) {
  std::string out;
  for (const Json& item : items) out += (out.empty() ? "\n    " : ",\n    ") + dump(item);
  return "[" + out + (items.empty() ? "]" : "\n  ]");
}

}  // namespace

std::string write_text(const Graph& given, TextLayout layout) {
  Graph graph = given;
  assign_uids(graph);

  Json head = {{"heddle_graph", 1}};
  if (!graph.name.empty()) head["name"] = graph.name;
  if (graph.io_dtype) head["io_dtype"] = name(*graph.io_dtype);
  if (graph.intermediate_dtype) head["intermediate_dtype"] = name(*graph.intermediate_dtype);
  if (graph.compute_dtype) head["compute_dtype"] = name(*graph.compute_dtype);
  std::vector<Json> tensors, nodes;
  for (const Tensor& tensor : graph.tensors) tensors.push_back(write_tensor(graph, tensor));
  for (const Node& node : graph.nodes) nodes.push_back(write_node(graph, node));

  if (layout == TextLayout::indented) {
    std::string out = "{\n";
    for (const auto& [key, value] : head.items())
      out += fmt::format("  \"{}\": {},\n", key, dump(value));
    return out + "  \"tensors\": " + dump_lines(tensors) + ",\n  \"nodes\": " + dump_lines(nodes) +
           "\n}\n";
  }
  head["tensors"] = std::move(tensors);
  head["nodes"] = std::move(nodes);
  return dump(head);
}

}  // namespace heddle::graph
