// dQ's sums in memory, of the Hopper backward kernels with a warp group that has nothing to do but
// to make dQ and add it: straight from the registers of a product of 64 rows by 64 columns. Nothing
// of it is waited for, and shared memory is what the products run out of first.
#pragma once

#include "../ptx/global.cuh"
#include "../ptx/types.cuh"
#include "backward_arguments.h"
#include "backward_config.cuh"

namespace heddle::sm90 {

template <class Config>
struct BackwardRegisterSums {
  // [warp's 16 rows][8 columns][lane][4]; turned [64 columns][8 rows][warp's 16 columns][lane][4].
  static constexpr bool kTurned = Config::kValues.turns_sums();
  static constexpr bool kSplitColumns = Config::kValues.splits_columns();
  static constexpr int kDqColumns = Config::kValues.dq_columns(),
                       kDqWidth = Config::kValues.dq_width();
  static constexpr int kTileM = Config::kValues.tile_m;
  static constexpr int kDqCells = 64 * min_of(kTileM, 64) / 128;  ///< of a thread
  static constexpr int kDqParts = kDqColumns / 64;                ///< products of 64 columns
  static constexpr int kDqPart = 64 * kDqColumns;
  static constexpr int kDqGroupStride = 128, kDqWarpStride = 16 * kDqWidth;
  static constexpr int kDqTurns = Config::kValues.dq_turns();  ///< of a tile
  static constexpr int kDqTurnsOfBlock = Config::kValues.dq_turns_of_block();

  /// Adds a part, times `unit`, to the sums of query tile `tile`. Addresses are found anew each
  /// time: the registers are the product's.
  HEDDLE_DEVICE static void add_d_q(const BackwardArguments& args, int tile, int part,
                                    const float (&d_q)[kDqCells], float unit) {
    float* sums = args.d_q_sum + static_cast<i64>(tile) * (kTileM * kDqWidth);
    if constexpr (kTurned)
      sums += part * (64 * kTileM) + threadIdx.x % 128 * 4;
    else
      sums += threadIdx.x % 128 / 32 * kDqWarpStride + part * (8 * kDqGroupStride) +
              threadIdx.x % 32 * 4;
#pragma unroll
    for (int i = 0; i < kDqCells; i += 4)
      ptx::reduce_add(sums + i / 4 * (kTurned ? 4 * kDqGroupStride : kDqGroupStride), d_q[i] * unit,
                      d_q[i + 1] * unit, d_q[i + 2] * unit, d_q[i + 3] * unit);
  }
};

}  // namespace heddle::sm90
