// Flash attention of few query rows against many keys: a step of a generation, a chunk of a prompt,
// a draft to be verified.
//
// What it costs is reading keys and values, once. The rows of all heads that share a head of keys
// lie side by side in one tile. The keys of all sequences are shared out evenly over the GPU
// (decode_share.cuh), and within a block over its warps: each brings its own keys and values by
// asynchronous copies, some steps ahead, and waits for nobody until it has met its last; of heads
// wider than a warp's sums all warps meet the same keys (decode_together.cuh). What warps
// and blocks found is put together by the maxima of the scores, always in the same order. Of a
// sequence met by several blocks the last ones, as many as it has columns for, wait at their ends
// for the others' parts: all blocks run at the same time, the launch is cooperative.
//
// The generated source gives Config, the fields of DecodeConfig (decode_config.h), and Score:
// kIdentity, and value(cell) -> f32, the score of one cell from its scaled dot; and, of wide heads,
// what meets their keys: DecodeTogether, or sm90's DecodeGroups.
#pragma once

#include "../attention/online_softmax.cuh"
#include "../attention/row_end.cuh"
#include "../ptx/global.cuh"
#include "decode_products.cuh"
#include "decode_scores.cuh"
#include "decode_share.cuh"
#include "decode_together.cuh"

namespace heddle::sm80 {

template <class Config, class Score, class Wide>
struct DecodeBlock {
  using T = typename Config::Element;
  static constexpr DecodeConfig kConfig = Config::kValues;
  static constexpr DecodeLayout kAt = decode_layout_of(kConfig);
  static constexpr int kThreads = kConfig.threads(), kRows = kConfig.rows();
  static constexpr int kRowTiles = Config::kRowTiles, kKeys = Config::kKeys;
  using Products = DecodeProducts<Config>;
  static constexpr int kQkSlices = Products::kQkSlices, kVGroups = Products::kVGroups;
  static constexpr bool kKeyCodes = Products::kKeyCodes, kValueCodes = Products::kValueCodes;
  using KeyTile = typename Products::KeyTile;
  using ValueTile = typename Products::ValueTile;
  using Softmax = attention::OnlineSoftmax<0, false, true>;
  using Share = DecodeShare<Config::kLengths>;
  using Sequence = typename Share::Sequence;
  static constexpr float kToLog2 = Config::kInputIsLog2 ? 1.0f : kLog2E;
  static constexpr int kColumnQuads = Config::kVDim / 4;
  /// Parts on their way together. 18: those of a sequence that shares an H200 with seven others; of
  /// wide heads, with a column for each thread several times, few are the rule.
  static constexpr int kPartsAtOnce = Config::kTogether ? 6 : 18;
  // A thread tells one block that puts a sequence together, a lane joins one warp's sums.
  static constexpr int kSums = kConfig.sums();
  static_assert(kConfig.readers() <= kThreads && kSums <= 32);

  const DecodeArguments& args;
  const attention::ForwardParameters& p;
  u8* shared;
  int group, lane, warp;
  float scale;
  Products products;
  u32 stages;

  HEDDLE_DEVICE DecodeBlock(const DecodeArguments& arguments, u8* memory)
      : args(arguments),
        p(arguments.problem),
        shared(memory),
        group(p.q_heads / p.k_heads),
        lane(threadIdx.x % 32),
        warp(threadIdx.x / 32),
        scale(p.scale_operand ? *p.scale_operand : p.scale),
        products{shared_address(memory), lane, warp},
        stages(products.query + kAt.key + warp * kAt.warp_bytes) {}

  /// A warp's sums over its keys.
  struct Sums {
    Softmax softmax[kRowTiles];
    typename Products::Out out;
  };

  /// Brings the rows of keys or values, of kBytes, from `first` on, up to `end`.
  template <class Tile, int kBytes, bool kCodes, class Rows>
  HEDDLE_DEVICE void bring(u32 tile, const Rows& rows, int first, int end) const {
    // Numbers fill whole slices of 16 columns.
    constexpr int kChunks = kCodes ? kBytes / 16 : ceil_div(kBytes, 32) * 2;
    constexpr int kCount = ceil_div(kKeys * kChunks, 32);
    static_assert(kKeys <= 32);
    // A lane looks one row's block up for all.
    const i32 block = rows.block_of(min_of(first + lane % kKeys, end - 1));
    // Unrolled further, what does not change from step to step would be kept, and wide heads have
    // no registers for that.
#pragma unroll 4
    for (int n = 0; n < kCount; ++n) {
      const int place = n * 32 + lane, row = place / kChunks, chunk = place % kChunks;
      const bool exists = first + row < end && 16 * chunk < kBytes;
      const auto* from = reinterpret_cast<const u8*>(
          rows.at(min_of(first + row, end - 1), __shfl_sync(0xffffffffu, block, row)));
      if (kKeys * kChunks % 32 != 0 && row >= kKeys) continue;
      ptx::copy_async_16(tile + Tile::chunk_offset(row, chunk), from + (exists ? 16 * chunk : 0),
                         exists);
    }
  }

  /// The warp's part of the block's tiles of a sequence.
  HEDDLE_DEVICE void meet(const Sequence& sequence, Sums& sums) const {
    const typename Share::Keys& keys = sequence.keys;
    const int first_head = sequence.head * group, first_row = sequence.row_block * kRows;
    const int row_end = group * keys.q_length;
    const auto key_rows = attention::stored_rows<typename Config::K, Config::kRowsK>(
        p.k, p.pages_k, sequence.batch, sequence.head);
    const auto value_rows = attention::stored_rows<typename Config::V, Config::kRowsV>(
        p.v, p.pages_v, sequence.batch, sequence.head);
    const int first = (keys.first_tile + sequence.first_tile) * kConfig.tile_keys() + warp * kKeys;
    const int end = min_of(first + sequence.tiles * kConfig.tile_keys(), keys.end);
    const int steps = ceil_div(max_of(end - first, 0), kConfig.tile_keys());

    const auto bring_step = [&](int step) {
      if (step < steps) {
        const u32 stage = stages + step % Config::kStages * kAt.stage_bytes;
        const int key = first + step * kConfig.tile_keys();
        bring<KeyTile, kConfig.key_bytes(), kKeyCodes>(stage, key_rows, key, keys.kv_length);
        bring<ValueTile, kConfig.value_bytes(), kValueCodes>(stage + kAt.value_in_stage, value_rows,
                                                             key, keys.kv_length);
      }
      ptx::copy_async_commit();
    };
    const GroupedRows<T> query_rows{p.q, sequence.batch, first_head, group};
    // Queries are small and arrive with the keys and values of the first step.
    if constexpr (!kKeyCodes)
      load_rows<typename Products::QueryTile, Config::kQkDim, kThreads, true, T>(
          products.query, query_rows, first_row, row_end);
#pragma unroll 1
    for (int step = 0; step < Config::kStages; ++step) bring_step(step);
    if constexpr (kKeyCodes)
      products.prepare_queries(query_rows, first_row, row_end, p.k_scales, sequence.head);

    int rows[kRowTiles][2];
    KeyInterval visible[kRowTiles][2];
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
      sums.softmax[m].reset();
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        rows[m][half] = first_row + 16 * m + lane / 4 + 8 * half;
        visible[m][half] = {0, 0};
        if (rows[m][half] < row_end) visible[m][half] = keys.visible(rows[m][half] / group);
      }
#pragma unroll
      for (int n = 0; n < kVGroups; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) sums.out[m][n][i] = 0;
    }

