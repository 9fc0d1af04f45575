// What a consumer warp group of the Hopper backward shares with others: the tiles of Q, dO and dS
// in shared memory, and the barriers that guard them.
#pragma once

#include "../ptx/mbarrier.cuh"
#include "../ptx/types.cuh"

namespace heddle::sm90 {

/// `Main` is the AttentionBackward whose shared memory it is.
template <class Main>
struct BackwardTiles {
  const u32 shared;
  const typename Main::QRing q_ring;
  const typename Main::DoRing d_o_ring;
  const int part;  ///< which of the groups

  HEDDLE_DEVICE explicit BackwardTiles(u32 shared)
      : shared(shared),
        q_ring{shared + Main::kAt.q_ring},
        d_o_ring{shared + Main::kAt.d_o_ring},
        part(threadIdx.x / 128 - 1) {}

  HEDDLE_DEVICE u32 q_tile(int stage) const {
    return shared + Main::kAt.q + stage * Main::QTile::kBytes;
  }
  HEDDLE_DEVICE u32 d_o_tile(int stage) const {
    return shared + Main::kAt.d_o + stage * Main::DoTile::kBytes;
  }
  HEDDLE_DEVICE u32 d_s_tile(int step) const {
    return shared + Main::kAt.d_s + (step & 1) * Main::DsTile::kBytes;
  }
  HEDDLE_DEVICE u32 d_s_full(int step) const {
    return shared + Main::kAt.d_s_full + 8 * (step & 1);
  }

  /// One arrival a warp.
  HEDDLE_DEVICE static void arrive(u32 barrier) {
    if (threadIdx.x % 128 % 32 == 0) ptx::mbarrier_arrive(barrier);
  }
};

}  // namespace heddle::sm90
