// How a block of the decode kernel meets keys whose heads are wide: all its warps together. No warp
// could hold the sums of 512 columns, and of 576 few keys fill shared memory, so a step's keys are
// in one place for all. Each warp takes some of the dot products, with all rows or a share of the
// columns; a row's softmax is its own few threads'; and of the sums each warp has some columns.
//
// Where values are the first columns of the keys themselves, at one address (a latent that queries
// see whole, as absorbed multi-head latent attention has it), they are read once, for both
// products: twice as many keys are on their way.
#pragma once

#include "../attention/online_softmax.cuh"
#include "decode_products.cuh"
#include "decode_share.cuh"

namespace heddle::sm80 {

/// Whether a row of values is the begin of the row of keys.
template <class Config>
HEDDLE_DEVICE bool values_lie_in_keys(const attention::ForwardParameters& p) {
  if constexpr (Config::kStagesOnce == 0) return false;
  // Of one batch entry, or one head, any stride will do.
  const bool one_batch = Config::kRowsK != attention::KeyRows::paged && p.batch == 1,
             one_head = p.k_heads == 1;
  const auto is_one = [&](const attention::Tensor& a, const attention::Tensor& b) {
    return a.data == b.data && (one_batch || a.stride[0] == b.stride[0]) &&
           (one_head || a.stride[1] == b.stride[1]) && a.stride[2] == b.stride[2] &&
           a.offsets == b.offsets && a.multiplier == b.multiplier;
  };
  return is_one(p.k, p.v) && is_one(p.pages_k.table, p.pages_v.table) &&
         p.pages_k.log_rows == p.pages_v.log_rows && p.pages_k.ring_rows == p.pages_v.ring_rows &&
         p.pages_k.blocks == p.pages_v.blocks;
}

template <class Config, class Score>
struct DecodeTogether {
  using T = typename Config::Element;
  static constexpr DecodeConfig kConfig = Config::kValues;
  static constexpr DecodeLayout kAt = decode_layout_of(kConfig);
  static constexpr int kThreads = kConfig.threads(), kWarps = Config::kWarps,
                       kRows = kConfig.rows(), kRowTiles = Config::kRowTiles, kKeys = Config::kKeys;
  using QueryTile = tile::PlaneTile<T, kRows, Config::kQkDim>;
  using KeyTile = tile::PlaneTile<T, kKeys, Config::kQkDim>;
  using ValueTile = tile::PlaneTile<T, kKeys, Config::kVDim>;
  using WeightTile = tile::SharedTile<kRows, kKeys>;
  using Sequence = DecodeSequence;
  static constexpr float kToLog2 = Config::kInputIsLog2 ? 1.0f : attention::kLog2E;

  // Dot products are 16 rows by 16 keys each. A warp takes those of 16 keys with every kApart-th
  // tile of rows, and of their columns all or one of kShares.
  static constexpr int kSlices = ceil_div(Config::kQkDim, 16), kPairs = kKeys / 16;
  static constexpr int kShares = kConfig.shares();
  static constexpr int kOwnTiles = kRowTiles * kPairs * kShares / kWarps;
  static constexpr int kApart = kRowTiles / kOwnTiles;
  static constexpr int kOwnSlices = ceil_div(kSlices, kShares);
  static_assert(kOwnTiles >= 1 && kPairs * kApart * kShares == kWarps &&
                kOwnTiles * kApart == kRowTiles);
  /// Q in registers, where one tile's share of it fits beside the sums.
  static constexpr bool kQueryInRegisters = kOwnTiles == 1 && kOwnSlices * 4 <= 80;
  static constexpr int kPitch = kConfig.score_columns();  ///< of a row of scores, in numbers

  /// A row's softmax is of so many threads, side by side, each with every kRowThreads-th four keys.
  /// Of few rows the last warps have none.
  static constexpr int kRowThreads = min_of(kThreads / kRows, kKeys / 4),
                       kFours = kKeys / 4 / kRowThreads;
  static_assert(kFours * kRowThreads * 4 == kKeys && kRows * kRowThreads % 32 == 0);

  /// Columns of O that a warp has: whole boxes. Of some dims the last warps have none.
  static constexpr int kOwnColumns =
      ceil_div(tile::boxes_of(Config::kVDim), kWarps) * tile::kBoxColumns;
  static constexpr int kOwnGroups = kOwnColumns / 8;

  const DecodeArguments& args;
  const attention::ForwardParameters& p;
  u8* shared;
  u32 base;  ///< of shared memory: the queries
  int group, lane, warp;
  float scale;
  bool once;  ///< values are read as keys