    ptx::copy_async_wait<Config::kStages - 1>();
    __syncthreads();
    typename Products::Queries queries;
    if constexpr (Products::kQueryInRegisters) {
#pragma unroll
      for (int k = 0; k < kRowTiles * kQkSlices; ++k)
        products.load_query(k / kQkSlices, k % kQkSlices, queries[k]);
    }
    float scales[kRowTiles][2];
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        scales[m][half] =
            kKeyCodes ? scale * products.row_factor(16 * m + lane / 4 + 8 * half) : scale;

#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      ptx::copy_async_wait<Config::kStages - 1>();
      __syncwarp();
      const u32 stage = stages + step % Config::kStages * kAt.stage_bytes;
      typename Products::Dots dots = {};
      products.multiply_keys(dots, queries, stage);
      typename Products::Weights weights;
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        float correction[2];
        float(&scores)[kKeys / 2] = flat(dots[m]);
        score_cells<Score>(scores, scales[m], visible[m], rows[m], sequence, group, p.loads,
                           first + step * kConfig.tile_keys());
        sums.softmax[m].update(scores, kToLog2, correction);
        if (correction[0] != 1.0f || correction[1] != 1.0f) {
#pragma unroll
          for (int n = 0; n < kVGroups; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) sums.out[m][n][i] *= correction[i / 2];
        }
        Products::pack_weights(weights[m], scores);
      }
      products.multiply_values(sums.out, weights, stage + kAt.value_in_stage);
      // Every lane has read the stage that the next copies go to.
      __syncwarp();
      bring_step(step + Config::kStages);
    }
    ptx::copy_async_wait<0>();
    __syncwarp();
  }

  /// A maximum and a sum for each row: a warp's, and those of all that is put together.
  HEDDLE_DEVICE float2* statistics_of(int of_warp) const {
    return reinterpret_cast<float2*>(shared + kAt.statistics) + of_warp * kRows;
  }
  HEDDLE_DEVICE float2* row_statistics() const {
    return reinterpret_cast<float2*>(shared + kAt.rows);
  }
  HEDDLE_DEVICE const float* sums_of(int of_warp) const {
    return reinterpret_cast<const float*>(shared + kAt.sums + of_warp * kAt.warp_bytes);
  }

  /// Leaves the warp's sums of the rows that there are where its stages were.
  HEDDLE_DEVICE void leave(const Sums& sums, int rows_there) const {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = 16 * m + lane / 4 + 8 * half;
        const float total = sums.softmax[m].total(half);
        if (row >= rows_there) continue;
        if (lane % 4 == 0)
          statistics_of(warp)[row] = make_float2(sums.softmax[m].reference[half], total);
#pragma unroll
        for (int n = 0; n < kVGroups; ++n) {
          const u32 to = stages + 4 * row * kConfig.sum_columns();
          const float first = sums.out[m][n][2 * half], second = sums.out[m][n][2 * half + 1];
          if constexpr (kValueCodes) {
            const int column = tile::fragment_column(lane) * kVGroups + n;
            ptx::store_shared(to + 4 * column, first);
            ptx::store_shared(to + 4 * (column + kVGroups), second);
          } else {
            ptx::store_shared(to + 4 * (8 * n + tile::fragment_column(lane)), first, second);
          }
        }
      }
    }
  }

  /// Four columns of a row of sums.
  struct Columns {
    float4 x = make_float4(0, 0, 0, 0);

    HEDDLE_DEVICE void scale(float factor) {
      x.x *= factor;
      x.y *= factor;
      x.z *= factor;
      x.w *= factor;
    }
    HEDDLE_DEVICE void add(float weight, const float4& other) {
      x.x = ptx::fma(weight, other.x, x.x);
      x.y = ptx::fma(weight, other.y, x.y);
      x.z = ptx::fma(weight, other.z, x.z);
      x.w = ptx::fma(weight, other.w, x.w);
    }
  };

  /// What sums taken against `top` are multiplied by, against `joint`.
  HEDDLE_DEVICE static float weight_of(float top, float joint) {
    return ptx::exp2((top - (joint == attention::minus_infinity() ? 0.0f : joint)) * kToLog2);
  }

  /// Puts the rows' maxima and sums of the warps together, and has each warp's weight in place of
  /// its maximum. A warp a row; then a barrier.
  HEDDLE_DEVICE void join_warps(int rows) const {
    for (int row = warp; row < rows; row += Config::kWarps) {
      const bool is_part = lane < kSums;
      const float2 part =
          is_part ? statistics_of(lane)[row] : make_float2(attention::minus_infinity(), 0.0f);
      float top = part.x;
      for (int step = 16; step > 0; step /= 2)
        top = ptx::max(top, __shfl_xor_sync(0xffffffffu, top, step));
      const float weight = weight_of(part.x, top);
      float sum = weight * part.y;
      for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
      if (is_part) statistics_of(lane)[row].x = weight;
      if (lane == 0) row_statistics()[row] = make_float2(top, sum);
    }
    __syncthreads();
  }
  HEDDLE_DEVICE Columns of_warps(int row, int column) const {
    Columns all;
#pragma unroll
    for (int n = 0; n < kSums; ++n)
      all.add(statistics_of(n)[row].x,
              *reinterpret_cast<const float4*>(sums_of(n) + row * kConfig.sum_columns() + column));
    return all;
  }

  /// Does do_one(row, column) for each four columns of the rows that there are.
  template <class DoOne>
  HEDDLE_DEVICE void for_columns(int rows, const DoOne& do_one) const {
    for (int n = threadIdx.x; n < rows * kColumnQuads; n += kThreads)
      do_one(n / kColumnQuads, 4 * (n % kColumnQuads));
  }

  HEDDLE_DEVICE void write(const Sequence& sequence, int row, int column, const Columns& sums,
                           float2 statistics) const {
    const int packed = sequence.row_block * kRows + row, token = packed / group,
              head = sequence.head * group + packed % group;
    const bool valid = token < sequence.keys.q_length;
    const attention::RowEnd end = attention::end_row<false, Config::kInputIsLog2>(
        p, sequence.batch, head, token, valid, column == 0, statistics.x, statistics.y);
    if (!valid && p.o.offsets != nullptr) return;
    // Chosen, not multiplied by 0: a value that nobody sees may be NaN or infinite.
    const auto ended = [&](float x, int n) {
      return end.has_output ? x * end.factor * value_scale(sequence.head, column + n) : 0.0f;
    };
    using Result = typename Config::Result;
    auto* to = attention::element_pointer<Result>(p.o, sequence.batch, head, token, column);
    if constexpr (is_same<Result, float>)
      *reinterpret_cast<float4*>(to) = make_float4(ended(sums.x.x, 0), ended(sums.x.y, 1),
                                                   ended(sums.x.z, 2), ended(sums.x.w, 3));
    else
      *reinterpret_cast<uint2*>(to) =
          make_uint2(ptx::pack<T>(ended(sums.x.x, 0), ended(sums.x.y, 1)),
                     ptx::pack<T>(ended(sums.x.z, 2), ended(sums.x.w, 3)));
  }
  /// What a sum of values is multiplied by.
  HEDDLE_DEVICE float value_scale(int head, int column) const {
    if constexpr (!kValueCodes) return 1.0f;
    return p.v_scales.data[head * p.v_scales.stride[0] + column * p.v_scales.stride[1]] /
           Products::kWeightScale;
  }

  /// Of the parts in the workspace that of a block: it shares two sequences at most, one that
  /// another began and one that it began itself.
  HEDDLE_DEVICE int part_of(const Sequence& sequence, int block) const {
    return 2 * block + (block == sequence.first_block);
  }
  HEDDLE_DEVICE i64 part_row(const Sequence& sequence, int block, int row) const {
    return i64{part_of(sequence, block)} * kRows + row;
  }
  /// By which a block tells reader number `reader` of the sequence that its part is there.
  HEDDLE_DEVICE u64* flag(const Sequence& sequence, int block, int reader) const {
    return args.parts.flags + (part_of(sequence, block) * kConfig.readers() + reader) * kFlagStride;
  }

  HEDDLE_DEVICE static int parts_of(const Sequence& sequence) {
    return sequence.last_block - sequence.first_block + 1;
  }
  /// Lanes that share the parts of four columns. Of many parts of wide heads, where fewer rows are
  /// there than flags were made for, as many as there are readers for.
  HEDDLE_DEVICE static int lanes_of(const Sequence& sequence, int rows) {
    if (!Config::kTogether || parts_of(sequence) <= kPartsAtOnce) return 1;
    return kRows >= 8 * rows ? 8 : kRows >= 4 * rows ? 4 : kRows >= 2 * rows ? 2 : 1;
  }
  /// The first of the blocks that put the sequence together, of which the last one is the last.
  HEDDLE_DEVICE int first_reader(const Sequence& sequence, int rows) const {
    const int threads = rows * kColumnQuads * lanes_of(sequence, rows);
    return max_of(sequence.first_block, sequence.last_block + 1 - ceil_div(threads, kThreads));
  }

  /// Leaves the block's part of the sequence to those that put it together.
  HEDDLE_DEVICE void leave_part(const Sequence& sequence, int rows) const {
    for_columns(rows, [&](int row, int column) {
      const i64 at = part_row(sequence, blockIdx.x, row);
      *reinterpret_cast<float4*>(args.parts.sums + at * Config::kVDim + column) =
          of_warps(row, column).x;
      if (column == 0) reinterpret_cast<float2*>(args.parts.statistics)[at] = row_statistics()[row];
    });
    __syncthreads();
    const int reader = threadIdx.x, first = first_reader(sequence, rows);
    if (reader <= sequence.last_block - first)
      ptx::store_release(flag(sequence, blockIdx.x, reader), args.parts.claim);
  }
  /// Waits for all parts of the sequence. The next launch finds the flags down.
  HEDDLE_DEVICE void wait_for_parts(const Sequence& sequence, int rows) const {
    const int reader = blockIdx.x - first_reader(sequence, rows);
    for (int writer = sequence.first_block + threadIdx.x; writer <= sequence.last_block;
         writer += kThreads) {
      const u64 claim = args.parts.claim;
      while (ptx::exchange_if_acquire(flag(sequence, writer, reader), claim, 0) != claim) {
      }
    }
    __syncthreads();
  }

  /// Parts of four columns, put together.
  struct Joint {
    Columns columns;
    float top = attention::minus_infinity(), sum = 0;

    HEDDLE_DEVICE void raise(float most) {
      const float before = weight_of(top, most);
      sum *= before;
      columns.scale(before);
      top = most;
    }
    /// What was taken against a top no larger than this one's.
    HEDDLE_DEVICE void add(float2 statistics, const float4& sums) {
      const float weight = weight_of(statistics.x, top);
      sum = ptx::fma(weight, statistics.y, sum);
      columns.add(weight, sums);
    }
    /// That of the lane `apart` away, too.
    HEDDLE_DEVICE void join(int apart, unsigned lanes) {
      const auto other = [&](float x) { return __shfl_xor_sync(lanes, x, apart); };
      const float2 statistics = make_float2(other(top), other(sum));
      const float4 x = columns.x,
                   sums = make_float4(other(x.x), other(x.y), other(x.z), other(x.w));
      raise(ptx::max(top, statistics.x));
      add(statistics, sums);
    }
  };

  /// Every `step`th part of four columns, from `first` on.
  HEDDLE_DEVICE Joint join_parts(const Sequence& sequence, int row, int column, int first,
                                 int step) const {
    const int parts = parts_of(sequence);
    Joint joint;
#pragma unroll 1
    for (; first < parts; first += kPartsAtOnce * step) {
      float2 statistics[kPartsAtOnce];
      float4 sums[kPartsAtOnce];
      float most = joint.top;
#pragma unroll
      for (int n = 0; n < kPartsAtOnce; ++n) {
        statistics[n] = make_float2(attention::minus_infinity(), 0.0f);
        sums[n] = make_float4(0, 0, 0, 0);
        if (first + n * step >= parts) continue;
        const i64 at = part_row(sequence, sequence.first_block + first + n * step, row);
        statistics[n] = __ldcg(reinterpret_cast<const float2*>(args.parts.statistics) + at);
        sums[n] =
            __ldcg(reinterpret_cast<const float4*>(args.parts.sums + at * Config::kVDim + column));
      }
#pragma unroll
      for (int n = 0; n < kPartsAtOnce; ++n) most = ptx::max(most, statistics[n].x);
      joint.raise(most);
#pragma unroll
      for (int n = 0; n < kPartsAtOnce; ++n) joint.add(statistics[n], sums[n]);
    }
    return joint;
  }

  /// Writes the block's share of the columns of a sequence whose parts are all there.
  HEDDLE_DEVICE void write_joint(const Sequence& sequence, int rows) const {
    const int first = first_reader(sequence, rows), lanes = lanes_of(sequence, rows);
    const int all = rows * kColumnQuads * lanes, shares = sequence.last_block + 1 - first,
              share = blockIdx.x - first;
    // Lanes that share parts have whole turns.
    const int each = round_up(ceil_div(all, shares), lanes);
    for (int n = share * each + threadIdx.x; n < min_of(all, (share + 1) * each); n += kThreads) {
      const int quad = n / lanes, row = quad / kColumnQuads, column = 4 * (quad % kColumnQuads);
      Joint joint = join_parts(sequence, row, column, n % lanes, lanes);
      const unsigned together = ((1u << lanes) - 1) << (lane & ~(lanes - 1));
      for (int apart = 1; apart < lanes; apart *= 2) joint.join(apart, together);
      if (n % lanes == 0)
        write(sequence, row, column, joint.columns, make_float2(joint.top, joint.sum));
    }
  }

  HEDDLE_DEVICE int rows_of(const Sequence& sequence) const {
    return min_of(kRows, group * p.q_length - sequence.row_block * kRows);
  }

  HEDDLE_DEVICE void run(int row_blocks) {
    if constexpr (Config::kTogether) {
      Wide wide(args, shared, scale, values_lie_in_keys<Config>(p));
      run(row_blocks, [&](const Sequence& sequence, int rows) { wide.meet(sequence, rows); });
    } else {
      run(row_blocks, [&](const Sequence& sequence, int rows) {
        Sums sums;
        meet(sequence, sums);
        leave(sums, rows);
      });
    }
  }

  /// `meet_keys` leaves the block's sums of a sequence's rows in shared memory.
  template <class MeetKeys>
  HEDDLE_DEVICE void run(int row_blocks, const MeetKeys& meet_keys) {
    Share share(p, kConfig.tile_keys(), row_blocks);
    // Registers are the main loop's.
    static_assert(sizeof(Sequence) <= kSequenceBytes);
    auto* const in_parts = reinterpret_cast<Sequence*>(shared + kAt.in_parts);
    int count = 0;
    while (share.valid()) {
      const Sequence sequence = share.take();
      const int rows = rows_of(sequence);
      meet_keys(sequence, rows);
      __syncthreads();
      join_warps(rows);
      if (sequence.is_whole()) {
        for_columns(rows, [&](int row, int column) {
          write(sequence, row, column, of_warps(row, column), row_statistics()[row]);
        });
      } else {
        leave_part(sequence, rows);
        if (blockIdx.x >= first_reader(sequence, rows)) {
          if (threadIdx.x == 0) in_parts[count] = sequence;
          ++count;
        }
      }
      __syncthreads();
    }
    for (int n = 0; n < count; ++n) {
      const Sequence sequence = in_parts[n];
      const int rows = rows_of(sequence);
      wait_for_parts(sequence, rows);
      write_joint(sequence, rows);
    }
  }
};

template <class Config, class Score, class Wide>
HEDDLE_DEVICE void attention_decode(const DecodeArguments& args) {
  extern __shared__ __align__(1024) u8 shared[];
  using Block = DecodeBlock<Config, Score, Wide>;
  const attention::ForwardParameters& p = args.problem;
  Block(args, shared).run(ceil_div(p.q_heads / p.k_heads * p.q_length, Block::kRows));
}

}  // namespace heddle::sm80
