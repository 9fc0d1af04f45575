#include "engine/cpu/kernels/rope.h"

#include "engine/cpu/kernels/visible.h"

namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL {

void rope_table(const RopePass& rope, int64_t first, int64_t last) {
  const int64_t half = rope.rope_dim / 2;
  const View& any = rope.angles ? *rope.angles : *rope.cosines;
  for (int64_t n = first; n < last; ++n) {
    const int64_t b = n / rope.length, s = n % rope.length;
    int64_t position = s;
    if (rope.positions) {
      const int64_t at = b * rope.positions->stride[0];
      position = rope.per_row ? integer_at(*rope.positions, at + s * rope.positions->stride[2])
                              : s + integer_at(*rope.positions, at);
    }
    // A position outside the table would read outside its memory; rows past a sequence's end have
    // such.
    position = larger(0, smaller(position, any.dims[0] - 1));
    float* cosine = rope.table + n * rope.rope_dim;
    float* sine = cosine + half;
    for (int64_t j = 0; j < half; ++j) {
      if (rope.angles) {
        const float angle =
            float_at(*rope.angles, position * rope.angles->stride[0] + j * rope.angles->stride[3]);
        cosine[j] = __builtin_cosf(angle);
        sine[j] = __builtin_sinf(angle);
      } else {
        cosine[j] = float_at(*rope.cosines,
                             position * rope.cosines->stride[0] + j * rope.cosines->stride[3]);
        sine[j] =
            float_at(*rope.sines, position * rope.sines->stride[0] + j * rope.sines->stride[3]);
      }
    }
  }
}

void rope_rows(const RopePass& rope, int64_t b, int64_t first, int64_t last, float* scratch) {
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
