// Products for tiles of so few query rows that packing K and V would cost more than it saves, as in
// decoding: keys and values are used where they lie, in the order in which they lie, so that a long
// cache streams from memory once. Rows are staged kLanes at a time, f32 too: that many rows read
// side by side are more streams than the machine foresees (32 heads on 8, 8192 keys of d 128 in
// f32, a core: 7.9 GB/s where they lie, 12.3 staged, 15.5 with the rows after the next ones
// fetched). A key that is loaded serves four rows, and the next block's first keys are fetched
// before this one's values are used (f32 14.5 to 15.7 GB/s, f16 12.2 to 12.8, int8 6.6 to 7.0);
// dots of bf16 are those of pairs (12.4 to 13.8). Lost: products of what is loaded where it lies,
// converted in registers, four keys by four rows at a time, with the lines of rows 32 farther on
// fetched before each block or one by one between its products (f32 7.4 and 9.7 GB/s, bf16 12.1
// and 10.5 in place of 14.4; int8 alone gains, 8.5).
//
// Measured on a Zen 4 core, d 64 and 128: packing a key costs what visiting it with six rows does,
// and a dot product along d costs a panel's share of the product plus the sums of its lanes; both
// ways meet at about eight rows.
#pragma once

#include "engine/cpu/kernels/forward.h"
#include "engine/cpu/kernels/pack.h"

namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL {

/// How far ahead of their use rows are fetched from memory.
inline constexpr int64_t kRowsAhead = 2 * kLanes;

/// Addresses of a range's rows, null of those that do not exist.
class RowAddresses {
 public:
  explicit RowAddresses(const RowRange& rows) : rows_(rows), count_(rows.count) {
    const View& v = *rows.view;
    if (!v.pages && !v.ring && rows.count > 0) base_ = rows.address(0);
    step_ = v.stride[2] * v.element_bytes;
  }
  const char* operator[](int64_t r) const {
    return r >= count_ ? nullptr : base_ ? base_ + r * step_ : rows_.address(r);
  }
  /// Those of the N rows from r on.
  template <int N>
  void take(int64_t r, const char* (&row)[N]) const {
    if (base_ && r + N <= count_) {
      const char* const first = base_ + r * step_;
      for (int n = 0; n < N; ++n) row[n] = first + n * step_;
    } else {
      for (int n = 0; n < N; ++n) row[n] = (*this)[r + n];
    }
  }

 private:
  const RowRange& rows_;
  const char* base_ = nullptr;
  int64_t step_, count_;
};

/// Asks for up to kLanes rows from `at` on.
inline void fetch_rows(const RowRange& rows, int64_t at) {
  const int64_t bytes = rows.view->dims[3] * rows.view->element_bytes;
  const RowAddresses address(rows);
  for (int64_t r = at; r < smaller(at + kLanes, rows.count); ++r) {
    const char* row = address[r];
    for (int64_t line = 0; row && line < bytes; line += 64) __builtin_prefetch(row + line);
  }
}

/// scores[r * pitch + c] = q_r . key_c of R rows and kLanes keys, as many of these at a time as
/// leave the sums of a vector's lanes: a key that is loaded serves R rows.
template <class Arithmetic, int R>
inline void score_rows(const Real* q, int64_t q_pitch, const Real* const* key, int64_t words,
                       Real* scores, int64_t pitch) {
  constexpr int kKeys = kLanes / R;
  const int64_t whole = words / kLanes * kLanes;
  const int rest = static_cast<int>(words - whole);
  for (int first = 0; first < kLanes; first += kKeys) {
    Float sum[kLanes];
#pragma GCC unroll 16
    for (int n = 0; n < kLanes; ++n) sum[n] = zero();
    const auto step = [&](int64_t d, auto load_words) {
      Float x[R];
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) x[r] = load_words(q + r * q_pitch + d);
#pragma GCC unroll 16
      for (int c = 0; c < kKeys; ++c) {
        const Float k = load_words(key[first + c] + d);
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r)
          sum[r * kKeys + c] = Arithmetic::step(x[r], k, sum[r * kKeys + c]);
      }
    };
    for (int64_t d = 0; d < whole; d += kLanes) step(d, [](const Real* p) { return load(p); });
    if (rest > 0) step(whole, [rest](const Real* p) { return load_first(p, rest); });
    Real sums[kLanes];
    store(sums, sums_of_lanes(sum));
    for (int r = 0; r < R; ++r)
      __builtin_memcpy(scores + r * pitch + first, sums + r * kKeys, kKeys * sizeof(Real));
  }
}

