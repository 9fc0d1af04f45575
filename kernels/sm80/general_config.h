// What a generated source says of a general kernel, and where that has what in shared memory. Plain
// numbers: host and device share them.
#pragma once

#include "../attention/parameters.h"
#include "../ptx/element.h"
#include "../tile/tile_bytes.h"

namespace heddle::sm80 {

struct GeneralConfig {
  Element element = Element::bf16;  ///< bf16, f16 or f32
  Element result = Element::bf16;   ///< of O, or of dQ, dK and dV: element, or f32
  int qk_dim = 0, v_dim = 0;
  int warps = 8;        ///< of 16 rows each that the block owns: queries, or keys
  int tile_m = 0;       ///< query rows a step, where the kernel owns keys
  int tile_n = 64;      ///< keys a step, where it owns queries
  bool aligned = true;  ///< rows start on 16 bytes: asynchronous 16-byte copies
  attention::KeyRows rows_k = attention::KeyRows::dense, rows_v = attention::KeyRows::dense;
  bool block_mask = false;
  bool input_is_log2 = false;
  bool want_dk = false, want_dv = false;
  bool max_and_sum = false;
  bool has_score = false;  ///< an expression, else the score is the scaled dot product
  attention::Dropout dropout = attention::Dropout::none;
  Element mask_element = Element::f32;  ///< of the keep mask that is read
  Element load_element = Element::f32;  ///< of the load gradient that is written

  constexpr bool is_f32() const { return element == Element::f32; }
  constexpr int rows() const { return 16 * warps; }
  constexpr int threads() const { return 32 * warps; }
  constexpr int tile_bytes(int tile_rows, int columns) const {
    return tile::tile_bytes(tile_rows, columns, is_f32() ? 3 : 1);
  }
  /// Of Q and O, or K and V.
  constexpr int pair_bytes(int tile_rows) const {
    return tile_bytes(tile_rows, qk_dim) + tile_bytes(tile_rows, v_dim);
  }
  /// Stages of what a sweep passes by: f32 tiles are not copied asynchronously, so a second one
  /// would hide nothing.
  constexpr int sweep_stages() const { return is_f32() ? 1 : 2; }
};

/// Q, whose place O takes, a tile of K and one of V, and the keys that each row sees.
struct ForwardLayout {
  int key = 0, intervals = 0, bytes = 0;
};
constexpr ForwardLayout forward_layout_of(const GeneralConfig& c) {
  ForwardLayout at;
  const int q = c.tile_bytes(c.rows(), c.qk_dim), o = c.tile_bytes(c.rows(), c.v_dim);
  at.key = q > o ? q : o;
  at.intervals = at.key + c.pair_bytes(c.tile_n);
  at.bytes = at.intervals + 2 * 4 * c.rows();
  return at;
}

/// What a block owns, and stages of what it passes by.
struct SweepLayout {
  int stages = 0, stage_bytes = 0;
  int records = 0, record_bytes = 0;  ///< of the query rows of a key sweep, in each stage
  int bytes = 0;
};
constexpr SweepLayout key_sweep_layout_of(const GeneralConfig& c) {
  SweepLayout at;
  at.stages = c.pair_bytes(c.rows());
  at.stage_bytes = c.pair_bytes(c.tile_m);
  at.records = at.stages + c.sweep_stages() * at.stage_bytes;
  at.record_bytes = 16 + 4 * (c.is_f32() ? 1 : 0) + 4 * (c.max_and_sum ? 1 : 0);
  at.bytes = at.records + c.sweep_stages() * c.tile_m * at.record_bytes;
  return at;
}
constexpr SweepLayout query_sweep_layout_of(const GeneralConfig& c) {
  SweepLayout at;
  at.stages = c.pair_bytes(c.rows());
  at.stage_bytes = c.pair_bytes(c.tile_n);
  at.bytes = at.stages + c.sweep_stages() * at.stage_bytes;
  return at;
}

}  // namespace heddle::sm80
