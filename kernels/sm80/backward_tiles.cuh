// What the sweeps of the general backward keep in shared memory.
#pragma once

#include "../attention/parameters.h"
#include "../attention/row_statistics.cuh"
#include "../tile/planes.cuh"
#include "general_config.h"
#include "shared_cells.cuh"

namespace heddle::sm80 {

/// What a key sweep needs of a query row, staged in shared memory: `kMore` holds what f32 has of
/// delta besides, and the sum where it is apart from the maximum.
template <bool kExact, bool kMaxAndSum>
struct RowRecord {
  static constexpr int kMore = kExact + kMaxAndSum;
  float reference, high;
  int lo, hi;
  float more[kMore];

  HEDDLE_DEVICE void set_delta(attention::RowDelta x) {
    high = x.high;
    if constexpr (kExact) more[0] = x.rest;
  }
  HEDDLE_DEVICE attention::RowDelta delta() const { return {high, kExact ? more[0] : 0.0f}; }
  HEDDLE_DEVICE void set_statistic(attention::RowStatistic x) {
    reference = x.reference;
    if constexpr (kMaxAndSum) more[kMore - 1] = x.log2_sum;
  }
  HEDDLE_DEVICE attention::RowStatistic statistic() const {
    return {reference, kMaxAndSum ? more[kMore - 1] : 0.0f};
  }
};
template <>
struct RowRecord<false, false> {
  float reference, high;
  int lo, hi;

  HEDDLE_DEVICE void set_delta(attention::RowDelta x) { high = x.high; }
  HEDDLE_DEVICE attention::RowDelta delta() const { return {high, 0.0f}; }
  HEDDLE_DEVICE void set_statistic(attention::RowStatistic x) { reference = x.reference; }
  HEDDLE_DEVICE attention::RowStatistic statistic() const { return {reference, 0.0f}; }
};

template <class Config>
struct KeySweepTiles {
  using T = typename Config::Element;
  static constexpr int kTileN = 16 * Config::kWarps, kStages = Config::kStages;
  static constexpr int kQkColumns = Config::kValues.qk_columns(),
                       kVColumns = Config::kValues.v_columns();
  using Key = tile::PlaneTile<T, kTileN, kQkColumns>;
  using Value = tile::PlaneTile<T, kTileN, kVColumns>;
  using Query = tile::PlaneTile<T, Config::kTileM, kQkColumns>;
  using OutputGradient = tile::PlaneTile<T, Config::kTileM, kVColumns>;
  static_assert(!Config::kInTurns || kStages == 1);
  static constexpr SweepLayout kAt = key_sweep_layout_of(Config::kValues);
  using Record = RowRecord<is_same<T, float>, Config::kMaxAndSum>;
  static_assert(sizeof(Record) == kAt.record_bytes);
};

template <class Config>
struct QuerySweepTiles {
  using T = typename Config::Element;
  static constexpr int kTileM = 16 * Config::kWarps, kStages = Config::kStages;
  static constexpr int kQkColumns = Config::kValues.qk_columns(),
                       kVColumns = Config::kValues.v_columns();
  using Query = tile::PlaneTile<T, kTileM, kQkColumns>;
  using OutputGradient = tile::PlaneTile<T, kTileM, kVColumns>;
  using Key = tile::PlaneTile<T, Config::kTileN, kQkColumns>;
  using Value = tile::PlaneTile<T, Config::kTileN, kVColumns>;
  static_assert(!Config::kInTurns || kStages == 1);
  static constexpr SweepLayout kAt = query_sweep_layout_of(Config::kValues);
};

/// S and dP of the 16 rows of warps number `row_warp`, kGroups of 8 columns, among the kParts warps
/// that share them: tile after tile of 16 columns of either, in turns. do_s(columns, x) and
/// do_dp(columns, x) add a tile's products to x. Without dP, where it is not wanted. All threads.
template <int kParts, bool kWantDp, int kGroups, class DoS, class DoDp>
HEDDLE_DEVICE void share_cells(u32 cells, int row_warp, int part, float (&s)[kGroups][4],
                               float (&dp)[kGroups][4], const DoS& do_s, const DoDp& do_dp) {
  constexpr int kPairs = kGroups / 2;
  const SharedCells<2 * kGroups> shared(cells, row_warp);
#pragma unroll
  for (int n = 0; n < kPairs * (kWantDp ? 2 : 1); ++n) {
    if (n % kParts != part) continue;
    float x[2][4] = {};
    if (n < kPairs)
      do_s(n, x);
    else
      do_dp(n - kPairs, x);
    shared.leave(2 * n, x[0]);
    shared.leave(2 * n + 1, x[1]);
  }
  __syncthreads();
#pragma unroll
  for (int n = 0; n < kGroups; ++n) {
    shared.take(n, s[n]);
    if constexpr (kWantDp) shared.take(kGroups + n, dp[n]);
  }
}

}  // namespace heddle::sm80
