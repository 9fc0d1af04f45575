// The operand that a score expression reads in every cell (a bias, a boolean mask): fetched by the
// copy engine a tile at a time, and taken from shared memory in the order in which the threads of a
// warp group hold S^T.
#pragma once

#include "../ptx/mbarrier.cuh"
#include "../ptx/shared.cuh"
#include "../ptx/tma.cuh"
#include "../tile/ring.cuh"
#include "../tile/shared_tile.cuh"
#include "backward_arguments.h"
#include "backward_config.cuh"

namespace heddle::sm90 {

/// kRows queries a line each, kKeys keys. Boxes of 128 bytes, swizzled: 64 values, or 128 booleans,
/// of which the first kKeys count.
template <class Config, int kRows, int kKeys>
struct ScoreTile {
  using C = Config;
  using T = typename C::TiledElement;
  static constexpr bool kThere = C::kTiled != Tiled::none, kBooleans = C::kTiled == Tiled::booleans;
  static_assert(!kThere || (kRows == 64 && kKeys % 64 == 0));
  static constexpr int kBoxKeys = kBooleans ? 128 : 64;
  static constexpr int kBoxes = kThere ? (kKeys + kBoxKeys - 1) / kBoxKeys : 0;
  static constexpr int kBoxBytes = kRows * tile::kLineBytes, kBytes = kBoxes * kBoxBytes;
  using Ring = tile::Ring<C::kTiledStages>;
  using Position = tile::RingPosition<C::kTiledStages>;

  /// One thread: the tile of queries from `row` and keys from `key`.
  HEDDLE_DEVICE static void load(const BackwardArguments& args, u32 shared, u32 barrier, int key,
                                 int row, int head, int batch) {
    ptx::mbarrier_arrive_expect_tx(barrier, kBytes);
#pragma unroll
    for (int box = 0; box < kBoxes; ++box)
      ptx::tma_load_4d(shared + box * kBoxBytes, &args.tiled, barrier, key + box * kBoxKeys, row,
                       args.tiled_per_head ? head : 0, args.tiled_per_batch ? batch : 0);
  }

  /// What a thread of the warp group whose keys start at `group_key` of the tile holds of it.
  struct Reader {
    u32 address;  ///< of the row and chunk whose address this lane gives
    u32 words[4];
    u32 bits;  ///< of booleans, all: 8 * (key's half) + 16 * (query's parity) + (query / 8)

    HEDDLE_DEVICE Reader(u32 tile, int group_key) {
      const int lane = threadIdx.x % 32, warp_key = group_key + threadIdx.x % 128 / 32 * 16;
      const int row = kBooleans ? lane : lane / 16 * 8 + lane % 8;
      const int chunk = kBooleans ? warp_key / 16 : warp_key % 64 / 8 + lane / 8 % 2;
      address = tile + (kBooleans ? 0 : warp_key / 64 * kBoxBytes) + row * tile::kLineBytes +
                (chunk ^ row % 8) * 16;
      if constexpr (kBooleans) gather();
    }

    /// Takes 16 queries of values, slice `k`.
    HEDDLE_DEVICE void take(int k) {
      if constexpr (!kBooleans)
        ptx::load_matrix_x4_transposed(address + k * 16 * tile::kLineBytes, words);
    }

    /// The value at place n of the fragment, which is in the slice taken last.
    HEDDLE_DEVICE float at(int n) const {
      if constexpr (kBooleans) {
        return bits >> (n / 8 * 2 + n % 8 / 4 + 8 * (n / 2 % 2) + 16 * (n % 2)) & 1 ? 1.0f : 0.0f;
      } else {
        float low, high;
        ptx::unpack<T>(words[n % 8 / 2], low, high);
        return n % 2 == 0 ? low : high;
      }
    }

   private:
    /// A transposing load moves pairs of bytes: it leaves two neighbouring keys with a lane, and
    /// not the two eight apart that the fragment has. Bits trade places cheaper than bytes.
    HEDDLE_DEVICE void gather() {
      const int lane = threadIdx.x % 32;
      u32 pairs = 0;  // bit 16 * (query's parity) + 8 * (key's) + (query / 8)
#pragma unroll
      for (int m = 0; m < kRows / 8; ++m) {
        if (m % 4 == 0) ptx::load_matrix_x4_transposed(address + m * 8 * tile::kLineBytes, words);
        const u32 w = words[m % 4];
        const u32 set = (((w & 0x7f7f7f7fu) + 0x7f7f7f7fu) | w) & 0x80808080u;  // bytes not 0
        pairs |= set >> (7 - m);
      }
      const int from = lane / 8 * 4 + lane % 4, parity = lane / 4 % 2;
      const u32 near = __shfl_sync(0xffffffffu, pairs, from) >> (8 * parity);
      const u32 far = __shfl_sync(0xffffffffu, pairs, 16 + from) >> (8 * parity);
      bits = (near & 0x00ff00ffu) | (far & 0x00ff00ffu) << 8;
    }
  };
};

}  // namespace heddle::sm90