/// scores[r * pitch + j] = q_r . k_j for j in [first, last), which are multiples of kLanes with
/// keys.count > last - kLanes. What lies at keys that do not exist is some other key's score. Rows
/// of q, which are words, and of scores up to kShape.few_rows must be there.
template <class Arithmetic>
inline void few_rows_scores(const RowRange& keys, int64_t columns, int rows, const Real* q,
                            int64_t q_pitch, int64_t first, int64_t last, Real* staging,
                            Real* scores, int64_t pitch) {
  for (int64_t j = first; j < last; j += kLanes) {
    const int count = static_cast<int>(smaller(kLanes, keys.count - j));
    fetch_rows(keys, j + kRowsAhead);
    const Real* key[kLanes];
    rows_as_words<Arithmetic>(keys, j, count, columns, false, staging, key);
    for (int c = count; c < kLanes; ++c) key[c] = key[0];
    const int64_t words = words_of<Arithmetic>(columns);
    const Real* row = q;
    Real* out = scores + j;
    int left = rows;
    // Sums, rows and a key have to fit the registers.
    if constexpr (kLanes >= 16) {
      for (; left > 2; left -= 4, row += 4 * q_pitch, out += 4 * pitch)
        score_rows<Arithmetic, 4>(row, q_pitch, key, words, out, pitch);
    }
    for (; left > 1; left -= 2, row += 2 * q_pitch, out += 2 * pitch)
      score_rows<Arithmetic, 2>(row, q_pitch, key, words, out, pitch);
    if (left > 0) score_rows<Arithmetic, 1>(row, q_pitch, key, words, out, pitch);
  }
}

/// o[r][d .. d + N vectors) += sum of p[r][c] * value[c], of M rows.
template <int M, int N, bool is_whole>
inline void add_weighted(const Real* p, int64_t pitch, const Real* const* value, int count,
                         int64_t d, int width, Real* o, int64_t o_pitch) {
  Float sum[M][N];
#pragma GCC unroll 8
  for (int r = 0; r < M; ++r) {
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) sum[r][n] = load(o + r * o_pitch + d + n * kLanes);
  }
  for (int c = 0; c < count; ++c) {
    Float v[N];
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n)
      v[n] = is_whole ? load(value[c] + d + n * kLanes) : load_first(value[c] + d, width);
#pragma GCC unroll 8
    for (int r = 0; r < M; ++r) {
      const Float weight = all(p[r * pitch + c]);
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) sum[r][n] = multiply_add(weight, v[n], sum[r][n]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < M; ++r) {
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) store(o + r * o_pitch + d + n * kLanes, sum[r][n]);
  }
}

/// All columns of M rows; few of them take four vectors at a time, to have sums enough in flight.
template <int M>
inline void add_weighted_rows(const Real* p, int64_t pitch, const Real* const* value, int count,
                              int64_t columns, Real* o, int64_t o_pitch) {
  constexpr int kWide = M <= (kLanes >= 16 ? 4 : 2) ? 4 : 2;
  int64_t d = 0;
  for (; d + kWide * kLanes <= columns; d += kWide * kLanes)
    add_weighted<M, kWide, true>(p, pitch, value, count, d, 0, o, o_pitch);
  for (; d + kLanes <= columns; d += kLanes)
    add_weighted<M, 1, true>(p, pitch, value, count, d, 0, o, o_pitch);
  if (d < columns)
    add_weighted<M, 1, false>(p, pitch, value, count, d, static_cast<int>(columns - d), o, o_pitch);
}

/// o_r += sum over j in [first, last) of p[r * pitch + j] * v_j. Rows of p and o up to
/// kShape.few_rows must be there.
inline void few_rows_output(const RowRange& values, int64_t columns, int rows, const Real* p,
                            int64_t pitch, int64_t first, int64_t last, Real* staging, Real* o,
                            int64_t o_pitch) {
  for (int64_t j = first; j < last; j += kLanes) {
    const int count = static_cast<int>(smaller(kLanes, smaller(last, values.count) - j));
    fetch_rows(values, j + kRowsAhead);
    const Real* value[kLanes];
    rows_as_words<Singles>(values, j, count, columns, false, staging, value);
    if (rows <= 1) {
      add_weighted_rows<1>(p + j, pitch, value, count, columns, o, o_pitch);
    } else if (rows <= 2) {
      add_weighted_rows<2>(p + j, pitch, value, count, columns, o, o_pitch);
    } else if (rows <= 4) {
      add_weighted_rows<4>(p + j, pitch, value, count, columns, o, o_pitch);
    } else {
      add_weighted_rows<kShape.few_rows>(p + j, pitch, value, count, columns, o, o_pitch);
    }
  }
}

}  // namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL
