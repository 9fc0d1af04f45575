// The sweep of the general backward that owns query tiles: dQ.
#pragma once

#include "backward_cell.cuh"
#include "backward_tiles.cuh"

namespace heddle::sm80 {

/// dQ of one query tile: sums over the keys its rows see.
template <class Config, class Score, class Derivative>
HEDDLE_DEVICE void attention_backward_queries(const BackwardParameters& p) {
  using T = typename Config::Element;
  using Tiles = QuerySweepTiles<Config>;
  using KeyTile = typename Tiles::Key;
  using ValueTile = typename Tiles::Value;
  using QueryTile = typename Tiles::Query;
  using GradientTile = typename Tiles::OutputGradient;
  constexpr int kThreads = Config::kValues.threads(), kParts = Config::kParts;
  constexpr int kTileM = Tiles::kTileM, kTileN = Config::kTileN;
  constexpr int kQkSlices = ceil_div(Config::kQkDim, 16), kVSlices = ceil_div(Config::kVDim, 16);
  constexpr int kPartColumns = Config::kValues.part_columns(Config::kQkDim);

  extern __shared__ __align__(1024) u8 shared[];
  const u32 query = shared_address(shared), d_out = query + QueryTile::kBytes,
            stages = query + Tiles::kAt.stages;

  const attention::ForwardParameters& f = p.forward;
  const int tile_m = gridDim.x - 1 - blockIdx.x, head = blockIdx.y,
            batch = blockIdx.z + f.first_batch;
  const int warp = threadIdx.x / 32 / kParts, part = threadIdx.x / 32 % kParts,
            lane = threadIdx.x % 32;
  const int head_k = head / (f.q_heads / f.k_heads), head_v = head / (f.q_heads / f.v_heads);
  const int q_length = attention::length_of(f.q_lengths, batch),
            kv_length = attention::length_of(f.kv_lengths, batch);
  const int first_row = tile_m * kTileM;
  if (p.d_q.offsets && first_row >= q_length) return;

  load_rows<QueryTile, Config::kQkDim, kThreads, Config::kAligned, T>(
      query, DenseRows<T>(f.q, batch, head), first_row, q_length);
  load_rows<GradientTile, Config::kVDim, kThreads, Config::kAligned, T>(
      d_out, DenseRows<T>(p.d_o, batch, head), first_row, q_length);
  // Committed here: rows that see no key never reach a stage's commit, and must still be waited
  // for.
  ptx::copy_async_commit();
  int rows[2];
  KeyInterval visible[2];
  RowStatistic statistic[2];
  RowDelta delta[2];
  int begin = kv_length, end = 0;
  for (int r = lane; r < kTileM; r += 32) {
    if (first_row + r >= q_length) continue;
    const KeyInterval keys =
        attention::visible_keys(f.bounds, f.bound_count, first_row + r, q_length, kv_length);
    if (keys.lo < keys.hi) {
      begin = min(begin, keys.lo);
      end = max(end, keys.hi);
    }
  }
  begin = __reduce_min_sync(0xffffffffu, begin) / kTileN;
  end = ceil_div(__reduce_max_sync(0xffffffffu, end), kTileN);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    rows[half] = first_row + warp * 16 + lane / 4 + 8 * half;
    visible[half] = {0, 0};
    statistic[half] = {0.0f, 0.0f};
    delta[half] = {0.0f, 0.0f};
    if (rows[half] < q_length) {
      visible[half] =
          attention::visible_keys(f.bounds, f.bound_count, rows[half], q_length, kv_length);
      statistic[half] = row_statistic<Config, Score>(p, batch, head, rows[half]);
      delta[half] = delta_of(p, batch, head)[rows[half]];
    }
  }