  HEDDLE_DEVICE DecodeTogether(const DecodeArguments& arguments, u8* memory, float scale, bool once)
      : args(arguments),
        p(arguments.problem),
        shared(memory),
        base(shared_address(memory)),
        group(arguments.rows.group),
        lane(threadIdx.x % 32),
        warp(threadIdx.x / 32),
        scale(scale),
        once(once) {}

  // What a warp takes.
  HEDDLE_DEVICE int own_pair() const { return warp % kPairs; }
  HEDDLE_DEVICE int own_tile(int i) const { return warp / kPairs % kApart + i * kApart; }
  HEDDLE_DEVICE int own_share() const { return warp / kPairs / kApart; }
  HEDDLE_DEVICE int own_column() const { return warp * kOwnColumns; }
  // Whose softmax a thread has a part of.
  HEDDLE_DEVICE int own_row() const { return threadIdx.x / kRowThreads; }

  HEDDLE_DEVICE u32 scores_of(int share) const {
    return base + kAt.scores + share * kRows * kPitch * 4;
  }
  HEDDLE_DEVICE u32 correction_of(int row) const { return base + kAt.corrections + 4 * row; }

  /// Brings rows of keys or values from `first` on, up to `end`, the warp's of the tile.
  template <class Tile, int kColumns, class Rows>
  HEDDLE_DEVICE void bring(u32 tile, const Rows& rows, int first, int end) const {
    constexpr int kOwn = kKeys / kWarps, kChunks = ceil_div(kColumns, 16) * 2;
    constexpr int kCount = ceil_div(kOwn * kChunks, 32);
    static_assert(kOwn * kWarps == kKeys && kOwn <= 32);
    // A lane looks one row's block up for all.
    const int own = warp * kOwn;
    const i32 block = rows.block_of(min_of(first + own + lane % kOwn, end - 1));
#pragma unroll 4
    for (int n = 0; n < kCount; ++n) {
      const int place = n * 32 + lane, row = place / kChunks, chunk = place % kChunks;
      const i32 of_row = __shfl_sync(0xffffffffu, block, row % kOwn);
      const bool exists = first + own + row < end && 8 * chunk < kColumns && rows.exists(of_row);
      const T* const from = rows.at(min_of(first + own + row, end - 1), of_row);
      if (kOwn * kChunks % 32 != 0 && row >= kOwn) continue;
      ptx::copy_async_16(tile + Tile::chunk_offset(own + row, chunk),
                         from + (exists ? 8 * chunk : 0), exists);
    }
  }

  using Queries = u32[kQueryInRegisters ? kOwnSlices : 1][4];

  HEDDLE_DEVICE void load_query(int tile, int k, u32 (&a)[4]) const {
    PlaneFragment<T> fragment;
    load_row_fragment<T, QueryTile>(base, 16 * tile, k, fragment);
#pragma unroll
    for (int i = 0; i < 4; ++i) a[i] = fragment[0][i];
  }

  /// Leaves the warp's dot products with the keys at `keys`.
  HEDDLE_DEVICE void multiply_keys(const Queries& queries, u32 keys) const {
    float dots[kOwnTiles][2][4] = {};
#pragma unroll
    for (int n = 0; n < kOwnSlices; ++n) {
      const int k = own_share() * kOwnSlices + n;
      if (kSlices % kShares != 0 && k >= kSlices) continue;
      PlaneFragment<T> b;
      load_transposed_operand<T, KeyTile>(keys, 16 * own_pair(), k, b);
#pragma unroll
      for (int i = 0; i < kOwnTiles; ++i) {
        u32 a[4];
        if constexpr (kQueryInRegisters) {
#pragma unroll
          for (int j = 0; j < 4; ++j) a[j] = queries[n][j];
        } else {
          load_query(own_tile(i), k, a);
        }
        ptx::mma_m16n8k16<T>(dots[i][0], a, b[0][0], b[0][1]);
        ptx::mma_m16n8k16<T>(dots[i][1], a, b[0][2], b[0][3]);
      }
    }
    const u32 to = scores_of(own_share()) +
                   4 * (lane / 4 * kPitch + 16 * own_pair() + tile::fragment_column(lane));
#pragma unroll
    for (int i = 0; i < kOwnTiles; ++i) {
#pragma unroll
      for (int n = 0; n < 2; ++n) {
#pragma unroll
        for (int half = 0; half < 2; ++half)
          ptx::store_shared(to + 4 * ((16 * own_tile(i) + 8 * half) * kPitch + 8 * n),
                            dots[i][n][2 * half], dots[i][n][2 * half + 1]);
      }
    }
  }

