// K of fp8 turned in shared memory for dQ = dS K, where the tensor core wants the keys of a column
// side by side: a row for each column of K, whose keys lie in the order in which transposing stores
// leave dS (attention_backward_fp8.cuh): of each 16 key 8 behind key 0, then 1 and 9.
#pragma once

#include "../ptx/mbarrier.cuh"
#include "../ptx/shared.cuh"
#include "../ptx/sync.cuh"
#include "../tile/shared_tile.cuh"
#include "../tile/turned_bytes.cuh"

namespace heddle::sm90 {

/// `Main` is the AttentionBackward whose shared memory it is. By the warps of the producer that
/// have nothing else to do while the first scores are made.
template <class Main>
struct Fp8TurnedKeys {
  static constexpr int kKeys = Main::kTileN, kColumns = Main::kQk;
  using KTile = tile::SharedTile<kKeys, kColumns / 2>;  ///< in pairs, as the copy engine left it
  using Tile = tile::SharedTile<kColumns, kKeys / 2>;
  static constexpr int kThreads = 96;

  HEDDLE_DEVICE static void init(u32 shared) {
    ptx::mbarrier_init(shared + Main::kAt.turned_full, kThreads);
  }
  HEDDLE_DEVICE static void wait(u32 shared) {
    ptx::mbarrier_wait(shared + Main::kAt.turned_full, 0);
  }

  HEDDLE_DEVICE static void make(u32 shared, int thread) {
    ptx::mbarrier_wait(shared + Main::kAt.k_full, 0);
    // Eight keys of four columns each. A warp's are of some of either, which meet in few banks.
#pragma unroll 1
    for (int n = thread; n < kKeys / 8 * (kColumns / 4); n += kThreads)
      turn(shared, n / 8 % 4 + n / kColumns * 4, n % 8 + n / 32 % (kColumns / 32) * 8);
    ptx::fence_proxy_async_shared();
    ptx::mbarrier_arrive(shared + Main::kAt.turned_full);
  }

 private:
  HEDDLE_DEVICE static u32 word(u32 shared, int key, int column) {
    return ptx::load_shared_u32(shared + Main::kAt.k + KTile::chunk_offset(key, column / 4) +
                                column % 4 * 4);
  }

  HEDDLE_DEVICE static void turn(u32 shared, int eight, int column) {
    u32 turned[2][4];  // [four keys][column]
#pragma unroll
    for (int quad = 0; quad < 2; ++quad) {
      const int key = eight / 2 * 16 + eight % 2 * 4 + 2 * quad;
      tile::turn_bytes(word(shared, key, column), word(shared, key + 8, column),
                       word(shared, key + 1, column), word(shared, key + 9, column), turned[quad]);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i)
      ptx::store_shared(shared + Main::kAt.turned_k +
                            Tile::chunk_offset(4 * column + i, eight / 2) + eight % 2 * 8,
                        turned[0][i], turned[1][i]);
  }
};

}  // namespace heddle::sm90
