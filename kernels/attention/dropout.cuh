// The keep bit of one attention weight, drawn again wherever it is needed; the same streams as
// src/core/dropout_bits.h defines.
#pragma once

#include "operand.cuh"

namespace heddle::attention {

enum class Dropout : int { none, philox, threefry, mask };

struct Words4 {
  u32 word[4];
};

/// Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).
HEDDLE_DEVICE Words4 philox(u32 c0, u32 c1, u32 c2, u32 c3, u32 k0, u32 k1) {
#pragma unroll
  for (int round = 0; round < 10; ++round) {
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

/// Draws keep bits for rows of one (batch, head).
template <class Parameters>
struct DropoutBits {
  const Parameters& p;
  int batch, head;
  u32 k0, k1, offset_low, stream;

  HEDDLE_DEVICE DropoutBits(const Parameters& parameters, Dropout kind, int batch, int head)
      : p(parameters), batch(batch), head(head), k0(0), k1(0), offset_low(0), stream(0) {
    if (kind == Dropout::philox) {
      const u64 seed = read(p.seed), offset = read(p.offset);
      k0 = static_cast<u32>(seed);
      k1 = static_cast<u32>(seed >> 32) ^ static_cast<u32>(offset >> 32);
      offset_low = static_cast<u32>(offset);
      stream = p.dropout_streams.data ? *element_pointer<u32>(p.dropout_streams, batch, head, 0, 0)
                                      : batch * p.q_heads + head;
    } else if (kind == Dropout::threefry) {
      k0 = static_cast<const u32*>(p.seed.data)[0];
      k1 = static_cast<const u32*>(p.seed.data)[1];
    }
  }

  HEDDLE_DEVICE static u64 read(const Scalar& scalar) {
    if (!scalar.data) return static_cast<u64>(scalar.value);
    return static_cast<u64>(load_integer(scalar.data, 0, scalar.is_64_bit));
  }

  /// Keep bits of columns `column` (even) and the next.
  template <Dropout kKind>
  HEDDLE_DEVICE void keep_pair(int row, int column, bool& first, bool& second) const {
    if constexpr (kKind == Dropout::philox) {
      const Words4 words = philox(column / 4, row, stream, offset_low, k0, k1);
      const bool high = column % 4 != 0;
      first = (high ? words.word[2] : words.word[0]) >= p.dropout_threshold;
      second = (high ? words.word[3] : words.word[1]) >= p.dropout_threshold;
    } else {
      const u64 index = batch * p.threefry_stride[0] + head * p.threefry_stride[1] +
                        row * p.threefry_stride[2] + column * p.threefry_stride[3];
      const u64 next = index + p.threefry_stride[3];
      first = (threefry_xor(k0, k1, static_cast<u32>(index >> 32), static_cast<u32>(index)) >> 9) <
              p.dropout_threshold;
      second = (threefry_xor(k0, k1, static_cast<u32>(next >> 32), static_cast<u32>(next)) >> 9) <
               p.dropout_threshold;
    }
  }
};

/// Writes the exact 0/1 keep mask of every cell, f32: a thread takes two columns, a block a stretch
/// of one row of every head.
template <Dropout kKind>
HEDDLE_DEVICE void dump_keep_bits(const ForwardParameters& p) {
  const int batch = blockIdx.z + p.first_batch,
            column = 2 * (blockIdx.x * blockDim.x + threadIdx.x);
  if (column >= p.kv_length) return;
  for (int head = 0; head < p.q_heads; ++head) {
    const DropoutBits<ForwardParameters> bits(p, kKind, batch, head);
    for (int row = blockIdx.y; row < p.q_length; row += gridDim.y) {
      bool first, second;
      bits.template keep_pair<kKind>(row, column, first, second);
      *element_pointer<float>(p.dropout_dump, batch, head, row, column) = first ? 1.0f : 0.0f;
      if (column + 1 < p.kv_length)
        *element_pointer<float>(p.dropout_dump, batch, head, row, column + 1) =
            second ? 1.0f : 0.0f;
    }
  }
}

}  // namespace heddle::attention
