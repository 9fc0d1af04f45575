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
  int warps = 8;          ///< of 16 rows each that the block owns: queries, or keys
  int parts = 1;          ///< warps that share 16 rows, each with columns of its own of the sums
  int tile_m = 0;         ///< query rows a step, where the kernel owns keys
  int tile_n = 64;        ///< keys a step, where it owns queries
  int stages = 2;         ///< of what a sweep passes by
  bool in_turns = false;  ///< K and V, or Q and dO, of a step have one place, one after the other
  bool aligned = true;    ///< rows start on 16 bytes: asynchronous 16-byte copies
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
  constexpr int threads() const { return 32 * warps * parts; }
  /// Of `columns` that warps have in parts, those of one: whole boxes of a tile.
  constexpr int part_columns(int columns) const {
    return parts == 1 ? columns : (tile::boxes_of(columns) + parts - 1) / parts * tile::kBoxColumns;
  }
  /// Of a tile of them: the last part's may go beyond.
  constexpr int columns_of_parts(int columns) const {
    return parts == 1 ? columns : parts * part_columns(columns);
  }
  /// Whether warps that share rows share the work of their scores too, through shared memory. Not
  /// of f32, whose tiles hold no more than 16 keys beside wide rows.
  constexpr bool shares_scores() const { return parts > 1 && !is_f32(); }
  constexpr int tile_bytes(int tile_rows, int columns) const {
    return tile::tile_bytes(tile_rows, columns, is_f32() ? 3 : 1);
  }
  /// Of tiles in a backward: the sums of a sweep are columns of Q and K, or of V and dO.
  constexpr int qk_columns() const { return want_dv ? qk_dim : columns_of_parts(qk_dim); }
  constexpr int v_columns() const { return want_dv ? columns_of_parts(v_dim) : v_dim; }
  /// Of Q and dO, or K and V.
  constexpr int pair_bytes(int tile_rows) const {
    return tile_bytes(tile_rows, qk_columns()) + tile_bytes(tile_rows, v_columns());
  }
  /// Of those in turns, or side by side.
  constexpr int stage_bytes_of(int qk_bytes, int v_bytes) const {
    if (!in_turns) return qk_bytes + v_bytes;
    return qk_bytes > v_bytes ? qk_bytes : v_bytes;
  }
};

/// Q, whose place O takes, a tile of K and one of V, the scores that warps share, and the keys that
/// each row sees.
struct ForwardLayout {
  int key = 0, value = 0, scores = 0, intervals = 0, bytes = 0;
};
constexpr ForwardLayout forward_layout_of(const GeneralConfig& c) {
  ForwardLayout at;
  const int v_columns = c.columns_of_parts(c.v_dim);
  const int q = c.tile_bytes(c.rows(), c.qk_dim), o = c.tile_bytes(c.rows(), v_columns);
  const int k = c.tile_bytes(c.tile_n, c.qk_dim), v = c.tile_bytes(c.tile_n, v_columns);
  at.key = q > o ? q : o;
  at.value = at.key + (c.in_turns ? 0 : k);
  at.scores = at.key + c.stage_bytes_of(k, v);
  at.intervals = at.scores + (c.shares_scores() ? 4 * c.rows() * c.tile_n : 0);
  at.bytes = at.intervals + 2 * 4 * c.rows();
  return at;
}

/// What a block owns, stages of what it passes by, and the products of cells that warps share.
struct SweepLayout {
  int stages = 0, stage_bytes = 0, v_in_stage = 0;
  int cells = 0;
  int records = 0, record_bytes = 0;  ///< of the query rows of a key sweep, in each stage
  int bytes = 0;
};
constexpr SweepLayout key_sweep_layout_of(const GeneralConfig& c) {
  SweepLayout at;
  at.stages = c.pair_bytes(c.rows());
  at.v_in_stage = c.in_turns ? 0 : c.tile_bytes(c.tile_m, c.qk_columns());
  at.stage_bytes = c.stage_bytes_of(c.tile_bytes(c.tile_m, c.qk_columns()),
                                    c.tile_bytes(c.tile_m, c.v_columns()));
  at.cells = at.stages + c.stages * at.stage_bytes;
  at.records = at.cells + (c.shares_scores() ? 2 * 4 * c.rows() * c.tile_m : 0);
  at.record_bytes = 16 + 4 * (c.is_f32() ? 1 : 0) + 4 * (c.max_and_sum ? 1 : 0);
  at.bytes = at.records + c.stages * c.tile_m * at.record_bytes;
  return at;
}
constexpr SweepLayout query_sweep_layout_of(const GeneralConfig& c) {
  SweepLayout at;
  at.stages = c.pair_bytes(c.rows());
  at.v_in_stage = c.in_turns ? 0 : c.tile_bytes(c.tile_n, c.qk_columns());
  at.stage_bytes = c.stage_bytes_of(c.tile_bytes(c.tile_n, c.qk_columns()),
                                    c.tile_bytes(c.tile_n, c.v_columns()));
  at.cells = at.stages + c.stages * at.stage_bytes;
  at.bytes = at.cells + (c.shares_scores() ? 2 * 4 * c.rows() * c.tile_n : 0);
  return at;
}

}  // namespace heddle::sm80
