// Tiles of attention on fp8 operands: codes as f32, products of them, and what is held in fp8 on
// the way. Plain loops, which the compiler makes vectors of.
#pragma once

#include "core/dtype.h"
#include "engine/cpu/fp8_arguments.h"
#include "engine/cpu/kernels/math.h"
#include "engine/cpu/kernels/visible.h"

namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL {

/// A worker's scratch.
struct Fp8Memory {
  Fp8Memory(const AttentionArguments& a, void* scratch)
      : at(fp8_scratch(a.qk_dim, a.v_dim)), base(static_cast<char*>(scratch)) {}
  float* operator[](int64_t offset) const { return reinterpret_cast<float*>(base + offset); }

  Fp8Scratch at;
  char* base;
};

/// Rows [first, first + count) of a head, codes as their numbers, a row after another.
inline void load_rows(const View& v, int64_t b, int64_t h, int64_t first, int64_t count,
                      float* out) {
  for (int64_t i = 0; i < count; ++i) {
    float* const row = out + i * v.dims[3];
    if (v.element != Element::f8e5m2) {
      read_row(v, b, h, first + i, row);
      continue;
    }
    const char* const codes = row_address(v, b, h, first + i);
    for (int64_t d = 0; d < v.dims[3]; ++d)
      row[d] = f8e5m2_to_float(static_cast<uint8_t>(codes[d * v.stride[3]]));
  }
}

/// A row of a result, rounded once after it is scaled; fp8 saturates.
inline void store_row(const View& v, int64_t b, int64_t h, int64_t s, const float* row,
                      float scale) {
  if (v.element != Element::f8e4m3 && v.element != Element::f8e5m2)
    return write_row(v, b, h, s, row, scale);
  const bool e4m3 = v.element == Element::f8e4m3;
  const float largest = e4m3 ? 448 : 57344;
  char* const codes = row_address(v, b, h, s);
  for (int64_t d = 0; d < v.dims[3]; ++d) {
    const float x = row[d] * scale;
    const float within = x > largest ? largest : x < -largest ? -largest : x;
    codes[d * v.stride[3]] =
        static_cast<char>(e4m3 ? float_to_f8e4m3(within) : float_to_f8e5m2(within));
  }
}

/// The same turned: for each column kFp8Keys numbers, zeros behind those of `count` rows.
inline void load_columns(const float* rows, int64_t columns, int64_t count, float* out) {
  for (int64_t d = 0; d < columns; ++d) {
    for (int64_t j = 0; j < kFp8Keys; ++j)
      out[d * kFp8Keys + j] = j < count ? rows[j * columns + d] : 0;
  }
}

/// out[j] = sum_d row[d] * columns[d][j].
inline void dots(const float* row, const float* columns, int64_t n, float* out) {
  for (int64_t j = 0; j < kFp8Keys; ++j) out[j] = 0;
  for (int64_t d = 0; d < n; ++d) {
    const float x = row[d];
    const float* const column = columns + d * kFp8Keys;
    for (int64_t j = 0; j < kFp8Keys; ++j) out[j] += x * column[j];
  }
}

/// sum[d] += factor * row[d].
inline void add_row(float factor, const float* row, int64_t n, float* sum) {
  for (int64_t d = 0; d < n; ++d) sum[d] += factor * row[d];
}

inline uint32_t magnitude_bits(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  return bits & 0x7fffffffu;
}

/// The largest magnitude of numbers, by its bits.
inline uint32_t amax_of(const float* x, int64_t n, uint32_t most) {
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t bits = magnitude_bits(x[i]);
    most = bits > most ? bits : most;
  }
  return most;
}

/// Workers raise one number.
inline void raise(uint32_t* amax, uint32_t bits) {
  if (!amax) return;
  uint32_t before = __atomic_load_n(amax, __ATOMIC_RELAXED);
  while (before < bits && !__atomic_compare_exchange_n(amax, &before, bits, true, __ATOMIC_RELAXED,
                                                       __ATOMIC_RELAXED)) {
  }
}

/// x[j] as fp8 holds x[j] * scale, rounded to nearest even within its largest number; a NaN stays
/// one. The sum with a number so large that it has the wanted unit rounds there.
inline void hold(const Fp8Held& held, float* x, int64_t n) {
  if (!held.is_held) return;
  const bool e4m3 = held.element == Element::f8e4m3;
  const float largest = e4m3 ? 448.0f : 57344.0f;
  const float least_normal = e4m3 ? 0x1p-6f : 0x1p-14f;
  const float to_unit = 1.5f * (e4m3 ? 0x1p20f : 0x1p21f);  // 23 bits of an f32, 3 or 2 of fp8
  for (int64_t j = 0; j < n; ++j) {
    const float scaled = x[j] * held.scale;
    const float below = scaled > largest ? largest : scaled;
    const float within = below < -largest ? -largest : below;
    uint32_t bits;
    __builtin_memcpy(&bits, &within, sizeof bits);
    bits &= 0x7f800000u;
    float power;
    __builtin_memcpy(&power, &bits, sizeof power);
    const float shift = (power < least_normal ? least_normal : power) * to_unit;
    x[j] = (within + shift) - shift;
  }
}

/// Writes the sums of rows, multiplied out of the units of codes, and raises their amax.
inline void write_result(const Fp8Result& result, float* sums, int64_t columns, int64_t count,
                         const Fp8Task& task) {
  for (int64_t n = 0; n < count * columns; ++n) sums[n] *= result.descale;
  raise(result.amax, amax_of(sums, count * columns, 0));
  for (int64_t i = 0; i < count; ++i)
    store_row(*result.view, task.b, task.h, task.first + i, sums + i * columns, result.scale);
}

/// Zeros in the rows of a dense result past a length; those of sequences one after another are left
/// alone.
inline void write_zeros_past(const View* v, int64_t b, int64_t h, int64_t first, int64_t last) {
  if (!v || v->ragged) return;
  for (int64_t i = first; i < last; ++i) {
    char* const row = row_address(*v, b, h, i);
    for (int64_t d = 0; d < v->dims[3]; ++d)  // 0 of every type is of bytes of 0
      __builtin_memset(row + d * v->stride[3] * v->element_bytes, 0,
                       static_cast<size_t>(v->element_bytes));
  }
}

/// Keys of a block from j0 on that a row sees.
inline Interval seen(const AttentionArguments& a, Lengths lengths, int64_t row, int64_t j0,
                     int64_t keys) {
  const Interval all = visible_keys(a, lengths, row);
  const Interval block{larger(all.lo - j0, 0), smaller(all.hi - j0, keys)};
  return block.lo < block.hi ? block : Interval{0, 0};
}

}  // namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL
