// What the streaming kernels are given at launch. Plain types: host and device share it. Strides
// count elements; columns are dense.
#pragma once

namespace heddle::streaming {

/// Rows are counted over up to three dims, the last innermost; absent ones have extent 1.
struct RowDims {
  int extent[3];
};
struct RowStrides {
  long long stride[3];
};

/// y = x * inv_rms * weight (+ bias), inv_rms = 1 / sqrt(mean(x^2) + epsilon).
struct RmsNormArguments {
  const void* x;
  const void* weight;  ///< [columns] or null: 1
  const void* bias;    ///< [columns] or null: 0
  void* y;
  float* inv_rms;  ///< [rows] or null
  RowDims dims;
  RowStrides x_strides, y_strides;
  int rows, columns;
  float epsilon;
  const float* epsilon_operand;  ///< if not null, read instead of `epsilon`
};

/// dx = inv_rms * (dy*w - xhat * mean(dy*w*xhat)), d_weight = sum of dy*xhat, d_bias = sum of dy.
struct RmsNormBackwardArguments {
  const void* dy;
  const void* x;
  const void* weight;    ///< or null: 1
  const float* inv_rms;  ///< [rows]
  void* dx;              ///< or null
  void* d_weight;        ///< or null
  void* d_bias;          ///< or null
  float* partial;        ///< workspace [2, blocks, columns]: d_weight's, then d_bias's
  RowDims dims;
  RowStrides dy_strides, x_strides, dx_strides;
  int rows, columns;
  int blocks;  ///< of the main kernel
};

/// y = scale * R(angle) x on the trailing rope_dim columns, scale * x on those before.
struct RopeArguments {
  const void* x;
  void* y;
  long long x_stride[3], y_stride[3];  ///< batch, head, row
  const float* angles;                 ///< [rows of the table, rope_dim], half of it read; or
  const float* cosines;                ///< both [rows of the table, rope_dim / 2]
  const float* sines;
  long long table_stride;
  const void* positions;  ///< added to the row, one per batch entry; or, per row, in its place
  long long position_batch_stride, position_row_stride;
  int positions_are_64_bit;
  int batch, heads, length, head_dim, rope_dim;
  int heads_per_block;
  float scale;
};

}  // namespace heddle::streaming
