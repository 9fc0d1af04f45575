// Intel's AMX, one instruction per function: eight tiles of 16 rows of 64 bytes, which a thread has
// between configure_tiles() and release_tiles(). Written as assembly, for GCC 12's intrinsics do
// not say that a tile is loaded from memory, and stores to it may move past them.
#pragma once

#include <cstdint>

namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL {

struct alignas(64) TileConfiguration {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfiguration) == 64);

/// All eight tiles whole, and zero.
inline void configure_tiles() {
  static constexpr TileConfiguration kWhole{};
  asm volatile("ldtilecfg %0" ::"m"(kWhole));
}
inline void release_tiles() { asm volatile("tilerelease"); }

template <int tile>
inline void zero_tile() {
  asm volatile("tilezero %%tmm%c0" ::"i"(tile));
}
/// Rows `stride` words apart.
template <int tile>
inline void load_tile(const float* rows, int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(rows), "r"(stride * 4), "i"(tile) : "memory");
}
template <int tile>
inline void store_tile(float* rows, int64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(rows), "r"(stride * 4), "i"(tile) : "memory");
}
/// sum[r][c] += sum over k of the dot of the bf16 pairs a[r][k] and b[k][c].
template <int sum, int a, int b>
inline void add_product_of_tiles() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(sum), "i"(a), "i"(b));
}
/// The same in whole numbers: of words that are four of 8 bits, with their signs; sums of 32.
template <int sum, int a, int b>
inline void add_integer_product_of_tiles() {
  asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(sum), "i"(a), "i"(b));
}

}  // namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL
