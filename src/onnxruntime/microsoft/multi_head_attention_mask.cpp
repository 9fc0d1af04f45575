#include "onnxruntime/microsoft/multi_head_attention_mask.h"

#include <cmath>
#include <limits>

namespace heddle::onnxruntime::mha {

bool Mask::is_hidden(const Shapes& s, int64_t row, int64_t key) const {
  return is_causal && row + 1 < s.q.rows && key > s.past + row;
}
bool Mask::is_causal_by_mask(Inputs inputs, const Shapes& s) const {
  return is_causal && s.q.rows > 1 && (s.q.rows != s.k.rows || std::isfinite(of_hidden(inputs)));
}
double Mask::of_hidden(Inputs inputs) const {
  constexpr double kLeast = std::numeric_limits<float>::lowest();
  if (inputs[kMask].is_given() && filter == kLeast) return kLeast;
  return -std::numeric_limits<double>::infinity();
}

bool Mask::is_written(Inputs inputs, const Shapes& s) const {
  return inputs[kMask].is_given() || is_causal_by_mask(inputs, s);
}
int64_t Mask::rows(Inputs inputs, const Shapes& s) const {
  return is_causal_by_mask(inputs, s) || inputs[kMask].dims.rank() == 3 ? s.q.rows : 1;
}

int64_t Mask::node(GraphBuilder& graph, Inputs inputs, const Shapes& s) const {
  const int64_t zero = graph.constant(nullptr, 0);
  const Dims dims{inputs[kMask].is_given() ? s.batch : 1, 1, rows(inputs, s), s.total()};
  int64_t made = zero;
  if (const Value& mask = inputs[kMask]; mask.is_given()) {
    const int rank = mask.dims.rank();
    const Dims given = rank == 1   ? Dims{s.batch, 1, 1, 1}
                       : rank == 2 ? Dims{s.batch, 1, 1, s.total()}
                                   : Dims{s.batch, 1, s.q.rows, s.total()};
    const int64_t x = graph.bound(uid_of_input(kMask), "key_padding_mask", DataType::i32, given);
    const int64_t kept = rank == 1
                             ? graph.elementwise("cmp_lt", {graph.index(3, s.total()), x},
                                                 graph.made(nullptr, {s.batch, 1, 1, s.total()}))
                             : graph.elementwise("cmp_gt", {x, zero}, graph.made(nullptr, given));
    made = graph.elementwise("binary_select", {kept, zero, graph.constant(nullptr, filter)},
                             graph.made("key_padding", {s.batch, 1, given[2], s.total()}));
  }
  if (!is_causal_by_mask(inputs, s)) return made;
  const int64_t row = graph.index(2, s.q.rows);
  const auto limit = [&](int64_t number) {
    return graph.constant(nullptr, static_cast<double>(number));
  };
  const Dims of_rows{1, 1, s.q.rows, s.total()};
  const int64_t behind = graph.elementwise("sub", {graph.index(3, s.total()), row},
                                           graph.made(nullptr, of_rows)),
                is_later = graph.elementwise("cmp_gt", {behind, limit(s.past)},
                                             graph.made(nullptr, of_rows)),
                is_not_last = graph.elementwise("cmp_lt", {row, limit(s.q.rows - 1)},
                                                graph.made(nullptr, {1, 1, s.q.rows, 1})),
                is_hidden = graph.elementwise("logical_and", {is_later, is_not_last},
                                              graph.made(nullptr, of_rows));
  return graph.elementwise("binary_select",
                           {is_hidden, graph.constant(nullptr, of_hidden(inputs)), made},
                           graph.made("mask", dims));
}

double Mask::added(Inputs inputs, const Shapes& s, int64_t b, int64_t i, int64_t j) const {
  const Value& mask = inputs[kMask];
  if (!mask.is_given()) return 0;
  const auto* const data = static_cast<const int32_t*>(mask.data);
  switch (mask.dims.rank()) {
    case 1:
      return j < data[b] ? 0 : filter;
    case 2:
      return data[b * s.total() + j] > 0 ? 0 : filter;
    default:
      return data[(b * s.q.rows + i) * s.total() + j] > 0 ? 0 : filter;
  }
}

}  // namespace heddle::onnxruntime::mha
