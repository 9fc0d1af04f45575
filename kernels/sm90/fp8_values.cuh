// Values of fp8 as the Hopper forward multiplies them: the tensor core wants the k index of an fp8
// operand contiguous, which for P V is the key. So a tile of 128 keys is turned, a row for each
// column of V.
//
// Within 32 keys they lie in the order in which a thread holds its weights of them: of Q K^T it has
// the columns 8 i + 2 (lane % 4) + {0, 1}, and as an operand of 32 columns it gives those from
// 4 (lane % 4) and from 16 + 4 (lane % 4) on. Keys past a length are zeros.
#pragma once

#include "../attention/operand.cuh"
#include "../ptx/global.cuh"
#include "../tile/turned_bytes.cuh"
#include "fp8_arguments.h"

namespace heddle::sm90 {

template <int kDim>
struct Fp8Values {
  static constexpr int kThreads = 256;
  static constexpr int kWords = kDim / 4;  ///< of a row of V
  static constexpr int kVectors = kDim / 16, kChunks = kFp8Keys / 16;

  /// One tile a block.
  HEDDLE_DEVICE static void run(const Fp8ValuesArguments& args) {
    __shared__ __align__(16) u32 rows[kFp8Keys * kWords];
    const int tile = blockIdx.x % args.tiles, flat_head = blockIdx.x / args.tiles;
    const int head = flat_head % args.heads, batch = flat_head / args.heads;
    if (blockIdx.x == 0 && threadIdx.x == 0) {
      if (args.amax_s != nullptr) *args.amax_s = 0;
      if (args.amax_o != nullptr) *args.amax_o = 0;
    }
    const int first = tile * kFp8Keys, length = attention::length_of(args.kv_lengths, batch);
    const u8* v = attention::head_pointer<u8>(args.v, batch, head);
#pragma unroll
    for (int n = threadIdx.x; n < kFp8Keys * kVectors; n += kThreads) {
      const int key = n / kVectors, vector = n % kVectors;
      u32 words[4];
      ptx::load_if<16>(first + key < length, v + (first + key) * args.v.stride[2] + 16 * vector,
                       words);
      *reinterpret_cast<uint4*>(rows + word(key, 4 * vector)) =
          make_uint4(words[0], words[1], words[2], words[3]);
    }
    __syncthreads();
    u8* out = args.values + static_cast<i64>(blockIdx.x) * (kFp8ValueRows * kFp8Keys);
    for (int n = threadIdx.x; n < kWords * kChunks; n += kThreads)
      write_chunk(rows, n % kChunks, n / kChunks, out);
  }

 private:
  /// Moved so that threads of neighbouring chunks read other banks.
  HEDDLE_DEVICE static int word(int key, int column) {
    return key * kWords + (column ^ (key / 16 * 4) % kWords);
  }

  /// 16 keys of four columns.
  HEDDLE_DEVICE static void write_chunk(const u32* rows, int chunk, int column, u8* out) {
    u32 turned[4][4];  // [four keys][column]
#pragma unroll
    for (int quad = 0; quad < 4; ++quad) {
      const int key = 16 * chunk + 2 * quad;
      tile::turn_bytes(rows[word(key, column)], rows[word(key + 1, column)],
                       rows[word(key + 8, column)], rows[word(key + 9, column)], turned[quad]);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i)
      *reinterpret_cast<uint4*>(out + (4 * column + i) * kFp8Keys + 16 * chunk) =
          make_uint4(turned[0][i], turned[1][i], turned[2][i], turned[3][i]);
  }
};

}  // namespace heddle::sm90
