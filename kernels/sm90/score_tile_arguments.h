// The operand that a score reads in every cell, as kernels find it. Plain types: host and device
// share it.
#pragma once

#include "../ptx/tensor_map.h"

namespace heddle::sm90 {

/// How it reaches the score: not at all (what there is is loaded a cell at a time), as values of
/// 16 or 32 bits, or as booleans of a byte each.
enum class Tiled : int { none, values, booleans };

struct TiledOperand {
  TensorMap map;  ///< boxes of 128 bytes by a query tile; dims it is broadcast along have 1 element
  bool per_head, per_batch;
};

template <bool kThere>
struct ScoreTiles {
  TiledOperand tiled;  ///< with Config::kTiled
};
template <>
struct ScoreTiles<false> {
  static constexpr TiledOperand tiled{};
};

}  // namespace heddle::sm90
