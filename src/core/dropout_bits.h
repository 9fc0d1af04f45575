// Which attention weights dropout keeps. This is the one definition; the reference, every engine
// and the backward pass (which draws the bits again) agree with it bit for bit. p is the
// probability to drop.
//
// Philox (graph-built programs). Weight (batch, head, row, column) is kept iff
//     word >= floor(p * 2^32),
// where word is number column % 4 of the four that Philox 4x32-10 makes of
//     counter = {column / 4, row, stream, low32(offset)}
//     key     = {low32(seed), high32(seed) ^ high32(offset)},
// so that four neighbours in a row share one evaluation. A head's stream is batch * q_heads + head
// unless the graph numbers it. 32-bit seeds and offsets are
// sign-extended.
//
// Threefry (programs that used JAX's generator). The weight has the place
//     index = batch * s0 + head * s1 + row * s2 + column * s3
// in the program's own mask; JAX draws bits for it, makes of their upper 23 a number u in [0, 1)
// and keeps the weight iff u < 1 - p. As u is a multiple of 2^-23, that is (bits >> 9) < ceil((1 -
// p) * 2^23).
#pragma once

#include <array>
#include <cstdint>

#include "core/philox.h"
#include "core/threefry.h"

namespace heddle {

/// The smallest word that Philox dropout keeps. p in [0, 1).
constexpr uint32_t philox_threshold(double p) { return static_cast<uint32_t>(p * 4294967296.0); }

constexpr std::array<uint32_t, 2> philox_key(int64_t seed, int64_t offset) {
  const auto s = static_cast<uint64_t>(seed), o = static_cast<uint64_t>(offset);
  return {static_cast<uint32_t>(s),
          static_cast<uint32_t>(s >> 32) ^ static_cast<uint32_t>(o >> 32)};
}

/// The words of columns 4 * quad .. 4 * quad + 3 of a row; a column is kept iff its word >=
/// philox_threshold(p).
constexpr std::array<uint32_t, 4> philox_dropout_words(int64_t seed, int64_t offset,
                                                       uint32_t stream, uint32_t row,
                                                       uint32_t quad) {
  return philox_4x32_10({quad, row, stream, static_cast<uint32_t>(offset)},
                        philox_key(seed, offset));
}

constexpr bool philox_keeps(int64_t seed, int64_t offset, double p, uint32_t stream, uint32_t row,
                            uint32_t column) {
  return philox_dropout_words(seed, offset, stream, row, column / 4)[column % 4] >=
         philox_threshold(p);
}

/// The smallest 23-bit number that Threefry dropout drops. p in [0, 1).
constexpr uint32_t threefry_threshold(double p) {
  const double exact = (1 - p) * 8388608.0;
  const auto below = static_cast<uint32_t>(exact);
  return below + (below < exact ? 1 : 0);
}

constexpr bool threefry_keeps(std::array<uint32_t, 2> key, double p, uint64_t index) {
  return (jax_random_bits(key, index) >> 9) < threefry_threshold(p);
}

}  // namespace heddle
