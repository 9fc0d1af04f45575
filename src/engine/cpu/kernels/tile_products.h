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

/// Parts i and j of two numbers are multiplied if i + j is less: the next are 2^-25 of the
/// product on average.
inline constexpr int kLeastShare = 3;

/// One tile or two, side by side or one below the other.
template <int tile, int count>
inline void load_tiles(const float* rows, int64_t stride, int64_t to_second) {
  load_tile<tile>(rows, stride);
  if constexpr (count > 1) load_tile<tile + 1>(rows + to_second, stride);
}

/// The sums += A B of tiles.
template <int M, int N, int kA, int kB>
inline void add_products() {
  add_product_of_tiles<0, kA, kB>();
  if constexpr (N > 1) add_product_of_tiles<1, kA, kB + 1>();
  if constexpr (M > 1) add_product_of_tiles<2, kA + 1, kB>();
  if constexpr (M > 1 && N > 1) add_product_of_tiles<3, kA + 1, kB + 1>();
}

/// The tiles that sums are in, four at most, those of A and those of B.
inline constexpr int kTilesOfA = 4, kTilesOfB = 6;

/// The sums += A B over 16 words. Every other part of A meets those of B backwards, so that the
/// last one is at hand again.
template <int M, int N, int kParts>
inline void add_step(const float* a, int64_t a_stride, const float* b, int64_t b_stride,
                     PlanePitch pitch) {
  int held = -1;
#pragma GCC unroll 3
  for (int i = 0; i < kParts; ++i) {
    load_tiles<kTilesOfA, M>(a + i * pitch.a, a_stride, 16 * a_stride);
    const int last = (kParts < kLeastShare - i ? kParts : kLeastShare - i) - 1;
#pragma GCC unroll 3
    for (int n = 0; n <= last; ++n) {
      const int j = i % 2 == 0 ? last - n : n;
      if (j != held) load_tiles<kTilesOfB, N>(b + j * pitch.b, b_stride, 16);
      held = j;
      add_products<M, N, kTilesOfA, kTilesOfB>();
    }
  }
}

/// C[16 M x 16 N] (+)= A B; `depth` is whole tiles of words.
template <int M, int N, bool accumulates, int kParts>
inline void multiply_tiles(const float* a, int64_t a_stride, const float* b, int64_t b_stride,
                           float* c, int64_t c_stride, int64_t depth, PlanePitch pitch) {
  float* const below = c + 16 * c_stride;
  begin_sum<0, accumulates>(c, c_stride);
  if constexpr (N > 1) begin_sum<1, accumulates>(c + 16, c_stride);
  if constexpr (M > 1) begin_sum<2, accumulates>(below, c_stride);
  if constexpr (M > 1 && N > 1) begin_sum<3, accumulates>(below + 16, c_stride);
  for (int64_t k = 0; k < depth; k += 16, a += 16, b += 16 * b_stride)
    add_step<M, N, kParts>(a, a_stride, b, b_stride, pitch);
  store_tile<0>(c, c_stride);
  if constexpr (N > 1) store_tile<1>(c + 16, c_stride);
  if constexpr (M > 1) store_tile<2>(below, c_stride);
  if constexpr (M > 1 && N > 1) store_tile<3>(below + 16, c_stride);
}

/// Rows up to 32 and columns up to kPanelColumns, both rounded up to whole tiles.
template <bool accumulates, int kParts>
[[gnu::noinline]] void multiply_panel_of_tiles(int rows, int columns, const float* a,
                                               int64_t a_stride, const float* b, int64_t b_stride,
                                               float* c, int64_t c_stride, int64_t depth,
                                               PlanePitch pitch) {
  static_assert(kPanelColumns == 32 && Tiles::kPanelRows == 32);
  if (rows > 16) {
    if (columns > 16)
      return multiply_tiles<2, 2, accumulates, kParts>(a, a_stride, b, b_stride, c, c_stride, depth,
                                                       pitch);
    return multiply_tiles<2, 1, accumulates, kParts>(a, a_stride, b, b_stride, c, c_stride, depth,
                                                     pitch);
  }
  if (columns > 16)
    return multiply_tiles<1, 2, accumulates, kParts>(a, a_stride, b, b_stride, c, c_stride, depth,
                                                     pitch);
  multiply_tiles<1, 1, accumulates, kParts>(a, a_stride, b, b_stride, c, c_stride, depth, pitch);
}

}  // namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL
