// What the sweeps of the general backward keep in shared memory.
#pragma once

#include "../attention/parameters.h"
#include "../attention/row_statistics.cuh"
#include "../tile/planes.cuh"
#include "general_config.h"

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
  static constexpr int kTileN = 16 * Config::kWarps;
  static constexpr int kStages = Config::kValues.sweep_stages();
  using Key = tile::PlaneTile<T, kTileN, Config::kQkDim>;
  using Value = tile::PlaneTile<T, kTileN, Config::kVDim>;
  using Query = tile::PlaneTile<T, Config::kTileM, Config::kQkDim>;
  using OutputGradient = tile::PlaneTile<T, Config::kTileM, Config::kVDim>;
  static constexpr SweepLayout kAt = key_sweep_layout_of(Config::kValues);
  using Record = RowRecord<is_same<T, float>, Config::kMaxAndSum>;
  static_assert(sizeof(Record) == kAt.record_bytes);
};

template <class Config>
struct QuerySweepTiles {
  using T = typename Config::Element;
  static constexpr int kTileM = 16 * Config::kWarps;
  static constexpr int kStages = Config::kValues.sweep_stages();
  using Query = tile::PlaneTile<T, kTileM, Config::kQkDim>;
  using OutputGradient = tile::PlaneTile<T, kTileM, Config::kVDim>;
  using Key = tile::PlaneTile<T, Config::kTileN, Config::kQkDim>;
  using Value = tile::PlaneTile<T, Config::kTileN, Config::kVDim>;
  static constexpr SweepLayout kAt = query_sweep_layout_of(Config::kValues);
};

}  // namespace heddle::sm80
