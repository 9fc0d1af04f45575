// What the norm kernels are told; plain structures, like those of arguments.h.
#pragma once

#include "engine/cpu/arguments.h"

namespace heddle::engine::cpu {

inline constexpr int kMaxRowDims = 8;

/// A tensor as rows: a stride per row dim (0 where it is broadcast) and one along the row.
struct RowsView {
  char* data;  ///< null: absent
  Element element;
  int32_t element_bytes;
  int64_t stride[kMaxRowDims], column_stride;
};

/// The rows a norm runs over, in row-major order of their dims.
struct RowSpace {
  int64_t width;
  int32_t dims;
  int64_t extent[kMaxRowDims];
};

/// Rows whose products are summed in f32 before they join a chunk's f64 sum: few enough that the
/// sum's error stays below that of one rounding to bf16, many enough that flushing costs nothing.
inline constexpr int64_t kRowsPerSum = 32;

/// Weight and bias hold width elements, zeros up to the next multiple of 16. In the wide forms all
/// is f64.
template <class Number>
struct NormPass {
  RowSpace rows;
  bool centred;  ///< a row's mean is taken off first
  RowsView x, residual, sum, y, mean, inv_rms;
  const Number *weight, *bias, *residual_bias;  ///< biases may be null
  double epsilon;
};

template <class Number>
struct NormBackwardPass {
  RowSpace rows;
  bool centred;
  RowsView dy, x, mean, inv_rms, dx;
  const Number* weight;
  /// Sums over a chunk's rows, [chunks, width rounded up to 16]; null: not wanted.
  double *d_weight, *d_bias;
};

struct RowRange {
  int64_t first, last;
};

}  // namespace heddle::engine::cpu
