// Flash attention of few query rows against many keys: a step of a generation, a chunk of a prompt,
// a draft to be verified.
//
// What it costs is reading keys and values, once. The rows of all heads that share a head of keys
// lie side by side in one tile. The keys of all sequences are shared out over the GPU
// (decode_share.cuh), and within a block over its warps: each brings its own keys and values
// (decode_stream.cuh) and waits for nobody until it has met a sequence's last; of heads wider than
// a warp's sums all warps meet the same keys (decode_together.cuh). What warps and blocks found is
// put together by the maxima of the scores, always in the same order. Of a sequence met by several
// blocks the last ones, as many as it has columns for, put it together once the others' parts are
// there, at their ends at the latest, where they wait: all blocks run at the same time, the launch
// is cooperative.
//
// The generated source gives Config, the fields of DecodeConfig (decode_config.h), and Score:
// kIdentity, and value(cell) -> f32, the score of one cell from its scaled dot; and, of wide heads,
// what meets their keys: DecodeTogether, or sm90's DecodeGroups.
#pragma once

#include "../attention/online_softmax.cuh"
#include "../attention/row_end.cuh"
#include "../ptx/cluster.cuh"
#include "../ptx/global.cuh"
#include "decode_products.cuh"
#include "decode_scores.cuh"
#include "decode_share.cuh"
#include "decode_stream.cuh"
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
  static constexpr int kSumGroups = Products::kSumGroups;
  static constexpr bool kValueCodes = Products::kValueCodes;
  using Cells = DecodeCells<kConfig.turned>;
  using Softmax =
      attention::OnlineSoftmax<0, false, true, Products::kWeightBits, typename Cells::Lanes>;
  using Share = DecodeShare<Config::kLengths, !Config::kTogether, Config::kTwins>;
  using Sequence = typename Share::Sequence;
  static constexpr float kToLog2 = Config::kInputIsLog2 ? 1.0f : kLog2E;
  static constexpr int kColumnQuads = Config::kVDim / 4;
  /// Of wide heads: of a row, what a warp puts together with a quad in each lane.
  static constexpr int kUnits = ceil_div(kColumnQuads, 32);
  /// Parts on their way together: those of a sequence that shares an H200 with seven others.
  static constexpr int kPartsAtOnce = 18;
  // A thread tells one block that puts a sequence together, a lane joins one warp's sums.
  static constexpr int kSums = kConfig.sums();
  static_assert(kConfig.readers() <= kThreads && kSums <= 32);

  const DecodeArguments& args;
  const attention::ForwardParameters& p;
  u8* shared;
  int group, lane, warp;
  float scale;

  HEDDLE_DEVICE DecodeBlock(const DecodeArguments& arguments, u8* memory)
      : args(arguments),
        p(arguments.problem),
        shared(memory),
        group(args.rows.group),
        lane(threadIdx.x % 32),
        warp(threadIdx.x / 32),
        scale(p.scale_operand ? *p.scale_operand : p.scale) {}

  /// A warp's sums over its keys.
  struct Sums {
    Softmax softmax[kRowTiles];
    typename Products::Out out;
  };

  /// The warp's part of the block's tiles of a sequence. `apart`: its sums do not go where stages
  /// are, and the next sequence may begin before this one has ended.
  template <class Stream>
  HEDDLE_DEVICE void meet(Stream& stream, const Sequence& sequence, bool apart, Sums& sums) const {
    const DecodeKeys& keys = sequence.keys;
    const int first_row = sequence.row_block * kRows, row_end = group * keys.q_length;
    const typename Stream::Part part = stream.part_of(sequence);
    int rows[kRowTiles][2];
    KeyInterval visible[kRowTiles][2];
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
      sums.softmax[m].reset();
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        rows[m][half] = first_row + 16 * m + Cells::row(lane, half);
        visible[m][half] = {0, 0};
        if (rows[m][half] < row_end) visible[m][half] = keys.visible(rows[m][half] / group);
      }
