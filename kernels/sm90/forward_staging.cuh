// Staged rotations in the Hopper forward. Where a consumer stages O, the rotations of its next
// query tile wait meanwhile: those of tile i + 1, O of tile i - 1, those of tile i + 2 and so on. A
// thread of the producer warp group brings rotations and sends O off, so that no consumer waits for
// either.
#pragma once

#include "../ptx/mbarrier.cuh"
#include "../ptx/shared.cuh"
#include "../ptx/sync.cuh"
#include "../ptx/tma.cuh"
#include "../tile/ring.cuh"
#include "forward_arguments.h"
#include "forward_epilogue.cuh"

namespace heddle::sm90 {

template <class Block>
struct ForwardStaging {
  using C = typename Block::C;
  using Epilogue = ForwardEpilogue<Block>;
  using StagingRing = typename Block::StagingRing;

  /// Where work is; q_tile -1 is none.
  struct Place {
    int q_tile = -1, head = 0, batch = 0;
  };

  /// One thread.
  HEDDLE_DEVICE static void run(const ForwardArguments& args, u32 shared) {
    const typename Block::ItemRing item_ring{shared + Block::kAt.item_ring};
    tile::RingCount<ForwardLayout::kItemStages> item_at;
    tile::RingCount<1> staging_at;
    Place previous, last, at;
    // What makes the rotations may still run.
    ptx::grid_dependency_wait();
    for (bool first = true; first || at.q_tile >= 0; first = false) {
      previous = last;
      last = at;
      ptx::mbarrier_wait(item_ring.full(item_at.stage()), item_at.parity());
      const u32 slot = shared + Block::kAt.items + item_at.stage() * ForwardLayout::kItemBytes;
      at = {i32(ptx::load_shared_u32(slot)), i32(ptx::load_shared_u32(slot + 4)),
            i32(ptx::load_shared_u32(slot + 8))};
      ptx::mbarrier_arrive(item_ring.empty(item_at.stage()));
      item_at.advance();
      if (first && at.q_tile < 0) return;
      if (!first) send(args, shared, staging_at, previous);
      fetch(args, shared, at);
    }
    send(args, shared, staging_at, last);
    ptx::bulk_wait<0>();
  }

 private:
  HEDDLE_DEVICE static StagingRing ring_of(u32 shared, int consumer) {
    return {shared + Block::kAt.staging_rings + consumer * StagingRing::kBytes};
  }

  /// Once the consumers have left what is staged: sends off O of `place`, if that is work, and
  /// waits for the staging to be free.
  HEDDLE_DEVICE static void send(const ForwardArguments& args, u32 shared, tile::RingCount<1>& at,
                                 const Place& place) {
#pragma unroll 1
    for (int consumer = 0; consumer < C::kConsumers; ++consumer) {
      ptx::mbarrier_wait(ring_of(shared, consumer).empty(0), at.parity());
      if (place.q_tile >= 0)
        Epilogue::send(args, shared + Block::kAt.o + consumer * Block::kAt.o_stride, 0,
                       place.q_tile * Block::kTileM + consumer * 64, place.head, place.batch);
    }
    at.advance();
    ptx::bulk_wait_read<0>();
  }

  /// Brings the rotations of `place`; past the last work, says only that the staging is free.
  HEDDLE_DEVICE static void fetch(const ForwardArguments& args, u32 shared, const Place& place) {
    const attention::RopeParameters& rope = args.q_rope;
#pragma unroll 1
    for (int consumer = 0; consumer < C::kConsumers; ++consumer) {
      const u32 full = ring_of(shared, consumer).full(0);
      if (place.q_tile < 0) {
        ptx::mbarrier_arrive(full);
        continue;
      }
      // Rows past the end are zeros: any rotation will do.
      const int row = min_of(place.q_tile * Block::kTileM + consumer * 64,
                             rope.rows - attention::kRotationRows);
      const i64 from = i64{place.batch} * rope.batch_rows + row;
      ptx::mbarrier_arrive_expect_tx(full, Block::kRotationBytes + ForwardLayout::kUnitBytes);
      ptx::bulk_load(shared + Block::kAt.o + consumer * Block::kAt.o_stride,
                     rope.rotations + from * Block::kRowRotations, Block::kRotationBytes, full);
      ptx::bulk_load(shared + Block::kAt.units + consumer * ForwardLayout::kUnitBytes,
                     rope.units + from, ForwardLayout::kUnitBytes, full);
    }
  }
};

}  // namespace heddle::sm90
