#include "engine/cpu/kernels/norm.h"

#include "engine/cpu/kernels/memory.h"

namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL {

namespace {

constexpr int64_t kPadding = 16;
/// Columns that are summed in f32; such sums are added up in f64. Equal numbers, as rows of 16 bits
/// have them, round one way each time: 65536 squares were 50 roundings off, and dx 145.
constexpr int64_t kColumnsPerSum = 512;

int64_t end_of_sum(int64_t first, int64_t padded) {
  return first + kColumnsPerSum < padded ? first + kColumnsPerSum : padded;
}

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

/// Whether the kernels may work on the row where it lies: f32, dense, whole vectors.
bool is_direct(const RowsView& v, int64_t width) {
  return v.element == Element::f32 && v.column_stride == 1 && width % kPadding == 0;
}

/// A row as f32, zeros from width to the next multiple of kPadding; in `scratch` unless direct.
const float* read(const RowsView& v, const RowIndex& at, int64_t width, float* scratch) {
  if (is_direct(v, width)) return reinterpret_cast<const float*>(at.address(v));
  read_row(v.element, at.address(v), v.column_stride, v.element_bytes, width, scratch);
  for (int64_t i = width; i % kPadding != 0; ++i) scratch[i] = 0;
  return scratch;
}

void write(const RowsView& v, const RowIndex& at, int64_t width, const float* in) {
  write_row(v.element, at.address(v), v.column_stride, v.element_bytes, width, in, 1);
}

/// out[0 .. n) = x + the row of v at p.
void add_row(const RowsView& v, const char* p, const float* x, int64_t n, float* out) {
  int64_t i = 0;
  const auto add_vectors = [&](const auto* row, auto load_vector) {
    for (; i + kLanes <= n; i += kLanes) store(out + i, add(load(x + i), load_vector(row + i)));
  };
  if (v.column_stride == 1 && v.element == Element::f32) {
    add_vectors(reinterpret_cast<const float*>(p), [](const float* in) { return load(in); });
  } else if (v.column_stride == 1 && v.element == Element::bf16) {
    add_vectors(reinterpret_cast<const uint16_t*>(p),
                [](const uint16_t* in) { return load_bf16(in); });
  } else if (v.column_stride == 1 && v.element == Element::f16) {
    add_vectors(reinterpret_cast<const uint16_t*>(p),
                [](const uint16_t* in) { return load_f16(in); });
  }
  for (; i < n; ++i)
    out[i] = x[i] + number_at(v.element, p + i * v.column_stride * v.element_bytes);
}

/// x + residual + residual_bias in `out`, in f32, and rounded where the sum is wanted.
const float* add_residual(const NormPass<float>& pass, const RowIndex& at, float* out) {
  const int64_t width = pass.rows.width;
  const float* x = read(pass.x, at, width, out);
  add_row(pass.residual, at.address(pass.residual), x, width, out);
  const int64_t padded = round_up(width, kPadding);
  if (pass.residual_bias) {
    for (int64_t i = 0; i < padded; i += kLanes)
      store(out + i, add(load(out + i), load(pass.residual_bias + i)));
  }
  for (int64_t i = width; i < padded; ++i) out[i] = 0;
  if (pass.sum.data) write(pass.sum, at, width, out);
  return out;
}

/// Writes vector(i), elements i .. i + kLanes of a row, for all of them: on the way from registers
/// if the row is dense, else through `scratch`.
template <class Vector>
void write_vectors(const RowsView& v, char* p, int64_t width, float* scratch,
                   const Vector& vector) {
  int64_t i = 0;
  if (v.column_stride == 1 && v.element == Element::f32) {
    for (; i + kLanes <= width; i += kLanes) store(reinterpret_cast<float*>(p) + i, vector(i));
  } else if (v.column_stride == 1 && v.element == Element::bf16) {
    for (; i + kLanes <= width; i += kLanes)
      store_bf16(reinterpret_cast<uint16_t*>(p) + i, vector(i));
  } else if (v.column_stride == 1 && v.element == Element::f16) {
    for (; i + kLanes <= width; i += kLanes)
      store_f16(reinterpret_cast<uint16_t*>(p) + i, vector(i));
  }
  const int64_t rest = i;
  for (; i < width; i += kLanes) store(scratch + i, vector(i));
  write_row(v.element, p + rest * v.column_stride * v.element_bytes, v.column_stride,
            v.element_bytes, width - rest, scratch + rest, 1);
}

/// A sum over a row: add_vector(i, sum) is the sum with that of elements i .. i + kLanes. In four
/// sums a lane.
template <class AddVector>
double sum_over(int64_t padded, const AddVector& add_vector) {
  double total = 0;
  for (int64_t first = 0; first < padded; first += kColumnsPerSum) {
    const int64_t last = end_of_sum(first, padded);
    Float sum[4] = {zero(), zero(), zero(), zero()};
    int64_t i = first;
    for (; i + 4 * kLanes <= last; i += 4 * kLanes) {
      for (int n = 0; n < 4; ++n) sum[n] = add_vector(i + n * kLanes, sum[n]);
    }
    for (; i < last; i += kLanes) sum[0] = add_vector(i, sum[0]);
    total += sum_of_lanes(add(add(sum[0], sum[1]), add(sum[2], sum[3])));
  }
  return total;
}

/// Of the squares of what vector(i) gives, elements i .. i + kLanes of a row.
template <class Vector>
double sum_of_squares(int64_t padded, const Vector& vector) {
  return sum_over(padded, [&](int64_t i, Float sum) {
    const Float a = vector(i);
    return multiply_add(a, a, sum);
  });
}

double sum_of(const float* a, int64_t padded) {
  return sum_over(padded, [&](int64_t i, Float sum) { return add(load(a + i), sum); });
}

/// out = x - mean, zeros in the padding; x may be out.
void take_off(const float* x, float mean, int64_t width, float* out) {
  const int64_t padded = round_up(width, kPadding);
  for (int64_t i = 0; i < padded; i += kLanes) store(out + i, subtract(load(x + i), all(mean)));
  for (int64_t i = width; i < padded; ++i) out[i] = 0;
}

/// How a row is normalised: xh = c * inverse + shift, c being x, or its distance to `taken_off`,
/// the mean as f32 sums it, which is rounded: `shift` is minus the mean of those distances,
/// normalised.
struct RowStatistics {
  float mean, inverse, shift;
};

/// Of a row whose mean is not taken off, by the mean of its squares.
RowStatistics statistics_of(double square, double epsilon) {
  return {0, static_cast<float>(1 / __builtin_sqrt(square + epsilon)), 0};
}

RowStatistics statistics_of(const float* c, int64_t width, bool centred, float taken_off,
                            double epsilon) {
  const int64_t padded = round_up(width, kPadding);
  const auto columns = static_cast<double>(width);
  double square = sum_of_squares(padded, [&](int64_t i) { return load(c + i); }) / columns;
  if (!centred) return statistics_of(square, epsilon);
  const double correction = sum_of(c, padded) / columns;
  square -= correction * correction;
  if (square < 0) square = 0;  // of equal numbers
  const double inverse = 1 / __builtin_sqrt(square + epsilon);
  // Around 0 distances are rounded more than the numbers' sum was.
  const double mean = taken_off + (double{taken_off} * taken_off > square ? correction : 0);
  return {static_cast<float>(mean), static_cast<float>(inverse),
          static_cast<float>(-correction * inverse)};
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

/// Writes a row's statistics, and the row, of which vector(i) gives elements i .. i + kLanes.
template <class Vector>
void write_normalised(const NormPass<float>& pass, const RowIndex& at, const RowStatistics& of_row,
                      float* scratch, const Vector& vector) {
  if (pass.mean.data) write(pass.mean, at, 1, &of_row.mean);
  if (pass.inv_rms.data) write(pass.inv_rms, at, 1, &of_row.inverse);
  const Float r = all(of_row.inverse), shift = all(of_row.shift);
  write_vectors(pass.y, at.address(pass.y), pass.rows.width, scratch, [&](int64_t i) {
    const Float bias = pass.bias ? load(pass.bias + i) : zero();
    return multiply_add(multiply_add(vector(i), r, shift), load(pass.weight + i), bias);
  });
}

/// Whether rows of x are normalised without being kept in f32: in 16 bits, dense, whole vectors,
/// as they are. Of 4096 columns a row in f32 and the weights fill a core's first cache: read and
/// widened twice, 2048 such rows of f16 take 2.4 ms, not 3.4.
bool is_read_twice(const NormPass<float>& pass) {
  return (pass.x.element == Element::f16 || pass.x.element == Element::bf16) &&
         pass.x.column_stride == 1 && pass.rows.width % kPadding == 0 && !pass.centred &&
         !pass.residual.data;
}

template <class Load>
void norm_rows_read_twice(const NormPass<float>& pass, RowRange rows, float* scratch,
                          const Load& load_vector) {
  RowIndex at(pass.rows, rows.first);
  for (int64_t row = rows.first; row < rows.last; ++row, at.next()) {
    const auto* x = reinterpret_cast<const uint16_t*>(at.address(pass.x));
    const auto vector = [&](int64_t i) { return load_vector(x + i); };
    const int64_t width = pass.rows.width;
    const double square = sum_of_squares(width, vector) / static_cast<double>(width);
    write_normalised(pass, at, statistics_of(square, pass.epsilon), scratch, vector);
  }
}

}  // namespace

void norm_rows(const NormPass<float>& pass, RowRange rows, float* scratch) {
  if (is_read_twice(pass)) {
    return pass.x.element == Element::f16
               ? norm_rows_read_twice(pass, rows, scratch,
                                      [](const uint16_t* in) { return load_f16(in); })
               : norm_rows_read_twice(pass, rows, scratch,
                                      [](const uint16_t* in) { return load_bf16(in); });
  }
  const int64_t width = pass.rows.width, padded = round_up(width, kPadding);
  RowIndex at(pass.rows, rows.first);
  for (int64_t row = rows.first; row < rows.last; ++row, at.next()) {
    const float* x =
        pass.residual.data ? add_residual(pass, at, scratch) : read(pass.x, at, width, scratch);
    float mean = 0;
    if (pass.centred) {
      mean = static_cast<float>(sum_of(x, padded) / static_cast<double>(width));
      take_off(x, mean, width, scratch);
      x = scratch;
    }
    const RowStatistics of_row = statistics_of(x, width, pass.centred, mean, pass.epsilon);
    write_normalised(pass, at, of_row, scratch, [&](int64_t i) { return load(x + i); });
  }
}

namespace {

struct RowSums {
  double along = 0, gradient = 0;  ///< of g xh, and, if centred, of g
};

/// One row's sums, and its part of dw and db.
RowSums sum_row(const float* x, const float* dy, const float* weight, float inverse, bool centred,
                int64_t padded, float* weight_sum, float* bias_sum) {
  const Float r = all(inverse);
  RowSums sums;
  for (int64_t first = 0; first < padded; first += kColumnsPerSum) {
    const int64_t last = end_of_sum(first, padded);
    Float even = zero(), odd = zero(), gradient = zero();
    for (int64_t i = first; i < last; i += kLanes) {
      const Float d = load(dy + i), xh = multiply(load(x + i), r), d_xh = multiply(d, xh);
      (i / kLanes % 2 == 0 ? even : odd) =
          multiply_add(load(weight + i), d_xh, i / kLanes % 2 == 0 ? even : odd);
      if (centred) gradient = multiply_add(load(weight + i), d, gradient);
      if (weight_sum) store(weight_sum + i, add(load(weight_sum + i), d_xh));
      if (bias_sum) store(bias_sum + i, add(load(bias_sum + i), d));
    }
    sums.along += sum_of_lanes(add(even, odd));
    sums.gradient += sum_of_lanes(gradient);
  }
  return sums;
}

}  // namespace

void norm_backward_rows(const NormBackwardPass<float>& pass, RowRange rows, int64_t chunk,
                        float* scratch) {
  const int64_t width = pass.rows.width, padded = round_up(width, kPadding);
  double* const d_weight = pass.d_weight ? pass.d_weight + chunk * padded : nullptr;
  double* const d_bias = pass.d_bias ? pass.d_bias + chunk * padded : nullptr;
  float* const weight_sum = d_weight ? scratch + 2 * padded : nullptr;
  float* const bias_sum = d_bias ? scratch + 3 * padded : nullptr;
  clear(d_weight, padded);
  clear(d_bias, padded);
  fill(scratch + 2 * padded, 2 * padded, 0);
  const bool writes_direct = is_direct(pass.dx, width);
  RowIndex at(pass.rows, rows.first);
  for (int64_t row = rows.first; row < rows.last; ++row, at.next()) {
    const float* x = read(pass.x, at, width, scratch);
    const float* dy = read(pass.dy, at, width, scratch + padded);
    if (pass.centred) {
      take_off(x, number_at(pass.mean.element, at.address(pass.mean)), width, scratch);
      x = scratch;
    }
    const float inverse = number_at(pass.inv_rms.element, at.address(pass.inv_rms));
    const RowSums sums =
        sum_row(x, dy, pass.weight, inverse, pass.centred, padded, weight_sum, bias_sum);
    if (pass.dx.data) {
      float* dx = writes_direct ? reinterpret_cast<float*>(at.address(pass.dx)) : scratch;
      const auto columns = static_cast<double>(width);
      const Float r = all(inverse), along = all(static_cast<float>(sums.along / columns)),
                  mean = all(static_cast<float>(sums.gradient / columns));
      for (int64_t i = 0; i < padded; i += kLanes) {
        const Float g = multiply(load(dy + i), load(pass.weight + i));
        const Float xh = multiply(load(x + i), r);
        store(dx + i, multiply(r, subtract(subtract(g, mean), multiply(xh, along))));
      }
      if (!writes_direct) write(pass.dx, at, width, dx);
    }
    if ((row - rows.first + 1) % kRowsPerSum == 0 || row + 1 == rows.last) {
      flush(weight_sum, d_weight, padded);
      flush(bias_sum, d_bias, padded);
    }
  }
}

}  // namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL
