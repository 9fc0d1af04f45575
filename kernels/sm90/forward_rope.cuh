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
  /// How many units at once, as registers allow: of rotations that come from memory, one after the
  /// other took twice as long.
  static constexpr int kBatch = min_of(kUnits, C::kVDim > 128 || !Block::kPlain ? 1
                                               : C::kConsumers > 2              ? 2
                                                                                : 4);
  static constexpr bool kStaged = Block::kStagedRotations;

  /// Waits for the query tile and rotates it, the first loads of rotations under the wait.
  HEDDLE_DEVICE static void wait_and_rotate(const ForwardArguments& args, const Tiles& tiles,
                                            const Work& work) {
    if constexpr (kStaged) tiles.wait_staging();
#pragma unroll 1
    for (int start = 0; start < kUnits; start += kBatch) {
      Unit units[kBatch];
      load_rotations(args.q_rope, tiles, work, start, units);
      if (start == 0) tiles.wait_q();
      rotate(tiles, start, units);
    }
    scale_others(args.q_rope, tiles);
    // The products may read the tile.
    ptx::fence_proxy_async_shared();
    ptx::barrier_sync(Block::kGroupBarrier + tiles.consumer, 128);
  }

 private:
  HEDDLE_DEVICE static void load_rotations(const attention::RopeParameters& rope,
                                           const Tiles& tiles, const Work& work, int start,
                                           Unit (&units)[kBatch]) {
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int index = (start + i) * 128 + threadIdx.x % 128;
      const int r = min_of(index / Unit::kCount, 63), n = index % Unit::kCount;
      if constexpr (kStaged) {
        const u32 row = tiles.staging() + r * Unit::kRowBytes;
        units[i].scale = ptx::load_shared_f32(tiles.shared + Block::kScaleOffset +
                                              tiles.consumer * Block::kScaleBytes + r * 4);
        units[i].load_rotations(
            n, [&](int place, u32(&four)[4]) { ptx::load_shared(row + 4 * place, four); });
      } else {
        // Rows past the end are zeros: any rotation will do.
        const i64 row = i64{work.batch} * rope.batch_rows +
                        min_of(work.first_row(tiles.consumer) + r, rope.rows - 1);
        units[i].scale = __ldg(rope.scales + row);
        units[i].load_rotations(n, [&](int place, u32(&four)[4]) {
          const uint4 value = __ldg(
              reinterpret_cast<const uint4*>(rope.rotations + row * (C::kRopeDim / 2) + place));
          four[0] = value.x, four[1] = value.y, four[2] = value.z, four[3] = value.w;
        });
      }
    }
  }

  /// Turns this thread's units.
  HEDDLE_DEVICE static void rotate(const Tiles& tiles, int start, const Unit (&units)[kBatch]) {
    const u32 q = tiles.q();
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int index = (start + i) * 128 + threadIdx.x % 128, r = index / Unit::kCount;
      if (r >= 64) return;
      units[i].template rotate<T>(
          index % Unit::kCount,
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
