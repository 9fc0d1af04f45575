// Rotary embedding of rows of f32.
//   y[o + j] = a (lo cos t - hi sin t),  y[o + h + j] = a (hi cos t + lo sin t),  y[0 : o] = a x[0
//   : o]
// with o = columns - rope_dim, h = rope_dim / 2; interleaved pairs are (o + 2j, o + 2j + 1); the
// inverse turns the sign of t.
#pragma once

#include "engine/cpu/kernels.h"
#include "engine/cpu/kernels/memory.h"

namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL {

/// In place; `row` has `columns` elements.
inline void rotate_row(const RopePass& rope, int64_t b, int64_t s, int64_t columns, float* row) {
  const int64_t half = rope.rope_dim / 2;
  const float* cosine =
      rope.table + ((rope.table_batches == 1 ? 0 : b) * rope.length + s) * rope.rope_dim;
  const float* sine = cosine + half;
  const float turn = rope.inverse ? -rope.scale : rope.scale;
  float* segment = row + columns - rope.rope_dim;
  for (float* x = row; x < segment; ++x) *x *= rope.scale;
  if (rope.interleaved) {
    for (int64_t j = 0; j < half; ++j) {
      const float lo = segment[2 * j], hi = segment[2 * j + 1];
      segment[2 * j] = rope.scale * (lo * cosine[j]) - turn * (hi * sine[j]);
      segment[2 * j + 1] = rope.scale * (hi * cosine[j]) + turn * (lo * sine[j]);
    }
    return;
  }
  const Float scale = all(rope.scale), turned = all(turn);
  int64_t j = 0;
  for (; j + kLanes <= half; j += kLanes) {
    const Float lo = load(segment + j), hi = load(segment + half + j);
    const Float c = load(cosine + j), s = load(sine + j);
    const Float lo_s = multiply(turned, multiply(lo, s)), hi_s = multiply(turned, multiply(hi, s));
    store(segment + j, subtract(multiply(scale, multiply(lo, c)), hi_s));
    store(segment + half + j, add(multiply(scale, multiply(hi, c)), lo_s));
  }
  for (; j < half; ++j) {
    const float lo = segment[j], hi = segment[half + j];
    segment[j] = rope.scale * (lo * cosine[j]) - turn * (hi * sine[j]);
    segment[half + j] = rope.scale * (hi * cosine[j]) + turn * (lo * sine[j]);
  }
}

void rope_table(const RopePass& pass, int64_t first, int64_t last);
void rope_rows(const RopePass& pass, int64_t b, int64_t first, int64_t last, float* scratch);

}  // namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL
