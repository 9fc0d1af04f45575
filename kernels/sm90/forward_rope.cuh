// RoPE of Q in the Hopper forward: a consumer turns its 64 rows where they lie in shared memory,
// before their first product.
#pragma once

#include "../attention/rope.cuh"
#include "../ptx/mbarrier.cuh"
#include "../ptx/shared.cuh"
#include "../ptx/sync.cuh"
#include "forward_arguments.h"
#include "forward_tiles.cuh"

namespace heddle::sm90 {

template <class Block>
struct ForwardRope {
  using C = typename Block::C;
  using T = typename Block::T;
  using QTile = typename Block::QTile;
  using Tiles = ForwardTiles<Block>;
  using Work = ForwardWork<Block>;
  using Unit = attention::RopeUnit<C::kQkDim, C::kRopeDim, C::kRopePairing>;
  /// The warp group shares out 64 rows of units; a thread's are 128 apart.
  static constexpr int kUnits = ceil_div(64 * Unit::kCount, 128);
  /// How many units' tables are on their way together, as registers allow: one after the other they
  /// took twice as long.
  static constexpr int kBatch = min_of(kUnits, C::kVDim > 128 || !Block::kPlain ? 1
                                               : C::kConsumers > 2              ? 2
                                                                                : 4);

  /// Waits for the query tile and rotates it, the tables' first loads under the wait.
  HEDDLE_DEVICE static void wait_and_rotate(const ForwardArguments& args, const Tiles& tiles,
                                            const Work& work) {
    const u32 full = tiles.q_ring.full(tiles.q_at.stage());
#pragma unroll 1
    for (int start = 0; start < kUnits; start += kBatch) {
      Unit units[kBatch];
      load_tables(args.q_rope, tiles.consumer, work, start, units);
      if (start == 0) ptx::mbarrier_wait(full, tiles.q_at.parity());
      rotate(args.q_rope, tiles, start, units);
    }
    scale_others(args.q_rope, tiles);
    // The products may read the tile.
    ptx::fence_proxy_async_shared();
    ptx::barrier_sync(Block::kGroupBarrier + tiles.consumer, 128);
  }

 private:
  HEDDLE_DEVICE static void load_tables(const attention::RopeParameters& rope, int consumer,
                                        const Work& work, int start, Unit (&units)[kBatch]) {
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int index = (start + i) * 128 + threadIdx.x % 128, r = index / Unit::kCount;
      // Rows past the end are zeros: any position will do.
      const int row = max_of(min_of(work.first_row(consumer) + r, work.q_length - 1), 0);
      units[i].load_tables(rope, attention::rope_position(rope, work.batch, row),
                           index % Unit::kCount);
    }
  }

  /// Turns this thread's units.
  HEDDLE_DEVICE static void rotate(const attention::RopeParameters& rope, const Tiles& tiles,
                                   int start, const Unit (&units)[kBatch]) {
    const u32 q = tiles.q();
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int index = (start + i) * 128 + threadIdx.x % 128, r = index / Unit::kCount;
      if (r >= 64) return;
      units[i].template rotate<T>(
          index % Unit::kCount, rope.scale,
          [&](int chunk, u32(&x)[4]) { ptx::load_shared(q + QTile::chunk_offset(r, chunk), x); },
          [&](int chunk, const u32(&x)[4]) {
            ptx::store_shared(q + QTile::chunk_offset(r, chunk), x);
          });
    }
  }

  /// Columns before the rotated ones get the scale.
  HEDDLE_DEVICE static void scale_others(const attention::RopeParameters& rope,
                                         const Tiles& tiles) {
    if (Unit::kFirst == 0 || rope.scale == 1.f) return;
    const u32 q = tiles.q();
    for (int index = threadIdx.x % 128; index < 64 * Unit::kFirst; index += 128) {
      const u32 at = q + QTile::chunk_offset(index / Unit::kFirst, index % Unit::kFirst);
      u32 x[4];
      ptx::load_shared(at, x);
      attention::scale_chunk<T>(x, rope.scale);
      ptx::store_shared(at, x);
    }
  }
};

}  // namespace heddle::sm90
