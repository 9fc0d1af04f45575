#include "engine/cpu/kernels/rms_norm.h"

#include "engine/cpu/kernels/memory.h"

namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL {

namespace {

constexpr int64_t kPadding = 16;

/// The index of a row over the row dims, counted up.
struct RowIndex {
  const RowSpace& space;
  int64_t index[kMaxRowDims] = {};

  RowIndex(const RowSpace& rows, int64_t row) : space(rows) {
    for (int d = space.dims - 1; d >= 0; --d) {
      index[d] = row % space.extent[d];
      row /= space.extent[d];
    }
  }
  void next() {
    for (int d = space.dims - 1; d >= 0; --d) {
      if (++index[d] < space.extent[d]) return;
      index[d] = 0;
    }
  }
  char* address(const RowsView& v) const {
    int64_t element = 0;
    for (int d = 0; d < space.dims; ++d) element += index[d] * v.stride[d];
    return v.data + element * v.element_bytes;
  }
};

/// A row as f32, zeros from width to the next multiple of kPadding.
void read(const RowsView& v, const RowIndex& at, int64_t width, float* out) {
  read_row(v.element, at.address(v), v.column_stride, v.element_bytes, width, out);
  for (int64_t i = width; i % kPadding != 0; ++i) out[i] = 0;
}

void write(const RowsView& v, const RowIndex& at, int64_t width, const float* in) {
  write_row(v.element, at.address(v), v.column_stride, v.element_bytes, width, in, 1);
}

/// sum over i of a[i] b[i], in four sums a lane.
float dot(const float* a, const float* b, int64_t padded) {
  Float sum[4] = {zero(), zero(), zero(), zero()};
  int64_t i = 0;
  for (; i + 4 * kLanes <= padded; i += 4 * kLanes) {
    for (int n = 0; n < 4; ++n) {
      sum[n] = multiply_add(load(a + i + n * kLanes), load(b + i + n * kLanes), sum[n]);
    }
  }
  for (; i < padded; i += kLanes) sum[0] = multiply_add(load(a + i), load(b + i), sum[0]);
  return sum_of_lanes(add(add(sum[0], sum[1]), add(sum[2], sum[3])));
}

void clear(double* sum, int64_t padded) {
  for (int64_t i = 0; sum && i < padded; ++i) sum[i] = 0;
}

/// Adds a block's f32 sums to the chunk's and clears them.
void flush(float* block, double* sum, int64_t padded) {
  if (!sum) return;
  for (int64_t i = 0; i < padded; ++i) {
    sum[i] += block[i];
    block[i] = 0;
  }
}

}  // namespace

void norm_rows(const NormPass<float>& pass, RowRange rows, float* x) {
  const int64_t width = pass.rows.width, padded = round_up(width, kPadding);
  RowIndex at(pass.rows, rows.first);
  for (int64_t row = rows.first; row < rows.last; ++row, at.next()) {
    read(pass.x, at, width, x);
    const double mean = dot(x, x, padded) / static_cast<double>(width);
    const auto inverse = static_cast<float>(1 / __builtin_sqrt(mean + pass.epsilon));
    if (pass.inv_rms.data) write(pass.inv_rms, at, 1, &inverse);
    const Float r = all(inverse);
    for (int64_t i = 0; i < padded; i += kLanes) {
      const Float bias = pass.bias ? load(pass.bias + i) : zero();
      store(x + i, multiply_add(multiply(load(x + i), r), load(pass.weight + i), bias));
    }
    write(pass.y, at, width, x);
  }
}

void norm_backward_rows(const NormBackwardPass<float>& pass, RowRange rows, int64_t chunk,
                        float* scratch) {
  const int64_t width = pass.rows.width, padded = round_up(width, kPadding);
  float *x_hat = scratch, *dy = x_hat + padded, *g = dy + padded, *weight_sum = g + padded,
        *bias_sum = weight_sum + padded;
  double* const d_weight = pass.d_weight ? pass.d_weight + chunk * padded : nullptr;
  double* const d_bias = pass.d_bias ? pass.d_bias + chunk * padded : nullptr;
  clear(d_weight, padded);
  clear(d_bias, padded);
  fill(weight_sum, 2 * padded, 0);
  RowIndex at(pass.rows, rows.first);
  for (int64_t row = rows.first; row < rows.last; ++row, at.next()) {
    read(pass.x, at, width, x_hat);
    read(pass.dy, at, width, dy);
    const float inverse = float_at(pass.inv_rms.element, at.address(pass.inv_rms));
    const Float r = all(inverse);
    for (int64_t i = 0; i < padded; i += kLanes) {
      const Float d = load(dy + i), xh = multiply(load(x_hat + i), r);
      store(x_hat + i, xh);
      store(g + i, multiply(d, load(pass.weight + i)));
      store(weight_sum + i, multiply_add(d, xh, load(weight_sum + i)));
      store(bias_sum + i, add(d, load(bias_sum + i)));
    }
    if (pass.dx.data) {
      const Float mean = all(dot(g, x_hat, padded) / static_cast<float>(width));
      for (int64_t i = 0; i < padded; i += kLanes) {
        const Float inner = subtract(load(g + i), multiply(load(x_hat + i), mean));
        store(g + i, multiply(r, inner));
      }
      write(pass.dx, at, width, g);
    }
    if ((row - rows.first + 1) % kRowsPerSum == 0 || row + 1 == rows.last) {
      flush(weight_sum, d_weight, padded);
      flush(bias_sum, d_bias, padded);
    }
  }
}

}  // namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL
