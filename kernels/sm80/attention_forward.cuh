// Flash attention forward with warp-level matrix products: every feature of an attention problem,
// on every architecture from sm_80 on.
//
// A block owns 16 * kWarps query rows of one head, a warp 16 of them, so softmax never leaves a
// warp. Keys and values pass through shared memory a tile at a time by asynchronous copies: V of a
// tile arrives under Q K^T, K of the next under the softmax.
//
// The generated source gives Config, the fields of GeneralConfig (general_config.h), and Score:
// kIdentity, and value(cell) -> f32, the score of one cell from its scaled dot.
#pragma once

#include "../attention/online_softmax.cuh"
#include "../attention/row_end.cuh"
#include "general_config.h"
#include "scores.cuh"

namespace heddle::sm80 {

using attention::ForwardParameters;

template <class Config>
struct ForwardTiles {
  using T = typename Config::Element;
  static constexpr int kTileM = 16 * Config::kWarps;
  using Query = tile::PlaneTile<T, kTileM, Config::kQkDim>;
  using Output = tile::PlaneTile<T, kTileM, Config::kVDim>;
  using Key = tile::PlaneTile<T, Config::kTileN, Config::kQkDim>;
  using Value = tile::PlaneTile<T, Config::kTileN, Config::kVDim>;
  static constexpr ForwardLayout kAt = forward_layout_of(Config::kValues);
};

template <class Config, class Score>
HEDDLE_DEVICE void attention_forward(const ForwardParameters& p) {
  using T = typename Config::Element;
  using Tiles = ForwardTiles<Config>;
  using QueryTile = typename Tiles::Query;
  using OutputTile = typename Tiles::Output;
  using KeyTile = typename Tiles::Key;
  using ValueTile = typename Tiles::Value;
  constexpr int kThreads = 32 * Config::kWarps;
  constexpr int kTileM = Tiles::kTileM, kTileN = Config::kTileN;
  constexpr int kQkSlices = ceil_div(Config::kQkDim, 16);
  constexpr int kVGroups = ceil_div(Config::kVDim, 16);
  // Up to 128 columns Q's fragments fit in registers beside the sums; beyond they are read again,
  // and so are planes, which take their own sums there.
  constexpr bool kQueryInRegisters = Config::kQkDim <= 128 && QueryTile::kPlanes == 1;

  extern __shared__ __align__(1024) u8 shared[];
  const u32 query = shared_address(shared), key = query + Tiles::kAt.key,
            value = key + KeyTile::kBytes;
  int* interval_lo = reinterpret_cast<int*>(shared + Tiles::kAt.intervals);
  int* interval_hi = interval_lo + kTileM;

  // The last tiles see most keys under a causal mask: start them first.
  const int tile_m = gridDim.x - 1 - blockIdx.x, head = blockIdx.y,
            batch = blockIdx.z + p.first_batch;
  const int head_k = head / (p.q_heads / p.k_heads), head_v = head / (p.q_heads / p.v_heads);
  const int q_length = attention::length_of(p.q_lengths, batch),
            kv_length = attention::length_of(p.kv_lengths, batch);
  const int first_row = tile_m * kTileM, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const bool o_is_ragged = p.o.offsets != nullptr;
  if (o_is_ragged && first_row >= q_length) return;

  load_rows<QueryTile, Config::kQkDim, kThreads, Config::kAligned, T>(
      query, DenseRows<T>(p.q, batch, head), first_row, q_length);
  ptx::copy_async_commit();

  // Each row's keys; then which tiles any row sees, and which every row sees whole.
  if (threadIdx.x < kTileM) {
    const int row = first_row + threadIdx.x;
    KeyInterval keys{0, 0};
    if (row < q_length)
      keys = attention::visible_keys(p.bounds, p.bound_count, row, q_length, kv_length);
    interval_lo[threadIdx.x] = keys.lo;
    interval_hi[threadIdx.x] = keys.hi > keys.lo ? keys.hi : keys.lo;
  }
  __syncthreads();
  int begin = kv_length, end = 0, whole_begin = 0, whole_end = kv_length;
  for (int r = lane; r < kTileM; r += 32) {
    const int lo = interval_lo[r], hi = interval_hi[r];
    if (lo < hi) {
      begin = min(begin, lo);
      end = max(end, hi);
    }
    if (first_row + r < q_length) {
      whole_begin = max(whole_begin, lo);
      whole_end = min(whole_end, hi);
    }
  }
  begin = __reduce_min_sync(0xffffffffu, begin) / kTileN;
  end = ceil_div(__reduce_max_sync(0xffffffffu, end), kTileN);
  whole_begin = __reduce_max_sync(0xffffffffu, whole_begin);
  whole_end = __reduce_min_sync(0xffffffffu, whole_end);

  const float scale = p.scale_operand ? *p.scale_operand : p.scale;
  const float to_log2 = Config::kInputIsLog2 ? 1.0f : kLog2E;
  const int row0 = warp * 16 + lane / 4;
  const int rows[2] = {first_row + row0, first_row + row0 + 8};
  const KeyInterval visible[2] = {{interval_lo[row0], interval_hi[row0]},
                                  {interval_lo[row0 + 8], interval_hi[row0 + 8]}};
  const attention::DropoutBits<Config::kDropout> dropout(p, batch, head);

  float out[kVGroups * 2][4] = {};
  float row_max[2] = {kMinusInfinity, kMinusInfinity}, row_sum[2] = {0, 0}, row_lost[2] = {0, 0};
  PlaneFragment<T> q_fragments[kQueryInRegisters ? kQkSlices : 1];

  const auto load_k = [&](int tile) {
    load_rows<KeyTile, Config::kQkDim, kThreads, Config::kAligned, T>(
        key, attention::stored_rows<T, Config::kPagedK>(p.k, p.pages_k, batch, head_k),
        tile * kTileN, kv_length);
    ptx::copy_async_commit();
  };
  const auto load_v = [&](int tile) {
    load_rows<ValueTile, Config::kVDim, kThreads, Config::kAligned, T>(
        value, attention::stored_rows<T, Config::kPagedV>(p.v, p.pages_v, batch, head_v),
        tile * kTileN, kv_length);
    ptx::copy_async_commit();
  };
  const auto next_tile = [&](int tile) {
    while (tile < end && !block_is_computed<Config>(p, batch, head, first_row, tile * kTileN))
      ++tile;
    return tile;
  };

  int tile = next_tile(begin);
  if (tile < end) {
    load_k(tile);
    ptx::copy_async_wait<1>();
    __syncthreads();
    if constexpr (kQueryInRegisters) {
#pragma unroll
      for (int k = 0; k < kQkSlices; ++k)
        load_row_fragment<T, QueryTile>(query, warp * 16, k, q_fragments[k]);
    }
  }
  while (tile < end) {
    ptx::copy_async_wait<0>();
    __syncthreads();
    load_v(tile);

    float scores[kTileN / 8][4] = {};
    multiply<T, kTileN / 8, kQkSlices, true>(
        scores,
        [&](int k, PlaneFragment<T>& a) {
          if constexpr (kQueryInRegisters) {
#pragma unroll
            for (int i = 0; i < 4; ++i) a[0][i] = q_fragments[k][0][i];
          } else {
            load_row_fragment<T, QueryTile>(query, warp * 16, k, a);
          }
        },
        [&](int n, int k, PlaneFragment<T>& b) {
          load_transposed_operand<T, KeyTile>(key, 16 * n, k, b);
        });
    __syncthreads();
    const int next = next_tile(tile + 1);
    if (next < end) load_k(next);

    // Hidden keys at -inf. Scores keep their units: a factor would round them once more, which the
    // backward does not repeat.
    const int first_key = tile * kTileN;
    const bool whole = first_key >= whole_begin && first_key + kTileN <= whole_end;
    const int column0 = first_key + 2 * (lane % 4);
#pragma unroll
    for (int n = 0; n < kTileN / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int half = i / 2, column = column0 + 8 * n + i % 2;
        float score = __fmul_rn(scores[n][i], scale);  // not to be fused: as in the backward
        // Rows past the sequence compute along with a whole tile, but nothing is read for them.
        const bool in_whole = whole && (Score::kIdentity || rows[half] < q_length);
        const bool seen = in_whole || (column >= visible[half].lo && column < visible[half].hi);
        if constexpr (!Score::kIdentity) {
          // A hidden cell's operands may not exist: it is not evaluated.
          score = seen ? Score::value(Cell{score, rows[half], column, batch, head, q_length,
                                           kv_length, p.loads})
                       : 0.0f;
        }
        scores[n][i] = seen ? score : kMinusInfinity;
      }
    }

    float rescale[2], shift[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float top = row_max[half];
#pragma unroll
      for (int n = 0; n < kTileN / 8; ++n)
        top = ptx::max(top, ptx::max(scores[n][2 * half], scores[n][2 * half + 1]));
      top = tile::quad_max(top);
      // A row that has seen nothing yet keeps its sums at zero instead of -inf - -inf.
      shift[half] = top == kMinusInfinity ? 0.0f : top;
      rescale[half] = ptx::exp2((row_max[half] - shift[half]) * to_log2);
      row_max[half] = top;
      row_sum[half] *= rescale[half];
      if constexpr (is_same<T, float>) row_lost[half] *= rescale[half];
    }
    float tile_sum[2] = {0, 0};
#pragma unroll
    for (int n = 0; n < kVGroups * 2; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) out[n][i] *= rescale[i / 2];
    }
    attention::Words4 words;  // of Philox, for 16 columns
#pragma unroll
    for (int n = 0; n < kTileN / 8; ++n) {
      if constexpr (Config::kDropout == Dropout::philox) {
        if (n % 2 == 0) words = dropout.words(rows[0], column0 + 8 * n);
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float& p0 = scores[n][2 * half];
        float& p1 = scores[n][2 * half + 1];
        p0 = ptx::exp2((p0 - shift[half]) * to_log2);
        p1 = ptx::exp2((p1 - shift[half]) * to_log2);
        (is_same<T, float> ? tile_sum : row_sum)[half] += p0 + p1;
        const int column = column0 + 8 * n;
        if constexpr (Config::kDropout == Dropout::mask) {
          p0 *= column >= visible[half].lo && column < visible[half].hi
                    ? attention::load<typename Config::MaskElement>(p.dropout_mask, batch, head,
                                                                    rows[half], column)
                    : 0.0f;
          p1 *= column + 1 >= visible[half].lo && column + 1 < visible[half].hi
                    ? attention::load<typename Config::MaskElement>(p.dropout_mask, batch, head,
                                                                    rows[half], column + 1)
                    : 0.0f;
        } else if constexpr (Config::kDropout == Dropout::philox) {
          const u32 kept =
              attention::kept_halves(p, dropout.low_halves(words.word[half + n % 2 * 2]));
          p0 = (kept & 0xffff) != 0 ? p0 : 0.0f;
          p1 = kept >> 16 != 0 ? p1 : 0.0f;
        } else if constexpr (Config::kDropout == Dropout::threefry) {
          p0 = dropout.keeps(rows[half], column) ? p0 : 0.0f;
          p1 = dropout.keeps(rows[half], column + 1) ? p1 : 0.0f;
        }
      }
    }

