// What a generated source says of a Hopper forward kernel, and where that has what in shared
// memory. Plain numbers: host and device share them.
#pragma once

#include "../attention/rope_parameters.h"
#include "../ptx/element.h"
#include "../tile/tile_bytes.h"
#include "score_tile_arguments.h"

namespace heddle::sm90 {

struct ForwardConfig {
  Element element = Element::bf16;
  Element result = Element::bf16;  ///< of O: element, or f32
  int planes = 1;                  ///< 2: f32, which comes as pairs of f16 (f16_pairs.cuh)
  int qk_dim = 128, v_dim = 128;   ///< multiples of 8, at most 256; in parts v_dim 512, pairs' both
  int tile_n = 128;                ///< keys a step
  int consumers = 2;               ///< warp groups of 64 query rows
  int parts = 1;                   ///< consumers that share rows, each with columns of its own of O
  int ranks = 1;                   ///< blocks of a cluster that do so
  int blocks = 1;                  ///< that share a processor
  int stages = 2;                  ///< of the K and V rings
  int q_stages = 2;                ///< 2: a query tile starts under the last product before it
  bool take_turns = false;         ///< consumers issue their products in turn
  bool upwards = false;            ///< keys are visited from the first one on
  bool output_aliases_q = false;   ///< O is staged where Q was; needs q_stages = 1
  int output_rounds = 1;           ///< 2: O is staged half by half
  int slack = 7;                   ///< see online_softmax.cuh; 0 if row_max, and with two planes
  // What the problem has.
  bool upper_varies = false, lower_varies = false;  ///< diagonal bounds
  bool positive_scale = true;
  bool lengths = false;  ///< actual lengths or ragged tensors
  bool sink = false;
  bool row_max = false;  ///< `max` or `sum_exp` is wanted
  bool input_is_log2 = false;
  bool has_score = false;   ///< an expression, else the score is the scaled dot product
  bool only_hides = true;   ///< the score is that or -inf
  bool loads_rows = false;  ///< it reads an operand that differs by the row, other than by tiles
  attention::Dropout dropout = attention::Dropout::none;
  Tiled tiled = Tiled::none;  ///< what the score reads in every cell, by tiles
  Element tiled_element = Element::bf16;
  int tiled_stages = 2;
  int rope_dim = 0;    ///< > 0: Q is rotated on its way in (K comes rotated)
  int rope_first = 0;  ///< its first rotated column
  attention::RopePairing rope_pairing = attention::RopePairing::halves;

  /// Groups of 64 query rows.
  constexpr int row_groups() const { return consumers / parts; }
  constexpr int tile_m() const { return 64 * row_groups(); }
  /// Of what consumers share, those of all ranks: how many have columns of their own.
  constexpr int shares() const { return parts * ranks; }
  /// Each has columns of Q and K, too, and a tile of its own of either and of V: dot products are
  /// put together (sm90/shared_dots.cuh). In 16 bits each computes them whole.
  constexpr bool shares_dots() const { return planes > 1 && parts > 1; }
  /// Tiles of a stage.
  constexpr int tiles() const { return shares_dots() ? parts : 1; }
  /// Columns of one of them, of `columns`: whole slices of 16.
  constexpr int share_of(int columns) const {
    return shares_dots() ? (columns + 16 * shares() - 1) / (16 * shares()) * 16 : columns;
  }
  /// Of O that a consumer has: in parts whole boxes, of which the last part's may go beyond.
  constexpr int part_columns() const {
    if (parts == 1 || shares_dots()) return share_of(v_dim);
    return (tile::boxes_of(v_dim) + parts - 1) / parts * tile::kBoxColumns;
  }
  /// Of a tile of V.
  constexpr int v_columns() const { return part_columns() * parts / tiles(); }
  /// Maps per batch entry, in the workspace. Pairs end with their sequences: f16_pairs.cuh fills up
  /// with zeros.
  /// Of fp8 the kernel before fills up values, and no score of a key past a length counts.
  constexpr bool sequence_maps() const {
    return lengths && planes == 1 && element != Element::f8e4m3;
  }
  /// Nothing is to be done to dot products but what takes them to their exponents.
  constexpr bool is_plain() const { return !has_score && positive_scale; }
  /// One FFMA takes a dot product, if it is not hidden, to its exponent; else scores are made
  /// first. (Those of f32 that hide are.)
  constexpr bool has_dots() const {
    return is_plain() || (only_hides && positive_scale && planes == 1);
  }
  /// f32 leaves from registers, and so do parts.
  constexpr bool stages_output() const {
    return !output_aliases_q && result == element && parts == 1;
  }
  /// The rotations of the next query tile wait where O is staged, if they fit: they are used up
  /// before this tile's O is written. (Score expressions leave no registers for it: a bias at d 64
  /// spilled.)
  constexpr bool stages_rotations() const {
    return rope_dim > 0 && is_plain() && q_stages > 1 && output_rounds == 1 && stages_output() &&
           4 * attention::kRotationRows * attention::rotations_of(rope_dim) <=
               tile::tile_bytes(64, v_dim);
  }
  /// Such queries are rotated by a warp group of its own, under the products of the tile before.
  /// (Three consumers leave no registers for one, and rotate their rows themselves.)
  constexpr bool has_rotators() const { return stages_rotations() && consumers == 2; }
  constexpr int threads() const { return 128 * (1 + consumers + (has_rotators() ? 1 : 0)); }
};

/// Offsets from a 1024-byte boundary.
struct ForwardLayout {
  static constexpr int kItemBytes = 48, kItemStages = 2;
  static constexpr int kUnitBytes = 4 * attention::kRotationRows;

