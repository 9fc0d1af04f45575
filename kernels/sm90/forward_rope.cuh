// RoPE of Q in the Hopper forward: each warp of a consumer turns its 16 rows where they lie in
// shared memory, before their first product.
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
  using Steps = attention::RopeSteps<C::kQkDim, C::kRopeDim, C::kRopePairing>;
  static constexpr bool kStaged = Block::kStagedRotations;
  /// How many steps at once, as registers allow.
  static constexpr int kBatch = C::kVDim > 128 || !Block::kPlain ? 1
                                : kStaged && C::kConsumers == 2  ? min_of(Steps::kCount, 8)
                                                                 : 2;

  /// Of staged rotations, whose loads take no registers ahead, the batches are one piece of code:
  /// in a loop three consumers lost 2 % at S 8192.
  static constexpr int kBatches = kStaged ? ceil_div(Steps::kCount, kBatch) : 1;

  /// Whether the tile can be had in registers too, as the A operand of its first product.
  static constexpr bool kFragments = kStaged && kBatch == Steps::kCount && Steps::kFirst == 0 &&
                                     C::kRopeDim % (Steps::kHalves ? 32 : 16) == 0;
  using Fragments = u32[Block::kQkSlices][4];

  /// Waits for the query tile and rotates it; the products may read it.
  HEDDLE_DEVICE static void wait_and_rotate(const ForwardArguments& args, const Tiles& tiles,
                                            const Work& work) {
    turn(args, tiles, work, [](int, const u32(&)[4]) {});
    scale_others(args.q_rope, tiles);
    ptx::fence_proxy_async_shared();
    meet(tiles);
  }

  /// The same, and the tile in registers. The products may read shared memory once each thread has
  /// run a fence_proxy_async_shared and has come to meet().
  HEDDLE_DEVICE static void wait_and_rotate(const ForwardArguments& args, const Tiles& tiles,
                                            const Work& work, Fragments& q) {
    turn(args, tiles, work, [&](int step, const u32(&x)[4]) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if constexpr (Steps::kHalves)
          q[step / 2 + i / 2 * (Block::kQkSlices / 2)][step % 2 * 2 + i % 2] = x[i];
        else
          q[step][i] = x[i];
      }
    });
  }
  HEDDLE_DEVICE static void meet(const Tiles& tiles) {
    ptx::barrier_sync(Block::kGroupBarrier + tiles.consumer, 128);
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
        staged_units = tiles.shared + Block::kUnitOffset + tiles.consumer * Block::kUnitBytes;
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

  /// Turns the warp's rows and gives them to keep(step, x); the first loads of rotations are made
  /// under the wait for the tile.
  template <class Keep>
  HEDDLE_DEVICE static void turn(const ForwardArguments& args, const Tiles& tiles, const Work& work,
                                 const Keep& keep) {
    if constexpr (kStaged) tiles.wait_staging();
    const Rotations rotations(args.q_rope, tiles, work);
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
        keep(start + i, x[i]);
      }
    }
  }

  /// What the lane addresses of a step's two chunks.
  HEDDLE_DEVICE static u32 chunk_at(const Tiles& tiles, int step) {
    const int lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16 + lane % 16;
    return tiles.q() + QTile::chunk_offset(row, Steps::chunk(step, lane));
  }

  /// Columns before the rotated ones get the scale.
  HEDDLE_DEVICE static void scale_others(const attention::RopeParameters& rope,
                                         const Tiles& tiles) {
    if (Steps::kFirst == 0 || rope.scale == 1.f) return;
    const u32 q = tiles.q();
    for (int index = threadIdx.x % 128; index < 64 * Steps::kFirst; index += 128) {
      const u32 at = q + QTile::chunk_offset(index / Steps::kFirst, index % Steps::kFirst);
      u32 x[4];
      ptx::load_shared(at, x);
#pragma unroll
      for (int i = 0; i < 4; ++i) x[i] = attention::scale_pair<T>(x[i], rope.scale);
      ptx::store_shared(at, x);
    }
  }
};

}  // namespace heddle::sm90
