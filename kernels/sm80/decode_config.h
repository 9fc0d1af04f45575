// What a generated source says of the decode kernel, and where that has what in shared memory.
// Plain numbers: host and device share them.
#pragma once

#include "../attention/parameters.h"
#include "../ptx/element.h"
#include "../tile/tile_bytes.h"

namespace heddle::sm80 {

/// Room for a sequence (decode_share.cuh).
inline constexpr int kSequenceBytes = 80;

/// What a workspace takes is of sizes alone: no device has more.
inline constexpr int kMostProcessors = 192;

struct DecodeConfig {
  Element element = Element::bf16;  ///< bf16 or f16
  Element result = Element::bf16;   ///< of O: element, or f32
  int qk_dim = 0, v_dim = 0;
  int row_tiles = 1;  ///< of 16 rows, heads of a group side by side
  int warps = 4;      ///< each with keys of its own
  int keys = 16;      ///< that a warp takes a step
  int stages = 4;     ///< steps whose keys and values are on their way to a warp
  bool paged_k = false, paged_v = false;
  bool lengths = false;  ///< of queries or keys, on the device
  bool input_is_log2 = false;
  bool has_score = false;  ///< an expression, else the score is the scaled dot product

  constexpr int rows() const { return 16 * row_tiles; }
  constexpr int threads() const { return 32 * warps; }
  /// Keys that all warps take in a step.
  constexpr int tile_keys() const { return warps * keys; }
  /// Blocks that put together what others found of one sequence: a thread for each four columns.
  constexpr int readers() const { return (rows() * v_dim / 4 + threads() - 1) / threads(); }
  /// Of a row of sums in shared memory: eight columns more than it has, lest all rows of a fragment
  /// begin in one bank.
  constexpr int sum_columns() const { return (v_dim + 15) / 16 * 16 + 8; }
};

struct DecodeLayout {
  /// Stages of warps, then, once each has met its last key, their sums.
  int key = 0;
  int warp_bytes = 0, stage_bytes = 0, value_in_stage = 0;
  int statistics = 0;  ///< [warps][rows] maxima and sums
  int rows = 0;        ///< those of each row of what is put together
  int in_parts = 0;    ///< up to two sequences that the block shares with others
  int bytes = 0;
};
constexpr DecodeLayout decode_layout_of(const DecodeConfig& c) {
  DecodeLayout at;
  at.key = tile::tile_bytes(c.rows(), c.qk_dim);
  at.value_in_stage = tile::tile_bytes(c.keys, c.qk_dim);
  at.stage_bytes = at.value_in_stage + tile::tile_bytes(c.keys, c.v_dim);
  const int staged = c.stages * at.stage_bytes, summed = c.rows() * c.sum_columns() * 4;
  at.warp_bytes = ((staged > summed ? staged : summed) + 127) / 128 * 128;
  at.statistics = at.key + c.warps * at.warp_bytes;
  at.rows = at.statistics + c.warps * c.rows() * 8;
  at.in_parts = at.rows + c.rows() * 8;
  at.bytes = at.in_parts + 2 * kSequenceBytes;
  return at;
}

}  // namespace heddle::sm80
