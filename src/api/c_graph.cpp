// Graphs through the C interface.
#include <algorithm>

#include "api/c_error.h"
#include "api/c_objects.h"
#include "api/c_values.h"
#include "graph/names.h"
#include "graph/set_field.h"
#include "graph/text.h"
#include "graph/validate.h"

namespace heddle::api {
namespace {

using graph::kNone;
using graph::TensorId;

heddle_dtype c_data_type(std::optional<DataType> type) {
  return type ? static_cast<heddle_dtype>(static_cast<int>(*type) + 1) : HEDDLE_DTYPE_UNSET;
}

Result<graph::Tensor> tensor_from(const graph::Graph& graph, const heddle_tensor& given) {
  if (given.uid == 0)
    return error(Code::invalid_value, "A tensor has uid 0, expected another integer.");
  if (find_tensor(graph, given.uid).is_ok()) {
    return error(Code::invalid_value, "The uid {} is given to two tensors.", given.uid);
  }
  graph::Tensor tensor;
  tensor.uid = given.uid;
  if (given.name) tensor.name = given.name;
  HEDDLE_ASSIGN(tensor.dtype, data_type(given.dtype));
  HEDDLE_ASSIGN(tensor.dims, dims_from(given.dims, given.rank, "Dims"));
  HEDDLE_ASSIGN(tensor.strides, dims_from(given.strides, given.stride_rank, "Strides"));
  tensor.is_virtual = given.is_virtual;
  tensor.pass_by_value = given.pass_by_value;
  if (given.has_constant) tensor.constant = given.constant;
  if (given.ragged_offset != 0) {
    HEDDLE_ASSIGN(tensor.ragged_offset, find_tensor(graph, given.ragged_offset));
  }
  if (given.ragged_offset_multiplier != 0)
    tensor.ragged_offset_multiplier = given.ragged_offset_multiplier;
  return tensor;
}

Status create_graph(const char* name, heddle_dtype io, heddle_dtype intermediate,
                    heddle_dtype compute, heddle_graph** out) {
  if (!out) return null_argument("heddle_graph_create", "graph");
  auto created = std::make_unique<heddle_graph>();
  if (name) created->graph.name = name;
  HEDDLE_ASSIGN(created->graph.io_dtype, data_type(io));
  HEDDLE_ASSIGN(created->graph.intermediate_dtype, data_type(intermediate));
  HEDDLE_ASSIGN(created->graph.compute_dtype, data_type(compute));
  *out = created.release();
  return {};
}

Result<graph::Node*> node_of(heddle_graph* graph, int32_t node, const char* function) {
  if (!graph) return null_argument(function, "graph");
  if (node < 0 || static_cast<size_t>(node) >= graph->graph.nodes.size()) {
    return error(Code::invalid_value, "There is no node number {} in a graph with {}.", node,
                 graph->graph.nodes.size());
  }
  return &graph->graph.nodes[node];
}

heddle_status set(heddle_graph* graph, int32_t node, const char* field,
                  const graph::FieldValue& value, const char* function) {
  return guarded([&]() -> Status {
    HEDDLE_ASSIGN(graph::Node* const target, node_of(graph, node, function));
    if (!field) return null_argument(function, "field");
    return graph::set_field(*target, field, value);
  });
}

Status add_pointwise(heddle_graph* graph, int32_t node, const char* expression, const char* op,
                     const int64_t* inputs, int32_t input_count, int64_t output, int32_t axis) {
  constexpr const char* kFunction = "heddle_node_add_pointwise";
  HEDDLE_ASSIGN(graph::Node* const target, node_of(graph, node, kFunction));
  if (!expression) return null_argument(kFunction, "expression");
  if (!op) return null_argument(kFunction, "op");
  if (!inputs && input_count > 0) return null_argument(kFunction, "input_uids");
  graph::Pointwise pointwise;
  if (!from_name(op, pointwise.mode))
    return error(Code::invalid_value, "There is no pointwise op '{}'.", op);
  for (int32_t i = 0; i < input_count; ++i) {
    HEDDLE_ASSIGN(const TensorId id, find_tensor(graph->graph, inputs[i]));
    pointwise.inputs.push_back(id);
  }
  HEDDLE_ASSIGN(pointwise.output, find_tensor(graph->graph, output));
  pointwise.axis = axis;
  return graph::add_pointwise(*target, expression, std::move(pointwise));
}

}  // namespace

Result<TensorId> find_tensor(const graph::Graph& graph, int64_t uid) {
  for (size_t i = 0; i < graph.tensors.size(); ++i) {
    if (graph.tensors[i].uid == uid) return static_cast<TensorId>(i);
  }
  return error(Code::invalid_value, "The graph has no tensor with uid {}.", uid);
}

Status describe_tensor(const graph::Graph& graph, int64_t uid, heddle_tensor& out) {
  HEDDLE_ASSIGN(const TensorId id, find_tensor(graph, uid));
  const graph::Tensor& tensor = graph[id];
  out = {};
  out.uid = tensor.uid;
  out.name = tensor.name.c_str();
  out.dtype = c_data_type(tensor.dtype);
  out.rank = tensor.dims.rank();
  out.stride_rank = tensor.strides.rank();
  std::copy(tensor.dims.begin(), tensor.dims.end(), out.dims);
  std::copy(tensor.strides.begin(), tensor.strides.end(), out.strides);
  out.is_virtual = tensor.is_virtual;
  out.pass_by_value = tensor.pass_by_value;
  out.has_constant = tensor.constant.has_value();
  out.constant = tensor.constant.value_or(0);
  out.ragged_offset = tensor.ragged_offset == kNone ? 0 : graph[tensor.ragged_offset].uid;
  out.ragged_offset_multiplier = tensor.ragged_offset_multiplier;
  return {};
}

}  // namespace heddle::api

