// Rotary embedding of rows of f32.
//   y[o + j] = a (lo cos t - hi sin t),  y[o + h + j] = a (hi cos t + lo sin t),  y = a x elsewhere
// with o = first_column, h = rope_dim / 2; interleaved pairs are (o + 2j, o + 2j + 1); the inverse
// turns the sign of t.
#pragma once

#include "engine/cpu/kernels/memory.h"
#include "engine/cpu/kernels/real.h"

namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL {

/// Pairs of `segment`, of 2 * half elements, in place: (scale lo cos - turn hi sin, scale hi cos +
/// turn lo sin).
inline void rotate_pairs(const Real* cosine, const Real* sine, int64_t half, bool interleaved,
                         Real scale, Real turn, Real* segment) {
  if (interleaved) {
    for (int64_t j = 0; j < half; ++j) {
      const Real lo = segment[2 * j], hi = segment[2 * j + 1];
      segment[2 * j] = scale * (lo * cosine[j]) - turn * (hi * sine[j]);
      segment[2 * j + 1] = scale * (hi * cosine[j]) + turn * (lo * sine[j]);
    }
    return;
  }
  const Float scaled = all(scale), turned = all(turn);
  int64_t j = 0;
  for (; j + kLanes <= half; j += kLanes) {
    const Float lo = load(segment + j), hi = load(segment + half + j);
    const Float c = load(cosine + j), s = load(sine + j);
    const Float lo_s = multiply(turned, multiply(lo, s)), hi_s = multiply(turned, multiply(hi, s));
    store(segment + j, subtract(multiply(scaled, multiply(lo, c)), hi_s));
    store(segment + half + j, add(multiply(scaled, multiply(hi, c)), lo_s));
  }
  for (; j < half; ++j) {
    const Real lo = segment[j], hi = segment[half + j];
    segment[j] = scale * (lo * cosine[j]) - turn * (hi * sine[j]);
    segment[half + j] = scale * (hi * cosine[j]) + turn * (lo * sine[j]);
  }
}

/// In place; `row` has `columns` elements.
inline void rotate_row(const RopePass& rope, int64_t b, int64_t s, int64_t columns, Real* row) {
  const int64_t half = rope.rope_dim / 2;
  const Real* cosine =
      rope.table + ((rope.table_batches == 1 ? 0 : b) * rope.length + s) * rope.rope_dim;
  Real* segment = row + rope.first_column;
  for (Real* x = row; x < segment; ++x) *x *= rope.scale;
  for (Real* x = segment + rope.rope_dim; x < row + columns; ++x) *x *= rope.scale;
  rotate_pairs(cosine, cosine + half, half, rope.interleaved, rope.scale,
               rope.inverse ? -rope.scale : rope.scale, segment);
}

void rope_table(const RopePass& pass, int64_t first, int64_t last);
void rope_rows(const RopePass& pass, int64_t b, int64_t first, int64_t last, Real* scratch);

}  // namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL
