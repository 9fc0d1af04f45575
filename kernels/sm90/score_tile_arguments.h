// The operand that a score reads in every cell, as kernels find it. Plain types: host and device
// share it.
#pragma once

#include "../ptx/element.h"
#include "../ptx/tensor_map.h"
#include "../tile/tile_bytes.h"

namespace heddle::sm90 {

/// How it reaches the score: not at all (what there is is loaded a cell at a time), as values of
/// 16 or 32 bits, or as booleans of a byte each.
enum class Tiled : int { none, values, booleans };

/// Keys in a box of 128 bytes.
constexpr int score_box_keys(Tiled tiled, Element element) {
  return tiled == Tiled::booleans ? 128 : element == Element::f32 ? 32 : 64;
}
/// Of `rows` queries by `keys` keys.
constexpr int score_tile_bytes(Tiled tiled, Element element, int rows, int keys) {
  if (tiled == Tiled::none) return 0;
  const int box_keys = score_box_keys(tiled, element);
  return (keys + box_keys - 1) / box_keys * rows * tile::kLineBytes;
}
constexpr int score_ring_bytes(Tiled tiled, int stages) {
  return tiled == Tiled::none ? 0 : tile::ring_bytes(stages);
}

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

/// Its gradient, with Config::kTiledGradient.
template <bool kThere>
struct ScoreTileGradient {
  TensorMap d_tiled;  ///< boxes of 128 bytes by a block's share of a query tile
};
template <>
struct ScoreTileGradient<false> {
  static constexpr TensorMap d_tiled{};
};

}  // namespace heddle::sm90
