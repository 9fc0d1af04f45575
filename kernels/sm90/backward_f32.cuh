// What the Hopper backward kernels of f32 share, which multiply pairs of f16 (f16_pairs.cuh):
// units, and gradients written as they are.
//
// Each product is three of f16 (high high, high low, low high). P and dS become pairs. P is at most
// 1; dS = P (dP - delta) is at most 2 |dO| |V| by the largest row norms of the head, which gives
// its unit. A slope may be of any size: then P o slope of a step has a unit too, that of its
// largest, lest dS of a head be beyond f16, or so far below its bound that pairs lose its bits.
#pragma once

#include "../tile/gemm.cuh"
#include "../tile/stepwise_product.cuh"
#include "backward_block.cuh"

namespace heddle::sm90 {

/// P times this is split: pairs keep all their bits down to 2^-2.
inline constexpr float kWeightUnit = 16384;

/// Of P o slope: units between these keep dS and its sums within f32.
inline constexpr float kLeastWeight = 0x1p-60f, kMostWeight = 0x1p40f;

/// `Score` as of BackwardScores.
template <class Block, class Score>
HEDDLE_DEVICE HeadUnits head_units(const BackwardArguments& args, int batch, int head) {
  const int query_head = batch * args.q_pairs.heads + head;
  const int key_head =
      batch * args.k_pairs.heads + head / (args.q_pairs.heads / args.k_pairs.heads);
  const float q = args.q_pairs.units[query_head], d_o = args.d_o_pairs.units[query_head];
  const float k = args.k_pairs.units[key_head], v = args.v_pairs.units[key_head];
  // dS has the unit that brings its bound to 2^14 .. 2^15.
  const float bound =
      2 * sqrtf(args.d_o_pairs.norms[query_head]) * sqrtf(args.v_pairs.norms[key_head]);
  const int exponent = max_of(static_cast<int>(__float_as_uint(bound) >> 23) - 127, 0);
  const float shrink = __uint_as_float(static_cast<u32>(127 + 14 - exponent) << 23);
  const float d_p_unit = d_o * v;
  using C = typename Block::C;
  const bool log2 = C::kMaxAndSum ? C::kInputIsLog2 : args.problem.forward.stats_log2 != 0;
  constexpr tile::StepwiseScale kSame = tile::kSame, kToLog2 = tile::kLog2E, kOfLog2 = tile::kLn2;
  const tile::StepwiseScale factor = log2 == C::kInputIsLog2 ? kSame : log2 ? kToLog2 : kOfLog2;
  const tile::StepwiseScale dot =
      tile::stepwise_scale(Block::scale_of(args), Score::kIdentity ? factor : kSame, q * k);
  HeadUnits units;
  units.dot = dot.high;
  units.dot_rest = dot.rest;
  units.score = factor.high;
  units.to_log2 = log2 ? 1.0f : kToLog2.high;
  units.delta = shrink * (1 / kWeightUnit) / d_p_unit;
  units.d_p = shrink * (1 / kWeightUnit);
  // What sums of two steps of 16 queries lack is less than f32 has a factor for.
  constexpr float kOfQueries = Block::kTileM > 32 ? tile::kTileFactor : 1.0f;
  units.d_v = d_o * (1 / kWeightUnit) * kOfQueries;
  units.d_k = d_p_unit / shrink * q * kOfQueries;
  units.d_q = d_p_unit / shrink * k * tile::kTileFactor;
  const float least = 0x1p-100f / (units.d_k < units.d_q ? units.d_k : units.d_q);
  units.least_weight = least < kLeastWeight ? kLeastWeight : least < 1.0f ? least : 1.0f;
  return units;
}

/// Those of a query head, as prepare left them. In global memory: registers are for sums.
HEDDLE_DEVICE const HeadUnits& units_at(const BackwardArguments& args, const BackwardWork& work,
                                        int head) {
  return args.head_units[work.batch * args.problem.forward.q_heads + head];
}

/// The statistics of two queries side by side.
template <class Block>
struct F32Rows {
  static constexpr bool kApart = Block::C::kMaxAndSum;
  /// Less log-sum-exps or, with kApart, maxima and the logarithms of sums.
  float lse[2], log2_sum[2];