  /// The row that a thread has a part of.
  struct Row {
    int token, head;
    attention::KeyInterval visible;
    float reference, sum;  ///< of all keys so far; of the thread's
  };

  /// The largest, or the sum, over the threads of a row.
  template <class Join>
  HEDDLE_DEVICE static float over_row(float x, const Join& join) {
#pragma unroll
    for (int step = kRowThreads / 2; step > 0; step /= 2)
      x = join(x, __shfl_xor_sync(0xffffffffu, x, step));
    return x;
  }

  /// From dot products of the keys from `first` on to weights, which it leaves with what earlier
  /// sums are to be multiplied by.
  HEDDLE_DEVICE void weigh(Row& row, const Sequence& sequence, int first) const {
    if (own_row() >= kRows) return;
    float scores[kFours][4];
    float most = attention::minus_infinity();
#pragma unroll
    for (int n = 0; n < kFours; ++n) {
      const int column0 = 4 * (threadIdx.x % kRowThreads + n * kRowThreads);
      const u32 from = 4 * (own_row() * kPitch + column0);
      float(&x)[4] = scores[n];
      ptx::load_shared(scores_of(0) + from, x[0], x[1], x[2], x[3]);
#pragma unroll
      for (int share = 1; share < kShares; ++share) {
        float more[4];
        ptx::load_shared(scores_of(share) + from, more[0], more[1], more[2], more[3]);
#pragma unroll
        for (int i = 0; i < 4; ++i) x[i] += more[i];
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int column = first + column0 + i;
        const bool seen = column >= row.visible.lo && column < row.visible.hi;
        float score = __fmul_rn(x[i], scale);  // not to be fused: as in the backward
        if constexpr (!Score::kIdentity) {
          // A hidden cell's operands may not exist: it is not evaluated.
          score = seen
                      ? Score::value(Cell{score, row.token, column, sequence.batch, row.head,
                                          sequence.keys.q_length, sequence.keys.kv_length, p.loads})
                      : 0.0f;
        }
        x[i] = seen ? score : attention::minus_infinity();
        most = ptx::max(most, x[i]);
      }
    }
    most = over_row(most, [](float a, float b) { return ptx::max(a, b); });
    const float old = row.reference;
    row.reference = most > old ? most : old;
    const float offset = row.reference == attention::minus_infinity() ? 0.0f : row.reference;
    const float correction = ptx::exp2((old - offset) * kToLog2);
    row.sum *= correction;
    if (threadIdx.x % kRowThreads == 0) ptx::store_shared(correction_of(own_row()), correction);
#pragma unroll
    for (int n = 0; n < kFours; ++n) {
      const int four = threadIdx.x % kRowThreads + n * kRowThreads;
      float(&x)[4] = scores[n];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        x[i] = ptx::exp2((x[i] - offset) * kToLog2);
        row.sum += x[i];
      }
      ptx::store_shared(
          base + kAt.weights + WeightTile::chunk_offset(own_row(), four / 2) + 8 * (four % 2),
          __uint_as_float(ptx::pack<T>(x[0], x[1])), __uint_as_float(ptx::pack<T>(x[2], x[3])));
    }
  }

  using Out = float[kRowTiles][kOwnGroups][4];

  /// out = out * correction + weights * values, of the warp's columns.
  HEDDLE_DEVICE void multiply_values(Out& out, u32 values) const {
    if (own_column() >= Config::kVDim) return;
    float correction[kRowTiles][2];
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        correction[m][half] = ptx::load_shared_f32(correction_of(16 * m + lane / 4 + 8 * half));
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
      if (correction[m][0] == 1.0f && correction[m][1] == 1.0f) continue;
#pragma unroll
      for (int n = 0; n < kOwnGroups; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) out[m][n][i] *= correction[m][i / 2];
    }
    constexpr int kBoxes = kOwnColumns / tile::kBoxColumns;
    const u32 mine = values + warp * kBoxes * ValueTile::kBoxBytes;
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k) {
      PlaneFragment<T> weights[kRowTiles];
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m)
        ptx::load_matrix_x4(
            base + kAt.weights + WeightTile::chunk_offset(16 * m + lane % 16, 2 * k + lane / 16),
            weights[m][0]);
