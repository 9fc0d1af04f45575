// What the sweeps of the general backward keep in shared memory.
#pragma once

#include "../attention/parameters.h"
#include "../tile/planes.cuh"

namespace heddle::sm80 {

/// Stages of what a sweep passes by: f32 tiles are not copied asynchronously, so a second one would
/// hide nothing.
template <typename T>
inline constexpr int sweep_stages = is_same<T, float> ? 1 : 2;

/// What a key sweep needs of a query row, staged in shared memory.
template <typename T>
struct RowRecord {
  float statistic, high;
  int lo, hi;

  HEDDLE_DEVICE void set_delta(attention::RowDelta x) { high = x.high; }
  HEDDLE_DEVICE attention::RowDelta delta() const { return {high, 0.0f}; }
};
template <>
struct RowRecord<float> {
  float statistic, high;
  int lo, hi;
  float rest;

  HEDDLE_DEVICE void set_delta(attention::RowDelta x) { high = x.high, rest = x.rest; }
  HEDDLE_DEVICE attention::RowDelta delta() const { return {high, rest}; }
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
  static constexpr int kSharedBytes =
      kRowsAt + kStages * Config::kTileM * int{sizeof(RowRecord<T>)};
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