  HEDDLE_DEVICE explicit F32Rows(u32 address) {
    ptx::load_shared(address, lse[0], lse[1]);
    if constexpr (kApart) ptx::load_shared(address + Block::kRowBytes, log2_sum[0], log2_sum[1]);
  }
  /// The exponent of a weight whose score lies `apart` from the statistic.
  template <bool kMost>
  HEDDLE_DEVICE float exponent(float apart, float to_log2, int e) const {
    if constexpr (!kApart) return apart * to_log2;
    return attention::weight_exponent<kMost>(apart, to_log2, log2_sum[e]);
  }
};

/// S^T of a step (64 keys of a group, kTileM queries) to P^T, nothing hidden. `lse` is where the
/// step's statistics lie.
template <class Block>
HEDDLE_DEVICE void exponentiate_f32(float (&s)[Block::kTileM / 2], u32 lse,
                                    const HeadUnits& units) {
  lse += tile::fragment_column(threadIdx.x) * 4;
  const float unit = units.dot, rest = units.dot_rest, to_log2 = units.to_log2;
#pragma unroll
  for (int n = 0; n < Block::kTileM / 8; ++n) {
    const F32Rows<Block> rows(lse + 32 * n);
#pragma unroll
    for (int i = 4 * n; i < 4 * n + 4; ++i) {
      const float apart = Block::C::kMaxAndSum
                              ? ptx::fma(s[i], unit, s[i] * rest) + rows.lse[i % 2]
                              : ptx::fma(s[i], rest, ptx::fma(s[i], unit, rows.lse[i % 2]));
      s[i] = ptx::exp2(rows.template exponent<false>(apart, to_log2, i % 2));
    }
  }
}

/// dP - delta for two queries side by side.
template <int kRowBytes>
struct F32Slope {
  float delta[2], rest[2];

  /// `address` is where their deltas lie, kRowBytes further what those were rounded by.
  HEDDLE_DEVICE explicit F32Slope(u32 address) {
    ptx::load_shared(address, delta[0], delta[1]);
    ptx::load_shared(address + kRowBytes, rest[0], rest[1]);
  }
  /// The units are those of dP and delta, times that of dS.
  HEDDLE_DEVICE float of(float d_p, int e, float d_p_unit, float delta_unit) const {
    const float slope = ptx::fma(d_p, d_p_unit, -delta[e] * delta_unit);
    return slope + ptx::fma(d_p, d_p_unit * tile::kDotLacks, -rest[e] * delta_unit);
  }
};

/// Slice k of dS as pairs, the operand of dK.
template <int kSlices>
HEDDLE_DEVICE void split_slice(u32 (&d_s)[2][kSlices][4], int k, const float (&x)[8]) {
  u32 planes[2][1][4];
  tile::split_fragment<f16, 16>(planes, x, 1.0f);
#pragma unroll
  for (int plane = 0; plane < 2; ++plane)
#pragma unroll
    for (int i = 0; i < 4; ++i) d_s[plane][k][i] = planes[plane][0][i];
}

template <int kCount>
HEDDLE_DEVICE void add_scaled(float (&sum)[kCount], const float (&part)[kCount], float factor) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) sum[i] = ptx::fma(part[i], factor, sum[i]);
}

/// d += factor * a * the tile, a sum over one step, `kAtOnce` columns at a time from kFrom on: more
/// find no registers beside wide sums.
template <class Tile, int kAtOnce, int kFrom = 0, int kSlices, int kCount>
HEDDLE_DEVICE void add_product(float (&d)[kCount], const u32 (&a)[2][kSlices][4], u32 tile_address,
                               float factor) {
  constexpr int kColumns = min_of(kAtOnce, 2 * kCount - kFrom);
  using Plane = typename Tile::Plane;
  float part[kColumns / 2];
  // Parts begin with 0 of the sums before them: the assembler would put off the additions to those,
  // with all parts held until then.
  if constexpr (kFrom > 0) {
    const u32 none = blockDim.y - 1;  // 0, which the assembler cannot know
#pragma unroll
    for (int i = 0; i < kColumns / 2; ++i)
      part[i] = __uint_as_float(__float_as_uint(d[(kFrom - kAtOnce) / 2 + i]) & none);
  }
  ptx::wgmma_fence();
  tile::issue_product<f16, kColumns>(part, a, tile::MnMajor<Plane>(tile_address, kFrom), kFrom > 0);
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
  ptx::pin(part);
  add_scaled(reinterpret_cast<float(&)[kColumns / 2]>(d[kFrom / 2]), part, factor);
  if constexpr (kFrom + kColumns < 2 * kCount)
    add_product<Tile, kAtOnce, kFrom + kColumns>(d, a, tile_address, factor);
}

}  // namespace heddle::sm90