#pragma unroll
      for (int n = 0; n < kSumGroups; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) sums.out[m][n][i] = 0;
    }

    const KeyInterval to_all =
        keys.visible_to_all(first_row / group, (min_of(first_row + kRows, row_end) - 1) / group);

    stream.wait();
    __syncthreads();
    const Products products =
        Products(shared_address(shared), lane, warp).of_slot(stream.query_slot());
    typename Products::Queries queries;
    const float own_factor = products.load_queries(queries);
    float scales[kRowTiles][2];
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        scales[m][half] = scale * products.row_factor(own_factor, 16 * m + Cells::row(lane, half));
    typename Products::DotsBelow below;
    products.begin_dots(below, queries);

#pragma unroll 1
    for (int step = 0; step < part.steps; ++step) {
      const u32 stage = stream.wait();
      const int first = part.first + step * kConfig.tile_keys();
      // A part without keys has a step without any.
      if (first < part.end) {
        typename Products::Dots dots;
        products.multiply_keys(dots, below, queries, stage);
        typename Products::Weights weights;
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
          float correction[2];
          auto& scores = flat(dots[m]);
          score_cells<Score, Cells, kKeys>(scores, scales[m], visible[m], to_all, rows[m], sequence,
                                           group, p.loads, first);
          sums.softmax[m].update(scores, kToLog2, correction);
          if (correction[0] != 1.0f || correction[1] != 1.0f) {
#pragma unroll
            for (int n = 0; n < kSumGroups; ++n)
#pragma unroll
              for (int i = 0; i < 4; ++i)
                sums.out[m][n][i] *= correction[kConfig.turned ? i % 2 : i / 2];
          }
          Products::pack_weights(weights[m], scores);
        }
        products.multiply_values(sums.out, weights, stage + kAt.value_in_stage);
      }
      // Once every lane has read the stage.
      stream.pass(apart);
    }
    stream.end_sequence();
    if (!apart) stream.drain();
  }

  /// Where the warps' sums of some rows lie, from the first of them on.
  struct SumsPlace {
    int at, warp_bytes, first_row, end_row;

    HEDDLE_DEVICE int offset(int of_warp, int row) const {
      return at + of_warp * warp_bytes + (row - first_row) * kConfig.sum_columns() * 4;
    }
  };

  /// Maxima and sums of a warp's rows.
  HEDDLE_DEVICE float2* statistics_of(int of_warp) const {
    return reinterpret_cast<float2*>(shared + kAt.statistics) + of_warp * kRows;
  }

  /// Leaves the warp's sums of some rows.
  HEDDLE_DEVICE void leave(const Sums& sums, const SumsPlace& place) const {
    const Products products(shared_address(shared), lane, warp);
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = 16 * m + Cells::row(lane, half);
        const float total = sums.softmax[m].total(half) / Products::kWeightScale;
        if (row < place.first_row || row >= place.end_row) continue;
        if (Cells::is_first_of_row(lane))
          statistics_of(warp)[row] = make_float2(sums.softmax[m].reference[half], total);
        products.leave_row(sums.out[m], half, shared_address(shared) + place.offset(warp, row));
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
    /// Those of the lane `apart` away, too.
    HEDDLE_DEVICE void join(int apart) {
      const auto other = [&](float x) { return __shfl_xor_sync(0xffffffffu, x, apart); };
      add(1.0f, make_float4(other(x.x), other(x.y), other(x.z), other(x.w)));
    }
  };

  /// What sums taken against `top` are multiplied by, against `joint`.
  HEDDLE_DEVICE static float weight_of(float top, float joint) {
    return ptx::exp2((top - (joint == attention::minus_infinity() ? 0.0f : joint)) * kToLog2);
  }

  template <class Join>
  HEDDLE_DEVICE static float over_warp(float x, const Join& join) {
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2) x = join(x, __shfl_xor_sync(0xffffffffu, x, apart));
    return x;
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
  };

  /// The warps' sums of four columns, put together, with the row's maximum and sum.
  HEDDLE_DEVICE Joint of_warps(const SumsPlace& place, int row, int column) const {
    const auto sums_of = [&](int n) {
      return *reinterpret_cast<const float4*>(shared + place.offset(n, row) + 4 * column);
    };
    if constexpr (kSums == 1)
      return {{sums_of(0)}, statistics_of(0)[row].x, statistics_of(0)[row].y};
    float2 statistics[kSums];
    Joint joint;
    float most = joint.top;
#pragma unroll
    for (int n = 0; n < kSums; ++n) {
      statistics[n] = statistics_of(n)[row];
      most = ptx::max(most, statistics[n].x);
    }
    joint.top = most;
#pragma unroll
    for (int n = 0; n < kSums; ++n) joint.add(statistics[n], sums_of(n));
    return joint;
  }

  /// Does do_one(row, column, joint) for each four columns of some rows.
  template <class DoOne>
  HEDDLE_DEVICE void for_columns(const SumsPlace& place, const DoOne& do_one) const {
    for (int n = threadIdx.x; n < (place.end_row - place.first_row) * kColumnQuads; n += kThreads) {
      const int row = place.first_row + n / kColumnQuads, column = 4 * (n % kColumnQuads);
      do_one(row, column, of_warps(place, row, column));
    }
  }

  /// A row of the result.
  struct Row {
    int batch, kv_head, head, token;
    bool valid;
    attention::RowEnd end;
  };
  HEDDLE_DEVICE Row end_row(const Sequence& sequence, int row, float top, float sum,
                            bool writes_statistics) const {
    const int packed = sequence.row_block * kRows + row, token = packed / group,
              head = sequence.head * group + packed % group;
    const bool valid = token < sequence.keys.q_length;
    return {sequence.batch,
            sequence.head,
            head,
            token,
            valid,
            attention::end_row<false, Config::kInputIsLog2>(p, sequence.batch, head, token, valid,
                                                            writes_statistics, {top, sum})};
  }
  HEDDLE_DEVICE void write(const Row& row, int column, const float4& sums) const {
    if (!row.valid && p.o.offsets != nullptr) return;
    // Chosen, not multiplied by 0: a value that nobody sees may be NaN or infinite.
    const auto ended = [&](float x, int n) {
      return row.end.has_output ? x * row.end.factor * value_scale(row.kv_head, column + n) : 0.0f;
    };
    using Result = typename Config::Result;
    auto* to = attention::element_pointer<Result>(p.o, row.batch, row.head, row.token, column);
    if constexpr (is_same<Result, float>)
      *reinterpret_cast<float4*>(to) =
          make_float4(ended(sums.x, 0), ended(sums.y, 1), ended(sums.z, 2), ended(sums.w, 3));
    else
      *reinterpret_cast<uint2*>(to) = make_uint2(ptx::pack<T>(ended(sums.x, 0), ended(sums.y, 1)),
                                                 ptx::pack<T>(ended(sums.z, 2), ended(sums.w, 3)));
  }
  /// Four columns of a row that is all there.
  HEDDLE_DEVICE void write(const Sequence& sequence, int row, int column,
                           const Joint& joint) const {
    write(end_row(sequence, row, joint.top, joint.sum, column == 0), column, joint.columns.x);
  }
  /// What a sum of values is multiplied by.
  HEDDLE_DEVICE float value_scale(int head, int column) const {
    if constexpr (!kValueCodes) return 1.0f;
    return p.v_scales.data[head * p.v_scales.stride[0] + column * p.v_scales.stride[1]] /
           Products::kSumScale;
  }

  /// Of the parts in the workspace that of a block: it shares two sequences at most, one that
  /// another began and one that it began itself.
  HEDDLE_DEVICE static int part_of(const DecodeBlocks& blocks, int block) {
    return (2 * block + (block == blocks.first)) * Config::kTwins + Share::own_twin();
  }
  HEDDLE_DEVICE static i64 part_row(const DecodeBlocks& blocks, int block, int row) {
    return i64{part_of(blocks, block)} * kRows + row;
  }
  /// By which a block tells reader number `reader` of the sequence that its part is there.
  HEDDLE_DEVICE u64* flag(const DecodeBlocks& blocks, int block, int reader) const {
    return args.parts.flags + (part_of(blocks, block) * kConfig.readers() + reader) * kFlagStride;
  }

  HEDDLE_DEVICE static int parts_of(const DecodeBlocks& blocks) {
    return blocks.last - blocks.first + 1;
  }
  /// The first of the blocks that put the sequence together, of which the last one is the last.
  HEDDLE_DEVICE static int first_reader(const DecodeBlocks& blocks, int rows) {
    const int most = Config::kTogether ? min_of(kConfig.readers(), rows * kUnits)
                                       : ceil_div(rows * kColumnQuads, kThreads);
    return max_of(blocks.first, blocks.last + 1 - most);
  }

  /// Leaves some rows of the block's part of a sequence to those that put it together.
  HEDDLE_DEVICE void leave_part(const DecodeBlocks& blocks, const SumsPlace& place) const {
    for_columns(place, [&](int row, int column, const Joint& joint) {
      const i64 at = part_row(blocks, Share::own_block(), row);
      *reinterpret_cast<float4*>(args.parts.sums + at * Config::kVDim + column) = joint.columns.x;
      if (column == 0)
        reinterpret_cast<float2*>(args.parts.statistics)[at] = make_float2(joint.top, joint.sum);
    });
  }
  /// Says to other blocks that this one's part is there, once all threads have left it.
  HEDDLE_DEVICE void tell_readers(const DecodeBlocks& blocks, int rows) const {
    __syncthreads();
    const int reader = threadIdx.x, first = first_reader(blocks, rows);
    if (reader <= blocks.last - first && first + reader != Share::own_block())
      ptx::store_release(flag(blocks, Share::own_block(), reader), args.parts.claim);
  }
  /// Does do_one(flag) for each other block's part of the sequence, by a thread.
  template <class DoOne>
  HEDDLE_DEVICE void for_flags(const DecodeBlocks& blocks, int rows, const DoOne& do_one) const {
    const int reader = Share::own_block() - first_reader(blocks, rows);
    for (int writer = blocks.first + threadIdx.x; writer <= blocks.last; writer += kThreads)
      if (writer != Share::own_block()) do_one(flag(blocks, writer, reader));
  }
  /// Waits for all parts of the sequence. The next launch finds the flags down.
  HEDDLE_DEVICE void wait_for_parts(const DecodeBlocks& blocks, int rows) const {
    const u64 claim = args.parts.claim;
    for_flags(blocks, rows, [&](u64* flag) {
      while (ptx::exchange_if_acquire(flag, claim, 0) != claim) {
      }
    });
    __syncthreads();
  }

  /// All parts of four columns.
  HEDDLE_DEVICE Joint join_parts(const DecodeBlocks& blocks, int row, int column) const {
    const int parts = parts_of(blocks);
    Joint joint;
#pragma unroll 1
    for (int first = 0; first < parts; first += kPartsAtOnce) {
      float2 statistics[kPartsAtOnce];
      float4 sums[kPartsAtOnce];
      float most = joint.top;
#pragma unroll
      for (int n = 0; n < kPartsAtOnce; ++n) {
        statistics[n] = make_float2(attention::minus_infinity(), 0.0f);
        sums[n] = make_float4(0, 0, 0, 0);
        if (first + n >= parts) continue;
        const i64 at = part_row(blocks, blocks.first + first + n, row);
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

  /// By a warp: kQuads times 32 / kGroups quads of columns of a row, from `quad` on. Each of
  /// kGroups groups of lanes puts every kGroups-th part together.
  template <int kQuads, int kGroups>
  HEDDLE_DEVICE void join_row(const Sequence& sequence, const DecodeBlocks& blocks, int row,
                              int quad) const {
    constexpr int kLanes = 32 / kGroups, kAtOnce = max_of(8 / kQuads, 1) * kGroups;
    static_assert(32 % kAtOnce == 0);
    const int parts = parts_of(blocks), own_quad = quad + lane % kLanes, own_part = lane / kLanes;
    Columns columns[kQuads];
    float top = attention::minus_infinity(), sum = 0;
#pragma unroll 1
    for (int first = 0; first < parts; first += 32) {
      // A lane has the statistics of a part.
      float2 statistics = make_float2(attention::minus_infinity(), 0.0f);
      if (first + lane < parts)
        statistics = __ldcg(reinterpret_cast<const float2*>(args.parts.statistics) +
                            part_row(blocks, blocks.first + first + lane, row));
      float weight = 0;
#pragma unroll 1
      for (int begin = first; begin < min_of(parts, first + 32); begin += kAtOnce) {
        float4 sums[kAtOnce / kGroups][kQuads];
#pragma unroll
        for (int n = 0; n < kAtOnce / kGroups; ++n) {
          const int part = begin + n * kGroups + own_part;
          const float* const from =
              args.parts.sums + part_row(blocks, blocks.first + part, row) * Config::kVDim;
#pragma unroll
          for (int i = 0; i < kQuads; ++i) {
            const int at = own_quad + kLanes * i;
            sums[n][i] = make_float4(0, 0, 0, 0);
            if (part < parts && at < kColumnQuads)
              sums[n][i] = __ldcg(reinterpret_cast<const float4*>(from) + at);
          }
        }
        // Beside the first sums on their way.
        if (begin == first) {
          const float most = ptx::max(
                          top,
                          over_warp(statistics.x, [](float a, float b) { return ptx::max(a, b); })),
                      before = weight_of(top, most);
          top = most;
          weight = weight_of(statistics.x, top);
          sum = ptx::fma(sum, before,
                         over_warp(weight * statistics.y, [](float a, float b) { return a + b; }));
#pragma unroll
          for (int i = 0; i < kQuads; ++i) columns[i].scale(before);
        }
#pragma unroll
        for (int n = 0; n < kAtOnce / kGroups; ++n) {
          const float of_part =
              __shfl_sync(0xffffffffu, weight, begin - first + n * kGroups + own_part);
#pragma unroll
          for (int i = 0; i < kQuads; ++i) columns[i].add(of_part, sums[n][i]);
        }
      }
    }
#pragma unroll
    for (int apart = kLanes; apart < 32; apart *= 2)
#pragma unroll
      for (int i = 0; i < kQuads; ++i) columns[i].join(apart);
    if (own_part > 0) return;
    const Row to = end_row(sequence, row, top, sum, own_quad == 0);
#pragma unroll
    for (int i = 0; i < kQuads; ++i)
      if (own_quad + kLanes * i < kColumnQuads)
        write(to, 4 * (own_quad + kLanes * i), columns[i].x);
  }

  /// Writes the block's share of a sequence whose parts are all there.
  HEDDLE_DEVICE void write_joint(const Sequence& sequence, const DecodeBlocks& blocks,
                                 int rows) const {
    const int first = first_reader(blocks, rows), shares = blocks.last + 1 - first,
              share = Share::own_block() - first;
    if constexpr (Config::kTogether) {
      const int own = share + shares * warp, all = shares * Config::kWarps;
      if (rows * kUnits > all) {  // rows give all warps work
        for (int row = own; row < rows; row += all) join_row<kUnits, 1>(sequence, blocks, row, 0);
      } else {
        constexpr int kGroups = 4, kOfRow = ceil_div(kColumnQuads, 32 / kGroups);
        for (int n = own; n < rows * kOfRow; n += all)
          join_row<1, kGroups>(sequence, blocks, n / kOfRow, n % kOfRow * (32 / kGroups));
      }
    } else {
      const int all = rows * kColumnQuads, each = ceil_div(all, shares);
      for (int n = share * each + threadIdx.x; n < min_of(all, (share + 1) * each); n += kThreads) {
        const int row = n / kColumnQuads, column = 4 * (n % kColumnQuads);
        write(sequence, row, column, join_parts(blocks, row, column));
      }
    }
  }

  HEDDLE_DEVICE int rows_of(const Sequence& sequence) const {
    const int rows = min_of(kRows, group * p.q_length - sequence.row_block * kRows);
    return kConfig.twins > 1 ? max_of(rows, 0) : rows;  // a last twin may have none
  }

  /// Sequences that the block shares with others and puts together.
  struct InParts {
    Sequence sequence;
    DecodeBlocks blocks;
  };
  static_assert(sizeof(InParts) <= kSequenceBytes);
  HEDDLE_DEVICE InParts* in_parts() const {
    return reinterpret_cast<InParts*>(shared + kAt.in_parts);
  }

  /// Together: the sequence that is met. In registers of the main loop it makes ptxas spill up to
  /// 40 bytes, beside pages it does elsewhere.
  static constexpr bool kKeepsAtHand = Config::kRowsV != attention::KeyRows::paged;
  HEDDLE_DEVICE Sequence* at_hand() const {
    return reinterpret_cast<Sequence*>(shared + kAt.at_hand);
  }

  /// Some rows of the block's sums are in shared memory.
  HEDDLE_DEVICE void pass_on(const Sequence& sequence, const DecodeBlocks& blocks,
                             const SumsPlace& place) const {
    if (blocks.is_one())
      for_columns(place, [&](int row, int column, const Joint& joint) {
        write(sequence, row, column, joint);
      });
    else
      leave_part(blocks, place);
  }
  /// All rows of a sequence have been passed on; what the block has to put together is
  /// kept. Registers are the main loop's.
  HEDDLE_DEVICE void end(const Sequence& sequence, const DecodeBlocks& blocks, int rows,
                         int& kept) const {
    if (blocks.is_one()) return;
    tell_readers(blocks, rows);
    if (Share::own_block() < first_reader(blocks, rows)) return;
    if (threadIdx.x == 0) in_parts()[kept] = {sequence, blocks};
    ++kept;
  }

  HEDDLE_DEVICE void run() {
    if constexpr (Config::kTogether)
      run_together();
    else
      run_apart();
  }

  /// Whether all parts of what was kept are there.
  HEDDLE_DEVICE bool parts_are_there(int kept) const {
    __syncthreads();
    bool all = true;
    for (int n = 0; n < kept; ++n) {
      const auto& [sequence, blocks] = in_parts()[n];
      for_flags(blocks, rows_of(sequence),
                [&](u64* flag) { all = all && ptx::load_acquire(flag) == args.parts.claim; });
    }
    return __syncthreads_and(all) != 0;
  }
  /// Puts together what was kept.
  HEDDLE_DEVICE void join(int& kept) const {
    __syncthreads();
    for (int n = 0; n < kept; ++n) {
      const auto [sequence, blocks] = in_parts()[n];
      const int rows = rows_of(sequence);
      wait_for_parts(blocks, rows);
      write_joint(sequence, blocks, rows);
    }
    kept = 0;
  }

  HEDDLE_DEVICE void run_together() {
    int kept = 0;
    Wide wide(args, shared, scale, values_lie_in_keys<Config>(p));
    Share share(args, kConfig.tile_keys());
    while (share.valid()) {
      const Sequence taken = share.take();
      if (kKeepsAtHand && threadIdx.x == 0) *at_hand() = taken;
      wide.meet(taken, rows_of(taken));
      __syncthreads();
      const Sequence sequence = kKeepsAtHand ? *at_hand() : taken;
      const int rows = rows_of(sequence);
      const DecodeBlocks blocks = share.blocks_of(sequence);
      pass_on(sequence, blocks, {kAt.sums, kAt.warp_bytes, 0, rows});
      end(sequence, blocks, rows, kept);
      __syncthreads();
    }
    if constexpr (kConfig.twins > 1) ptx::cluster_sync();  // the twin may still reach in here
    join(kept);
  }

  HEDDLE_DEVICE void run_apart() {
    DecodeStream<Config> stream(args, shared, Products(shared_address(shared), lane, warp));
    int kept = 0;
    while (stream.has_more()) {
      const Sequence sequence = stream.next();
      // Beside the copies of the last, if no other block is late.
      if (kept > 0 && stream.is_at_last_of_many() && parts_are_there(kept)) join(kept);
      const int rows = rows_of(sequence);
      const bool apart = Config::kRowsApart > 0 && rows <= 2 * Config::kRowsApart;
      Sums sums;
      meet(stream, sequence, apart, sums);
      const DecodeBlocks blocks = stream.blocks_of(sequence);
      SumsPlace place{kAt.sums, kAt.warp_bytes, 0, rows};
      if (apart)
        place = {kAt.sums_apart, kAt.sums_apart_bytes, 0, min_of(rows, Config::kRowsApart)};
      while (true) {
        leave(sums, place);
        __syncthreads();
        pass_on(sequence, blocks, place);
        if (place.end_row == rows) break;
        __syncthreads();
        place.first_row = place.end_row;
        place.end_row = rows;
      }
      end(sequence, blocks, rows, kept);
      // Of sums apart the next are left behind the barrier that queries wait for.
      if (!apart) __syncthreads();
    }
    if (kept > 0) join(kept);
  }
};

template <class Config, class Score, class Wide>
HEDDLE_DEVICE void attention_decode(const DecodeArguments& args) {
  extern __shared__ __align__(1024) u8 shared[];
  DecodeBlock<Config, Score, Wide>(args, shared).run();
}

}  // namespace heddle::sm80
