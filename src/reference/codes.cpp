#include "reference/codes.h"

#include <algorithm>
#include <cmath>

namespace heddle::reference {

using graph::kNone;

namespace {

constexpr int kFourBitZero = 8;

/// Number d of an element that holds two of them.
double four_bit_code(double byte, int64_t d) {
  const int both = static_cast<int>(byte);
  return (d % 2 == 0 ? both & 15 : both >> 4) - kFourBitZero;
}

double scale_of(const Cache& cache, int64_t h, int64_t d, const Values& values) {
  return cache.scale == kNone ? 1 : values.read(cache.scale, 0, h, 0, d);
}

}  // namespace

CacheRow row_of(const Cache& cache, int64_t b, int64_t row, const Values& values) {
  const Dims& dims = values.tensor(cache.tensor).dims;
  if (cache.ring) return {b, row % dims[2], true};
  if (cache.table == kNone) return {b, row, row < dims[2]};
  const Dims& pages = values.tensor(cache.table).dims;
  if (row / dims[2] >= pages[2]) return {0, 0, false};
  const auto page = static_cast<int64_t>(values.read(cache.table, b, 0, row / dims[2]));
  return {page, row % dims[2], page >= 0 && page < dims[0]};
}

Matrix rows_of(const Cache& cache, int64_t b, int64_t h, int64_t count, const Values& values) {
  const graph::Tensor& tensor = values.tensor(cache.tensor);
  const bool four_bits = cache.scale != kNone && tensor.dtype == DataType::u8;
  Matrix matrix(count, tensor.dims[3] * (four_bits ? 2 : 1));
  const int64_t first = cache.ring ? std::max<int64_t>(0, count - tensor.dims[2]) : 0;
  for (int64_t s = first; s < count; ++s) {
    const CacheRow at = row_of(cache, b, s, values);
    for (int64_t d = 0; at.exists && d < matrix.columns; ++d) {
      const double element = values.read(cache.tensor, at.i0, h, at.i2, four_bits ? d / 2 : d);
      if (cache.scale == kNone) {
        matrix(s, d) = element;
        continue;
      }
      // What codes stand for is an intermediate tensor.
      const double code = four_bits ? four_bit_code(element, d) : element;
      matrix(s, d) = values.precision()(code * scale_of(cache, h, d, values));
    }
  }
  return matrix;
}

double code_of(DataType type, double number, double scale) {
  if (scale == 0 || std::isnan(number)) return 0;
  const double code = number / scale;
  // Of a scale that is NaN, or of two infinities: integers have none.
  if (std::isnan(code)) return type == DataType::f8e4m3 ? code : 0;
  if (type == DataType::i8) return std::clamp(std::nearbyint(code), -128.0, 127.0);
  if (type == DataType::u8) return std::clamp(std::nearbyint(code), -8.0, 7.0);
  return std::clamp(code, -448.0, 448.0);
}

void write_row(const Cache& cache, const CacheRow& at, int64_t h, const std::vector<double>& row,
               Values& values) {
  const DataType type = *values.tensor(cache.tensor).dtype;
  const auto code = [&](size_t d) {
    if (cache.scale == kNone) return row[d];
    return code_of(type, row[d], scale_of(cache, h, static_cast<int64_t>(d), values));
  };
  const size_t step = cache.scale != kNone && type == DataType::u8 ? 2 : 1;
  for (size_t d = 0; d < row.size(); d += step) {
    const double element =
        step == 1 ? code(d) : code(d) + kFourBitZero + 16 * (code(d + 1) + kFourBitZero);
    values.write(cache.tensor, element, at.i0, h, at.i2, static_cast<int64_t>(d / step));
  }
}

}  // namespace heddle::reference