using namespace heddle;
using api::guarded;
using api::null_argument;

extern "C" {

heddle_status heddle_graph_create(const char* name, heddle_dtype io, heddle_dtype intermediate,
                                  heddle_dtype compute, heddle_graph** out) {
  return guarded([&] { return api::create_graph(name, io, intermediate, compute, out); });
}

heddle_status heddle_graph_parse(const char* text, size_t length, heddle_graph** out) {
  return guarded([&]() -> Status {
    if (!text) return null_argument("heddle_graph_parse", "text");
    if (!out) return null_argument("heddle_graph_parse", "graph");
    HEDDLE_ASSIGN(graph::Graph parsed, graph::read_text({text, length}));
    *out = std::make_unique<heddle_graph>(heddle_graph{std::move(parsed), {}}).release();
    return {};
  });
}

void heddle_graph_free(heddle_graph* graph) { delete graph; }

heddle_status heddle_graph_add_tensor(heddle_graph* graph, const heddle_tensor* tensor) {
  return guarded([&]() -> Status {
    if (!graph) return null_argument("heddle_graph_add_tensor", "graph");
    if (!tensor) return null_argument("heddle_graph_add_tensor", "tensor");
    HEDDLE_ASSIGN(graph::Tensor added, api::tensor_from(graph->graph, *tensor));
    graph->graph.add(std::move(added));
    return {};
  });
}

heddle_status heddle_graph_add_node(heddle_graph* graph, const char* op, const char* name,
                                    int32_t* node) {
  return guarded([&]() -> Status {
    if (!graph) return null_argument("heddle_graph_add_node", "graph");
    if (!op) return null_argument("heddle_graph_add_node", "op");
    if (!node) return null_argument("heddle_graph_add_node", "node");
    HEDDLE_ASSIGN(graph::Node made, graph::make_node(op, name ? name : ""));
    graph->graph.nodes.push_back(std::move(made));
    *node = static_cast<int32_t>(graph->graph.nodes.size()) - 1;
    return {};
  });
}

heddle_status heddle_node_set_tensor(heddle_graph* graph, int32_t node, const char* field,
                                     int64_t uid) {
  graph::TensorValue value;
  const heddle_status found = guarded([&]() -> Status {
    if (!graph) return null_argument("heddle_node_set_tensor", "graph");
    HEDDLE_ASSIGN(value.id, api::find_tensor(graph->graph, uid));
    return {};
  });
  return found != HEDDLE_OK ? found : api::set(graph, node, field, value, "heddle_node_set_tensor");
}

heddle_status heddle_node_set_number(heddle_graph* graph, int32_t node, const char* field,
                                     double value) {
  return api::set(graph, node, field, value, "heddle_node_set_number");
}

heddle_status heddle_node_set_integer(heddle_graph* graph, int32_t node, const char* field,
                                      int64_t value) {
  return api::set(graph, node, field, value, "heddle_node_set_integer");
}

heddle_status heddle_node_set_flag(heddle_graph* graph, int32_t node, const char* field,
                                   bool value) {
  return api::set(graph, node, field, value, "heddle_node_set_flag");
}

heddle_status heddle_node_set_choice(heddle_graph* graph, int32_t node, const char* field,
                                     const char* value) {
  if (!value) return api::report(null_argument("heddle_node_set_choice", "value"));
  return api::set(graph, node, field, std::string_view(value), "heddle_node_set_choice");
}

heddle_status heddle_node_set_dims(heddle_graph* graph, int32_t node, const char* field,
                                   const int64_t* dims, int32_t rank) {
  if (!dims) return api::report(null_argument("heddle_node_set_dims", "dims"));
  const Result<Dims> value = api::dims_from(dims, rank, "Dims");
  if (!value.is_ok()) return api::report(value.status());
  return api::set(graph, node, field, *value, "heddle_node_set_dims");
}

heddle_status heddle_node_add_pointwise(heddle_graph* graph, int32_t node, const char* expression,
                                        const char* op, const int64_t* input_uids, int32_t inputs,
                                        int64_t output_uid, int32_t axis) {
  return guarded([&] {
    return api::add_pointwise(graph, node, expression, op, input_uids, inputs, output_uid, axis);
  });
}

heddle_status heddle_graph_validate(heddle_graph* graph) {
  return guarded([&]() -> Status {
    if (!graph) return null_argument("heddle_graph_validate", "graph");
    return graph::validate(graph->graph);
  });
}

heddle_status heddle_graph_tensor(const heddle_graph* graph, int64_t uid, heddle_tensor* tensor) {
  return guarded([&]() -> Status {
    if (!graph) return null_argument("heddle_graph_tensor", "graph");
    if (!tensor) return null_argument("heddle_graph_tensor", "tensor");
    return api::describe_tensor(graph->graph, uid, *tensor);
  });
}

heddle_status heddle_graph_text(heddle_graph* graph, const char** text) {
  return guarded([&]() -> Status {
    if (!graph) return null_argument("heddle_graph_text", "graph");
    if (!text) return null_argument("heddle_graph_text", "text");
    graph->text = graph::write_text(graph->graph);
    *text = graph->text.c_str();
    return {};
  });
}

}  // extern "C"
