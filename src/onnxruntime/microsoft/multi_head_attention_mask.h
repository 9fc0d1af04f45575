// What is added to the scores of a MultiHeadAttention for keys that a row does not see.
#pragma once

#include "onnxruntime/graph_builder.h"
#include "onnxruntime/microsoft/multi_head_attention_shapes.h"

namespace heddle::onnxruntime::mha {

struct Mask {
  double filter = -10000;  ///< mask_filter_value
  bool is_causal = false;

  /// Of several causal rows each sees keys up to its own, but for the last, which sees all: as in
  /// ONNX Runtime, where one row alone does so too.
  bool is_hidden(const Shapes& s, int64_t row, int64_t key) const;
  /// Whether that is no diagonal that ends in the corner, or what hides is as low as what filters.
  bool is_causal_by_mask(Inputs inputs, const Shapes& s) const;
  /// What is added for a hidden key. ONNX Runtime has the least f32 there: where that filters, a
  /// row of filtered keys alone has the mean of all, hidden ones too.
  double of_hidden(Inputs inputs) const;
  bool is_written(Inputs inputs, const Shapes& s) const;
  /// Rows that a mask tells apart.
  int64_t rows(Inputs inputs, const Shapes& s) const;
  /// What is added to scores of all keys there are, made by the graph; of a buffer that past and
  /// present do not share.
  int64_t node(GraphBuilder& graph, Inputs inputs, const Shapes& s) const;
  /// What key_padding_mask adds to a score. Of lengths with places behind them the lengths alone
  /// count, as in ONNX Runtime.
  double added(Inputs inputs, const Shapes& s, int64_t b, int64_t i, int64_t j) const;
};

}  // namespace heddle::onnxruntime::mha