  const auto load_keys = [&](int tile, u32 to) {
    load_rows<KeyTile, Config::kQkDim, kThreads, Config::kAligned, T>(
        to, DenseRows<T>(f.k, batch, head_k), tile * kTileN, kv_length);
  };
  // In turns values come first: of keys the sums are taken too.
  const auto load_stage = [&](int tile, int stage) {
    const u32 base = stages + stage * Tiles::kAt.stage_bytes;
    if constexpr (!Config::kInTurns) load_keys(tile, base);
    load_rows<ValueTile, Config::kVDim, kThreads, Config::kAligned, T>(
        base + Tiles::kAt.v_in_stage, DenseRows<T>(f.v, batch, head_v), tile * kTileN, kv_length);
    ptx::copy_async_commit();
  };
  const CellGradient<Config, Score, Derivative> gradient(p, batch, head, q_length, kv_length);
  float dq[2 * ceil_div(kPartColumns, 16)][4] = {};
  if (Tiles::kStages == 2 && begin < end) load_stage(begin, 0);
  for (int tile = begin, stage = 0; tile < end; ++tile, stage ^= Tiles::kStages - 1) {
    if constexpr (Tiles::kStages == 1) {
      __syncthreads();
      load_stage(tile, stage);
    }
    ptx::copy_async_wait<0>();
    __syncthreads();
    if (Tiles::kStages == 2 && tile + 1 < end) load_stage(tile + 1, stage ^ 1);
    const u32 key = stages + stage * Tiles::kAt.stage_bytes, value = key + Tiles::kAt.v_in_stage;
    float weights[kTileN / 8][4] = {}, d_dots[kTileN / 8][4] = {};
    const auto multiply_keys = [&](auto& s, u32 keys) {
      multiply_transposed<T, sizeof(s) / 16, kQkSlices, QueryTile, KeyTile>(s, query, warp * 16,
                                                                            keys);
    };
    const auto multiply_values = [&](auto& dp, u32 values) {
      multiply_transposed<T, sizeof(dp) / 16, kVSlices, GradientTile, ValueTile>(dp, d_out,
                                                                                 warp * 16, values);
    };
    if constexpr (Config::kInTurns) {
      multiply_values(d_dots, value);
      __syncthreads();
      load_keys(tile, key);
      ptx::copy_async_commit();
      ptx::copy_async_wait<0>();
      __syncthreads();
      multiply_keys(weights, key);
    } else if constexpr (Config::kValues.shares_scores()) {
      constexpr int kBytes = 16 * tile::kLineBytes;
      share_cells<kParts, true>(
          query + Tiles::kAt.cells, warp, part, weights, d_dots,
          [&](int n, auto& x) { multiply_keys(x, key + n * kBytes); },
          [&](int n, auto& x) { multiply_values(x, value + n * kBytes); });
    } else {
      multiply_keys(weights, key);
      multiply_values(d_dots, value);
    }
    const bool computed = block_is_computed<Config>(f, batch, head, first_row, tile * kTileN);
#pragma unroll
    for (int n = 0; n < kTileN / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int half = i / 2, column = tile * kTileN + 8 * n + 2 * (lane % 4) + i % 2;
        const bool seen = computed && column >= visible[half].lo && column < visible[half].hi;
        gradient.cell(seen, rows[half], column, statistic[half], delta[half], weights[n][i],
                      d_dots[n][i]);
      }
    }
    multiply_sums<T, 2 * ceil_div(kPartColumns, 16), kTileN / 8, KeyTile>(
        dq, d_dots, key + part * (kPartColumns / tile::kBoxColumns) * KeyTile::kBoxBytes);
  }
  ptx::copy_async_wait<0>();
  __syncthreads();
  using Result = typename Config::Result;
  store_rows<Result, QueryTile, Config::kQkDim, Config::kAligned>(
      query, warp * 16, dq, 1.0f, attention::head_pointer<Result>(p.d_q, batch, head),
      p.d_q.stride[2], first_row, p.d_q.offsets ? q_length : f.q_length, part * kPartColumns);
}

}  // namespace heddle::sm80
