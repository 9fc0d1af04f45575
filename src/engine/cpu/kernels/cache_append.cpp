#include "engine/cpu/kernels/cache_append.h"

#include "core/dtype.h"
#include "engine/cpu/kernels/memory.h"
#include "engine/cpu/kernels/rope.h"

namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL {

namespace {

/// Cosines and sines of the row's position, behind its elements.
struct Angles {
  const float *cosine = nullptr, *sine = nullptr;
};

Angles angles_of(const CacheAppendPass& pass, int64_t b, int64_t s, float* memory) {
  if (!pass.cosines) return {};
  const int64_t half = pass.rope_dim / 2;
  int64_t position = pass.past[b] + s;
  if (pass.positions)
    position =
        integer_at(*pass.positions, b * pass.positions->stride[0] + s * pass.positions->stride[2]);
  // One outside of the tables would read outside their memory.
  position = larger(0, smaller(position, pass.cosines->dims[0] - 1));
  const auto read = [&](const View& table, float* out) {
    read_row(table.element, table.data + position * table.stride[0] * table.element_bytes,
             table.stride[3], table.element_bytes, half, out);
  };
  read(*pass.cosines, memory);
  read(*pass.sines, memory + half);
  return {memory, memory + half};
}

/// x * weight / sqrt(mean(x^2) + epsilon).
void normalise(const float* weight, double epsilon, int64_t columns, float* x) {
  if (!weight) return;
  Float squares = zero();
  int64_t d = 0;
  for (; d + kLanes <= columns; d += kLanes)
    squares = multiply_add(load(x + d), load(x + d), squares);
  if (d < columns) {
    const Float rest = load_first(x + d, static_cast<int>(columns - d));
    squares = multiply_add(rest, rest, squares);
  }
  const double mean = static_cast<double>(sum_of_lanes(squares)) / static_cast<double>(columns);
  const auto inverse = static_cast<float>(1 / __builtin_sqrt(mean + epsilon));
  for (d = 0; d < columns; ++d) x[d] = x[d] * inverse * weight[d];
}

/// x / s as an integer from lo to hi; 0 of a scale of 0, and of no number.
inline float integer_code(float x, float s, float lo, float hi) {
  const float code = s == 0 ? 0 : x / s;
  if (code != code) return 0;
  const float whole = __builtin_rintf(code);
  return whole < lo ? lo : whole > hi ? hi : whole;
}

/// A row of numbers as the codes of head h's cache.
void write_codes(const View& cache, int64_t h, int64_t columns, const float* x, char* row) {
  const float* scale = scales_of(cache, h);
  const int64_t step = cache.scale->stride[3];
  if (cache.element == Element::i8) {
    for (int64_t d = 0; d < columns; ++d)
      row[d] = static_cast<int8_t>(integer_code(x[d], scale[d * step], -128, 127));
  } else if (cache.element == Element::i4) {
    const auto code = [&](int64_t d) {
      return static_cast<int>(integer_code(x[d], scale[d * step], -8, 7)) + 8;
    };
    for (int64_t d = 0; d < columns; d += 2)
      row[d / 2] = static_cast<char>(code(d) | code(d + 1) << 4);
  } else {
    for (int64_t d = 0; d < columns; ++d) {
      const float s = scale[d * step], number = s == 0 || x[d] != x[d] ? 0 : x[d] / s;
      const float within = number < -448 ? -448 : number > 448 ? 448 : number;
      row[d] = static_cast<char>(float_to_f8e4m3(within));
    }
  }
}

void write_cache_row(const View& cache, int64_t b, int64_t h, int64_t at, int64_t columns,
                     const float* x) {
  if (!cache.pages && !cache.ring && at >= cache.dims[2]) return;
  char* const row = row_address(cache, b, h, at);
  if (!row) return;
  if (cache.scale) return write_codes(cache, h, columns, x, row);
  write_row(cache.element, row, cache.stride[3], cache.element_bytes, columns, x, 1);
}

}  // namespace

void append_row(const CacheAppendPass& pass, int64_t b, int64_t s, int64_t first, int64_t last,
                float* scratch) {
  const bool is_new = s < pass.added[b];
  // Of more new rows than a ring holds the last ones stay.
  const bool is_kept =
      is_new && !(pass.k_cache && pass.k_cache->ring && s < pass.added[b] - pass.k_cache->dims[2]);
  float* const x = scratch;
  const Angles angles =
      angles_of(pass, b, s, scratch + round_up(larger(pass.qk_dim, pass.v_dim), 16));
  const auto prepare = [&](const View& from, int64_t h, const float* weight, double epsilon) {
    read_row(from, b, h, s, x);
    normalise(weight, epsilon, pass.qk_dim, x);
    if (angles.cosine)
      rotate_pairs(angles.cosine, angles.sine, pass.rope_dim / 2, pass.interleaved, 1, 1, x);
  };
  for (int64_t n = first; n < last; ++n) {
    if (n < pass.q_heads) {
      if (!pass.q_out) continue;
      if (is_new) {
        prepare(*pass.q, n, pass.q_weight, pass.q_epsilon);
        write_row(*pass.q_out, b, n, s, x, 1);
      } else {
        write_row_of(*pass.q_out, b, n, s, 0);
      }
    } else if (!is_kept) {
      continue;
    } else if (n < pass.q_heads + pass.kv_heads) {
      const int64_t h = n - pass.q_heads;
      prepare(*pass.k, h, pass.k_weight, pass.k_epsilon);
      write_cache_row(*pass.k_cache, b, h, pass.past[b] + s, pass.qk_dim, x);
    } else {
      const int64_t h = n - pass.q_heads - pass.kv_heads;
      read_row(*pass.v, b, h, s, x);
      write_cache_row(*pass.v_cache, b, h, pass.past[b] + s, pass.v_dim, x);
    }
  }
}

}  // namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL
