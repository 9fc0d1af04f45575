// What the sweeps of the general backward keep in shared memory.
#pragma once

#include "../attention/parameters.h"
#include "../attention/row_statistics.cuh"
#include "../tile/planes.cuh"

namespace heddle::sm80 {

/// Stages of what a sweep passes by: f32 tiles are not copied asynchronously, so a second one would
/// hide nothing.
template <typename T>
inline constexpr int sweep_stages = is_same<T, float> ? 1 : 2;

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
  static constexpr int kStages = sweep_stages<T>;
  using Key = tile::PlaneTile<T, kTileN, Config::kQkDim>;
  using Value = tile::PlaneTile<T, kTileN, Config::kVDim>;
  using Query = tile::PlaneTile<T, Config::kTileM, Config::kQkDim>;
  using OutputGradient = tile::PlaneTile<T, Config::kTileM, Config::kVDim>;
  static constexpr int kStageBytes = Query::kBytes + OutputGradient::kBytes;
  static constexpr int kStagesAt = Key::kBytes + Value::kBytes;
  static constexpr int kRowsAt = kStagesAt + kStages * kStageBytes;
  using Record = RowRecord<is_same<T, float>, Config::kMaxAndSum>;
  static constexpr int kSharedBytes = kRowsAt + kStages * Config::kTileM * int{sizeof(Record)};
};

template <class Config>
struct QuerySweepTiles {
  using T = typename Config::Element;
  static constexpr int kTileM = 16 * Config::kWarps;
  static constexpr int kStages = sweep_stages<T>;
  using Query = tile::PlaneTile<T, kTileM, Config::kQkDim>;
  using OutputGradient = tile::PlaneTile<T, kTileM, Config::kVDim>;
  using Key = tile::PlaneTile<T, Config::kTileN, Config::kQkDim>;
  using Value = tile::PlaneTile<T, Config::kTileN, Config::kVDim>;
  static constexpr int kStageBytes = Key::kBytes + Value::kBytes;
  static constexpr int kStagesAt = Query::kBytes + OutputGradient::kBytes;
  static constexpr int kSharedBytes = kStagesAt + kStages * kStageBytes;
};

}  // namespace heddle::sm80