#pragma unroll
      for (int n = 0; n < kOwnGroups / 2; ++n) {
        // The last warp's columns may end before its boxes do.
        if (kWarps * kOwnColumns > Config::kVDim && own_column() + 16 * n >= Config::kVDim)
          continue;
        PlaneFragment<T> b;
        load_operand<T, ValueTile>(mine, 16 * k, 16 * n, b);
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
          ptx::mma_m16n8k16<T>(out[m][2 * n], weights[m][0], b[0][0], b[0][1]);
          ptx::mma_m16n8k16<T>(out[m][2 * n + 1], weights[m][0], b[0][2], b[0][3]);
        }
      }
    }
  }

  /// The block's part of a sequence: leaves the sums, and maxima and sums of the rows that there
  /// are, in shared memory; then a barrier.
  HEDDLE_DEVICE void meet(const Sequence& sequence, int rows_there) const {
    if constexpr (Config::kStagesOnce > 0)
      if (once) meet<true>(sequence, rows_there);
    if (!once) meet<false>(sequence, rows_there);
  }

  template <bool kOnce>
  HEDDLE_DEVICE void meet(const Sequence& sequence, int rows_there) const {
    constexpr int kStages = kOnce ? Config::kStagesOnce : Config::kStages;
    constexpr int kStageBytes = kOnce ? kAt.value_in_stage : kAt.stage_bytes;
    constexpr u32 kValueInStage = kOnce ? 0 : kAt.value_in_stage;
    const auto& keys = sequence.keys;
    const int first_head = sequence.head * group, first_row = sequence.row_block * kRows;
    const int row_end = group * keys.q_length;
    const auto key_rows =
        attention::stored_rows<T, Config::kRowsK>(p.k, p.pages_k, sequence.batch, sequence.head);
    const auto value_rows =
        attention::stored_rows<T, Config::kRowsV>(p.v, p.pages_v, sequence.batch, sequence.head);
    const int first = (keys.first_tile + sequence.first_tile) * kKeys;
    const int end = min_of(first + sequence.tiles * kKeys, keys.end);
    const int steps = ceil_div(max_of(end - first, 0), kKeys);
    const u32 stages = base + kAt.key;

    const auto bring_step = [&](int step) {
      if (step < steps) {
        const u32 stage = stages + step % kStages * kStageBytes;
        const int key = first + step * kKeys;
        bring<KeyTile, Config::kQkDim>(stage, key_rows, key, keys.kv_length);
        if constexpr (!kOnce)
          bring<ValueTile, Config::kVDim>(stage + kValueInStage, value_rows, key, keys.kv_length);
      }
      ptx::copy_async_commit();
    };
    load_rows<QueryTile, Config::kQkDim, kThreads, true, T>(
        base, GroupedRows<T>{p.q, sequence.batch, first_head, group}, first_row, row_end);
    // Steps ahead of the one that is met: its own stage is free once the next one begins.
    constexpr int kAhead = max_of(kStages - 1, 1);
#pragma unroll 1
    for (int step = 0; step < kAhead; ++step) bring_step(step);

    const int packed = first_row + own_row();
    Row row{packed / group, first_head + packed % group, {0, 0}, attention::minus_infinity(), 0};
    if (packed < row_end) row.visible = keys.visible(row.token);
    Out out;
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int n = 0; n < kOwnGroups; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) out[m][n][i] = 0;

    Queries queries;
    if constexpr (kQueryInRegisters) {
      ptx::copy_async_wait<kAhead - 1>();
      __syncthreads();
#pragma unroll
      for (int n = 0; n < kOwnSlices; ++n)
        load_query(own_tile(0), min_of(own_share() * kOwnSlices + n, kSlices - 1), queries[n]);
    }
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      ptx::copy_async_wait<kAhead - 1>();
      __syncthreads();
      if constexpr (kStages > 1) bring_step(step + kAhead);
      const u32 stage = stages + step % kStages * kStageBytes;
      multiply_keys(queries, stage);
      __syncthreads();
      weigh(row, sequence, first + step * kKeys);
      __syncthreads();
      multiply_values(out, stage + kValueInStage);
      if constexpr (kStages == 1) {
        __syncthreads();
        bring_step(step + kAhead);
      }
    }
    ptx::copy_async_wait<0>();
    __syncthreads();

    // Where queries and stages were.
    const float total = over_row(row.sum, [](float a, float b) { return a + b; });
    if (threadIdx.x % kRowThreads == 0 && own_row() < rows_there)
      reinterpret_cast<float2*>(shared + kAt.statistics)[own_row()] =
          make_float2(row.reference, total);
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int at = 16 * m + lane / 4 + 8 * half;
        if (at >= rows_there) continue;
#pragma unroll
        for (int n = 0; n < kOwnGroups; ++n) {
          const int column = own_column() + 8 * n + tile::fragment_column(lane);
          if (column < Config::kVDim)
            ptx::store_shared(base + kAt.sums + 4 * (at * kConfig.sum_columns() + column),
                              out[m][n][2 * half], out[m][n][2 * half + 1]);
        }
      }
    }
  }
};

}  // namespace heddle::sm80
