// What a generated source says of the Hopper backward kernels, and where they have what in shared
// memory. Plain numbers: host and device share them.
#pragma once

#include "../attention/parameters.h"
#include "../ptx/element.h"
#include "../tile/tile_bytes.h"
#include "score_tile_arguments.h"

namespace heddle::sm90 {

struct BackwardConfig {
  Element element = Element::bf16;
  Element result = Element::bf16;  ///< of dQ, dK and dV: element, or f32
  int planes = 1;                  ///< 2: f32, which comes as pairs of f16 (f16_pairs.cuh)
  bool codes = false;              ///< of fp8: attention_backward_fp8.cuh
  int qk_dim = 128, v_dim = 128;   ///< multiples of 8
  bool by_gradient = false;  ///< attention_backward_by_gradient.cuh: head dims above 128, f32 too
  bool transposed = false;   ///< attention_backward_transposed.cuh, with by_gradient
  int tile_m = 64;  ///< queries: 64, 128 for head dims up to 64 (faster there); f32 above 128 32
  int consumers = 2;
  /// Consumers that share keys, each with columns of its own:
  /// attention_backward_f32_by_columns.cuh.
  int parts = 1;
  int ranks = 1;        ///< blocks of a cluster that do so
  int dot_buffers = 2;  ///< by_gradient, of ranks: for S and dP of the other, or one for both
  int blocks = 1;       ///< that share a processor
  /// A block has all keys of its head: dQ is a sum of its own products.
  bool all_keys = false;
  /// S of the next step runs before dK of this one: two stages are in use, a third hides the load.
  int q_stages = 3;
  int d_o_stages = 2;
  bool dk_under_dp = true;  ///< dP is issued with dK in flight; not with tile_m 128
  // What the problem has.
  bool upper_varies = false, lower_varies = false;  ///< diagonal bounds
  bool lengths = false;                             ///< actual lengths or ragged tensors
  bool unit_slope = true;  ///< d score / d dot is slope_factor; else dk_under_dp must be off
  /// What all of d score / d dot is multiplied by: dQ and dK are, not dS, which f16 then holds.
  float slope_factor = 1;
  /// Rows come with their maxima and sums apart, not with log-sum-exps.
  bool max_and_sum = false;
  bool input_is_log2 = false;
  /// f32: beside its sums what the score loads by the cell leaves few, see
  /// AttentionBackwardF32ByGradient.
  bool few_registers = false;
  bool deterministic = false;
  /// Of a causal mask in a fixed order: from the last query tile down, for all heads of a group.
  bool downwards = false;
  bool has_score = false;  ///< an expression, else the score is the scaled dot product
  attention::Dropout dropout = attention::Dropout::none;  ///< with tile_m 64
  Tiled tiled = Tiled::none;                              ///< with tile_m 64
  Element tiled_element = Element::bf16;
  int tiled_stages = 1;
  bool tiled_gradient = false;  ///< its gradient is written by backward_tile_gradient.cuh
  int cluster = 1;              ///< batch entries, a block each, of which that is the sum

  constexpr bool drops() const { return dropout != attention::Dropout::none; }
  /// Maps per batch entry, in the workspace. Pairs end with their sequences: f16_pairs.cuh fills up
  /// with zeros.
  constexpr bool sequence_maps() const { return lengths && planes == 1; }
  /// Keys of a block, and its threads.
  constexpr int tile_n() const {
    return transposed ? 96 : by_gradient ? 64 : 64 * consumers / parts;
  }
  constexpr int threads() const { return by_gradient ? 512 : 128 * (1 + consumers); }

  /// dQ of a step that has too few queries for a product's rows is made transposed.
  constexpr bool turns_sums() const { return tile_m < 64; }
  /// Of what consumers share, those of all ranks: how many have columns of their own.
  constexpr int shares() const { return parts * ranks; }
  /// Columns of one of them, of `columns`: whole slices of 16.
  constexpr int share_of(int columns) const {
    return shares() > 1 ? (columns + 16 * shares() - 1) / (16 * shares()) * 16 : columns;
  }