    if constexpr (is_same<T, float>) {
#pragma unroll
      for (int half = 0; half < 2; ++half)
        attention::add_exactly(row_sum[half], row_lost[half], tile_sum[half]);
    }

    if (next < end) {
      ptx::copy_async_wait<1>();
    } else {
      ptx::copy_async_wait<0>();
    }
    __syncthreads();
    multiply_sums<T, kVGroups * 2, kTileN / 8, ValueTile>(out, scores, value);
    tile = next;
  }
  ptx::copy_async_wait<0>();

  float normalise[2];
  bool has_output[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    // Rows past the sequence saw whole tiles with everybody else; they count for nothing.
    const bool valid = rows[half] < q_length;
    const float top = row_max[half];
    float sum = tile::quad_sum(row_sum[half]);
    if constexpr (is_same<T, float>) sum += tile::quad_sum(row_lost[half]);
    const attention::RowEnd end = attention::end_row<is_same<T, float>, Config::kInputIsLog2>(
        p, batch, head, rows[half], valid,
        lane % 4 == 0 && rows[half] < p.q_length && (valid || !o_is_ragged), top, sum);
    normalise[half] = end.factor;
    has_output[half] = end.has_output;
    if constexpr (Config::kDropout == Dropout::mask) {
      normalise[half] *= p.keep_scale_operand ? *p.keep_scale_operand : p.keep_scale;
    } else if constexpr (Config::kDropout != Dropout::none) {
      normalise[half] *= p.keep_scale;
    }
  }

  // Chosen, not multiplied by 0: a value that nobody sees may be NaN or infinite.
#pragma unroll
  for (int n = 0; n < kVGroups * 2; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) out[n][i] = has_output[i / 2] ? out[n][i] * normalise[i / 2] : 0.0f;
  }
  __syncthreads();
  store_rows<T, OutputTile, Config::kVDim, Config::kAligned>(
      query, warp * 16, out, 1.0f, attention::head_pointer<T>(p.o, batch, head), p.o.stride[2],
      first_row, o_is_ragged ? q_length : p.q_length);
}

}  // namespace heddle::sm80
