#include "engine/cpu/rope_wide.h"

#include <algorithm>
#include <cmath>

#include "core/dtype.h"

namespace heddle::engine::cpu {

namespace {

double at(const View& v, int64_t element) {
  return load(static_cast<DataType>(v.element), v.data, element);
}

int64_t batch_origin(const View& v, int64_t b) {
  if (!v.ragged) return b * v.stride[0];
  return static_cast<int64_t>(at(*v.ragged, b * v.ragged->stride[0])) * v.ragged_multiplier;
}

/// The row of the angle tables for row s.
int64_t table_row(const RopePass<float>& pass, int64_t b, int64_t s) {
  const View& table = pass.angles ? *pass.angles : *pass.cosines;
  const int64_t added = pass.positions && pass.per_row ? 0 : s;
  double position = 0;
  if (pass.positions) {
    const int64_t origin = b * pass.positions->stride[0];
    position = at(*pass.positions, origin + (pass.per_row ? s * pass.positions->stride[2] : 0));
  }
  // Clamped before the row is added to it: a position may be all that 64 bits hold.
  position = std::clamp(position, static_cast<double>(-added),
                        static_cast<double>(table.dims[0] - 1 - added));
  return static_cast<int64_t>(position) + added;
}

}  // namespace

void rope_rows_wide(const RopePass<float>& pass, double scale, int64_t b, int64_t first,
                    int64_t last) {
  const int64_t half = pass.rope_dim / 2, begin = pass.first_column;
  const View &in = *pass.in, &out = *pass.out;
  for (int64_t s = first; s < last; ++s) {
    const int64_t row = table_row(pass, b, s);
    for (int64_t h = 0; h < pass.heads; ++h) {
      const int64_t from = batch_origin(in, b) + h * in.stride[1] + s * in.stride[2];
      const int64_t to = batch_origin(out, b) + h * out.stride[1] + s * out.stride[2];
      const auto x = [&](int64_t d) { return at(in, from + d * in.stride[3]); };
      const auto y = [&](int64_t d, double value) {
        store(static_cast<DataType>(out.element), out.data, to + d * out.stride[3], value);
      };
      for (int64_t d = 0; d < pass.columns; ++d)
        if (d < begin || d >= begin + pass.rope_dim) y(d, scale * x(d));
      for (int64_t j = 0; j < half; ++j) {
        const auto entry = [&](const View& table) {
          return at(table, row * table.stride[0] + j * table.stride[3]);
        };
        const double cosine = pass.angles ? std::cos(entry(*pass.angles)) : entry(*pass.cosines);
        const double sine = (pass.inverse ? -1 : 1) *
                            (pass.angles ? std::sin(entry(*pass.angles)) : entry(*pass.sines));
        const int64_t lo = begin + (pass.interleaved ? 2 * j : j);
        const int64_t hi = begin + (pass.interleaved ? 2 * j + 1 : half + j);
        const double x_lo = x(lo), x_hi = x(hi);
        y(lo, scale * (x_lo * cosine - x_hi * sine));
        y(hi, scale * (x_hi * cosine + x_lo * sine));
      }
    }
  }
}

}  // namespace heddle::engine::cpu
