// Products of bf16 pairs by the machine's tiles, of blocks of 16 or 32 rows and as many columns:
// four tiles of sums, two of A and two of B. A lies by rows, B in panels of kPanelColumns columns
// (pack.h), which is how the tiles want their pairs.
#pragma once

#include "engine/cpu/kernels/arithmetic.h"

#if defined(HEDDLE_CPU_LEVEL_STAND_IN)
#include "engine/cpu/kernels/tile_stand_in.h"
#else
#include "engine/cpu/kernels/tile_amx.h"
#endif

namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL {

/// A task that multiplies tiles holds one: a thread that has none keeps its switches cheap.
class TileSession {
 public:
  TileSession() { configure_tiles(); }
  ~TileSession() { release_tiles(); }
  TileSession(const TileSession&) = delete;
  TileSession& operator=(const TileSession&) = delete;
};

template <int tile, bool accumulates>
inline void begin_sum(const float* c, int64_t c_stride) {
  if constexpr (accumulates) {
    load_tile<tile>(c, c_stride);
  } else {
    zero_tile<tile>();
  }
}

/// C[16 M x 16 N] (+)= A B; `depth` is whole tiles of words.
template <int M, int N, bool accumulates>
inline void multiply_tiles(const float* a, int64_t a_stride, const float* b, int64_t b_stride,
                           float* c, int64_t c_stride, int64_t depth) {
  constexpr int kA = 4, kB = 6;
  float* const below = c + 16 * c_stride;
  begin_sum<0, accumulates>(c, c_stride);
  if constexpr (N > 1) begin_sum<1, accumulates>(c + 16, c_stride);
  if constexpr (M > 1) begin_sum<2, accumulates>(below, c_stride);
  if constexpr (M > 1 && N > 1) begin_sum<3, accumulates>(below + 16, c_stride);
  for (int64_t k = 0; k < depth; k += 16, a += 16, b += 16 * b_stride) {
    load_tile<kB>(b, b_stride);
    load_tile<kA>(a, a_stride);
    add_product_of_tiles<0, kA, kB>();
    if constexpr (N > 1) {
      load_tile<kB + 1>(b + 16, b_stride);
      add_product_of_tiles<1, kA, kB + 1>();
    }
    if constexpr (M > 1) {
      load_tile<kA + 1>(a + 16 * a_stride, a_stride);
      add_product_of_tiles<2, kA + 1, kB>();
    }
    if constexpr (M > 1 && N > 1) add_product_of_tiles<3, kA + 1, kB + 1>();
  }
  store_tile<0>(c, c_stride);
  if constexpr (N > 1) store_tile<1>(c + 16, c_stride);
  if constexpr (M > 1) store_tile<2>(below, c_stride);
  if constexpr (M > 1 && N > 1) store_tile<3>(below + 16, c_stride);
}

/// Rows up to 32 and columns up to kPanelColumns, both rounded up to whole tiles.
template <bool accumulates>
[[gnu::noinline]] void multiply_panel_of_tiles(int rows, int columns, const float* a,
                                               int64_t a_stride, const float* b, int64_t b_stride,
                                               float* c, int64_t c_stride, int64_t depth) {
  static_assert(kPanelColumns == 32 && Tiles::kPanelRows == 32);
  if (rows > 16) {
    if (columns > 16)
      return multiply_tiles<2, 2, accumulates>(a, a_stride, b, b_stride, c, c_stride, depth);
    return multiply_tiles<2, 1, accumulates>(a, a_stride, b, b_stride, c, c_stride, depth);
  }
  if (columns > 16)
    return multiply_tiles<1, 2, accumulates>(a, a_stride, b, b_stride, c, c_stride, depth);
  multiply_tiles<1, 1, accumulates>(a, a_stride, b, b_stride, c, c_stride, depth);
}

}  // namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL
