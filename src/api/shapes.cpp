#include "api/shapes.h"

#include <algorithm>
#include <functional>

#include "graph/names.h"
#include "graph/validate.h"

namespace heddle::api {
namespace {

/// Dims of what ops make are to be inferred again, in memory laid out as it was planned.
Status set_shapes(graph::Graph& graph, const graph::Graph& planned, const std::vector<Port>& ports,
                  std::span<const Shape> shapes) {
  for (graph::Tensor& tensor : graph.tensors) {
    if (tensor.is_virtual) tensor.dims = {};
  }
  for (const Port& port : ports) {
    if (port.output) graph[port.tensor].dims = {};
  }
  for (size_t i = 0; i < shapes.size(); ++i) {
    const Shape& shape = shapes[i];
    const auto has_uid = [&](const auto& one) { return one.uid == shape.uid; };
    const auto tensor = std::find_if(graph.tensors.begin(), graph.tensors.end(), has_uid);
    if (tensor == graph.tensors.end()) {
      return error(Code::invalid_value,
                   "A shape is given for uid {}, expected that of a tensor of the graph.",
                   shape.uid);
    }
    if (std::any_of(shapes.begin(), shapes.begin() + static_cast<std::ptrdiff_t>(i), has_uid)) {
      return error(Code::invalid_value, "Two shapes are given for the {}, expected one.",
                   describe(*tensor));
    }
    const Dims& most = planned.tensors[static_cast<size_t>(tensor - graph.tensors.begin())].dims;
    if (!std::equal(shape.dims.begin(), shape.dims.end(), most.begin(), most.end(),
                    std::less_equal<>())) {
      return error(Code::invalid_value,
                   "The {} is given dims {}, expected none to exceed those that it was planned "
                   "with, {}.",
                   describe(*tensor), to_string(shape.dims), to_string(most));
    }
    tensor->dims = shape.dims;
    if (!shape.strides.empty()) tensor->strides = shape.strides;
  }
  for (const graph::Node& node : planned.nodes) {
    const auto* const op = std::get_if<graph::SdpaBackward>(&node.op);
    if (!op || op->d_bias == graph::kNone || !graph[op->d_bias].dims.empty()) continue;
    if (planned[op->d_bias].dims == planned[op->attention.bias].dims) continue;
    return error(Code::invalid_value,
                 "The {} has other dims than its bias, expected its shape among those given.",
                 describe(planned[op->d_bias]));
  }
  return {};
}

}  // namespace

Result<graph::Graph> with_shapes(const graph::Graph& planned, const std::vector<Port>& ports,
                                 std::span<const Shape> shapes) {
  graph::Graph given = planned;
  HEDDLE_TRY(set_shapes(given, planned, ports, shapes));
  HEDDLE_TRY(validate(given));
  return given;
}

}  // namespace heddle::api
