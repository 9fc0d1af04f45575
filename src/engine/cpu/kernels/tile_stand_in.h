// What tile_amx.h has, in plain C++, for tests on machines without AMX: the same tiles, and sums in
// the order and with the rounding that Intel's manual gives for TDPBF16PS.
#pragma once

#include <cstdint>

namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL {

struct StandInTiles {
  uint32_t word[8][16][16];
  bool are_configured;
};
inline thread_local StandInTiles stand_in_tiles;

inline void configure_tiles() { stand_in_tiles = {.word = {}, .are_configured = true}; }
/// Whoever uses tiles that are not configured gets NaN, where AMX would raise a fault.
inline void release_tiles() {
  __builtin_memset(stand_in_tiles.word, 0xff, sizeof stand_in_tiles.word);
  stand_in_tiles.are_configured = false;
}

template <int tile>
inline void zero_tile() {
  __builtin_memset(stand_in_tiles.word[tile], stand_in_tiles.are_configured ? 0 : 0xff,
                   sizeof stand_in_tiles.word[tile]);
}
template <int tile>
inline void load_tile(const float* rows, int64_t stride) {
  if (!stand_in_tiles.are_configured) return release_tiles();
  for (int r = 0; r < 16; ++r)
    __builtin_memcpy(stand_in_tiles.word[tile][r], rows + r * stride, 64);
}
template <int tile>
inline void store_tile(float* rows, int64_t stride) {
  for (int r = 0; r < 16; ++r)
    __builtin_memcpy(rows + r * stride, stand_in_tiles.word[tile][r], 64);
}

/// The first and the second bf16 of a word; numbers below the normal range are 0.
inline float stand_in_number(uint32_t word, bool second) {
  uint32_t bits = second ? word & 0xffff0000u : word << 16;
  if ((bits & 0x7f800000u) == 0) bits &= 0x80000000u;
  float x;
  __builtin_memcpy(&x, &bits, sizeof x);
  return x;
}

template <int sum, int a, int b>
inline void add_product_of_tiles() {
  float first[16][16], second[16][16];  // of B
  for (int k = 0; k < 16; ++k) {
    for (int c = 0; c < 16; ++c) {
      first[k][c] = stand_in_number(stand_in_tiles.word[b][k][c], false);
      second[k][c] = stand_in_number(stand_in_tiles.word[b][k][c], true);
    }
  }
  for (int r = 0; r < 16; ++r) {
    float of_first[16] = {}, of_second[16] = {}, total[16];
    for (int k = 0; k < 16; ++k) {
      const float x = stand_in_number(stand_in_tiles.word[a][r][k], false);
      const float y = stand_in_number(stand_in_tiles.word[a][r][k], true);
      for (int c = 0; c < 16; ++c) {
        of_first[c] = __builtin_fmaf(x, first[k][c], of_first[c]);
        of_second[c] = __builtin_fmaf(y, second[k][c], of_second[c]);
      }
    }
    __builtin_memcpy(total, stand_in_tiles.word[sum][r], sizeof total);
    for (int c = 0; c < 16; ++c) total[c] += of_first[c] + of_second[c];
    __builtin_memcpy(stand_in_tiles.word[sum][r], total, sizeof total);
  }
}

template <int sum, int a, int b>
inline void add_integer_product_of_tiles() {
  int8_t first[16][64], second[16][64];
  __builtin_memcpy(first, stand_in_tiles.word[a], sizeof first);
  __builtin_memcpy(second, stand_in_tiles.word[b], sizeof second);
  for (int r = 0; r < 16; ++r) {
    int32_t total[16];
    __builtin_memcpy(total, stand_in_tiles.word[sum][r], sizeof total);
    for (int k = 0; k < 16; ++k)
      for (int c = 0; c < 16; ++c)
        for (int i = 0; i < 4; ++i) total[c] += first[r][4 * k + i] * second[k][4 * c + i];
    __builtin_memcpy(stand_in_tiles.word[sum][r], total, sizeof total);
  }
}

}  // namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL
