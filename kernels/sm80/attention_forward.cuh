// Flash attention forward with warp-level matrix products: every feature of an attention problem,
// on every architecture from sm_80 on.
//
//   S = score(scale * Q K^T) where a key is seen, else -inf
//   O = drop(exp(S - max)) V / sum(exp(S - max))
//
// A block owns 16 * kWarps query rows of one head, a warp 16 of them, so softmax never leaves a
// warp. Of wide values, whose sums no warp can hold, kParts warps have the same 16 rows and some
// columns of O each: they share the dot products, each of some keys, and all else is the same in
// all of them. Keys and values pass through shared memory a tile at a time by asynchronous copies:
// V of a tile arrives under Q K^T, K of the next under the softmax.
//
// The generated source gives Config, the fields of GeneralConfig (general_config.h), and Score:
// kIdentity, and value(cell) -> f32, the score of one cell from its scaled dot.
#pragma once

#include "../attention/online_softmax.cuh"
#include "../attention/row_end.cuh"
#include "forward_dropout.cuh"
#include "general_config.h"
#include "scores.cuh"
#include "seen_keys.cuh"
#include "shared_cells.cuh"

namespace heddle::sm80 {

using attention::ForwardParameters;

template <class Config, class Score>
struct AttentionForward {
  using T = typename Config::Element;
  static constexpr bool kExact = is_same<T, float>;
  static constexpr int kThreads = Config::kValues.threads(), kParts = Config::kParts;
  static constexpr int kTileM = 16 * Config::kWarps, kTileN = Config::kTileN;
  static constexpr int kQkSlices = ceil_div(Config::kQkDim, 16);
  /// Columns of O that a warp has, and groups of 8 of them.
  static constexpr int kPartColumns = Config::kValues.part_columns(Config::kVDim);
  static constexpr int kVGroups = 2 * ceil_div(kPartColumns, 16);
  static constexpr int kVColumns = Config::kValues.columns_of_parts(Config::kVDim);
  static constexpr bool kInTurns = Config::kInTurns;
  /// Keys whose dot products a warp computes for those that share its rows.
  static constexpr bool kSharesScores = Config::kValues.shares_scores();
  static constexpr int kOwnKeys = kSharesScores ? kTileN / kParts : kTileN;
  static_assert(kOwnKeys * (kSharesScores ? kParts : 1) == kTileN && kOwnKeys % 16 == 0);
  using QueryTile = tile::PlaneTile<T, kTileM, Config::kQkDim>;
  using OutputTile = tile::PlaneTile<T, kTileM, kVColumns>;
  using KeyTile = tile::PlaneTile<T, kTileN, Config::kQkDim>;
  using ValueTile = tile::PlaneTile<T, kTileN, kVColumns>;
  static constexpr ForwardLayout kAt = forward_layout_of(Config::kValues);
  // Up to 128 columns Q's fragments fit in registers beside the sums; beyond they are read again,
  // and so are planes, which take their own sums there.
  static constexpr bool kQueryInRegisters = Config::kQkDim <= 128 && QueryTile::kPlanes == 1;
  static constexpr float kToLog2 = Config::kInputIsLog2 ? 1.0f : kLog2E;
  using Softmax = attention::OnlineSoftmax<0, kExact, true>;
  using Scores = float[kTileN / 8][4];
  using Output = float[kVGroups][4];
  using Queries = PlaneFragment<T>[kQueryInRegisters ? kQkSlices : 1];
  using Seen = SeenKeys<kTileM, kTileN>;

  const ForwardParameters& p;
  const u32 query, key, value;  ///< tiles in shared memory
  const int head, batch, head_k, head_v, q_length, kv_length;
  const int first_row, warp, part, lane;  ///< warp: counted in 16 rows
  const int rows[2];                      ///< the thread's, of the sequence
  const float scale;

  HEDDLE_DEVICE AttentionForward(const ForwardParameters& parameters, u32 shared)
      : p(parameters),
        query(shared),
        key(shared + kAt.key),
        value(shared + kAt.value),
        head(blockIdx.y),
        batch(blockIdx.z + p.first_batch),
        head_k(head / (p.q_heads / p.k_heads)),
        head_v(head / (p.q_heads / p.v_heads)),
        q_length(attention::length_of(p.q_lengths, batch)),
        kv_length(attention::length_of(p.kv_lengths, batch)),
        // The last tiles see most keys under a causal mask: start them first.
        first_row((gridDim.x - 1 - blockIdx.x) * kTileM),
        warp(threadIdx.x / 32 / kParts),
        part(threadIdx.x / 32 % kParts),
        lane(threadIdx.x % 32),
        rows{first_row + warp * 16 + lane / 4, first_row + warp * 16 + lane / 4 + 8},
        scale(p.scale_operand ? *p.scale_operand : p.scale) {}

  // Each a group of asynchronous copies.

  HEDDLE_DEVICE void load_queries() const {
    load_rows<QueryTile, Config::kQkDim, kThreads, Config::kAligned, T>(
        query, DenseRows<T>(p.q, batch, head), first_row, q_length);
    ptx::copy_async_commit();
  }
  HEDDLE_DEVICE void load_keys(int tile) const {
    load_rows<KeyTile, Config::kQkDim, kThreads, Config::kAligned, T>(
        key, attention::stored_rows<T, Config::kRowsK>(p.k, p.pages_k, batch, head_k),
        tile * kTileN, kv_length);
    ptx::copy_async_commit();
  }
  HEDDLE_DEVICE void load_values(int tile) const {
    load_rows<ValueTile, Config::kVDim, kThreads, Config::kAligned, T>(
        value, attention::stored_rows<T, Config::kRowsV>(p.v, p.pages_v, batch, head_v),
        tile * kTileN, kv_length);
    ptx::copy_async_commit();
  }

  /// The first tile from `tile` on that is computed, or `end`.
  HEDDLE_DEVICE int computed_from(int tile, int end) const {
    while (tile < end && !block_is_computed<Config>(p, batch, head, first_row, tile * kTileN))
      ++tile;
    return tile;
  }

  HEDDLE_DEVICE void fetch(Queries& queries) const {
    if constexpr (kQueryInRegisters) {
#pragma unroll
      for (int k = 0; k < kQkSlices; ++k)
        load_row_fragment<T, QueryTile>(query, warp * 16, k, queries[k]);
    }
  }

  /// s = Q K^T of the tile at `keys`.
  template <int kGroups>
  HEDDLE_DEVICE void multiply_keys(float (&s)[kGroups][4], const Queries& queries, u32 keys) const {
    const auto load_q = [&](int k, PlaneFragment<T>& a) {
      if constexpr (kQueryInRegisters) {
#pragma unroll
        for (int i = 0; i < 4; ++i) a[0][i] = queries[k][0][i];
      } else {
        load_row_fragment<T, QueryTile>(query, warp * 16, k, a);
      }
    };
    multiply<T, kGroups, kQkSlices, true>(s, load_q, [&](int n, int k, PlaneFragment<T>& b) {
      load_transposed_operand<T, KeyTile>(keys, 16 * n, k, b);
    });
  }

  HEDDLE_DEVICE SharedCells<kTileN / 8> shared_scores() const { return {query + kAt.scores, warp}; }
  /// s = Q K^T, or the warp's share of it, which it leaves to the others; then a barrier.
  HEDDLE_DEVICE void begin_scores(Scores& s, const Queries& queries) const {
    if constexpr (kSharesScores) {
      float own[kOwnKeys / 8][4] = {};
      multiply_keys(own, queries, key + part * kOwnKeys * tile::kLineBytes);
#pragma unroll
      for (int n = 0; n < kOwnKeys / 8; ++n)
        shared_scores().leave(part * (kOwnKeys / 8) + n, own[n]);
    } else {
      multiply_keys(s, queries, key);
    }
  }
  HEDDLE_DEVICE void finish_scores(Scores& s) const {
    if constexpr (kSharesScores) {
#pragma unroll
      for (int n = 0; n < kTileN / 8; ++n) shared_scores().take(n, s[n]);
    }
  }

