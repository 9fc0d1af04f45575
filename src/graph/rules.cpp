#include "graph/rules.h"

#include <algorithm>

namespace heddle::graph {

Rules::Rules(Graph& graph, const Node& node)
    : graph_(graph),
      op_(node.name.empty() ? std::string(op_name(node))
                            : fmt::format("{} '{}'", op_name(node), node.name)) {}

std::string Rules::subject(const char* port, TensorId id) const {
  return fmt::format("{} of {}, {},", port, op_, describe(graph_[id]));
}

Status Rules::present(const char* port, TensorId id) const {
  if (id != kNone) return {};
  return error(Code::attribute_not_set, "{} requires a tensor for {}, which is not set.", op_,
               port);
}

Status Rules::has_strides(const char* port, TensorId id, int rank) const {
  const Tensor& tensor = graph_[id];
  // Those that are not given have been inferred, where the elements can be counted.
  if (tensor.strides.empty() && !tensor.dims.empty()) {
    return error(Code::invalid_value, "{} has dims {}, more elements than 63 bits count.",
                 subject(port, id), to_string(tensor.dims));
  }
  if (tensor.strides.rank() == rank) return {};
  return fail(Code::attribute_not_set,
              "The stride for {} is invalid: {} has strides {}, expected rank {}", port,
              describe(tensor), to_string(tensor.strides), rank);
}

Status Rules::rank4(const char* port, TensorId id) const {
  const Tensor& tensor = graph_[id];
  if (tensor.dims.rank() != 4) {
    return fail(Code::attribute_not_set,
                "The dim for {} is invalid: {} has dims {}, expected rank 4", port,
                describe(tensor), to_string(tensor.dims));
  }
  return has_strides(port, id, 4);
}

Status Rules::dims_are(const char* port, TensorId id, const Dims& expected) const {
  const Tensor& tensor = graph_[id];
  if (tensor.dims == expected) return {};
  return error(Code::invalid_value, "{} has dims {}, expected {}.", subject(port, id),
               to_string(tensor.dims), to_string(expected));
}

Status Rules::broadcasts_to(const char* port, TensorId id, const Dims& full, unsigned exact) const {
  HEDDLE_TRY(rank4(port, id));
  const Dims& dims = graph_[id].dims;
  for (int i = 0; i < 4; ++i) {
    if (dims[i] == full[i] || (dims[i] == 1 && !(exact >> i & 1))) continue;
    return error(Code::invalid_value, "{} has dims {}, expected {} where dims of 1 broadcast.",
                 subject(port, id), to_string(dims), to_string(full));
  }
  return {};
}

Status Rules::dtype_is(const char* port, TensorId id,
                       std::initializer_list<DataType> allowed) const {
  const DataType given = *graph_[id].dtype;
  if (std::find(allowed.begin(), allowed.end(), given) != allowed.end()) return {};
  std::string list;
  for (const DataType* type = allowed.begin(); type != allowed.end(); ++type) {
    if (type != allowed.begin()) list += type + 1 == allowed.end() ? " or " : ", ";
    list += heddle::name(*type);
  }
  return error(Code::invalid_value, "{} has data type {}, expected {}.", subject(port, id),
               heddle::name(given), list);
}

Status Rules::number_beside(const char* port, TensorId id, DataType io) const {
  if (io == DataType::f64) return dtype_is(port, id, {DataType::f32, DataType::f64});
  return dtype_is(port, id, {DataType::f32});
}

Status Rules::unit_last_stride(const char* port, TensorId id) const {
  const Tensor& tensor = graph_[id];
  if (tensor.strides.back() == 1 || tensor.dims.back() == 1) return {};
  return fail(Code::graph_not_supported,
              "The stride for the last dimension corresponding to the embedding size per head "
              "should be 1 for {}: {} "
              "has strides {}",
              port, describe(tensor), to_string(tensor.strides));
}

Status Rules::is_scalar(const char* port, TensorId id) const {
  const Tensor& tensor = graph_[id];
  if (element_count(tensor.dims) == 1) return {};
  return error(Code::invalid_value, "{} has dims {}, expected one element, [1, 1, 1, 1].",
               subject(port, id), to_string(tensor.dims));
}

void Rules::infer(TensorId id, const Dims& dims, TensorId like) const {
  Tensor& tensor = graph_[id];
  if (tensor.dims.empty()) tensor.dims = dims;
  if (!tensor.strides.empty()) return;
  if (like != kNone && graph_[like].dims == tensor.dims &&
      !overlaps_itself(graph_[like].dims, graph_[like].strides)) {
    tensor.strides = graph_[like].strides;
  } else if (const std::optional<Dims> strides = dense_strides(tensor.dims)) {
    tensor.strides = *strides;  // overflow: left empty, for a sentence
  }
}

Status Rules::makes(const char* port, TensorId id, const Dims& dims, TensorId like) const {
  infer(id, dims, like);
  HEDDLE_TRY(has_strides(port, id, dims.rank()));
  return dims_are(port, id, dims);
}

}  // namespace heddle::graph
