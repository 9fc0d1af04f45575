// Which attention weights dropout keeps. This is the one definition; the reference, every engine
// and the backward pass (which draws the bits again) agree with it bit for bit. p is the
// probability to drop.
//
// Philox (graph-built programs). One evaluation of Philox 4x32-7 serves the eight weights of rows
// {r, r + 8} and columns {c, c + 1, c + 8, c + 9}, where r % 16 < 8, c % 16 < 8 and c is even:
//     counter = {c / 16 * 4 + c % 8 / 2, r / 16 * 8 + r % 8, stream, low32(offset)}
//     key     = {low32(seed), high32(seed) ^ high32(offset)}.
// Word (row / 8 % 2) + 2 * (column / 8 % 2) has 15 bits for each of two columns: bits 0 to 14 for
// the even one, bits 16 to 30 for the odd one. Of the 2^15 values of these bits the lowest ones
// mean the rarer of the two events: with n = round(min(p, 1 - p) * 2^15)
//     p <= 1/2: dropped iff bits < n,        p > 1/2: kept iff bits < n,
// so that the share dropped is p to 2^-16. But n is at least 1 unless p is 0: some weights are
// dropped, and some kept, at every p between 0 and 1. The factor on the kept ones is 1 / (1 - p) as
// it is. A head's stream is batch * q_heads + head unless the graph numbers it. 32-bit seeds and
// offsets are sign-extended.
//
// Why so: these eight weights lie in one thread of a tensor core's accumulator of scores, and in
// two threads of one of transposed scores; and 15 bits, read as an f16 without a sign, can be
// compared two at a time, NaNs included: n as an f16 is at most 2.
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

/// How 15 bits decide over a weight.
struct PhiloxRule {
  uint32_t low;    ///< values below this mean the rarer event
  bool keeps_low;  ///< it is to be kept; else to be dropped

  constexpr bool keeps(uint32_t bits) const { return (bits < low) == keeps_low; }
};

/// p in [0, 1).
constexpr PhiloxRule philox_rule(double p) {
  const bool keeps_low = p > 0.5;
  const double exact = (keeps_low ? 1 - p : p) * 32768.0;
  const auto below = static_cast<uint32_t>(exact);
  const uint32_t low = below + (exact - below >= 0.5 ? 1 : 0);
  return {low == 0 && p > 0 ? 1 : low, keeps_low};
}

constexpr std::array<uint32_t, 2> philox_key(int64_t seed, int64_t offset) {
  const auto s = static_cast<uint64_t>(seed), o = static_cast<uint64_t>(offset);
  return {static_cast<uint32_t>(s),
          static_cast<uint32_t>(s >> 32) ^ static_cast<uint32_t>(o >> 32)};
}

/// The words that decide over the eight weights which share an evaluation with (row, column).
constexpr std::array<uint32_t, 4> philox_dropout_words(int64_t seed, int64_t offset,
                                                       uint32_t stream, uint32_t row,
                                                       uint32_t column) {
  return philox_4x32<7>({column / 16 * 4 + column % 8 / 2, row / 16 * 8 + row % 8, stream,
                         static_cast<uint32_t>(offset)},
                        philox_key(seed, offset));
}

constexpr bool philox_keeps(int64_t seed, int64_t offset, double p, uint32_t stream, uint32_t row,
                            uint32_t column) {
  const uint32_t word =
      philox_dropout_words(seed, offset, stream, row, column)[row / 8 % 2 + column / 8 % 2 * 2];
  return philox_rule(p).keeps(word >> column % 2 * 16 & 0x7fff);
}

/// The smallest 23-bit number that Threefry dropout drops: it keeps what is low. p in [0, 1).
constexpr uint32_t threefry_threshold(double p) {
  const double exact = (1 - p) * 8388608.0;
  const auto below = static_cast<uint32_t>(exact);
  return below + (below < exact ? 1 : 0);
}

constexpr bool threefry_keeps(std::array<uint32_t, 2> key, double p, uint64_t index) {
  return (jax_random_bits(key, index) >> 9) < threefry_threshold(p);
}

}  // namespace heddle