  /// qk_dim as products take it.
  constexpr int qk() const { return (qk_dim + 15) / 16 * 16; }
  /// A dQ tile is split between the groups by rows or, where it has only 64, by columns.
  constexpr bool splits_columns() const { return !by_gradient && tile_m == 64; }
  /// Of dQ, that a group adds up.
  constexpr int dq_columns() const {
    if (by_gradient || parts > 1) return tile::kBoxColumns * tile::boxes_of(share_of(qk_dim));
    if (!splits_columns()) return qk();
    return tile::kBoxColumns * tile::boxes_of(qk_dim) / consumers;
  }
  /// f32 sums of a query row, in the workspace.
  constexpr int dq_width() const {
    return dq_columns() * (splits_columns() ? consumers : shares());
  }
  /// In a fixed order: one part of 64 columns would cost more fences than a step has time for, four
  /// would keep the next block waiting longer.
  static constexpr int kPartsOfTurn = 2;
  /// Counters of a query tile, if the order of the sums is kept; and those a block takes.
  constexpr int dq_turns() const { return ranks * dq_turns_of_block(); }
  constexpr int dq_turns_of_block() const {
    return by_gradient ? (tile::boxes_of(share_of(qk_dim)) + kPartsOfTurn - 1) / kPartsOfTurn
                       : consumers;
  }
  /// P and dS in shared memory: a second one lets a group run ahead, where there is room.
  constexpr int handovers() const {
    return drops() || tiled != Tiled::none || planes > 1 || ranks > 1 ? 1 : 2;
  }
  /// Of S or dP of a step, in f32.
  constexpr int dots_bytes() const { return 4 * tile_m * tile_n(); }
  /// Of a number for each row of a step; of the rows' statistics, and of deltas.
  constexpr int row_bytes() const { return 4 * tile_m; }
  constexpr int lse_bytes() const { return (max_and_sum ? 2 : 1) * row_bytes(); }
  constexpr int delta_bytes() const { return planes * row_bytes(); }
  /// f32: whether dS has a unit of its own in each step, as slopes have no bound.
  constexpr bool has_step_units() const { return planes > 1 && !unit_slope; }
};

inline constexpr int kMostShared = 227 * 1024;  ///< of a block

/// Offsets from a 1024-byte boundary.
struct BackwardLayout {
  static constexpr int kWorkBytes = 48;
  static constexpr int kTurnStages = 4;  ///< tiles between the turns taken and those passed on
  static constexpr int kTurnBytes = tile::ring_bytes(kTurnStages) + 8 * kTurnStages;

