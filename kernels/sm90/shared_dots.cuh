// Dot products of heads so wide that consumers share their columns: what each has found, over its
// own columns of Q and K, added up in all of them.
//
// Threads of the same number hold the same cells, so each leaves its own to those, and reads
// theirs. Two consumers of a block leave all cells. Of two blocks each consumer first adds up half
// of the keys for its block, and tells the other; sums are taken in the same order everywhere.
#pragma once

#include "../ptx/cluster.cuh"
#include "../ptx/mbarrier.cuh"
#include "../ptx/shared.cuh"
#include "../ptx/sync.cuh"
#include "../ptx/types.cuh"
#include "block_rank.cuh"
#include "cluster_reads.cuh"

namespace heddle::sm90 {

template <class Block>
class SharedDots {
  using C = typename Block::C;
  static constexpr bool kThere = Block::kSharesDots;
  static_assert(!kThere || (C::kParts == 2 && C::kConsumers == 2 && C::kRanks <= 2));
  static constexpr int kCells = Block::kDotCells, kHalf = kCells / 2;  ///< of a thread
  static_assert(!kThere || kHalf % 4 == 0, "they move by 16 bytes");
  static constexpr int kHalfBytes = kHalf * 4 * 128;  ///< of a consumer's threads
  // Named barriers, + consumer: its cells are there; have been read; of two blocks, its sums are
  // there. One of kLeft is both's.
  static constexpr u32 kLeft = Block::kDotsBarrier, kRead = kLeft + 2, kSummed = kLeft + 1;

 public:
  /// One thread.
  HEDDLE_DEVICE static void init(u32 shared) {
    if constexpr (C::kRanks > 1) {
      ptx::mbarrier_init(told(shared), 1);
      // Every thread of the block, a warp's one of the other: racecheck follows no other.
      ptx::mbarrier_init(all_read(shared), C::kConsumers * (128 + 4));
    }
  }

  HEDDLE_DEVICE SharedDots(u32 shared, int consumer)
      : shared_(shared), consumer_(consumer), rank_(block_rank<C::kRanks>()) {
    if constexpr (kThere && C::kRanks == 1)
      ptx::barrier_arrive(kRead + (consumer_ ^ 1), 256);  // there are none yet
  }

  /// Says what the consumer has found, which is summed up by the next take().
  HEDDLE_DEVICE void leave(const float (&dots)[kCells]) {
    if constexpr (C::kRanks == 1)
      leave_in_block(dots);
    else
      leave_in_cluster(dots);
  }
  HEDDLE_DEVICE void take(float (&dots)[kCells]) {
    ptx::barrier_sync((C::kRanks == 1 ? kLeft : kSummed) + (consumer_ ^ 1), 256);
    if constexpr (C::kRanks > 1) ptx::mbarrier_wait(told(shared_), phase_);
#pragma unroll
    for (int i = 0; i < kCells; i += 4) {
      float of[2][4];
#pragma unroll
      for (int owner = 0; owner < 2; ++owner)
        load(place(owner, i / kHalf, i % kHalf / 4), of[owner]);
#pragma unroll
      for (int n = 0; n < 4; ++n) dots[i + n] = of[0][n] + of[1][n];
    }
    if constexpr (C::kRanks == 1)
      ptx::barrier_arrive(kRead + (consumer_ ^ 1), 256);
    else
      say_all_read(dots);
  }

 private:
  HEDDLE_DEVICE static u32 told(u32 shared) { return shared + Block::kAt.dots_barriers; }
  HEDDLE_DEVICE static u32 all_read(u32 shared) { return shared + Block::kAt.dots_barriers + 8; }

  /// Four of a thread's cells, of half `half`, that `owner` has: a consumer, or of two blocks one
  /// of these.
  HEDDLE_DEVICE u32 place(int owner, int half, int four) const {
    return shared_ + Block::kAt.dots + (2 * owner + half) * kHalfBytes +
           (four * 128 + static_cast<int>(threadIdx.x) % 128) * 16;
  }
  HEDDLE_DEVICE static void load(u32 at, float (&dots)[4]) {
    ptx::load_shared(at, dots[0], dots[1], dots[2], dots[3]);
  }
  HEDDLE_DEVICE void leave_in_block(const float (&dots)[kCells]) const {
    ptx::barrier_sync(kRead + consumer_, 256);
#pragma unroll
    for (int i = 0; i < kCells; i += 4)
      ptx::store_shared(place(consumer_, i / kHalf, i % kHalf / 4), dots[i], dots[i + 1],
                        dots[i + 2], dots[i + 3]);
    ptx::barrier_arrive(kLeft + consumer_, 256);
  }

  /// What a block has summed up of a half lies where its rank is the owner, in both blocks; until
  /// then the other consumer's share of it.
  HEDDLE_DEVICE void leave_in_cluster(const float (&dots)[kCells]) {
    ptx::mbarrier_wait(all_read(shared_), phase_ ^ 1);
    // Which cells are a consumer's differs; registers have no index.
    const bool second = consumer_ != 0;
    float own[kHalf], others[kHalf];
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      own[i] = second ? dots[kHalf + i] : dots[i];
      others[i] = second ? dots[i] : dots[kHalf + i];
    }
#pragma unroll
    for (int i = 0; i < kHalf; i += 4)
      ptx::store_shared(place(rank_, consumer_ ^ 1, i / 4), others[i], others[i + 1], others[i + 2],
                        others[i + 3]);
    ptx::barrier_sync(kLeft, 256);
    if (threadIdx.x % 128 == 0 && !second)
      ptx::mbarrier_arrive_expect_tx(told(shared_), 2 * kHalfBytes);
    const u32 other_told = ptx::address_in(told(shared_), rank_ ^ 1);
#pragma unroll
    for (int i = 0; i < kHalf; i += 4) {
      const u32 at = place(rank_, consumer_, i / 4);
      float of_other[4];
      load(at, of_other);
      u32 sums[4];
#pragma unroll
      for (int n = 0; n < 4; ++n) sums[n] = __float_as_uint(own[i + n] + of_other[n]);
      ptx::store_shared(at, sums);
      ptx::cluster_store(ptx::address_in(at, rank_ ^ 1), other_told, sums);
    }
    ptx::barrier_arrive(kSummed + consumer_, 256);
  }
  HEDDLE_DEVICE void say_all_read(const float (&dots)[kCells]) {
    ptx::mbarrier_arrive(all_read(shared_));
    tell_read(all_read(shared_), rank_ ^ 1, dots);
    phase_ ^= 1;
  }

  const u32 shared_;
  const int consumer_, rank_;
  u32 phase_ = 0;
};

}  // namespace heddle::sm90
