#include "engine/cpu/kernels/rope.h"

#include "engine/cpu/kernels/sine_cosine.h"
#include "engine/cpu/kernels/visible.h"

namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL {

namespace {

/// Angles in `cosine` become their cosines and, in `sine`, their sines.
void turn(Real* cosine, Real* sine, int64_t count) {
  Float s, c;
  int64_t j = 0;
  for (; j + kLanes <= count; j += kLanes) {
    sine_cosine(load(cosine + j), s, c);
    store(sine + j, s);
    store(cosine + j, c);
  }
  if (j == count) return;
  const int rest = static_cast<int>(count - j);
  sine_cosine(load_first(cosine + j, rest), s, c);
  store_first(sine + j, s, rest);
  store_first(cosine + j, c, rest);
}

}  // namespace

void rope_table(const RopePass& rope, int64_t first, int64_t last) {
  const int64_t half = rope.rope_dim / 2;
  const View& any = rope.angles ? *rope.angles : *rope.cosines;
  for (int64_t n = first; n < last; ++n) {
    const int64_t b = n / rope.length, s = n % rope.length;
    int64_t position = 0, added = s;
    if (rope.positions) {
      const int64_t at = b * rope.positions->stride[0];
      position =
          integer_at(*rope.positions, rope.per_row ? at + s * rope.positions->stride[2] : at);
      if (rope.per_row) added = 0;
    }
    // A position outside the table would read outside its memory; rows past a sequence's end have
    // such. The row is added behind: to a position of 64 bits it may be too much.
    position = larger(-added, smaller(position, any.dims[0] - 1 - added)) + added;
    Real* cosine = rope.table + n * rope.rope_dim;
    Real* sine = cosine + half;
    const auto read = [&](const View& v, Real* out) {
      read_row(v.element, v.data + position * v.stride[0] * v.element_bytes, v.stride[3],
               v.element_bytes, half, out);
    };
    if (rope.angles) {
      read(*rope.angles, cosine);
      turn(cosine, sine, half);
    } else {
      read(*rope.cosines, cosine);
      read(*rope.sines, sine);
    }
  }
}

void rope_rows(const RopePass& rope, int64_t b, int64_t first, int64_t last, Real* scratch) {
  if (rope.in->ragged || rope.out->ragged)
    last = smaller(last, length_of(rope.lengths, rope.lengths_cumulative, b, rope.length));
  for (int64_t s = first; s < last; ++s) {
    for (int64_t h = 0; h < rope.heads; ++h) {
      read_row(*rope.in, b, h, s, scratch);
      rotate_row(rope, b, s, rope.columns, scratch);
      write_row(*rope.out, b, h, s, scratch, 1);
    }
  }
}

}  // namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL
