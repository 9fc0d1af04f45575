// What the kernels are told: plain structures without constructors, members of std or functions
// with code of their own, because they are shared by translation units compiled for different
// instruction sets. A plan fills them in; a kernel reads them.
#pragma once

#include <cstdint>

namespace heddle::engine::cpu {

/// Element types, in the order of heddle::DataType; and codes of 4 bits, two to a byte.
enum class Element : uint8_t {
  f64,
  f32,
  bf16,
  f16,
  f8e4m3,
  f8e5m2,
  i64,
  i32,
  i8,
  u64,
  u32,
  u8,
  boolean,
  i4
};

/// An operand bound to its buffer; strides in elements, 0 where the dim is 1.
struct View {
  char* data;
  Element element;
  int32_t element_bytes;
  int64_t dims[4], stride[4];
  const View*
      ragged;  ///< [B+1]: where each sequence starts, in units of ragged_multiplier elements
  int64_t ragged_multiplier;
  const View* pages;  ///< [B,1,pages,1]: the block of dims[2] rows that holds page s / dims[2]
  bool ring;          ///< row s lies in s % dims[2]
  const View* scale;  ///< of codes: [1, 1 or heads, 1, 1 or columns]
};

/// One node of a score expression; operands are earlier steps. Same order as problem::ScoreNode.
struct ScoreStep {
  uint8_t op;  ///< a problem::ScoreOp
  int32_t a, b, c;
  double value;
  const View* operand;
};

struct Score {
  const ScoreStep* steps;
  int32_t count, root;
  bool is_identity;  ///< the root is the dot (or, in a derivative, the gradient) itself
};

struct Bound {
  bool upper;
  uint8_t anchor;  ///< a problem::Anchor
  int64_t constant;
};

enum class DropoutKind : uint8_t { none, philox, threefry, mask };

struct DropoutArguments {
  DropoutKind kind;
  uint32_t low;    ///< random bits are low below it (core/dropout_bits.h)
  bool keeps_low;  ///< which cells are kept: those with low bits, or the others
  double factor;   ///< what kept probabilities are multiplied by
  uint32_t key[2];
  uint64_t offset;
  int64_t threefry_strides[4];
  const View *streams, *mask, *dump;
};

/// Operands absent from the problem are null. The views of q and k are of the rotated tensors if
/// the problem has RoPE.
struct AttentionArguments {
  int64_t batch, q_heads, k_heads, v_heads, q_length, kv_length;
  int32_t qk_dim, v_dim;
  double scale;
  bool log2_input, stats_log2;
  Score score;
  const Bound* bounds;
  int32_t bound_count;
  const View *q, *k, *v, *o, *stats, *max, *sum_exp, *scores;
  bool scores_after_softmax;
  const View *block_mask, *q_lengths, *kv_lengths, *sink;
  const View* boolean_mask;  ///< booleans that the score loads: where one is 0 it is -inf
  bool q_lengths_cumulative, kv_lengths_cumulative;
  DropoutArguments dropout;
};

}  // namespace heddle::engine::cpu
