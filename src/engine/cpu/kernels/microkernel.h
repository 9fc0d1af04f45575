// Register-blocked products of small matrices, the inner loops of everything.
//
//   C[M x N] (+)= A[M x depth] B[depth x N],   M <= kPanelRows, N one or two vectors
//
// Depth, A and B count in words (arithmetic.h). Rows of C and B are contiguous. A is read one
// element at a time and broadcast, so it may lie by rows (a query panel, probabilities) or by
// columns (their transposes in the backward pass). A product is summed by itself and then added to
// C: sums over many rows lose less so (dV of 200 rows of 4 heads: 1.4 times the error of XLA's f32;
// added one by one, 2.4). Measured on a Zen 4 core, 14 x 32, depth 64 to 256, operands in L2: 93 to
// 99 % of the FMA peak.
#pragma once

#include "engine/cpu/kernels/arithmetic.h"
#if defined(HEDDLE_CPU_LEVEL_BF16)
#include "engine/cpu/kernels/tile_products.h"
#endif

namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL {

enum class Into { overwrite, accumulate };
/// How A lies: element (r, k) at a[r * stride + k] or at a[r + k * stride].
enum class Lies { by_rows, by_columns };

template <class Arithmetic, int M, int N, Lies lies, Into into>
inline void multiply_block(const Real* a, int64_t a_stride, const Real* b, int64_t b_stride,
                           Real* c, int64_t c_stride, int64_t depth) {
  Float sum[M][N];
#pragma GCC unroll 16
  for (int r = 0; r < M; ++r) {
#pragma GCC unroll 2
    for (int n = 0; n < N; ++n) sum[r][n] = zero();
  }
  // Every third row has a pointer of its own; the two after it are reached by index registers.
  const Real* row[(M + 2) / 3];
  for (int g = 0; g < (M + 2) / 3; ++g) row[g] = a + 3 * g * a_stride;
  for (int64_t k = 0; k < depth; ++k) {
    Float column[N];
#pragma GCC unroll 2
    for (int n = 0; n < N; ++n) column[n] = load(b + n * kLanes);
    b += b_stride;
#pragma GCC unroll 16
    for (int r = 0; r < M; ++r) {
      const Float x = all(lies == Lies::by_rows ? row[r / 3][(r % 3) * a_stride + k] : a[r]);
#pragma GCC unroll 2
      for (int n = 0; n < N; ++n) sum[r][n] = Arithmetic::step(x, column[n], sum[r][n]);
    }
    if (lies == Lies::by_columns) a += a_stride;
  }
#pragma GCC unroll 16
  for (int r = 0; r < M; ++r) {
#pragma GCC unroll 2
    for (int n = 0; n < N; ++n) {
      Real* out = c + r * c_stride + n * kLanes;
      store(out, into == Into::accumulate ? add(load(out), sum[r][n]) : sum[r][n]);
    }
  }
}

template <class Arithmetic, int N, Lies lies, Into into>
[[gnu::noinline]] void multiply_full(const Real* a, int64_t a_stride, const Real* b,
                                     int64_t b_stride, Real* c, int64_t c_stride, int64_t depth) {
  multiply_block<Arithmetic, kPanelRows, N, lies, into>(a, a_stride, b, b_stride, c, c_stride,
                                                        depth);
}

/// Panels with fewer rows: the next size up of 1, 2, 4 and 8 (within the panel).
template <class Arithmetic, int N, Lies lies, Into into>
[[gnu::noinline]] void multiply_partial(int rows, const Real* a, int64_t a_stride, const Real* b,
                                        int64_t b_stride, Real* c, int64_t c_stride,
                                        int64_t depth) {
  if (rows <= 1)
    return multiply_block<Arithmetic, 1, N, lies, into>(a, a_stride, b, b_stride, c, c_stride,
                                                        depth);
  if (rows <= 2)
    return multiply_block<Arithmetic, 2, N, lies, into>(a, a_stride, b, b_stride, c, c_stride,
                                                        depth);
  if (rows <= 4)
    return multiply_block<Arithmetic, 4, N, lies, into>(a, a_stride, b, b_stride, c, c_stride,
                                                        depth);
  if constexpr (kPanelRows > 8) {
    if (rows <= 8)
      return multiply_block<Arithmetic, 8, N, lies, into>(a, a_stride, b, b_stride, c, c_stride,
                                                          depth);
  }
  multiply_block<Arithmetic, kPanelRows, N, lies, into>(a, a_stride, b, b_stride, c, c_stride,
                                                        depth);
}

/// Dot products over more columns than most heads have are taken in parts of 64, which are then
/// added: in one go, those of 256 columns in f32 left O 3 to 7 roundings of its largest off, in
/// parts 1 to 3, as XLA's and torch's on most machines. Up to 128 are one go: what a part costs
/// shows there.
inline int64_t columns_at_once(int64_t columns) { return columns > 128 ? 64 : columns; }

/// multiply_panel() in one go.
template <class Arithmetic, Lies lies, Into into>
inline void multiply_at_once(int rows, int columns, const Real* a, int64_t a_stride, const Real* b,
                             int64_t b_stride, Real* c, int64_t c_stride, int64_t depth) {
  if (rows == kPanelRows) {
    if (columns > kLanes)
      return multiply_full<Arithmetic, 2, lies, into>(a, a_stride, b, b_stride, c, c_stride, depth);
    return multiply_full<Arithmetic, 1, lies, into>(a, a_stride, b, b_stride, c, c_stride, depth);
  }
  if (columns > kLanes)
    return multiply_partial<Arithmetic, 2, lies, into>(rows, a, a_stride, b, b_stride, c, c_stride,
                                                       depth);
  multiply_partial<Arithmetic, 1, lies, into>(rows, a, a_stride, b, b_stride, c, c_stride, depth);
}

/// C[rows x columns] (+)= A B for rows of a panel and columns <= kPanelColumns. A and C must
/// have room for the panel size that `rows` rounds up to; columns are rounded up to whole vectors.
/// `depth` and `pitch` are of planes.
template <class Arithmetic, Lies lies, Into into>
inline void multiply_panel(int rows, int columns, const Real* a, int64_t a_stride, const Real* b,
                           int64_t b_stride, Real* c, int64_t c_stride, int64_t depth,
                           [[maybe_unused]] PlanePitch pitch = {}) {
  if constexpr (Arithmetic::kDepth > 1) {
#if defined(HEDDLE_CPU_LEVEL_BF16)
    static_assert(lies == Lies::by_rows);
    multiply_panel_of_tiles<into == Into::accumulate, Arithmetic::kParts>(
        rows, columns, a, a_stride, b, b_stride, c, c_stride, depth, pitch);
#endif
  } else if constexpr (lies == Lies::by_rows && into == Into::overwrite) {
    const int64_t part = columns_at_once(depth);
    multiply_at_once<Arithmetic, lies, into>(rows, columns, a, a_stride, b, b_stride, c, c_stride,
                                             part);
    for (int64_t k = part; k < depth; k += part)
      multiply_at_once<Arithmetic, lies, Into::accumulate>(rows, columns, a + k, a_stride,
                                                           b + k * b_stride, b_stride, c, c_stride,
                                                           smaller(part, depth - k));
  } else {
    multiply_at_once<Arithmetic, lies, into>(rows, columns, a, a_stride, b, b_stride, c, c_stride,
                                             depth);
  }
}

}  // namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL
