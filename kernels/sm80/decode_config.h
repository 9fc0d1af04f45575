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

/// Bits of a code, 0 of a number.
constexpr int code_bits(Element element) {
  return element == Element::u8 ? 4 : element == Element::i8 || element == Element::f8e4m3 ? 8 : 0;
}

struct DecodeConfig {
  Element element = Element::bf16;  ///< bf16 or f16
  Element result = Element::bf16;   ///< of O: element, or f32
  /// element, or codes: i8, f8e4m3, u8 (of 4 bits)
  Element k = Element::bf16, v = Element::bf16;
  int qk_dim = 0, v_dim = 0;
  int row_tiles = 1;  ///< of 16 rows, heads of a group side by side
  /// Of eight rows at most, which are then the columns of products: keys, and columns of O, are
  /// their rows, and half as many products have no idle row.
  bool turned = false;
  /// Beside codes of keys: numbers of f16 whose sum is a query times the keys' scales. 2 where
  /// statistics are wanted: all keys meet the same query, and what rounding it takes off does not
  /// average out in them, as what it takes off keys does. O hardly knows, and 4 bits take 4 to 7 %
  /// longer by 2.
  int query_parts = 1;
  int warps = 4;   ///< each with keys of its own
  int keys = 16;   ///< that a warp takes a step
  int stages = 4;  ///< steps whose keys and values are on their way to a warp
  /// Rows of a warp's sums that have room beside its stages: of up to twice so many the next
  /// sequence's keys are brought while a sequence is put together. 0: none.
  int rows_apart = 0;
  /// Of wide heads: all warps take the same keys (decode_together.cuh), each some columns of O.
  bool together = false;
  /// Together, on Hopper: by warp groups (sm90/decode_groups.cuh), 64 rows with 64 keys a step.
  bool warp_groups = false;
  /// By warp groups: tiles of keys and values come by the copy engine.
  bool maps = false;
  /// By maps: blocks of a cluster, each with other rows, that read the same keys once.
  int twins = 1;
  /// Together: where values are found to lie in the keys, and are not read apart. 0: they cannot.
  int stages_once = 0;
  attention::KeyRows rows_k = attention::KeyRows::dense, rows_v = attention::KeyRows::dense;
  bool lengths = false;  ///< of queries or keys, on the device
  bool input_is_log2 = false;
  bool has_score = false;  ///< an expression, else the score is the scaled dot product

  constexpr int rows() const { return turned ? 8 : 16 * row_tiles; }
  /// Of a key, and of a value.
  constexpr int key_bytes() const { return qk_dim * (k_codes() ? code_bits(k) : 16) / 8; }
  constexpr int value_bytes() const { return v_dim * (v_codes() ? code_bits(v) : 16) / 8; }
  constexpr bool k_codes() const { return code_bits(k) != 0; }
  constexpr bool v_codes() const { return code_bits(v) != 0; }
  constexpr int threads() const { return 32 * warps; }
  /// Keys that all warps take in a step.
  constexpr int tile_keys() const { return together ? keys : warps * keys; }
  /// Sequences whose queries have room.
  constexpr int query_slots() const { return rows_apart > 0 ? 2 : 1; }
  /// Beside codes of keys: how many numbers say what each row of dot products, turned each column
  /// of queries, is to be multiplied by.
  constexpr int query_factors() const { return turned ? qk_dim : rows(); }
  /// Sums that are put together in a block.
  constexpr int sums() const { return together ? 1 : warps; }
  /// By warp groups: columns of O that one of two has, whole boxes, of which the second's may go
  /// beyond.
  constexpr int part_columns() const { return (tile::boxes_of(v_dim) + 1) / 2 * tile::kBoxColumns; }
  /// Together: warps that take a share each of the columns of the same dot products; and of a row
  /// of those in shared memory, more than there are keys, lest all rows begin in one bank.
  constexpr int shares() const {
    const int products = row_tiles * (keys / 16);
    // Of 64 rows two, so that keys are read for two tiles of rows at once.
    return warps > products ? warps / products : row_tiles > 2 ? 2 : 1;
  }
  constexpr int score_columns() const { return keys + 8; }
  /// Blocks that put together what others found of one sequence: a thread for each four columns.
  constexpr int readers() const { return (rows() * v_dim / 4 + threads() - 1) / threads(); }
  /// Of a row of sums in shared memory: eight columns more than it has, lest all rows of a fragment
  /// begin in one bank.
  constexpr int sum_columns() const { return (v_dim + 15) / 16 * 16 + 8; }
};

/// Whether rows of so many bytes of codes fill lines of shared memory, or are filled by them.
constexpr bool codes_fill_lines(int bytes) {
  return tile::kLineBytes % bytes == 0 || bytes % tile::kLineBytes == 0;
}
/// Of a row of codes: of others a chunk more than it has, so that lanes which read rows at once
/// find them in different banks.
constexpr int code_row_bytes(int bytes) { return bytes + (codes_fill_lines(bytes) ? 0 : 16); }

struct DecodeLayout {
  /// By warp groups: tiles of keys or values; and what says that each part of one is there, that
  /// each group has read one (of two in turn), that weights are there, that those have been read,
  /// that queries are there, and that all has been read.
  static constexpr int kSlots = 2, kParts = 3, kGroupsTurns = 6,
                       kBarriers = kSlots * kParts + kGroupsTurns + 4;
  int query_bytes = 0;  ///< of a sequence
  /// Stages of warps, then, once each has met its last key, their sums: together, from the queries
  /// on.
  int key = 0, sums = 0;
  int sums_apart = 0, sums_apart_bytes = 0;  ///< of a warp, beside its stages
  int warp_bytes = 0, stage_bytes = 0, value_in_stage = 0, slot_bytes = 0;
  /// Together: dot products [shares][rows], weights, and what the sums of each row so far are to be
  /// multiplied by.
  int scores = 0, weights = 0, corrections = 0;
  int statistics = 0;     ///< [sums][rows] maxima and sums
  int rows = 0;           ///< those of each row of what is put together
  int in_parts = 0;       ///< up to two sequences that the block shares with others
  int at_hand = 0;        ///< a sequence, together
  int sequences = 0;      ///< [warps][2] those that a warp began last; not together
  int query_factors = 0;  ///< those of a sequence (DecodeConfig::query_factors)
  int barriers = 0;       ///< by warp groups
  int bytes = 0;
};
constexpr DecodeLayout decode_layout_of(const DecodeConfig& c) {
  const auto tile_bytes = [&c](bool codes, int bytes, int columns) {
    return codes ? c.keys * code_row_bytes(bytes) : tile::tile_bytes(c.keys, columns);
  };
  DecodeLayout at;
  // Turned, they are made in registers.
  at.query_bytes = tile::tile_bytes(c.rows(), c.qk_dim) * (c.turned ? 1 : c.query_parts);
  at.key = c.query_slots() * at.query_bytes;
  at.value_in_stage = tile_bytes(c.k_codes(), c.key_bytes(), c.qk_dim);
  at.stage_bytes = at.value_in_stage + tile_bytes(c.v_codes(), c.value_bytes(), c.v_dim);
  const int apart = c.stages * at.stage_bytes, once = c.stages_once * at.value_in_stage,
            summed = c.rows() * c.sum_columns() * 4;
  int staged = apart > once ? apart : once;
  if (c.warp_groups) {
    at.slot_bytes = tile::tile_bytes(c.keys, c.qk_dim > c.v_dim ? c.qk_dim : c.v_dim);
    staged = DecodeLayout::kSlots * at.slot_bytes;
  }
  at.warp_bytes = ((staged > summed ? staged : summed) + 127) / 128 * 128;
  at.sums = c.together ? 0 : at.key;
  at.sums_apart = at.key + c.warps * at.warp_bytes;
  at.sums_apart_bytes = c.rows_apart * c.sum_columns() * 4;
  at.weights = at.sums_apart + c.warps * at.sums_apart_bytes;
  if (c.together)
    at.weights = at.key + staged > summed ? at.key + staged : (summed + 127) / 128 * 128;
  at.scores = at.weights + (c.together ? tile::tile_bytes(c.rows(), c.keys) : 0);
  at.corrections =
      at.scores +
      (c.together && !c.warp_groups ? c.shares() * c.rows() * c.score_columns() * 4 : 0);
  at.statistics = at.corrections + (c.together ? 4 * c.rows() : 0);
  at.rows = at.statistics + c.sums() * c.rows() * 8;
  at.in_parts = at.rows + c.rows() * 8;
  at.at_hand = at.in_parts + 2 * kSequenceBytes;
  at.sequences = at.at_hand + (c.together ? kSequenceBytes : 0);
  at.query_factors = at.sequences + (c.together ? 0 : c.warps * 2 * kSequenceBytes);
  at.barriers = at.query_factors + (c.k_codes() ? c.query_slots() * 4 * c.query_factors() : 0);
  at.bytes = at.barriers + (c.warp_groups ? 8 * DecodeLayout::kBarriers : 0);
  return at;
}

}  // namespace heddle::sm80
