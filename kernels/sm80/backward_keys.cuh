// The sweep of the general backward that owns key tiles: dK and dV.
#pragma once

#include "../attention/largest.cuh"
#include "backward_cell.cuh"
#include "backward_tiles.cuh"

namespace heddle::sm80 {

/// dK and dV of one key tile: sums over the group's query heads and all query rows that see it.
template <class Config, class Score, class Derivative>
HEDDLE_DEVICE void attention_backward_keys(const BackwardParameters& p) {
  using T = typename Config::Element;
  using Tiles = KeySweepTiles<Config>;
  using KeyTile = typename Tiles::Key;
  using ValueTile = typename Tiles::Value;
  using QueryTile = typename Tiles::Query;
  using GradientTile = typename Tiles::OutputGradient;
  constexpr int kThreads = Config::kValues.threads(), kParts = Config::kParts;
  constexpr int kTileM = Config::kTileM, kTileN = Tiles::kTileN;
  constexpr int kQkSlices = ceil_div(Config::kQkDim, 16), kVSlices = ceil_div(Config::kVDim, 16);
  constexpr int kQkPart = Config::kValues.part_columns(Config::kQkDim),
                kVPart = Config::kValues.part_columns(Config::kVDim);
  static_assert(kParts == 1 || Config::kWantDk != Config::kWantDv);

  extern __shared__ __align__(1024) u8 shared[];
  const u32 key = shared_address(shared), value = key + KeyTile::kBytes;
  const u32 stages = key + Tiles::kAt.stages;
  using Record = typename Tiles::Record;
  Record* records = reinterpret_cast<Record*>(shared + Tiles::kAt.records);

  const attention::ForwardParameters& f = p.forward;
  const int tile_n = blockIdx.x, batch = blockIdx.z + f.first_batch;
  const int warp = threadIdx.x / 32 / kParts, part = threadIdx.x / 32 % kParts,
            lane = threadIdx.x % 32;
  // The grid's heads are those of what is written; the other of K and V may have fewer or more.
  const int heads = Config::kWantDk ? f.k_heads : f.v_heads, group = f.q_heads / heads;
  const int q_length = attention::length_of(f.q_lengths, batch),
            kv_length = attention::length_of(f.kv_lengths, batch);
  const int first_key = tile_n * kTileN;
  // Of a dense gradient rows past the sequence are zeros, also beside a ragged one.
  const bool all_ragged =
      (!Config::kWantDk || p.d_k.offsets) && (!Config::kWantDv || p.d_v.offsets);
  if (all_ragged && first_key >= kv_length) return;

  constexpr int kDkGroups = Config::kWantDk ? 2 * ceil_div(kQkPart, 16) : 2,
                kDvGroups = Config::kWantDv ? 2 * ceil_div(kVPart, 16) : 2;
  float dk[kDkGroups][4] = {};
  float dv[kDvGroups][4] = {};
  const int row0 = warp * 16 + lane / 4;
  const int keys[2] = {first_key + row0, first_key + row0 + 8};

  const int steps_per_head = ceil_div(q_length, kTileM), steps = group * steps_per_head;
  int loaded_head_k = -1, loaded_head_v = -1;
  const auto load_queries = [&](int step, u32 to) {
    load_rows<QueryTile, Config::kQkDim, kThreads, Config::kAligned, T>(
        to, DenseRows<T>(f.q, batch, blockIdx.y * group + step / steps_per_head),
        step % steps_per_head * kTileM, q_length);
  };
  const auto load_gradients = [&](int step, u32 to) {
    load_rows<GradientTile, Config::kVDim, kThreads, Config::kAligned, T>(
        to, DenseRows<T>(p.d_o, batch, blockIdx.y * group + step / steps_per_head),
        step % steps_per_head * kTileM, q_length);
  };
  // In turns that comes last of which sums are taken: dO for dV, Q for dK.
  const auto load_stage = [&](int step, int stage) {
    const int head = blockIdx.y * group + step / steps_per_head,
              first_row = step % steps_per_head * kTileM;
    const u32 base = stages + stage * Tiles::kAt.stage_bytes;
    if constexpr (!Config::kInTurns || !Config::kWantDk) load_queries(step, base);
    if constexpr (!Config::kInTurns || Config::kWantDk)
      load_gradients(step, base + Tiles::kAt.v_in_stage);
    for (int r = threadIdx.x; r < kTileM; r += kThreads) {
      const int row = first_row + r;
      Record record{};
      record.set_statistic({-kMinusInfinity, 0.0f});
      if (row < q_length) {
        const KeyInterval visible =
            attention::visible_keys(f.bounds, f.bound_count, row, q_length, kv_length);
        record.set_statistic(row_statistic<Config, Score>(p, batch, head, row));
        record.set_delta(delta_of(p, batch, head)[row]);
        record.lo = visible.lo;
        record.hi = visible.hi;
      }
      records[stage * kTileM + r] = record;
    }
    ptx::copy_async_commit();
  };
  // Whether any row of a step may see this tile: interval ends move one way with the row, so the
  // tile's ends are enough.
  const auto step_is_needed = [&](int step) {
    const int first_row = step % steps_per_head * kTileM,
              last_row = min(first_row + kTileM, q_length) - 1;
    const KeyInterval first =
        attention::visible_keys(f.bounds, f.bound_count, first_row, q_length, kv_length);
    const KeyInterval last =
        attention::visible_keys(f.bounds, f.bound_count, last_row, q_length, kv_length);
    return min(first.lo, last.lo) < first_key + kTileN && max(first.hi, last.hi) > first_key;
  };
  const auto next_step = [&](int step) {
    while (step < steps && !step_is_needed(step)) ++step;
    return step;
  };

  constexpr bool kLargest = attention::kArgumentLayout.largest_gradient && Config::kWantDk;
  u32 largest = 0;
  int step = first_key < kv_length ? next_step(0) : steps;
  if (Tiles::kStages == 2 && step < steps) load_stage(step, 0);
  for (int stage = 0; step < steps; stage ^= Tiles::kStages - 1) {
    const int head = blockIdx.y * group + step / steps_per_head,
              first_row = step % steps_per_head * kTileM;
    const int head_k = head / (f.q_heads / f.k_heads), head_v = head / (f.q_heads / f.v_heads);
    if (head_k != loaded_head_k || head_v != loaded_head_v) {
      __syncthreads();
      load_rows<KeyTile, Config::kQkDim, kThreads, Config::kAligned, T>(
          key, DenseRows<T>(f.k, batch, head_k), first_key, kv_length);
      load_rows<ValueTile, Config::kVDim, kThreads, Config::kAligned, T>(
          value, DenseRows<T>(f.v, batch, head_v), first_key, kv_length);
      ptx::copy_async_commit();
      loaded_head_k = head_k;
      loaded_head_v = head_v;
    }
    const int next = next_step(step + 1);
    if constexpr (Tiles::kStages == 1) {
      __syncthreads();
      load_stage(step, stage);
    }
    ptx::copy_async_wait<0>();
    __syncthreads();
    if (Tiles::kStages == 2 && next < steps) load_stage(next, stage ^ 1);

    const u32 query = stages + stage * Tiles::kAt.stage_bytes,
              d_out = query + Tiles::kAt.v_in_stage;
    // S^T and dP^T: the warp's 16 keys against kTileM rows. S beside a
    // maximum is to be the forward's.
    float weights[kTileM / 8][4] = {}, d_dots[kTileM / 8][4] = {};
    const auto multiply_queries = [&](auto& s, u32 rows) {
      multiply_transposed<T, sizeof(s) / 16, kQkSlices, KeyTile, QueryTile, Config::kMaxAndSum>(
          s, key, warp * 16, rows);
    };
    const auto multiply_gradients = [&](auto& dp, u32 rows) {
      multiply_transposed<T, sizeof(dp) / 16, kVSlices, ValueTile, GradientTile>(dp, value,
                                                                                 warp * 16, rows);
    };
    if constexpr (Config::kInTurns) {
      if constexpr (Config::kWantDk)
        multiply_gradients(d_dots, d_out);
      else
        multiply_queries(weights, query);
      __syncthreads();
      if constexpr (Config::kWantDk)
        load_queries(step, query);
      else
        load_gradients(step, d_out);
      ptx::copy_async_commit();
      ptx::copy_async_wait<0>();
      __syncthreads();
      if constexpr (Config::kWantDk) multiply_queries(weights, query);
    } else if constexpr (Config::kValues.shares_scores()) {
      constexpr int kBytes = 16 * tile::kLineBytes;
      share_cells<kParts, Config::kWantDk>(
          key + Tiles::kAt.cells, warp, part, weights, d_dots,
          [&](int n, auto& x) { multiply_queries(x, query + n * kBytes); },
          [&](int n, auto& x) { multiply_gradients(x, d_out + n * kBytes); });
    } else {
      multiply_queries(weights, query);
      if constexpr (Config::kWantDk) multiply_gradients(d_dots, d_out);
    }

    const CellGradient<Config, Score, Derivative> gradient(p, batch, head, q_length, kv_length);
    const bool computed = block_is_computed<Config>(f, batch, head, first_row, first_key);
#pragma unroll
    for (int n = 0; n < kTileM / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int r = 8 * n + 2 * (lane % 4) + i % 2, column = keys[i / 2];
        const Record record = records[stage * kTileM + r];
        const bool seen = computed && column >= record.lo && column < record.hi;
        gradient.cell(seen, first_row + r, column, record.statistic(), record.delta(),
                      weights[n][i], d_dots[n][i]);
        if constexpr (kLargest)
          largest = attention::larger(largest, attention::magnitude(d_dots[n][i]));
      }
    }
    if constexpr (Config::kWantDv)
      multiply_sums<T, kDvGroups, kTileM / 8, GradientTile>(
          dv, weights, d_out + part * (kVPart / tile::kBoxColumns) * GradientTile::kBoxBytes);
    if constexpr (Config::kWantDk)
      multiply_sums<T, kDkGroups, kTileM / 8, QueryTile>(
          dk, d_dots, query + part * (kQkPart / tile::kBoxColumns) * QueryTile::kBoxBytes);
    step = next;
  }
  ptx::copy_async_wait<0>();
  __syncthreads();
  if constexpr (kLargest) attention::raise(p.largest_d_dot, largest);

  const int row_end_k = p.d_k.offsets ? kv_length : f.kv_length,
            row_end_v = p.d_v.offsets ? kv_length : f.kv_length;
  using Result = typename Config::Result;
  if constexpr (Config::kWantDk)
    store_rows<Result, KeyTile, Config::kQkDim, Config::kAligned>(
        key, warp * 16, dk, 1.0f, attention::head_pointer<Result>(p.d_k, batch, blockIdx.y),
        p.d_k.stride[2], first_key, row_end_k, part * kQkPart);
  if constexpr (Config::kWantDv)
    store_rows<Result, ValueTile, Config::kVDim, Config::kAligned>(
        value, warp * 16, dv, 1.0f, attention::head_pointer<Result>(p.d_v, batch, blockIdx.y),
        p.d_v.stride[2], first_key, row_end_v, part * kVPart);
}

}  // namespace heddle::sm80
