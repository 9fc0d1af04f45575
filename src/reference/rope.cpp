#include <algorithm>
#include <cmath>

#include "reference/ops.h"

namespace heddle::reference {

using graph::kNone;
using graph::RopePairing;

namespace {

/// The row of the angle tables that row s of batch entry b uses: its position's, or the nearest.
int64_t angle_row(const graph::Rope& op, int64_t b, int64_t s, const Values& values) {
  if (op.positions == kNone) return s;
  const bool per_row = values.tensor(op.positions).dims[2] > 1;
  const Dims& table = values.tensor(op.freqs != kNone ? op.freqs : op.cosines).dims;
  // Clamped before the row is added to it: a position may be all that 64 bits hold.
  const int64_t added = per_row ? 0 : s;
  const auto position = std::clamp(values.read(op.positions, b, 0, s), static_cast<double>(-added),
                                   static_cast<double>(table[0] - 1 - added));
  return static_cast<int64_t>(position) + added;
}

/// Rows of batch entry b: all of them, or as many as lie before the next ragged sequence.
int64_t row_count(graph::TensorId id, int64_t b, const Values& values) {
  const graph::Tensor& tensor = values.tensor(id);
  if (tensor.ragged_offset == kNone || tensor.strides[2] == 0) return tensor.dims[2];
  const int64_t elements = values.read_integer(tensor.ragged_offset, b + 1) -
                           values.read_integer(tensor.ragged_offset, b);
  const int64_t rows = elements * tensor.ragged_offset_multiplier / tensor.strides[2];
  return std::min(tensor.dims[2], rows);
}

}  // namespace

void rope(const graph::Rope& op, Values& values) {
  const Dims& dims = values.tensor(op.x).dims;
  const int64_t rope_dim = op.rope_dim > 0 ? op.rope_dim : dims[3];
  const int64_t half = rope_dim / 2, first = op.leading ? 0 : dims[3] - rope_dim;
  const double a = op.output_scale, sign = op.backward ? -1 : 1;
  const bool interleaved = op.pairing == RopePairing::interleaved;
  for (int64_t b = 0; b < dims[0]; ++b) {
    const int64_t rows = std::min(row_count(op.x, b, values), row_count(op.y, b, values));
    for (int64_t s = 0; s < rows; ++s) {
      const int64_t at = angle_row(op, b, s, values);
      for (int64_t h = 0; h < dims[1]; ++h) {
        if (!values.is_there(op.x, b, h, s, 0)) continue;  // past a sequence's length
        const auto x = [&](int64_t d) { return values.read(op.x, b, h, s, d); };
        const auto y = [&](int64_t d, double value) { values.write(op.y, value, b, h, s, d); };
        for (int64_t d = 0; d < dims[3]; ++d)
          if (d < first || d >= first + rope_dim) y(d, a * x(d));
        for (int64_t j = 0; j < half; ++j) {
          const bool tables = op.cosines != kNone;
          const double angle = tables ? 0 : values.read(op.freqs, at, 0, 0, j);
          const double cosine = tables ? values.read(op.cosines, at, 0, 0, j) : std::cos(angle);
          const double sine =
              sign * (tables ? values.read(op.sines, at, 0, 0, j) : std::sin(angle));
          const int64_t lo = first + (interleaved ? 2 * j : j);
          const int64_t hi = first + (interleaved ? 2 * j + 1 : half + j);
          y(lo, a * (x(lo) * cosine - x(hi) * sine));
          y(hi, a * (x(hi) * cosine + x(lo) * sine));
        }
      }
    }
  }
}

}  // namespace heddle::reference
