// What a generated source gives a Hopper forward kernel: Config (forward_config.h) and Score.
#pragma once

#include "../attention/dropout.cuh"
#include "../attention/score_functions.cuh"
#include "../ptx/types.cuh"
#include "forward_config.h"

namespace heddle::sm90 {

using attention::Dropout;

/// What a score expression may read.
struct Cell {
  float dot;
  int row, column, batch, head, q_length, kv_length;
  const attention::Tensor* loads;
  float tiled;  ///< the operand that comes by tiles
};

/// The scaled dot product itself.
struct PlainScore {
  static constexpr bool kIdentity = true, kFiniteMaskRows = false;
  static constexpr int kSideBySide = 0;
};

}  // namespace heddle::sm90
