#include "api/shapes.h"

#include <algorithm>
#include <functional>

#include "graph/extents.h"
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
  return {};
}

/// Backwards whose dBias has dims of its own and is given none: they do not follow from the bias,
/// as validate() has them follow, in memory of which nothing is said yet.
std::vector<size_t> summed_apart(graph::Graph& graph, const graph::Graph& planned) {
  std::vector<size_t> found;
  for (size_t n = 0; n < planned.nodes.size(); ++n) {
    const auto* const op = std::get_if<graph::SdpaBackward>(&planned.nodes[n].op);
    if (!op || op->d_bias == graph::kNone || !graph[op->d_bias].dims.empty() ||
        planned[op->d_bias].dims == planned[op->attention.bias].dims)
      continue;
    graph[op->d_bias].strides = {};
    found.push_back(n);
  }
  return found;
}

/// Of a graph in which all else is known: summed where it was planned to be.
void follow_scores(graph::Graph& graph, const graph::Graph& planned, size_t node) {
  const auto& op = std::get<graph::SdpaBackward>(graph.nodes[node].op);
  const graph::AttentionExtents e = graph::extents(graph, op);
  const Dims scores{e.batch, e.q_heads, e.q_length, e.kv_length};
  graph[op.d_bias].strides = planned[op.d_bias].strides;
  Dims& dims = graph[op.d_bias].dims;
  for (int i = 0; i < 4; ++i) dims[i] = planned[op.d_bias].dims[i] == 1 ? 1 : scores[i];
}

}  // namespace

Result<graph::Graph> with_shapes(const graph::Graph& planned, const std::vector<Port>& ports,
                                 std::span<const Shape> shapes) {
  graph::Graph given = planned;
  HEDDLE_TRY(set_shapes(given, planned, ports, shapes));
  const std::vector<size_t> apart = summed_apart(given, planned);
  HEDDLE_TRY(validate(given));
  for (size_t node : apart) follow_scores(given, planned, node);
  if (!apart.empty()) HEDDLE_TRY(validate(given));
  return given;
}

}  // namespace heddle::api
