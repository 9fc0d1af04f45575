#include "reference/evaluate.h"

#include <unordered_set>

#include "graph/pointwise_values.h"
#include "graph/ports.h"
#include "reference/ops.h"

namespace heddle::reference {

using graph::kNone;
using graph::TensorId;

namespace {

template <class... F>
struct Overloaded : F... {
  using F::operator()...;
};
template <class... F>
Overloaded(F...) -> Overloaded<F...>;

}  // namespace

Result<Values> evaluate(const graph::Graph& graph, const Buffers& buffers, Precision precision) {
  std::vector<bool> available(graph.tensors.size(), false);
  for (size_t id = 0; id < graph.tensors.size(); ++id) {
    const graph::Tensor& tensor = graph.tensors[id];
    available[id] = tensor.constant.has_value() || buffers.contains(tensor.uid);
  }
  Values values(graph, buffers, precision);
  const std::vector<bool> is_between = graph::values_between_pointwise(graph);
  for (const graph::Node& node : graph.nodes) {
    const std::vector<graph::Port> ports = graph::ports(node);
    // Values inside a score expression are made and read there.
    std::unordered_set<TensorId> inner;
    for (const graph::Port& port : ports) {
      if (port.inner && port.output) inner.insert(port.tensor);
    }
    for (const graph::Port& port : ports) {
      const TensorId id = port.tensor;
      if (port.output || inner.contains(id)) continue;
      const TensorId offsets = graph[id].ragged_offset;
      if (!available[id] || (offsets != kNone && !available[offsets])) {
        return error(Code::invalid_variant_pack, "Uid {} not found in variant pack.",
                     graph[available[id] ? offsets : id].uid);
      }
    }
    for (const graph::Port& port : ports) {
      if (port.output && !port.inner) values.declare(port.tensor);
    }
    std::visit(
        Overloaded{
            [&](const graph::Sdpa& op) {
              // A backward of the definition takes what an f32 beside a huge
              // maximum, or a log of the sum, would round away.
              for (TensorId id : {op.stats, op.max, op.sum_exp}) {
                if (precision.is_exact() && id != kNone) values.keep_unrounded(id);
              }
              sdpa(op, values);
            },
            [&](const graph::SdpaBackward& op) {
              // A gradient nobody binds never reaches memory: it stays unrounded.
              for (TensorId id : {op.d_q, op.d_k}) {
                if (precision.is_exact() && id != kNone && graph[id].is_virtual) {
                  values.keep_unrounded(id);
                }
              }
              sdpa_backward(op, values);
            },
            [&](const graph::SdpaFp8& op) { sdpa_fp8(op, values); },
            [&](const graph::SdpaFp8Backward& op) { sdpa_fp8_backward(op, values); },
            [&](const graph::Rope& op) { rope(op, values); },
            [&](const graph::RmsNorm& op) { rms_norm(op, values); },
            [&](const graph::RmsNormBackward& op) { rms_norm_backward(op, values); },
            [&](const graph::LayerNorm& op) { layer_norm(op, values); },
            [&](const graph::LayerNormBackward& op) { layer_norm_backward(op, values); },
            [&](const graph::InstanceNorm& op) { instance_norm(op, values); },
            [&](const graph::InstanceNormBackward& op) { instance_norm_backward(op, values); },
            [&](const graph::BatchNorm& op) { batch_norm(op, values); },
            [&](const graph::BatchNormBackward& op) { batch_norm_backward(op, values); },
            [&](const graph::CacheAppend& op) { cache_append(op, values); },
            [&](const graph::PointwiseNode& op) {
              if (is_between[static_cast<size_t>(op.y)]) values.keep_unrounded(op.y);
              pointwise(op, values);
            }},
        node.op);
    for (const graph::Port& port : ports) {
      if (port.output) available[port.tensor] = true;
    }
  }
  return values;
}

void store_results(const Values& values, const Buffers& buffers) {
  const graph::Graph& graph = values.graph();
  for (size_t n = 0; n < graph.tensors.size(); ++n) {
    const auto id = static_cast<TensorId>(n);
    const Array& result = values.result(id);
    const auto buffer = buffers.find(graph[id].uid);
    if (result.empty() || buffer == buffers.end()) continue;
    for (size_t index = 0; index < result.values.size(); ++index) {
      if (!result.written[index]) continue;
      store(*graph[id].dtype, buffer->second, values.offset_of(id, static_cast<int64_t>(index)),
            result.values[index]);
    }
  }
}

}  // namespace heddle::reference
