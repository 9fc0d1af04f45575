// Flash attention backward with warp-level matrix products: every feature, deterministic by
// construction, memory linear in sequence length.
//
// Two sweeps and no atomics: one kernel owns key tiles and sums dK and dV over the queries, the
// other owns query tiles and sums dQ over the keys. Each recomputes P from the statistics; that is
// 7 matrix products where a single sweep needs 5, and in return no f32 dQ buffer, no clearing, no
// order to keep.
//
// With P = exp(S - stats), dP = keep * scale_keep * (dO V^T), delta = rowsum(dO * O):
//   dS = P * (dP - delta),  dDot = Derivative(dS) * scale,  dV = (P keep)^T dO,  dK = dDot^T Q,  dQ
//   = dDot K.
//
// The generated source gives Config (as for the forward, with kTileM query rows a step, kWantDk and
// kWantDv), Score and Derivative.
#pragma once

#include "scores.cuh"

namespace heddle::sm80 {

using attention::BackwardParameters;

/// One batch entry and query head, and how to recompute its weights.
template <class Config, class Score, class Derivative>
struct CellGradient {
  const BackwardParameters& p;
  const int batch, head, q_length, kv_length;
  const float scale, keep_scale;
  const float factor;  ///< on the derivative: the scale for dL/d(dot), 1 for what the score loads
  const attention::DropoutBits<attention::ForwardParameters> dropout;

  HEDDLE_DEVICE CellGradient(const BackwardParameters& parameters, int batch, int head,
                             int q_length, int kv_length, bool of_dot = true)
      : p(parameters),
        batch(batch),
        head(head),
        q_length(q_length),
        kv_length(kv_length),
        scale(p.forward.scale_operand ? *p.forward.scale_operand : p.forward.scale),
        keep_scale(p.forward.keep_scale_operand ? *p.forward.keep_scale_operand
                                                : p.forward.keep_scale),
        factor(of_dot ? scale : 1.0f),
        dropout(p.forward, Config::kDropout, batch, head) {}

  /// Factor on the weight of (row, column): 0 or keep_scale, or the mask's own value times it.
  HEDDLE_DEVICE float keep(int row, int column) const {
    if constexpr (Config::kDropout == Dropout::none) {
      return 1.0f;
    } else if constexpr (Config::kDropout == Dropout::mask) {
      return keep_scale * Config::load_mask(p.forward.dropout_mask, batch, head, row, column);
    } else {
      bool first, second;
      dropout.template keep_pair<Config::kDropout>(row, column & ~1, first, second);
      return (column % 2 ? second : first) ? keep_scale : 0.0f;
    }
  }