  /// Dot products to scores; hidden ones are -inf. Scores keep their units: a factor would round
  /// them once more, which the backward does not repeat.
  HEDDLE_DEVICE void score(Scores& s, int first_key, const Seen& seen) const {
    const bool whole = seen.whole(first_key);
    const int column0 = first_key + tile::fragment_column(lane);
#pragma unroll
    for (int n = 0; n < kTileN / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& score = s[n][i];
        score = __fmul_rn(score, scale);  // not to be fused: as in the backward
        if constexpr (!Score::kIdentity) {
          const int row = rows[i / 2], column = column0 + 8 * n + i % 2;
          // A hidden cell's operands may not exist: it is not evaluated. Nor is one of rows past
          // the sequence, which compute along with a whole tile.
          if ((whole && row < q_length) || seen.sees(i / 2, column))
            score =
                Score::value(Cell{score, row, column, batch, head, q_length, kv_length, p.loads});
          else
            score = kMinusInfinity;
        }
      }
    }
    if (Score::kIdentity && !whole) {
      const int lo[2] = {seen.rows[0].lo - column0, seen.rows[1].lo - column0};
      const int hi[2] = {seen.rows[0].hi - column0, seen.rows[1].hi - column0};
      attention::mask_scores(flat(s), lo, hi, true);
    }
  }

  /// Divides by the rows' sums, and writes them and their statistics.
  HEDDLE_DEVICE void write(Output& out, const Softmax& softmax) const {
    float factor[2];
    bool has_output[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      // Rows past the sequence saw whole tiles with everybody else; they count for nothing.
      const bool valid = rows[half] < q_length;
      const bool writes = lane % 4 == 0 && part == 0 && rows[half] < p.q_length;
      const attention::RowEnd end = attention::end_row<kExact, Config::kInputIsLog2>(
          p, batch, head, rows[half], valid, writes,
          {softmax.reference[half], softmax.total(half)});
      factor[half] = end.factor * kept_weight_factor<Config::kDropout>(p);
      has_output[half] = end.has_output;
    }
    // Chosen, not multiplied by 0: a value that nobody sees may be NaN or infinite.
#pragma unroll
    for (int n = 0; n < kVGroups; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) out[n][i] = has_output[i / 2] ? out[n][i] * factor[i / 2] : 0.0f;
    }
    __syncthreads();
    using Result = typename Config::Result;
    store_rows<Result, OutputTile, Config::kVDim, Config::kAligned>(
        query, warp * 16, out, 1.0f, attention::head_pointer<Result>(p.o, batch, head),
        p.o.stride[2], first_row, p.o.offsets ? q_length : p.q_length, part * kPartColumns);
  }

  HEDDLE_DEVICE void run(int* interval_lo) const {
    if (first_row >= q_length && attention::leaves_rows_beyond(p)) return;
    load_queries();
    const Seen seen(p, interval_lo, first_row, warp, q_length, kv_length);
    const ForwardDropout<Config, kTileN> dropout(p, batch, head);
    Softmax softmax;
    softmax.reset();
    Output out = {};
    Queries queries;

    int tile = computed_from(seen.begin, seen.end);
    if (tile < seen.end) {
      load_keys(tile);
      ptx::copy_async_wait<1>();
      __syncthreads();
      fetch(queries);
    }
    while (tile < seen.end) {
      ptx::copy_async_wait<0>();
      __syncthreads();
      if constexpr (!kInTurns) load_values(tile);
      Scores s = {};
      begin_scores(s, queries);
      __syncthreads();
      finish_scores(s);
      const int next = computed_from(tile + 1, seen.end);
      if constexpr (kInTurns)
        load_values(tile);
      else if (next < seen.end)
        load_keys(next);

      score(s, tile * kTileN, seen);
      float correction[2];
      softmax.update(flat(s), kToLog2, correction);
      attention::scale_rows(flat(out), correction);
      if constexpr (Config::kDropout != Dropout::none)
        dropout.drop(s, rows, tile * kTileN + 2 * (lane % 4), seen);

      if (!kInTurns && next < seen.end)
        ptx::copy_async_wait<1>();
      else
        ptx::copy_async_wait<0>();
      __syncthreads();
      multiply_sums<T, kVGroups, kTileN / 8, ValueTile>(
          out, s, value + part * (kPartColumns / tile::kBoxColumns) * ValueTile::kBoxBytes);
      if constexpr (kInTurns) {
        __syncthreads();
        if (next < seen.end) load_keys(next);
      }
      tile = next;
    }
    ptx::copy_async_wait<0>();
    write(out, softmax);
  }
};

template <class Config, class Score>
HEDDLE_DEVICE void attention_forward(const ForwardParameters& p) {
  extern __shared__ __align__(1024) u8 shared[];
  using Forward = AttentionForward<Config, Score>;
  Forward(p, shared_address(shared)).run(reinterpret_cast<int*>(shared + Forward::kAt.intervals));
}

}  // namespace heddle::sm80
