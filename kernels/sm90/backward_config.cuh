// What a generated source gives the Hopper backward kernels beside Config (backward_config.h), and
// the work of their blocks.
#pragma once

#include "../attention/dropout.cuh"
#include "../attention/score_functions.cuh"
#include "../attention/visible.cuh"
#include "backward_config.h"

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
