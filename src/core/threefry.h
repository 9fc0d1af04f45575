// Threefry 2x32 with 20 rounds: a counter-based random generator, JAX's default.
// Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011, section 3.3.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

namespace heddle {

/// The two random words of a 64-bit counter under a 64-bit key.
constexpr std::array<uint32_t, 2> threefry_2x32_20(std::array<uint32_t, 2> counter,
                                                   std::array<uint32_t, 2> key) {
  constexpr std::array<std::array<int, 4>, 2> rotations{{{13, 15, 26, 6}, {17, 29, 16, 24}}};
  const std::array<uint32_t, 3> schedule{key[0], key[1], key[0] ^ key[1] ^ 0x1BD11BDA};
  uint32_t x = counter[0] + schedule[0];
  uint32_t y = counter[1] + schedule[1];
  for (uint32_t group = 0; group < 5; ++group) {
    for (int rotation : rotations[group % 2]) {
      x += y;
      y = std::rotl(y, rotation) ^ x;
    }
    x += schedule[(group + 1) % 3];
    y += schedule[(group + 2) % 3] + group + 1;
  }
  return {x, y};
}

/// Element `index` (row-major) of an array of 32 random bits as JAX draws it from `key` with its
/// partitionable generator (jax_threefry_partitionable, the default): the index is the counter,
/// high word first, and the two words of the result are combined by exclusive or.
constexpr uint32_t jax_random_bits(std::array<uint32_t, 2> key, uint64_t index) {
  const std::array<uint32_t, 2> words =
      threefry_2x32_20({static_cast<uint32_t>(index >> 32), static_cast<uint32_t>(index)}, key);
  return words[0] ^ words[1];
}

}  // namespace heddle