  int q_stage_bytes = 0, o_stride = 0;
  int q = 0, k = 0, v = 0;
  int o = 0;  ///< and before it rotations; staged o_boxes boxes at a time
  int o_boxes = 0;
  int dots = 0;  ///< of consumers that share them
  int tiled = 0, items = 0;
  int k_ring = 0, v_ring = 0, item_ring = 0;
  int q_rings = 0;        ///< one a consumer
  int staging_rings = 0;  ///< of staged rotations, one a consumer
  int units = 0;          ///< of their rows
  int rotated = 0;        ///< barriers of each consumer's stages of Q
  int tiled_ring = 0;
  int dots_barriers = 0;
  int bytes = 0;  ///< what the launch asks for; the kernel aligns its window itself
};

constexpr ForwardLayout layout_of(const ForwardConfig& c) {
  ForwardLayout at;
  const int qk_columns = c.share_of(c.qk_dim);
  const int q_tile = tile::tile_bytes(64, qk_columns, c.planes);
  at.q_stage_bytes = c.row_groups() * c.tiles() * q_tile;
  at.k = c.q_stages * at.q_stage_bytes;
  at.v = at.k + c.stages * c.tiles() * tile::tile_bytes(c.tile_n, qk_columns, c.planes);
  at.dots = at.v + c.stages * c.tiles() * tile::tile_bytes(c.tile_n, c.v_columns(), c.planes);
  const int end = at.dots + (c.shares_dots() ? 2 * 64 * c.tile_n * 4 : 0);
  at.o_boxes = (tile::boxes_of(c.v_dim) + c.output_rounds - 1) / c.output_rounds;
  at.o = c.output_aliases_q ? at.q : end;
  at.o_stride = c.output_aliases_q ? q_tile : tile::tile_bytes(64, tile::kBoxColumns * at.o_boxes);
  at.tiled = end + (c.stages_output() ? c.consumers * at.o_stride : 0);
  at.items =
      at.tiled + c.tiled_stages * score_tile_bytes(c.tiled, c.tiled_element, c.tile_m(), c.tile_n);
  at.k_ring = at.items + ForwardLayout::kItemStages * ForwardLayout::kItemBytes;
  at.v_ring = at.k_ring + tile::ring_bytes(c.stages);
  at.item_ring = at.v_ring + tile::ring_bytes(c.stages);
  at.q_rings = at.item_ring + tile::ring_bytes(ForwardLayout::kItemStages);
  at.staging_rings = at.q_rings + c.consumers * tile::ring_bytes(c.q_stages);
  const int staging = c.stages_rotations() ? c.consumers : 0;
  at.units = at.staging_rings + staging * tile::ring_bytes(1);
  at.rotated = at.units + staging * ForwardLayout::kUnitBytes;
  at.tiled_ring = at.rotated + (c.has_rotators() ? c.consumers * c.q_stages * 8 : 0);
  at.dots_barriers = at.tiled_ring + score_ring_bytes(c.tiled, c.tiled_stages);
  at.bytes = at.dots_barriers + (c.ranks > 1 ? 2 * 8 : 0) + tile::kTileAlignment;
  return at;
}

}  // namespace heddle::sm90
