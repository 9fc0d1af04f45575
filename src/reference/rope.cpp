#include <cmath>

#include "reference/ops.h"

namespace heddle::reference {

using graph::kNone;
using graph::RopePairing;

namespace {

/// The row of the angle tables that row s of batch entry b uses.
int64_t angle_row(const graph::Rope& op, int64_t b, int64_t s, const Values& values) {
  if (op.positions == kNone) return s;
  const bool per_row = values.tensor(op.positions).dims[2] > 1;
  const auto position = static_cast<int64_t>(values.read(op.positions, b, 0, s));
  return per_row ? position : s + position;
}

}  // namespace

void rope(const graph::Rope& op, Values& values) {
  const Dims& dims = values.tensor(op.x).dims;
  const int64_t rope_dim = op.rope_dim > 0 ? op.rope_dim : dims[3];
  const int64_t half = rope_dim / 2, nope = dims[3] - rope_dim;
  const double a = op.output_scale, sign = op.backward ? -1 : 1;
  const bool interleaved = op.pairing == RopePairing::interleaved;
  for (int64_t b = 0; b < dims[0]; ++b) {
    for (int64_t s = 0; s < dims[2]; ++s) {
      const int64_t at = angle_row(op, b, s, values);
      for (int64_t h = 0; h < dims[1]; ++h) {
        const auto x = [&](int64_t d) { return values.read(op.x, b, h, s, d); };
        const auto y = [&](int64_t d, double value) { values.write(op.y, value, b, h, s, d); };
        for (int64_t d = 0; d < nope; ++d) y(d, a * x(d));
        for (int64_t j = 0; j < half; ++j) {
          const bool tables = op.cosines != kNone;
          const double angle = tables ? 0 : values.read(op.freqs, at, 0, 0, j);
          const double cosine = tables ? values.read(op.cosines, at, 0, 0, j) : std::cos(angle);
          const double sine =
              sign * (tables ? values.read(op.sines, at, 0, 0, j) : std::sin(angle));
          const int64_t lo = nope + (interleaved ? 2 * j : j);
          const int64_t hi = nope + (interleaved ? 2 * j + 1 : half + j);
          y(lo, a * (x(lo) * cosine - x(hi) * sine));
          y(hi, a * (x(hi) * cosine + x(lo) * sine));
        }
      }
    }
  }
}

}  // namespace heddle::reference
