// Dot products of heads so wide that the two blocks of a cluster share their columns: what each has
// found, over its own columns, added up in both.
//
// Threads of the same number hold the same cells: each sends its own to that of the other block,
// and adds those it is sent. A sum of two is the same in either order. A block that is no cluster's
// has all columns, and nobody to tell.
#pragma once

#include "../ptx/cluster.cuh"
#include "../ptx/mbarrier.cuh"
#include "../ptx/shared.cuh"
#include "../ptx/sync.cuh"
#include "../ptx/types.cuh"
#include "cluster_reads.cuh"

namespace heddle::sm90 {

/// Which dot products: S or dP, each a warp group's. Where shared memory has one buffer for both
/// they take turns in it, S first.
enum class PeerDotsOf { scores, gradients };

template <class Block, PeerDotsOf kOf>
class PeerDots {
  using C = typename Block::C;
  static constexpr bool kThere = C::kRanks > 1;
  static_assert(C::kRanks <= 2);
  static constexpr int kCells = Block::kTileM / 2;  ///< of a thread
  static constexpr int kBytes = C::kValues.dots_bytes();
  static constexpr int kWhich = static_cast<int>(kOf);
  static constexpr bool kTakesTurns = C::kDotBuffers == 1;

 public:
  /// One thread, for both.
  HEDDLE_DEVICE static void init(u32 shared) {
    if constexpr (!kThere) return;
    for (int which = 0; which < 2; ++which) {
      ptx::mbarrier_init(arrived(shared, which), 1);
      ptx::mbarrier_init(read(shared, which), 4);  // warps of the other block
    }
  }

  HEDDLE_DEVICE explicit PeerDots(u32 shared) : shared_(shared) {}

  /// Sends what the warp group has found of a step, which the next add() completes.
  HEDDLE_DEVICE void send(const float (&dots)[kCells], int step) const {
    if constexpr (!kThere) return;
    const u32 peer = ptx::cluster_rank() ^ 1;
    if (threadIdx.x % 128 == 0) ptx::mbarrier_arrive_expect_tx(arrived(shared_, kWhich), kBytes);
    // What lay there last has been read: of the step before or, in turns, this step's S.
    constexpr bool kSecond = kTakesTurns && kWhich == 1;
    ptx::mbarrier_wait(read(shared_, kTakesTurns ? kWhich ^ 1 : kWhich),
                       kSecond ? parity_of(step) : parity_of(step) ^ 1);
    const u32 there = ptx::address_in(place(), peer),
              barrier = ptx::address_in(arrived(shared_, kWhich), peer);
#pragma unroll
    for (int i = 0; i < kCells; i += 4) {
      const u32 four[4] = {__float_as_uint(dots[i]), __float_as_uint(dots[i + 1]),
                           __float_as_uint(dots[i + 2]), __float_as_uint(dots[i + 3])};
      ptx::cluster_store(there + i / 4 * (128 * 16), barrier, four);
    }
  }
  HEDDLE_DEVICE void add(float (&dots)[kCells], int step) const {
    if constexpr (!kThere) return;
    ptx::mbarrier_wait(arrived(shared_, kWhich), parity_of(step));
#pragma unroll
    for (int i = 0; i < kCells; i += 4) {
      float of_peer[4];
      ptx::load_shared(place() + i / 4 * (128 * 16), of_peer[0], of_peer[1], of_peer[2],
                       of_peer[3]);
#pragma unroll
      for (int n = 0; n < 4; ++n) dots[i + n] += of_peer[n];
    }
    tell_read(read(shared_, kWhich), ptx::cluster_rank() ^ 1, dots);
  }

 private:
  HEDDLE_DEVICE static u32 parity_of(int step) { return step & 1; }
  HEDDLE_DEVICE static u32 arrived(u32 shared, int which) {
    return shared + Block::kAt.dots_barriers + 16 * which;
  }
  HEDDLE_DEVICE static u32 read(u32 shared, int which) { return arrived(shared, which) + 8; }
  /// Of the thread's first four cells.
  HEDDLE_DEVICE u32 place() const {
    return shared_ + Block::kAt.dots + (kTakesTurns ? 0 : kWhich * kBytes) +
           ptx::thread_anew() % 128 * 16;
  }

  const u32 shared_;
};

}  // namespace heddle::sm90