  int k = 0, v = 0, q = 0, d_o = 0, d_s = 0;
  int turned_k = 0, q_codes = 0, d_o_codes = 0;  ///< with codes, of which k and v are then, too
  int d_q = 0;                                   ///< not if by_gradient
  int d_q_bytes = 0;  ///< of a group: its sums in f32 or, with all_keys, a tile of rows
  int dots = 0;       ///< of consumers or blocks that share them
  int p = 0;          ///< if by_gradient, of p_bytes
  int p_bytes = 0;
  int tiled = 0, lse = 0, delta = 0;
  /// Of P o slope: the largest of a step's by each warp, then the unit. With has_step_units().
  int most_weights = 0, weight_unit = 0;
  int k_full = 0, v_full = 0;
  int turned_full = 0;           ///< with codes
  int d_s_full = 0;              ///< two; not if by_gradient
  int p_ring = 0, d_s_ring = 0;  ///< if by_gradient
  int q_ring = 0, d_o_ring = 0, tiled_ring = 0;
  int share = 0, exchange = 0;  ///< of backward_tile_gradient.cuh
  int exchange_sent = 0;        ///< its two barriers
  int work = 0;
  int turns = 0;     ///< if by_gradient: barriers
  int all_read = 0;  ///< if transposed: a barrier
  int dots_barriers = 0;
  /// What a launch asks for: with room to align the window, but no more than a block can have. The
  /// window is declared aligned.
  int bytes = 0;
};

/// Of backward_tile_gradient.cuh: what a block sums of a step's cells, and is sent of them.
constexpr int share_bytes(const BackwardConfig& c) {
  return c.tiled_gradient ? c.tile_m * c.tile_n() * 2 / c.cluster : 0;
}
constexpr int exchange_bytes(const BackwardConfig& c) { return (c.cluster - 1) * share_bytes(c); }

constexpr BackwardLayout layout_of(const BackwardConfig& c) {
  BackwardLayout at;
  const int in_pair = c.codes ? 2 : 1;  // tiles of codes hold two in an element
  const int d_s_bytes = c.parts > 1    ? tile::tile_bytes(c.tile_n(), 2 * c.tile_m)
                        : c.codes      ? tile::tile_bytes(c.tile_m, c.tile_n() / 2)
                        : c.transposed ? tile::tile_bytes(c.tile_m, c.tile_n())
                                       : tile::tile_bytes(c.tile_n(), c.tile_m, c.planes);
  const int q_codes = c.codes ? c.q_stages * tile::tile_bytes(c.tile_m, c.qk_dim / 2) : 0;
  const int d_o_codes = c.codes ? c.d_o_stages * tile::tile_bytes(c.tile_m, c.v_dim / 2) : 0;
  const int qk = c.share_of(c.qk_dim), v = c.share_of(c.v_dim);
  at.turned_k = at.k + c.parts * tile::tile_bytes(c.tile_n(), qk / in_pair, c.planes);
  at.v = at.turned_k + (c.codes ? tile::tile_bytes(c.qk_dim, c.tile_n() / 2) : 0);
  at.q_codes = at.v + c.parts * tile::tile_bytes(c.tile_n(), v / in_pair, c.planes);
  at.d_o_codes = at.q_codes + q_codes;
  at.q = at.d_o_codes + d_o_codes;
  at.d_o = at.q + c.q_stages * c.parts * tile::tile_bytes(c.tile_m, qk, c.planes);
  at.d_s = at.d_o + c.d_o_stages * c.parts * tile::tile_bytes(c.tile_m, v, c.planes);
  if (c.parts > 1) {
    at.dots = at.d_s + c.parts * d_s_bytes;
    at.tiled = at.dots + 2 * c.dots_bytes();
  } else if (c.by_gradient) {
    at.p = at.d_s + c.handovers() * d_s_bytes;
    at.p_bytes = c.transposed ? d_s_bytes : 2 * c.tile_m * c.tile_n() * c.planes;
    at.dots = at.p + c.handovers() * at.p_bytes;
    at.tiled = at.dots + (c.ranks > 1 ? c.dot_buffers * c.dots_bytes() : 0);
  } else {
    at.d_q = at.d_s + 2 * d_s_bytes;  // a fast group may run ahead
    at.d_q_bytes = c.all_keys ? tile::tile_bytes(64, c.dq_columns()) : 64 * c.dq_columns() * 4;
    at.share = at.d_q + c.consumers * at.d_q_bytes;
    at.tiled = at.share + share_bytes(c);
  }
  at.lse =
      at.tiled + c.tiled_stages * score_tile_bytes(c.tiled, c.tiled_element, c.tile_m, c.tile_n());
  at.delta = at.lse + c.q_stages * c.lse_bytes();
  at.most_weights = at.delta + c.d_o_stages * c.delta_bytes();
  at.weight_unit = at.most_weights + (c.has_step_units() ? 16 : 0);
  at.exchange = at.weight_unit + (c.has_step_units() ? 16 : 0);
  at.k_full = at.exchange + exchange_bytes(c);
  at.v_full = at.k_full + 8;
  at.turned_full = at.v_full + 8;
  at.d_s_full = at.p_ring = at.turned_full + (c.codes ? 8 : 0);
  at.d_s_ring = at.p_ring + tile::ring_bytes(c.handovers());
  at.q_ring = c.by_gradient ? at.d_s_ring + tile::ring_bytes(c.handovers()) : at.d_s_full + 16;
  at.d_o_ring = at.q_ring + tile::ring_bytes(c.q_stages);
  at.tiled_ring = at.d_o_ring + tile::ring_bytes(c.d_o_stages);
  at.exchange_sent = at.tiled_ring + score_ring_bytes(c.tiled, c.tiled_stages);
  at.work = at.exchange_sent + (c.cluster > 1 ? 16 : 0);
  at.turns = at.work + BackwardLayout::kWorkBytes;
  at.all_read = at.turns + (c.by_gradient ? c.dq_turns_of_block() * BackwardLayout::kTurnBytes : 0);
  at.dots_barriers = at.all_read + (c.transposed ? 8 : 0);
  const int used = at.dots_barriers + (c.ranks > 1 ? 4 * 8 : 0);
  const int aligned = used + tile::kTileAlignment;
  at.bytes = used > kMostShared ? used : aligned < kMostShared ? aligned : kMostShared;
  return at;
}

/// Of the kernel that sums the gradient of what comes by tiles: stages of K and V, Q and dO, the
/// operand, and the rows' statistics and deltas.
struct BackwardLoadLayout {
  static constexpr int kTileM = 64, kTileN = 128, kStages = 2;

  int k = 0, v = 0, q = 0, d_o = 0, tiled = 0;  ///< in a stage
  int stage_bytes = 0, statistics_bytes = 0;    ///< of a stage
  int statistics = 0, ring = 0, bytes = 0;
};

constexpr BackwardLoadLayout load_layout_of(const BackwardConfig& c) {
  constexpr int kM = BackwardLoadLayout::kTileM, kN = BackwardLoadLayout::kTileN;
  BackwardLoadLayout at;
  at.v = at.k + tile::tile_bytes(kN, c.qk_dim);
  at.q = at.v + tile::tile_bytes(kN, c.v_dim);
  at.d_o = at.q + tile::tile_bytes(kM, c.qk_dim);
  at.tiled = at.d_o + tile::tile_bytes(kM, c.v_dim);
  at.stage_bytes = at.tiled + score_tile_bytes(c.tiled, c.tiled_element, kM, kN);
  at.statistics_bytes = (c.max_and_sum ? 3 : 2) * 4 * kM;
  at.statistics = BackwardLoadLayout::kStages * at.stage_bytes;
  at.ring = at.statistics + BackwardLoadLayout::kStages * at.statistics_bytes;
  at.bytes = at.ring + tile::ring_bytes(BackwardLoadLayout::kStages) + tile::kTileAlignment;
  return at;
}

}  // namespace heddle::sm90
