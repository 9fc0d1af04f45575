// The gradient of what the score loads, in the general backward: dBias.
#pragma once

#include "backward_cell.cuh"
#include "backward_tiles.cuh"

namespace heddle::sm80 {

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
  static_assert(Config::kParts == 1, "there are no sums to have columns of");
  constexpr int kThreads = 32 * Config::kWarps, kTileM = Tiles::kTileM, kTileN = Config::kTileN;
  constexpr int kQkSlices = ceil_div(Config::kQkDim, 16), kVSlices = ceil_div(Config::kVDim, 16);

  extern __shared__ __align__(1024) u8 shared[];
  const u32 query = shared_address(shared), d_out = query + QueryTile::kBytes;
  const u32 key = query + Tiles::kAt.stages, value = key + Tiles::kAt.v_in_stage;
  const attention::ForwardParameters& f = p.forward;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const bool one_batch = p.d_load_dims[0] == 1, one_head = p.d_load_dims[1] == 1;
  const bool one_row = p.d_load_dims[2] == 1, one_column = p.d_load_dims[3] == 1;
  const int row_tiles = ceil_div(f.q_length, kTileM), column_tiles = ceil_div(f.kv_length, kTileN);
  const int owned_row_tiles = one_row ? 1 : row_tiles;
  const int own_row = blockIdx.x % owned_row_tiles, own_column = blockIdx.x / owned_row_tiles;

  float sums[kTileN / 8][4] = {};
  const int own_batch = blockIdx.z + f.first_batch;
  for (int batch = one_batch ? 0 : own_batch; batch < (one_batch ? f.batch : own_batch + 1);
       ++batch) {
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
          const auto arrive = [] {
            ptx::copy_async_commit();
            ptx::copy_async_wait<0>();
            __syncthreads();
          };
          float weights[kTileN / 8][4] = {}, d_loads[kTileN / 8][4] = {};
          __syncthreads();
          load_rows<KeyTile, Config::kQkDim, kThreads, Config::kAligned, T>(
              key, DenseRows<T>(f.k, batch, head_k), tile_n * kTileN, kv_length);
          if constexpr (Config::kInTurns) {
            arrive();
            multiply_transposed<T, kTileN / 8, kQkSlices, QueryTile, KeyTile>(weights, query,
                                                                              warp * 16, key);
            __syncthreads();
          }
          load_rows<ValueTile, Config::kVDim, kThreads, Config::kAligned, T>(
              value, DenseRows<T>(f.v, batch, head_v), tile_n * kTileN, kv_length);
          arrive();
          if constexpr (!Config::kInTurns)
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
                attention::visible_keys(f.bounds, f.bound_count, row, q_length, kv_length);
            const RowStatistic statistic = row_statistic<Config, Score>(p, batch, head, row);
            const RowDelta delta = delta_of(p, batch, head)[row];
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
  static_assert(kTileM * kPitch * 4 <= Tiles::kAt.bytes, "the sums take the operands' place");
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
      *attention::element_pointer<Element>(p.d_load, own_batch, blockIdx.y, row, column) =
          ptx::narrow<Element>(sum);
  }
}

}  // namespace heddle::sm80
