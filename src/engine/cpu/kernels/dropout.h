// What dropout multiplies each probability of a row by: 0 where it is dropped. Which weights are
// kept is defined in core/dropout_bits.h; here the generators run over a strip of neighbouring keys
// at once, in plain loops that the compiler turns into this instruction set's vectors.
#pragma once

#include "engine/cpu/kernels/score.h"

namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL {

/// Keys handled at once.
inline constexpr int64_t kDropoutStrip = 64;

/// The 15 bits of each of the strip's keys (Philox 4x32-7), whose first is a multiple of 16.
inline void philox_words(const DropoutArguments& dropout, uint32_t stream, uint32_t row,
                         uint32_t first_key, uint32_t* words) {
  constexpr int kQuads = kDropoutStrip / 4;  // of keys c, c + 1, c + 8 and c + 9
  uint32_t c0[kQuads], c1[kQuads], c2[kQuads], c3[kQuads];
  for (int n = 0; n < kQuads; ++n) {
    c0[n] = first_key / 4 + static_cast<uint32_t>(n);
    c1[n] = row / 16 * 8 + row % 8, c2[n] = stream, c3[n] = static_cast<uint32_t>(dropout.offset);
  }
  uint32_t key0 = dropout.key[0],
           key1 = dropout.key[1] ^ static_cast<uint32_t>(dropout.offset >> 32);
  for (int round = 0; round < 7; ++round) {
    for (int n = 0; n < kQuads; ++n) {
      const uint64_t a = uint64_t{0xD2511F53} * c0[n], b = uint64_t{0xCD9E8D57} * c2[n];
      c0[n] = static_cast<uint32_t>(b >> 32) ^ c1[n] ^ key0;
      c1[n] = static_cast<uint32_t>(b);
      c2[n] = static_cast<uint32_t>(a >> 32) ^ c3[n] ^ key1;
      c3[n] = static_cast<uint32_t>(a);
    }
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  const bool low = row % 16 < 8;
  const uint32_t *left = low ? c0 : c1, *right = low ? c2 : c3;
  for (int n = 0; n < kQuads; ++n) {
    uint32_t* first = words + n / 4 * 16 + n % 4 * 2;
    first[0] = left[n] & 0x7fff, first[1] = left[n] >> 16 & 0x7fff;
    first[8] = right[n] & 0x7fff, first[9] = right[n] >> 16 & 0x7fff;
  }
}

/// The upper 23 bits of what JAX draws at indices first, first + stride, ... (Threefry 2x32, 20
/// rounds).
inline void threefry_words(const DropoutArguments& dropout, uint64_t first, uint64_t stride,
                           uint32_t* words) {
  const uint32_t schedule[3] = {dropout.key[0], dropout.key[1],
                                dropout.key[0] ^ dropout.key[1] ^ 0x1BD11BDA};
  constexpr int kRotations[2][4] = {{13, 15, 26, 6}, {17, 29, 16, 24}};
  uint32_t x[kDropoutStrip], y[kDropoutStrip];
  for (int n = 0; n < kDropoutStrip; ++n) {
    const uint64_t index = first + static_cast<uint64_t>(n) * stride;
    x[n] = static_cast<uint32_t>(index >> 32) + schedule[0];
    y[n] = static_cast<uint32_t>(index) + schedule[1];
  }
  for (uint32_t group = 0; group < 5; ++group) {
    for (int rotation : kRotations[group % 2]) {
      for (int n = 0; n < kDropoutStrip; ++n) {
        x[n] += y[n];
        y[n] = ((y[n] << rotation) | (y[n] >> (32 - rotation))) ^ x[n];
      }
    }
    for (int n = 0; n < kDropoutStrip; ++n) {
      x[n] += schedule[(group + 1) % 3];
      y[n] += schedule[(group + 2) % 3] + group + 1;
    }
  }
  for (int n = 0; n < kDropoutStrip; ++n) words[n] = (x[n] ^ y[n]) >> 9;
}

inline void mask_factors(const DropoutArguments& dropout, const ScoreCells& cells, Real* factors) {
  const ScoreValue mask = loaded(cells, *dropout.mask, factors);
  const Real factor = static_cast<Real>(dropout.factor);
  if (!mask.strip)
    return fill(factors + cells.first, cells.last - cells.first, mask.number * factor);
  for (int64_t j = cells.first; j < cells.last; j += kLanes)
    store(factors + j, multiply(load(mask.strip + j), all(factor)));
}

/// factors[first .. last) of the cells' keys.
[[gnu::noinline]] inline void dropout_factors(const DropoutArguments& dropout, int64_t q_heads,
                                              const ScoreCells& cells, Real* factors) {
  if (dropout.kind == DropoutKind::mask) return mask_factors(dropout, cells, factors);
  const bool philox = dropout.kind == DropoutKind::philox;
  const Real factor = static_cast<Real>(dropout.factor);
  const auto stream = static_cast<uint32_t>(
      philox && dropout.streams
          ? *reinterpret_cast<const int32_t*>(row_address(*dropout.streams, cells.b, cells.h, 0))
          : cells.b * q_heads + cells.h);
  for (int64_t j = cells.first; j < cells.last;) {
    uint32_t words[kDropoutStrip];
    const int64_t key = cells.j0 + j;
    int64_t skipped = 0;  // keys of the strip's first 16 that lie before `key`
    if (philox) {
      skipped = key % 16;
      philox_words(dropout, stream, static_cast<uint32_t>(cells.row),
                   static_cast<uint32_t>(key - skipped), words);
    } else {
      const int64_t* s = dropout.threefry_strides;
      threefry_words(
          dropout,
          static_cast<uint64_t>(cells.b * s[0] + cells.h * s[1] + cells.row * s[2] + key * s[3]),
          static_cast<uint64_t>(s[3]), words);
    }
    const int64_t count = smaller(kDropoutStrip - skipped, cells.last - j);
    for (int64_t n = 0; n < count; ++n) {
      const uint32_t word = words[skipped + n];
      factors[j + n] = (word < dropout.low) == dropout.keeps_low ? factor : 0;
    }
    j += count;
  }
}

}  // namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL
