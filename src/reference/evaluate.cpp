#include "reference/evaluate.h"

#include <algorithm>

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

/// Tensors a score modifier captures from the graph around it.
void append_captured(const std::optional<graph::ScoreModifier>& modifier,
                     std::vector<TensorId>& ids) {
  if (!modifier) return;
  std::vector<TensorId> inner{modifier->score_in};
  for (const graph::Pointwise& op : modifier->ops) inner.push_back(op.output);
  for (const graph::Pointwise& op : modifier->ops) {
    for (TensorId id : op.inputs) {
      if (std::find(inner.begin(), inner.end(), id) == inner.end()) ids.push_back(id);
    }
  }
}

std::vector<TensorId> attention_inputs(const graph::AttentionAttributes& a) {
  std::vector<TensorId> ids{a.attn_scale_tensor, a.bias,           a.seq_len_q,    a.seq_len_kv,
                            a.cu_seq_len_q,      a.cu_seq_len_kv,  a.block_mask,   a.sink,
                            a.dropout.seed,      a.dropout.offset, a.dropout.mask, a.dropout.scale};
  append_captured(a.score_mod, ids);
  return ids;
}

std::vector<TensorId> present(std::vector<TensorId> ids) {
  std::erase(ids, kNone);
  return ids;
}

}  // namespace

std::vector<TensorId> inputs_of(const graph::Node& node) {
  return present(std::visit(
      Overloaded{[](const graph::Sdpa& op) {
                   auto ids = attention_inputs(op.attention);
                   ids.insert(ids.end(), {op.q, op.k, op.v, op.page_table_k, op.page_table_v});
                   return ids;
                 },
                 [](const graph::SdpaBackward& op) {
                   auto ids = attention_inputs(op.attention);
                   append_captured(op.score_mod_bprop, ids);
                   ids.insert(ids.end(), {op.q, op.k, op.v, op.o, op.d_o, op.stats});
                   return ids;
                 },
                 [](const graph::Rope& op) {
                   return std::vector{op.x, op.freqs, op.positions, op.cosines, op.sines};
                 },
                 [](const graph::RmsNorm& op) {
                   return std::vector{op.x, op.scale, op.bias, op.epsilon};
                 },
                 [](const graph::RmsNormBackward& op) {
                   return std::vector{op.dy, op.x, op.scale, op.inv_variance};
                 }},
      node.op));
}

std::vector<TensorId> outputs_of(const graph::Node& node) {
  return present(std::visit(
      Overloaded{
          [](const graph::Sdpa& op) {
            return std::vector{op.o, op.stats, op.max, op.sum_exp, op.attention.dropout.rng_dump};
          },
          [](const graph::SdpaBackward& op) {
            return std::vector{op.d_q,    op.d_k,    op.d_v,
                               op.d_bias, op.d_sink, op.attention.dropout.rng_dump};
          },
          [](const graph::Rope& op) { return std::vector{op.y}; },
          [](const graph::RmsNorm& op) {
            return std::vector{op.y, op.inv_variance};
          },
          [](const graph::RmsNormBackward& op) {
            return std::vector{op.dx, op.d_scale, op.d_bias};
          }},
      node.op));
}

Result<Values> evaluate(const graph::Graph& graph, const Buffers& buffers, Precision precision) {
  std::vector<bool> available(graph.tensors.size(), false);
  for (size_t id = 0; id < graph.tensors.size(); ++id) {
    const graph::Tensor& tensor = graph.tensors[id];
    available[id] = tensor.constant.has_value() || buffers.contains(tensor.uid);
  }
  Values values(graph, buffers, precision);
  for (const graph::Node& node : graph.nodes) {
    for (TensorId id : inputs_of(node)) {
      const TensorId offsets = graph[id].ragged_offset;
      if (!available[id] || (offsets != kNone && !available[offsets])) {
        return error(Code::invalid_variant_pack, "Uid {} not found in variant pack.",
                     graph[available[id] ? offsets : id].uid);
      }
    }
    for (TensorId id : outputs_of(node)) values.declare(id);
    std::visit(Overloaded{[&](const graph::Sdpa& op) { sdpa(op, values); },
                          [&](const graph::SdpaBackward& op) {
                            // A gradient nobody binds never reaches memory: it stays unrounded.
                            for (TensorId id : {op.d_q, op.d_k}) {
                              if (precision.is_exact() && id != kNone && graph[id].is_virtual) {
                                values.keep_unrounded(id);
                              }
                            }
                            sdpa_backward(op, values);
                          },
                          [&](const graph::Rope& op) { rope(op, values); },
                          [&](const graph::RmsNorm& op) { rms_norm(op, values); },
                          [&](const graph::RmsNormBackward& op) { rms_norm_backward(op, values); }},
               node.op);
    for (TensorId id : outputs_of(node)) available[id] = true;
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
