// What every attention kernel is given at launch: read by the kernel and by the host that fills it
// in, so it holds plain types only. Strides count elements.
#pragma once

namespace heddle::attention {

/// A tensor [batch, head, row, column]. With `offsets`, sequence b starts at element
/// offsets[b] * multiplier and stride[0] is not used.
struct Tensor {
  void* data;
  long long stride[4];
  const void* offsets;
  long long multiplier;
  int offsets_are_64_bit;
};

/// Lengths per batch entry, plain [B] or prefix sums [B+1]; `data` null means `full` everywhere.
struct Lengths {
  const void* data;
  int full;
  int is_64_bit;
  int cumulative;
};

/// problem::Anchor's values, in its order.
enum class Anchor : int { start, kv_end, top_left, bottom_right, operand };

struct Bound {
  Anchor anchor;
  int upper;
  long long constant;
  Tensor operand;  ///< of Anchor::operand, i32 or i64 by offsets_are_64_bit
};

inline constexpr int kMaxBounds = 8;
inline constexpr int kMaxLoads = 12;

/// A one-element operand in device or pass-by-value memory.
struct Scalar {
  const void* data;
  long long value;
  int is_64_bit;
};

struct ForwardParameters {
  Tensor q, k, v, o;
  Tensor stats, max, sum_exp;  ///< f32, written where data is not null
  Tensor loads[kMaxLoads];     ///< what the score expression reads, in its order
  Tensor dropout_streams, dropout_mask, dropout_dump;
  Tensor block_mask;
  Tensor page_table_k, page_table_v;
  Lengths q_lengths, kv_lengths;
  Bound bounds[kMaxBounds];
  int bound_count;
  int batch, q_heads, k_heads, v_heads, q_length, kv_length;
  int first_batch;               ///< batch entry of a grid's first layer
  int page_size_k, page_size_v;  ///< log2
  float scale;
  const float* scale_operand;  ///< if not null, read instead of `scale`
  const float* sink;           ///< [q_heads] or null
  int stats_log2;
  Scalar seed, offset;
  unsigned dropout_threshold;  ///< random bits are low below it
  unsigned dropout_inverts;    ///< 0 if low bits mean to keep, all ones if to drop
  float keep_scale;            ///< factor on kept weights
  const float* keep_scale_operand;
  long long threefry_stride[4];
  /// Of f32 on Hopper, else null: set by the kernels that make pairs if pairs cannot hold q, k, v
  /// or dO. Then the general kernels compute, else the Hopper ones; the others leave at once.
  const unsigned* unfit;
};

/// rowsum(dO * O) as the sum of two f32: dP - delta is the small difference of large sums.
struct RowDelta {
  float high, rest;
};

struct BackwardParameters {
  ForwardParameters forward;  ///< o and stats are inputs here
  Tensor d_o, d_q, d_k, d_v;
  RowDelta* delta;  ///< workspace [batch, q_heads, q_length]
  float* d_sink;    ///< [q_heads]
  Tensor d_load;    ///< gradient of one broadcast operand, by the kernel planned for it
  int d_load_dims[4];
};

}  // namespace heddle::attention
