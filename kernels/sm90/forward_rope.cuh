// RoPE of Q in the Hopper forward: the warps of a warp group turn 16 of a consumer's rows each,
// where they lie in shared memory, before their first product. The warp group is the consumer
// itself, or one that does nothing else, under the products of the tile before.
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
  using Steps = attention::RopeSteps<C::kRopeDim, C::kRopePairing, C::kRopeFirst>;
  static constexpr bool kStaged = Block::kStagedRotations;
  /// How many steps at once, as registers allow.
  static constexpr int kBatch =
      C::kVDim > 128 || !Block::kPlain || is_same<typename C::Result, float> ? 1
      : Block::kRotators                                                     ? 4
                                                                             : 2;
  /// Of staged rotations, whose loads take no registers ahead, the batches are one piece of code:
  /// in a loop three consumers lost 2 % at S 8192.
  static constexpr int kBatches = kStaged ? ceil_div(Steps::kCount, kBatch) : 1;

  /// The consumer's own: waits for its query tile and rotates it; its products may read it.
  HEDDLE_DEVICE static void wait_and_rotate(const ForwardArguments& args, const Tiles& tiles,
                                            const Work& work) {
    rotate(args.q_rope, tiles, work);
    ptx::barrier_sync(Block::kGroupBarrier + tiles.consumer, 128);
  }

  /// The warp group's that rotates the tiles of all consumers.
  HEDDLE_DEVICE static void run(const ForwardArguments& args, u32 shared) {
    Tiles tiles(shared, 0);
    while (true) {
      const Work work = tiles.next_work();
      if (work.q_tile < 0) return;
#pragma unroll 1
      for (int consumer = 0; consumer < C::kConsumers; ++consumer) {
        Tiles of(shared, consumer);
        of.q_at = tiles.q_at;
        rotate(args.q_rope, of, work);
        ptx::mbarrier_arrive(of.rotated());
      }
      tiles.q_at.advance();
    }
  }

 private:
  /// Those of the warp's rows: staged, or in memory.
  struct Rotations {
    const int lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
    u32 staged = 0, staged_units = 0;
    const unsigned* in_memory = nullptr;
    const float* units = nullptr;

    HEDDLE_DEVICE Rotations(const attention::RopeParameters& rope, const Tiles& tiles,
                            const Work& work) {
      if constexpr (kStaged) {
        staged = tiles.staging();
        staged_units = tiles.shared + Block::kAt.units + tiles.consumer * ForwardLayout::kUnitBytes;
      } else {
        // Rows past the end are zeros: any rotation will do.
        const i64 row =
            i64{work.batch} * rope.batch_rows +
            min_of(work.first_row(tiles.consumer), rope.rows - attention::kRotationRows);
        in_memory = rope.rotations + row * Block::kRowRotations;
        units = rope.units + row;
      }
    }
    HEDDLE_DEVICE void load(int step, u32 (&four)[4]) const {
      const int place = Steps::place(warp, step, lane);
      if constexpr (kStaged) {
        ptx::load_shared(staged + 4 * place, four);
      } else {
        const uint4 value = __ldg(reinterpret_cast<const uint4*>(in_memory + place));
        four[0] = value.x, four[1] = value.y, four[2] = value.z, four[3] = value.w;
      }
    }
    HEDDLE_DEVICE void load_units(float (&unit)[2]) const {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = 16 * warp + lane / 4 + 8 * half;
        unit[half] = kStaged ? ptx::load_shared_f32(staged_units + 4 * row) : __ldg(units + row);
      }
    }
  };

  /// Waits for a consumer's query tile and rotates it. The products may read it once all threads
  /// have done so.
  HEDDLE_DEVICE static void rotate(const attention::RopeParameters& rope, const Tiles& tiles,
                                   const Work& work) {
    turn(rope, tiles, work);
    scale_others(rope, tiles);
    ptx::fence_proxy_async_shared();
  }

  /// Turns the warp's rows, the first loads of rotations under the wait for the tile.
  HEDDLE_DEVICE static void turn(const attention::RopeParameters& rope, const Tiles& tiles,
                                 const Work& work) {
    if constexpr (kStaged) tiles.wait_staging();
    const Rotations rotations(rope, tiles, work);
    float unit[2];
    rotations.load_units(unit);
    const bool has_units = __any_sync(0xffffffffu, unit[0] != 1.f || unit[1] != 1.f);
#pragma unroll kBatches
    for (int start = 0; start < Steps::kCount; start += kBatch) {
      u32 by[kBatch][4], x[kBatch][4];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if (start + i < Steps::kCount) rotations.load(start + i, by[i]);
      }
      if (start == 0) tiles.wait_q();
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if (start + i < Steps::kCount) ptx::load_matrix_x4(chunk_at(tiles, start + i), x[i]);
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) Steps::template turn<T>(x[i], by[i]);
      if (has_units) {
#pragma unroll
        for (int i = 0; i < 4 * kBatch; ++i)
          x[i / 4][i % 4] = attention::scale_pair<T>(x[i / 4][i % 4], unit[i % 2]);
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if (start + i >= Steps::kCount) continue;
        ptx::store_matrix_x4(chunk_at(tiles, start + i), x[i][0], x[i][1], x[i][2], x[i][3]);
      }
    }
  }

  /// What the lane addresses of a step's two chunks.
  HEDDLE_DEVICE static u32 chunk_at(const Tiles& tiles, int step) {
    const int lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16 + lane % 16;
    return tiles.q() + QTile::chunk_offset(row, Steps::chunk(step, lane));
  }

  /// Columns beside the rotated ones get the scale.
  HEDDLE_DEVICE static void scale_others(const attention::RopeParameters& rope,
                                         const Tiles& tiles) {
    constexpr int kOthers = (C::kQkDim - C::kRopeDim) / 8;
    if (kOthers == 0 || rope.scale == 1.f) return;
    const u32 q = tiles.q();
    for (int index = threadIdx.x % 128; index < 64 * kOthers; index += 128) {
      const int row = index / max_of(kOthers, 1), other = index - row * kOthers;
      const u32 at =
          q + QTile::chunk_offset(row, other < Steps::kFirst ? other : other + C::kRopeDim / 8);
      u32 x[4];
      ptx::load_shared(at, x);
#pragma unroll
      for (int i = 0; i < 4; ++i) x[i] = attention::scale_pair<T>(x[i], rope.scale);
      ptx::store_shared(at, x);
    }
  }
};

}  // namespace heddle::sm90