  /// From the raw dot and dO.v of a cell to its dropped-out weight and dL/d(dot); both 0 if hidden.
  /// `statistic` is the row's log-sum-exp in log2 units.
  HEDDLE_DEVICE void cell(bool seen, int row, int column, float statistic, float delta,
                          float& dot_to_weight, float& d_weight_to_d_dot) const {
    if (!seen) {
      dot_to_weight = d_weight_to_d_dot = 0.0f;
      return;
    }
    GradientCell at;
    at.dot = dot_to_weight * scale;
    at.row = row;
    at.column = column;
    at.batch = batch;
    at.head = head;
    at.q_length = q_length;
    at.kv_length = kv_length;
    at.loads = p.forward.loads;
    const float score = Score::value(at);
    const float weight = ptx::exp2(score * (Config::kInputIsLog2 ? 1.0f : kLog2E) - statistic);
    const float kept = keep(row, column);
    at.gradient =
        weight * (d_weight_to_d_dot * kept - delta) * (Config::kInputIsLog2 ? kLn2 : 1.0f);
    dot_to_weight = weight * kept;
    d_weight_to_d_dot = Derivative::value(at) * factor;
  }
};

/// The log-sum-exp of a row in log2 units; rows that saw nothing get +inf, so that their weights
/// are 0.
HEDDLE_DEVICE float row_statistic(const BackwardParameters& p, int batch, int head, int row) {
  const float stats =
      *attention::element_pointer<const float>(p.forward.stats, batch, head, row, 0);
  if (stats == kMinusInfinity) return -kMinusInfinity;
  return p.forward.stats_log2 ? stats : stats * kLog2E;
}

HEDDLE_DEVICE float* delta_of(const BackwardParameters& p, int batch, int head) {
  return p.delta + (static_cast<i64>(batch) * p.forward.q_heads + head) * p.forward.q_length;
}

/// delta = rowsum(dO * O), one warp a row; 0 for rows past the sequence, whose O and dO may be NaN.
template <class Config>
HEDDLE_DEVICE void attention_backward_delta(const BackwardParameters& p) {
  using T = typename Config::Element;
  const int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, head = blockIdx.y,
            batch = blockIdx.z;
  if (row >= p.forward.q_length) return;
  float sum = 0;
  if (row < attention::length_of(p.forward.q_lengths, batch)) {
    const T* o = attention::element_pointer<const T>(p.forward.o, batch, head, row, 0);
    const T* d_o = attention::element_pointer<const T>(p.d_o, batch, head, row, 0);
    for (int column = threadIdx.x % 32; column < Config::kVDim; column += 32)
      sum += ptx::widen(o[column]) * ptx::widen(d_o[column]);
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  if (threadIdx.x % 32 == 0) delta_of(p, batch, head)[row] = sum;
}

/// dSink[h] = -sum over batch and rows of exp(sink - stats) * delta, in a fixed order; one block a
/// head.
HEDDLE_DEVICE void attention_backward_sink(const BackwardParameters& p) {
  __shared__ float partial[32];
  const int head = blockIdx.x;
  const float sink = p.forward.sink[head] * kLog2E;
  float sum = 0;
  for (int batch = 0; batch < p.forward.batch; ++batch) {
    const int length = attention::length_of(p.forward.q_lengths, batch);
    for (int row = threadIdx.x; row < length; row += blockDim.x)
      sum -= ptx::exp2(sink - row_statistic(p, batch, head, row)) * delta_of(p, batch, head)[row];
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int warp = 1; warp < static_cast<int>(blockDim.x / 32); ++warp) sum += partial[warp];
    p.d_sink[head] = sum;
  }
}

/// Stages of what a sweep passes by: f32 tiles are not copied asynchronously, so a second one would
/// hide nothing.
template <typename T>
inline constexpr int sweep_stages = is_same<T, float> ? 1 : 2;

template <class Config>
struct KeySweepTiles {
  using T = typename Config::Element;
  static constexpr int kTileN = 16 * Config::kWarps;
  static constexpr int kStages = sweep_stages<T>;
  using Key = tile::PlaneTile<T, kTileN, Config::kQkDim>;
  using Value = tile::PlaneTile<T, kTileN, Config::kVDim>;
  using Query = tile::PlaneTile<T, Config::kTileM, Config::kQkDim>;
  using OutputGradient = tile::PlaneTile<T, Config::kTileM, Config::kVDim>;
  static constexpr int kStageBytes = Query::kBytes + OutputGradient::kBytes;
  static constexpr int kStagesAt = Key::kBytes + Value::kBytes;
  static constexpr int kRowsAt = kStagesAt + kStages * kStageBytes;
  static constexpr int kSharedBytes = kRowsAt + kStages * Config::kTileM * 16;
};

/// What a key sweep needs of a query row, staged in shared memory.
struct RowRecord {
  float statistic, delta;
  int lo, hi;
};

/// dK and dV of one key tile: sums over the group's query heads and all query rows that see it.
template <class Config, class Score, class Derivative>
HEDDLE_DEVICE void attention_backward_keys(const BackwardParameters& p) {
  using T = typename Config::Element;
  using Tiles = KeySweepTiles<Config>;
  using KeyTile = typename Tiles::Key;
  using ValueTile = typename Tiles::Value;
  using QueryTile = typename Tiles::Query;
  using GradientTile = typename Tiles::OutputGradient;
  constexpr int kThreads = 32 * Config::kWarps, kTileM = Config::kTileM, kTileN = Tiles::kTileN;
  constexpr int kQkSlices = ceil_div(Config::kQkDim, 16), kVSlices = ceil_div(Config::kVDim, 16);

  extern __shared__ __align__(1024) u8 shared[];
  const u32 key = shared_address(shared), value = key + KeyTile::kBytes;
  const u32 stages = key + Tiles::kStagesAt;
  RowRecord* records = reinterpret_cast<RowRecord*>(shared + Tiles::kRowsAt);

  const attention::ForwardParameters& f = p.forward;
  const int tile_n = blockIdx.x, batch = blockIdx.z, warp = threadIdx.x / 32,
            lane = threadIdx.x % 32;
  // The grid's heads are those of what is written; the other of K and V may have fewer or more.
  const int heads = Config::kWantDk ? f.k_heads : f.v_heads, group = f.q_heads / heads;
  const int q_length = attention::length_of(f.q_lengths, batch),
            kv_length = attention::length_of(f.kv_lengths, batch);
  const int first_key = tile_n * kTileN;
  const attention::Tensor& written = Config::kWantDk ? p.d_k : p.d_v;
  if (written.offsets && first_key >= kv_length) return;

  float dk[Config::kWantDk ? kQkSlices * 2 : 2][4] = {};
  float dv[Config::kWantDv ? kVSlices * 2 : 2][4] = {};
  const int row0 = warp * 16 + lane / 4;
  const int keys[2] = {first_key + row0, first_key + row0 + 8};

  const int steps_per_head = ceil_div(q_length, kTileM), steps = group * steps_per_head;
  int loaded_head_k = -1, loaded_head_v = -1;
  const auto load_stage = [&](int step, int stage) {
    const int head = blockIdx.y * group + step / steps_per_head,
              first_row = step % steps_per_head * kTileM;
    const u32 base = stages + stage * Tiles::kStageBytes;
    load_rows<QueryTile, Config::kQkDim, kThreads, Config::kAligned, T>(
        base, DenseRows<T>(f.q, batch, head), first_row, q_length);
    load_rows<GradientTile, Config::kVDim, kThreads, Config::kAligned, T>(
        base + QueryTile::kBytes, DenseRows<T>(p.d_o, batch, head), first_row, q_length);
    for (int r = threadIdx.x; r < kTileM; r += kThreads) {
      const int row = first_row + r;
      RowRecord record{-kMinusInfinity, 0.0f, 0, 0};
      if (row < q_length) {
        const KeyInterval visible =
            attention::visible_keys(f.bounds, f.bound_count, batch, row, q_length, kv_length);
        record = {row_statistic(p, batch, head, row), delta_of(p, batch, head)[row], visible.lo,
                  visible.hi};
      }
      records[stage * kTileM + r] = record;
    }
    ptx::copy_async_commit();
  };
  // Whether any row of a step may see this tile: interval ends move one way with the row, so the
  // tile's ends are enough for affine bounds; operand bounds are not skipped.
  const auto step_is_needed = [&](int step) {
    const int first_row = step % steps_per_head * kTileM,
              last_row = min(first_row + kTileM, q_length) - 1;
    for (int n = 0; n < f.bound_count; ++n)
      if (f.bounds[n].anchor == attention::Anchor::operand) return true;
    const KeyInterval first =
        attention::visible_keys(f.bounds, f.bound_count, batch, first_row, q_length, kv_length);
    const KeyInterval last =
        attention::visible_keys(f.bounds, f.bound_count, batch, last_row, q_length, kv_length);
    return min(first.lo, last.lo) < first_key + kTileN && max(first.hi, last.hi) > first_key;
  };
  const auto next_step = [&](int step) {
    while (step < steps && !step_is_needed(step)) ++step;
    return step;
  };

  int step = first_key < kv_length ? next_step(0) : steps;
  if (Tiles::kStages == 2 && step < steps) load_stage(step, 0);
  for (int stage = 0; step < steps; stage ^= Tiles::kStages - 1) {
    const int head = blockIdx.y * group + step / steps_per_head,
              first_row = step % steps_per_head * kTileM;
    const int head_k = head / (f.q_heads / f.k_heads), head_v = head / (f.q_heads / f.v_heads);
    if (head_k != loaded_head_k || head_v != loaded_head_v) {
      __syncthreads();
      load_keys<Config, false, Config::kQkDim, KeyTile, kThreads>(key, f.k, f.k, 0, batch, head_k,
                                                                  first_key, kv_length);
      load_keys<Config, false, Config::kVDim, ValueTile, kThreads>(value, f.v, f.v, 0, batch,
                                                                   head_v, first_key, kv_length);
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

    const u32 query = stages + stage * Tiles::kStageBytes, d_out = query + QueryTile::kBytes;
    // S^T and dP^T: the warp's 16 keys against kTileM rows.
    float weights[kTileM / 8][4] = {}, d_dots[kTileM / 8][4] = {};
    multiply_transposed<T, kTileM / 8, kQkSlices, KeyTile, QueryTile>(weights, key, warp * 16,
                                                                      query);
    multiply_transposed<T, kTileM / 8, kVSlices, ValueTile, GradientTile>(d_dots, value, warp * 16,
                                                                          d_out);

    const CellGradient<Config, Score, Derivative> gradient(p, batch, head, q_length, kv_length);
    const bool computed = block_is_computed<Config>(f, batch, head, first_row, first_key);
#pragma unroll
    for (int n = 0; n < kTileM / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int r = 8 * n + 2 * (lane % 4) + i % 2, column = keys[i / 2];
        const RowRecord record = records[stage * kTileM + r];
        const bool seen = computed && column >= record.lo && column < record.hi;
        gradient.cell(seen, first_row + r, column, record.statistic, record.delta, weights[n][i],
                      d_dots[n][i]);
      }
    }
    if constexpr (Config::kWantDv)
      multiply_sums<T, kVSlices * 2, kTileM / 8, GradientTile>(dv, weights, d_out);
    if constexpr (Config::kWantDk)
      multiply_sums<T, kQkSlices * 2, kTileM / 8, QueryTile>(dk, d_dots, query);
    step = next;
  }
  ptx::copy_async_wait<0>();
  __syncthreads();

  const int row_end_k = p.d_k.offsets ? kv_length : f.kv_length,
            row_end_v = p.d_v.offsets ? kv_length : f.kv_length;
  if constexpr (Config::kWantDk)
    store_rows<T, KeyTile, Config::kQkDim, Config::kAligned>(
        key, warp * 16, dk, 1.0f, attention::head_pointer<T>(p.d_k, batch, blockIdx.y),
        p.d_k.stride[2], first_key, row_end_k);
  if constexpr (Config::kWantDv)
    store_rows<T, ValueTile, Config::kVDim, Config::kAligned>(
        value, warp * 16, dv, 1.0f, attention::head_pointer<T>(p.d_v, batch, blockIdx.y),
        p.d_v.stride[2], first_key, row_end_v);
}

template <class Config>
struct QuerySweepTiles {
  using T = typename Config::Element;
  static constexpr int kTileM = 16 * Config::kWarps;
  static constexpr int kStages = sweep_stages<T>;
  using Query = tile::PlaneTile<T, kTileM, Config::kQkDim>;
  using OutputGradient = tile::PlaneTile<T, kTileM, Config::kVDim>;
  using Key = tile::PlaneTile<T, Config::kTileN, Config::kQkDim>;
  using Value = tile::PlaneTile<T, Config::kTileN, Config::kVDim>;
  static constexpr int kStageBytes = Key::kBytes + Value::kBytes;
  static constexpr int kStagesAt = Query::kBytes + OutputGradient::kBytes;
  static constexpr int kSharedBytes = kStagesAt + kStages * kStageBytes;
};

/// dQ of one query tile: sums over the keys its rows see.
template <class Config, class Score, class Derivative>
HEDDLE_DEVICE void attention_backward_queries(const BackwardParameters& p) {
  using T = typename Config::Element;
  using Tiles = QuerySweepTiles<Config>;
  using KeyTile = typename Tiles::Key;
  using ValueTile = typename Tiles::Value;
  using QueryTile = typename Tiles::Query;
  using GradientTile = typename Tiles::OutputGradient;
  constexpr int kThreads = 32 * Config::kWarps, kTileM = Tiles::kTileM, kTileN = Config::kTileN;
  constexpr int kQkSlices = ceil_div(Config::kQkDim, 16), kVSlices = ceil_div(Config::kVDim, 16);

  extern __shared__ __align__(1024) u8 shared[];
  const u32 query = shared_address(shared), d_out = query + QueryTile::kBytes,
            stages = query + Tiles::kStagesAt;

  const attention::ForwardParameters& f = p.forward;
  const int tile_m = gridDim.x - 1 - blockIdx.x, head = blockIdx.y, batch = blockIdx.z;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
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
  float statistic[2], delta[2];
  int begin = kv_length, end = 0;
  for (int r = lane; r < kTileM; r += 32) {
    if (first_row + r >= q_length) continue;
    const KeyInterval keys =
        attention::visible_keys(f.bounds, f.bound_count, batch, first_row + r, q_length, kv_length);
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
    statistic[half] = delta[half] = 0.0f;
    if (rows[half] < q_length) {
      visible[half] =
          attention::visible_keys(f.bounds, f.bound_count, batch, rows[half], q_length, kv_length);
      statistic[half] = row_statistic(p, batch, head, rows[half]);
      delta[half] = delta_of(p, batch, head)[rows[half]];
    }
  }

  const auto load_stage = [&](int tile, int stage) {
    const u32 base = stages + stage * Tiles::kStageBytes;
    load_keys<Config, false, Config::kQkDim, KeyTile, kThreads>(base, f.k, f.k, 0, batch, head_k,
                                                                tile * kTileN, kv_length);
    load_keys<Config, false, Config::kVDim, ValueTile, kThreads>(
        base + KeyTile::kBytes, f.v, f.v, 0, batch, head_v, tile * kTileN, kv_length);
    ptx::copy_async_commit();
  };
  const CellGradient<Config, Score, Derivative> gradient(p, batch, head, q_length, kv_length);
  float dq[kQkSlices * 2][4] = {};
  if (Tiles::kStages == 2 && begin < end) load_stage(begin, 0);
  for (int tile = begin, stage = 0; tile < end; ++tile, stage ^= Tiles::kStages - 1) {
    if constexpr (Tiles::kStages == 1) {
      __syncthreads();
      load_stage(tile, stage);
    }
    ptx::copy_async_wait<0>();
    __syncthreads();
    if (Tiles::kStages == 2 && tile + 1 < end) load_stage(tile + 1, stage ^ 1);
    const u32 key = stages + stage * Tiles::kStageBytes, value = key + KeyTile::kBytes;
    float weights[kTileN / 8][4] = {}, d_dots[kTileN / 8][4] = {};
    multiply_transposed<T, kTileN / 8, kQkSlices, QueryTile, KeyTile>(weights, query, warp * 16,
                                                                      key);
    multiply_transposed<T, kTileN / 8, kVSlices, GradientTile, ValueTile>(d_dots, d_out, warp * 16,
                                                                          value);
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
    multiply_sums<T, kQkSlices * 2, kTileN / 8, KeyTile>(dq, d_dots, key);
  }
  ptx::copy_async_wait<0>();
  __syncthreads();
  store_rows<T, QueryTile, Config::kQkDim, Config::kAligned>(
      query, warp * 16, dq, 1.0f, attention::head_pointer<T>(p.d_q, batch, head), p.d_q.stride[2],
      first_row, p.d_q.offsets ? q_length : f.q_length);
}

/// The gradient of a broadcast operand that the score loads (dBias): a block owns one tile of it
/// and sums over everything it was broadcast along, in a fixed order. Config::LoadElement is the
/// gradient's type; Derivative is dL/d(load) of one cell.
template <class Config, class Score, class Derivative>
HEDDLE_DEVICE void attention_backward_load(const BackwardParameters& p) {
  using T = typename Config::Element;
  using Tiles = QuerySweepTiles<Config>;
  using KeyTile = typename Tiles::Key;
  using ValueTile = typename Tiles::Value;
  using QueryTile = typename Tiles::Query;
  using GradientTile = typename Tiles::OutputGradient;
  using Element = typename Config::LoadElement;
  constexpr int kThreads = 32 * Config::kWarps, kTileM = Tiles::kTileM, kTileN = Config::kTileN;
  constexpr int kQkSlices = ceil_div(Config::kQkDim, 16), kVSlices = ceil_div(Config::kVDim, 16);

  extern __shared__ __align__(1024) u8 shared[];
  const u32 query = shared_address(shared), d_out = query + QueryTile::kBytes;
  const u32 key = query + Tiles::kStagesAt, value = key + KeyTile::kBytes;
  const attention::ForwardParameters& f = p.forward;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const bool one_batch = p.d_load_dims[0] == 1, one_head = p.d_load_dims[1] == 1;
  const bool one_row = p.d_load_dims[2] == 1, one_column = p.d_load_dims[3] == 1;
  const int row_tiles = ceil_div(f.q_length, kTileM), column_tiles = ceil_div(f.kv_length, kTileN);
  const int owned_row_tiles = one_row ? 1 : row_tiles;
  const int own_row = blockIdx.x % owned_row_tiles, own_column = blockIdx.x / owned_row_tiles;

  float sums[kTileN / 8][4] = {};
  for (int batch = one_batch ? 0 : blockIdx.z;
       batch < (one_batch ? f.batch : static_cast<int>(blockIdx.z) + 1); ++batch) {
    const int q_length = attention::length_of(f.q_lengths, batch),
              kv_length = attention::length_of(f.kv_lengths, batch);
    for (int head = one_head ? 0 : blockIdx.y;
         head < (one_head ? f.q_heads : static_cast<int>(blockIdx.y) + 1); ++head) {
      const CellGradient<Config, Score, Derivative> gradient(p, batch, head, q_length, kv_length,
                                                             false);
      const int head_k = head / (f.q_heads / f.k_heads), head_v = head / (f.q_heads / f.v_heads);
      for (int tile_m = one_row ? 0 : own_row; tile_m < (one_row ? row_tiles : own_row + 1);
           ++tile_m) {
        const int first_row = tile_m * kTileM;
        if (first_row >= q_length) break;
        __syncthreads();
        load_rows<QueryTile, Config::kQkDim, kThreads, Config::kAligned, T>(
            query, DenseRows<T>(f.q, batch, head), first_row, q_length);
        load_rows<GradientTile, Config::kVDim, kThreads, Config::kAligned, T>(
            d_out, DenseRows<T>(p.d_o, batch, head), first_row, q_length);
        for (int tile_n = one_column ? 0 : own_column;
             tile_n < (one_column ? column_tiles : own_column + 1); ++tile_n) {
          __syncthreads();
          load_keys<Config, false, Config::kQkDim, KeyTile, kThreads>(
              key, f.k, f.k, 0, batch, head_k, tile_n * kTileN, kv_length);
          load_keys<Config, false, Config::kVDim, ValueTile, kThreads>(
              value, f.v, f.v, 0, batch, head_v, tile_n * kTileN, kv_length);
          ptx::copy_async_commit();
          ptx::copy_async_wait<0>();
          __syncthreads();
          float weights[kTileN / 8][4] = {}, d_loads[kTileN / 8][4] = {};
          multiply_transposed<T, kTileN / 8, kQkSlices, QueryTile, KeyTile>(weights, query,
                                                                            warp * 16, key);
          multiply_transposed<T, kTileN / 8, kVSlices, GradientTile, ValueTile>(d_loads, d_out,
                                                                                warp * 16, value);
          const bool computed =
              block_is_computed<Config>(f, batch, head, first_row, tile_n * kTileN);
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const int row = first_row + warp * 16 + lane / 4 + 8 * half;
            if (row >= q_length) continue;
            const KeyInterval visible =
                attention::visible_keys(f.bounds, f.bound_count, batch, row, q_length, kv_length);
            const float statistic = row_statistic(p, batch, head, row),
                        delta = delta_of(p, batch, head)[row];
#pragma unroll
            for (int n = 0; n < kTileN / 8; ++n) {
#pragma unroll
              for (int i = 2 * half; i < 2 * half + 2; ++i) {
                const int column = tile_n * kTileN + 8 * n + 2 * (lane % 4) + i % 2;
                const bool seen = computed && column >= visible.lo && column < visible.hi;
                gradient.cell(seen, row, column, statistic, delta, weights[n][i], d_loads[n][i]);
                sums[n][i] += d_loads[n][i];
              }
            }
          }
        }
      }
    }
  }

