// The keep bit of one attention weight, drawn again wherever it is needed; the same streams as
// src/core/dropout_bits.h defines.
#pragma once

#include "../ptx/math.cuh"
#include "operand.cuh"

namespace heddle::attention {

struct Words4 {
  u32 word[4];
};

/// Philox 4x32-7 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).
HEDDLE_DEVICE Words4 philox(u32 c0, u32 c1, u32 c2, u32 c3, u32 k0, u32 k1) {
#pragma unroll
  for (int round = 0; round < 7; ++round) {
    const u32 hi0 = __umulhi(0xD2511F53u, c0), lo0 = 0xD2511F53u * c0;
    const u32 hi1 = __umulhi(0xCD9E8D57u, c2), lo1 = 0xCD9E8D57u * c2;
    c0 = hi1 ^ c1 ^ k0;
    c1 = lo1;
    c2 = hi0 ^ c3 ^ k1;
    c3 = lo0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

/// Threefry 2x32-20 (same paper); returns the two output words xored, as JAX's generator does.
HEDDLE_DEVICE u32 threefry_xor(u32 k0, u32 k1, u32 x0, u32 x1) {
  constexpr int kRotations[8] = {13, 15, 26, 6, 17, 29, 16, 24};
  const u32 keys[3] = {k0, k1, k0 ^ k1 ^ 0x1BD11BDAu};
  x0 += keys[0];
  x1 += keys[1];
#pragma unroll
  for (int group = 0; group < 5; ++group) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      x0 += x1;
      x1 = __funnelshift_l(x1, x1, kRotations[4 * (group % 2) + i]) ^ x0;
    }
    x0 += keys[(group + 1) % 3];
    x1 += keys[(group + 2) % 3] + group + 1;
  }
  return x0 ^ x1;
}

/// Seed and offset, the same for all heads.
struct DropoutKey {
  u32 k0, k1, offset_low;

  HEDDLE_DEVICE DropoutKey(const ForwardParameters& p, Dropout kind) : k0(0), k1(0), offset_low(0) {
    if (kind == Dropout::philox) {
      const u64 seed = read(p.seed), offset = read(p.offset);
      k0 = static_cast<u32>(seed);
      k1 = static_cast<u32>(seed >> 32) ^ static_cast<u32>(offset >> 32);
      offset_low = static_cast<u32>(offset);
    } else if (kind == Dropout::threefry) {
      k0 = static_cast<const u32*>(p.seed.data)[0];
      k1 = static_cast<const u32*>(p.seed.data)[1];
    }
  }

 private:
  HEDDLE_DEVICE static u64 read(const Scalar& scalar) {
    if (!scalar.data) return static_cast<u64>(scalar.value);
    return static_cast<u64>(load_integer(scalar.data, 0, scalar.is_64_bit));
  }
};

/// 0xffff in each half whose weight is kept, of what low_halves says.
HEDDLE_DEVICE u32 kept_halves(const ForwardParameters& p, u32 low) {
  return low ^ p.dropout_inverts;
}

/// A packed pair of weights, less what is dropped.
HEDDLE_DEVICE u32 keep_halves(const ForwardParameters& p, u32 pair, u32 low) {
  return ptx::and_differing(pair, low, p.dropout_inverts);
}

/// Draws keep bits for rows of one (batch, head).
template <Dropout kKind>
struct DropoutBits {
  const ForwardParameters& p;
  const DropoutKey key;
  int batch, head;
  u32 stream;

  HEDDLE_DEVICE DropoutBits(const ForwardParameters& p, const DropoutKey& key, int batch, int head)
      : p(p), key(key), batch(batch), head(head), stream(0) {
    if constexpr (kKind == Dropout::philox)
      stream = p.dropout_streams.data ? *element_pointer<u32>(p.dropout_streams, batch, head, 0, 0)
                                      : batch * p.q_heads + head;
  }
  HEDDLE_DEVICE DropoutBits(const ForwardParameters& p, int batch, int head)
      : DropoutBits(p, DropoutKey(p, kKind), batch, head) {}

  /// Philox: the four words of rows {row, row + 8} and columns {column, + 1, + 8, + 9}, word
  /// (row half) + 2 * (column half); row % 16 < 8, column % 16 < 8 and even.
  HEDDLE_DEVICE Words4 words(u32 row, u32 column) const {
    return philox(column / 16 * 4 + column % 8 / 2, row / 16 * 8 + row % 8, stream, key.offset_low,
                  key.k0, key.k1);
  }

  /// Philox: 0xffff in each half of a word whose bits are low, else 0. They are compared as f16:
  /// the threshold is at most 2, and NaNs, which are not less, count as more.
  HEDDLE_DEVICE u32 low_halves(u32 word) const {
    return ptx::magnitude_less_f16x2(word, p.dropout_threshold * 0x10001u);
  }

  /// Whether the weight is kept.
  HEDDLE_DEVICE bool keeps(int row, int column) const {
    if constexpr (kKind == Dropout::philox) {
      const Words4 w = words(row, column);
      const u32 upper = row % 16 < 8 ? w.word[0] : w.word[1];
      const u32 lower = row % 16 < 8 ? w.word[2] : w.word[3];
      const u32 low = low_halves(column % 16 < 8 ? upper : lower);
      return (kept_halves(p, low) >> column % 2 * 16 & 1) != 0;
    } else {
      const u64 index = batch * p.threefry_stride[0] + head * p.threefry_stride[1] +
                        row * p.threefry_stride[2] + column * p.threefry_stride[3];
      const u32 bits =
          threefry_xor(key.k0, key.k1, static_cast<u32>(index >> 32), static_cast<u32>(index));
      return bits >> 9 < p.dropout_threshold;
    }
  }
};

/// Writes the exact 0/1 keep mask of every cell, f32: a thread takes a column, a block a stretch of
/// one row of every head.
template <Dropout kKind>
HEDDLE_DEVICE void dump_keep_bits(const ForwardParameters& p) {
  const int batch = blockIdx.z + p.first_batch, column = blockIdx.x * blockDim.x + threadIdx.x;
  if (column >= p.kv_length) return;
  for (int head = 0; head < p.q_heads; ++head) {
    const DropoutBits<kKind> bits(p, batch, head);
    for (int row = blockIdx.y; row < p.q_length; row += gridDim.y)
      *element_pointer<float>(p.dropout_dump, batch, head, row, column) =
          bits.keeps(row, column) ? 1.0f : 0.0f;
  }
}

}  // namespace heddle::attention
