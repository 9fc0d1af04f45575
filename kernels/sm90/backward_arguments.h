// What the Hopper backward kernels are given at launch. Plain types: host and device share it.
#pragma once

#include "../attention/parameters.h"
#include "../ptx/tensor_map.h"
#include "f16_pairs_arguments.h"
#include "score_tile_arguments.h"

namespace heddle::sm90 {

/// With kPlanes = 2: what the sums of a query head are to be multiplied by.
struct HeadUnits {
  /// Q K^T, by their sum: to what the score expression takes or, if there is none, to the units of
  /// the log-sum-exps.
  float dot, dot_rest;
  float score;       ///< from the score expression's to those
  float to_log2;     ///< from those to exponents of 2
  float d_p, delta;  ///< dO V^T and delta, to the unit of dS
  float d_v, d_k, d_q;
  float least_weight;  ///< the least unit of P o slope: d_k and d_q times it are normal numbers
};

/// Rank 4, 128-byte swizzle, zero fill, dims (column, row, head, batch) in elements of the tensors'
/// own strides. Boxes are 64 columns wide; kTileM rows high for q and d_o, kTileN for k and v.
template <bool kThere>
struct BackwardMaps {
  TensorMap q, k, v, d_o;
};
template <>
struct BackwardMaps<false> {
  static constexpr TensorMap q{}, k{}, v{}, d_o{};
};

/// With kPlanes = 2: what else is to be known of the pairs mapped above.
template <bool kThere>
struct BackwardPairs {
  F16Pairs q_pairs, k_pairs, v_pairs, d_o_pairs;
  HeadUnits* head_units;  ///< workspace [batch, q_heads]
};
template <>
struct BackwardPairs<false> {
  static constexpr F16Pairs q_pairs{}, k_pairs{}, v_pairs{}, d_o_pairs{};
  static constexpr HeadUnits* head_units = nullptr;
};

/// What every kernel has.
struct BackwardWorkspace {
  /// With Config::kLengths, but for f32: the maps of each batch entry's sequence, [batch][4] in the
  /// order above, as sequence_maps.cuh makes them of dO in the place of O; then the four maps are
  /// not read.
  const TensorMap* sequence_maps;
  /// Workspace on 16-byte boundaries, without initial contents. q_rounded is q_length rounded up to
  /// kTileM.
  /// [batch, q_heads, q_rounded], in log2 units; with kPlanes = 2 as the forward left them: another
  /// rounding of large ones would err more than all else. With kMaxAndSum [.., q_rounded / kTileM,
  /// 2, kTileM]: maxima in the units of scores, and logarithms of sums to base 2.
  float* negative_lse;
  /// [batch, q_heads, q_rounded]; with kPlanes = 2 [.., q_rounded / kTileM, 2, kTileM], values and
  /// what they were rounded by: dP - delta is the small difference of large sums.
  float* delta;
  float* d_q_sum;  ///< [batch, q_heads, q_rounded, kDqWidth]
  int* turns;      ///< [batch, q_heads, q_rounded / kTileM, kDqTurns]; if kDeterministic
  int q_rounded;

  /// (batch, key head) pairs whose blocks run together: 1 .. batch * k_heads.
  int head_group;
};

struct BackwardArguments : BackwardMaps<attention::kArgumentLayout.maps>,
                           ScoreTiles<attention::kArgumentLayout.tiled>,
                           ScoreTileGradient<attention::kArgumentLayout.tiled_gradient>,
                           BackwardPairs<attention::kArgumentLayout.pairs>,
                           BackwardWorkspace {
  /// Everything else; its `delta` is not used. k_heads = v_heads.
  attention::BackwardParameters problem;
};

}  // namespace heddle::sm90