  // The tile as f32 in shared memory, rows then columns; broadcast rows or columns are summed
  // there.
  __syncthreads();
  float* tile = reinterpret_cast<float*>(shared);
  constexpr int kPitch = kTileN + 1;
  static_assert(kTileM * kPitch * 4 <= Tiles::kSharedBytes, "the sums take the operands' place");
#pragma unroll
  for (int n = 0; n < kTileN / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      tile[(warp * 16 + lane / 4 + 8 * (i / 2)) * kPitch + 8 * n + 2 * (lane % 4) + i % 2] =
          sums[n][i];
  }
  __syncthreads();
  const int rows = one_row ? 1 : kTileM, columns = one_column ? 1 : kTileN;
  for (int n = threadIdx.x; n < rows * columns; n += kThreads) {
    const int r = n / columns, c = n % columns;
    float sum = 0;
    for (int i = one_row ? 0 : r; i < (one_row ? kTileM : r + 1); ++i)
      for (int j = one_column ? 0 : c; j < (one_column ? kTileN : c + 1); ++j)
        sum += tile[i * kPitch + j];
    const int row = one_row ? 0 : own_row * kTileM + r,
              column = one_column ? 0 : own_column * kTileN + c;
    if (row < p.d_load_dims[2] && column < p.d_load_dims[3])
      *attention::element_pointer<Element>(p.d_load, blockIdx.z, blockIdx.y, row, column) =
          ptx::narrow<Element>(sum);
  }
}

}  // namespace heddle::sm80
