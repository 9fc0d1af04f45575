// What a generated source says of a Hopper backward kernel, and the work of its blocks.
#pragma once

#include "../attention/dropout.cuh"
#include "../attention/score_functions.cuh"
#include "../attention/visible.cuh"
#include "score_tile_arguments.h"

namespace heddle::sm90 {

/// What the derivative of a score expression may read.
struct GradientCell {
  float dot;
  int row, column, batch, head, q_length, kv_length;
  const attention::Tensor* loads;
  float gradient;  ///< dL/d(score)
  float tiled;     ///< the operand that comes by tiles
};

/// The scaled dot product itself, and its derivative.
struct PlainBackwardScore {
  static constexpr bool kIdentity = true;
  static constexpr int kSideBySide = 0;
};
struct UnitDerivative {
  static constexpr int kSideBySide = 0;
  template <class Cell>
  HEDDLE_DEVICE static float value(const Cell& cell) {
    return cell.gradient;
  }
};

/// Defaults a generated configuration derives from and overrides.
struct BackwardConfig {
  using Element = bf16;
  static constexpr int kPlanes = 1;  ///< 2: f32, which comes as pairs of f16 (f16_pairs.cuh)
  static constexpr int kQkDim = 128, kVDim = 128;  ///< multiples of 8; above 128 the wide kernel
  static constexpr int kTileM = 64;  ///< queries: 64, or 128 for head dims up to 64 (faster there)
  static constexpr int kConsumers = 2;
  /// S of the next step runs before dK of this one: two stages are in use, a third hides the load.
  static constexpr int kQStages = 3;
  static constexpr int kDoStages = 2;
  static constexpr bool kDkUnderDp = true;  ///< dP is issued with dK in flight; not with kTileM 128
  // What the problem has.
  static constexpr bool kLowerVaries = false, kUpperVaries = false;  ///< diagonal bounds
  static constexpr bool kLengths = false;   ///< actual lengths or ragged tensors
  static constexpr bool kUnitSlope = true;  ///< d score / d dot is 1; else kDkUnderDp must be off
  static constexpr bool kInputIsLog2 = false;
  /// Rows come with their maxima and sums apart, not with log-sum-exps.
  static constexpr bool kMaxAndSum = false;
  /// f32: beside its sums what the score loads by the cell leaves few, see
  /// AttentionBackwardF32Wide.
  static constexpr bool kFewRegisters = false;
  static constexpr bool kDeterministic = false;
  /// Of a causal mask in a fixed order: from the last query tile down, for all heads of a group.
  static constexpr bool kDownwards = false;
  static constexpr attention::Dropout kDropout = attention::Dropout::none;  ///< with kTileM 64
  static constexpr Tiled kTiled = Tiled::none;                              ///< with kTileM 64
  using TiledElement = bf16;  ///< of values: bf16, f16 or float
  static constexpr int kTiledStages = 1;
};

/// Keys, queries, lengths and bounds of one block.
struct BackwardWork {
  int batch, key_head, key0, first_tile, tile_count, group, q_length, kv_length;
  attention::BatchBounds keys;
  HEDDLE_DEVICE int steps() const { return tile_count * group; }
};

/// The query tile of one step: upwards, the heads of a group one after the other; downwards, all of
/// them for each tile.
template <bool kDownwards>
struct BackwardStep {
  int head, tile, left;

  HEDDLE_DEVICE explicit BackwardStep(const BackwardWork& w)
      : head(w.key_head * w.group), tile(w.first_tile), left(kDownwards ? w.group : w.tile_count) {}

  HEDDLE_DEVICE BackwardStep(const BackwardWork& w, u32 number) : BackwardStep(w) {
    const u32 inner = left, passes = number / inner;
    left = static_cast<int>(inner - number % inner);
    head += kDownwards ? number % inner : passes;
    tile += kDownwards ? -passes : number % inner;
  }

  HEDDLE_DEVICE void advance(const BackwardWork& w) {
    (kDownwards ? head : tile) += 1;
    if (--left == 0) {
      if constexpr (kDownwards) {
        left = w.group;
        head -= w.group;
        --tile;
      } else {
        left = w.tile_count;
        tile = w.first_tile;
        ++head;
      }
    }
  }
};

}  // namespace heddle::sm90
