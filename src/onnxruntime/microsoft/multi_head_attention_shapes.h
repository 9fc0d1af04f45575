// What a MultiHeadAttention node's inputs come as: where Q, K and V lie, how many rows there are
// before them, and the rules of their dims.
#pragma once

#include "onnxruntime/node.h"

namespace heddle::onnxruntime::mha {

/// In the operator's order.
enum Input : size_t {
  kQuery,
  kKey,
  kValue,
  kBias,
  kMask,
  kAttentionBias,
  kPastKey,
  kPastValue,
  kPastLength,
  kIndirection
};

/// Heads of Q, K or V: [batch, heads, rows, columns], in an input or, with a bias or out of a
/// packed one, in a block.
struct Part {
  size_t input = kQuery;
  int64_t rows = 0, columns = 0;
  Dims strides;            ///< within the input
  int64_t first = 0;       ///< of the input's elements
  int64_t bias = -1;       ///< first of the bias's elements; -1: none is added
  bool is_packed = false;  ///< with others in one input

  bool is_copied() const { return is_packed || bias >= 0; }
};

struct Shapes {
  int64_t batch = 0, heads = 0;
  Part q, k, v;
  int64_t past = 0;      ///< rows before the new ones
  int64_t capacity = 0;  ///< rows of a buffer that past and present share; else 0

  bool has_past() const { return past > 0 || capacity > 0; }
  int64_t total() const { return past + k.rows; }
  int64_t cache_rows() const { return capacity > 0 ? capacity : total(); }
};

/// Whether past and present are buffers of one length, of which past_sequence_length says how
/// much holds rows.
bool shares_buffer(Inputs inputs);

/// What past_sequence_length holds.
Result<int64_t> past_length(Inputs inputs);

/// Of a node of so many heads; or the rule that its inputs break.
Result<Shapes> shapes_of(Inputs inputs, int64_t heads);

}  // namespace heddle::onnxruntime::mha
