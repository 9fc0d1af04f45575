// What the streaming kernels are given at launch. Plain types: host and device share it. Strides
// count elements.
#pragma once

#include "../ptx/divisor.h"

namespace heddle::streaming {

inline constexpr int kMaxDims = 7;

/// Rows and columns are each counted over some dims, the outermost first; kernels know how many.
struct Extents {
  int rows[kMaxDims];
  int columns[kMaxDims];
};
struct Tensor {
  void* data;  ///< null where it is not wanted
  long long row_stride[kMaxDims];
  long long column_stride[kMaxDims];
};

/// A number in both types of arithmetic: kernels convert nothing.
struct Real {
  double wide;
  float narrow;
};

/// y = c * inv_rms * weight (+ bias), inv_rms = 1 / sqrt(mean(c^2) + epsilon), where c is x, or,
/// centred, x - mean(x). Beside a residual x stands for sum = x + residual (+ residual_bias).
struct NormArguments {
  Extents extents;
  Tensor x, weight, bias, y;
  Tensor residual, residual_bias, sum;
  Tensor mean, inv_rms;  ///< one per row; may be null
  int rows, columns;
  Real per_column;  ///< 1 / columns
  Real epsilon;
  const void* epsilon_operand;  ///< if not null, read instead of `epsilon`
  int epsilon_is_64_bit;
};

/// dx = inv_rms * (g - xhat * mean(g*xhat) - (centred: mean(g))), g = dy*w, xhat = c * inv_rms;
/// d_weight = sum of dy*xhat, d_bias = sum of dy.
struct NormBackwardArguments {
  Extents extents;
  Tensor dy, x, weight, mean, inv_rms;
  Tensor dx, d_weight, d_bias;  ///< each may be null
  void* partial;                ///< workspace [2, blocks, columns]: d_weight's sums, then d_bias's
  void* means;  ///< workspace [rows, 1, centred 2], of long rows alone: what a row's dx has less
  int rows, columns;
  Real per_column;  ///< 1 / columns
  int blocks;       ///< that share the rows, each with sums of its own
};

/// Channels of entries: rows whose last dim counts channels. y = (x - mean) inv_rms weight + bias.
struct ChannelNormArguments {
  Extents extents;
  Tensor x, weight, bias, y;
  Tensor mean, inv_rms;  ///< one per row; may be null
  Tensor running_mean, running_var, next_mean, next_var;
  void* partial;     ///< workspace [rows, slices, 3]: a slice's mean, its correction, squares of
                     ///< distances
  void* statistics;  ///< workspace [rows, 3]: mean, inv_rms, and what the mean's rounding shifts by
  int rows, columns, slice_columns, slices;
  Real epsilon, momentum;
  const void *epsilon_operand, *momentum_operand;  ///< if not null, read instead
  int epsilon_is_64_bit, momentum_is_64_bit;
};

/// dx = inv_rms weight (dy - mean(dy) - xhat mean(dy xhat)), d_weight = sum dy xhat, d_bias = sum
/// dy.
struct ChannelNormBackwardArguments {
  Extents extents;
  Tensor dy, x, weight, mean, inv_rms;
  Tensor dx, d_weight, d_bias;  ///< each may be null
  void* partial;                ///< workspace [rows, slices, 2]: sums of dy xhat and of dy
  void* sums;                   ///< workspace [rows, 2]: those of all slices
  int rows, columns, slice_columns, slices, channels;
};

/// Rows [batch, heads, length, ...] of x that become those of y.
struct RowsArguments {
  const void* x;
  void* y;
  long long x_stride[3], y_stride[3];  ///< batch, head, row
  /// Of ragged tensors, [batch + 1]: where each sequence starts, times a multiplier.
  const void *x_offsets, *y_offsets;
  long long x_multiplier, y_multiplier;
  int x_offsets_are_64_bit, y_offsets_are_64_bit;
  const void* lengths;  ///< or null: of each batch entry, [batch], or prefix sums, [batch + 1]
  int lengths_are_64_bit, lengths_cumulative;
  int heads, length;
  int heads_per_block;
  int blocks;  ///< of a batch entry and group of heads
};

/// Columns of a row that a thread copies.
inline constexpr int kCopiedRun = 8;

struct CopyArguments : RowsArguments {
  int x_columns, y_columns;
  const float* scales;        ///< of codes
  long long scale_stride[2];  ///< head, column
};

/// Of scaled_copy.cuh; numbers are f32 on the device, null for 1.
struct ScaledCopyArguments : RowsArguments {
  int columns;
  const float *factor, *scale;
  unsigned* largest;  ///< bits of an f32, or null
};

/// to = number * passed * the product of `of` / that of `by`, or the magnitude of that.
struct Product {
  static constexpr int kMostOf = 6, kMostBy = 2;
  float* to;
  float number, passed;  ///< of the plan, of the execution
  int of_count, by_count, is_magnitude;
  const float *of[kMostOf], *by[kMostBy];
};
struct FactorsArguments {
  static constexpr int kMost = 8;
  int product_count, zeroed_count;
  Product products[kMost];
  float* zeroed[kMost];
};

/// y = scale * R(angle) x on rope_dim columns from first_column on, scale * x on the others.
struct RopeArguments : RowsArguments {
  const float* angles;           ///< [table_rows, rope_dim], half of it read; or
  const float *cosines, *sines;  ///< both [table_rows, rope_dim / 2]
  long long first_stride[2];     ///< of angles or cosines: row, column
  long long second_stride[2];    ///< of sines
  long long table_rows;          ///< rows past the ends read the first and the last
  long long first_row;           ///< of the table, for row 0
  const void* positions;  ///< added to the row, one per batch entry; or, per row, in its place
  long long position_batch_stride, position_row_stride;
  int positions_are_64_bit;
  int head_dim, rope_dim, first_column;
  Real scale;
};

/// What strides are counted in: 32 bits hold nearly all, and a product with one is an instruction.
template <bool kWide>
struct StrideType {
  using Type = unsigned;
};
template <>
struct StrideType<true> {
  using Type = unsigned long long;
};

/// One number for each batch entry, i32 or i64; may be null.
template <typename Stride>
struct EntryNumbers {
  void* data;
  Stride stride;
  int are_64_bit;
};

/// Q, K or V of new tokens.
template <typename Stride>
struct NewRows {
  const void* data;
  Stride stride[3];  ///< batch, head, row
};

/// Where they go: Q's result, or a cache, dense or a ring [batch, heads, rows, ...], or paged
/// [blocks, heads, rows, ...].
template <typename Stride>
struct AppendedRows {
  void* data;
  Stride stride[3];
  int rows;
};

/// What a norm multiplies by.
struct NormWeight {
  const void* data;
  long long stride;
  double epsilon;
};

/// Of K or of V, what is no new row: where rows were before (`past`, null if nowhere), where pages
/// are, and by what codes are numbers.
template <typename Stride>
struct CacheArguments {
  const void* table;  ///< [batch, pages]
  long long table_stride[2];
  int table_is_64_bit;
  int blocks, pages;
  int carried;                ///< rows that are not new are written, too
  const float* scales;        ///< of codes
  long long scale_stride[2];  ///< head, column
  const void* past;
  Stride past_stride[3];
  int past_rows;  ///< of an entry, or of a block
};

/// Q, K and V of new tokens: problem::CacheAppendProblem. What every row reads comes first: each
/// line of arguments that a launch is the first to read took 0.06 us (one H200). kWide: strides
/// have 64 bits.
template <bool kWide>
struct CacheAppendArguments {
  using Stride = typename StrideType<kWide>::Type;
  int append_blocks;  ///< the first of the grid; one more writes lengths, others carry rows over
  int batch;
  Divisor<true> by_heads, by_length;
  int heads;  ///< rows of a token: q_heads, none if Q is not wanted, and twice kv_heads
  int q_heads, kv_heads, length;
  int total_offset;
  EntryNumbers<Stride> total_lengths, new_lengths;
  NewRows<Stride> from[3];     ///< Q, K, V
  AppendedRows<Stride> to[3];  ///< Q, K, V
  const void *cosines, *sines;
  Stride cosine_stride[2], sine_stride[2];  ///< row, column
  int table_rows, capacity;
  const void* positions;
  long long position_stride[2];     ///< batch, row
  NormWeight norm[2];               ///< Q, K
  CacheArguments<Stride> cache[2];  ///< K, V
  EntryNumbers<Stride> lengths_q, lengths_kv;
};

inline constexpr int kFewHostValues = 8, kMaxHostValues = 144;

/// Where a number lies that was passed by value: whatever its type, it begins the cell.
struct alignas(16) HostValueCell {
  unsigned long long value;
};

/// A kernel with room for few takes the beginning of one with room for more.
template <int kCapacity>
struct HostValueArguments {
  HostValueCell* cells;  ///< workspace [count]
  int count;
  unsigned long long values[kCapacity];
};

}  // namespace heddle::streaming
