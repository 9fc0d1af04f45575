// The row-wise passes around the main backward kernel: what it needs per query row before it, dQ
// from the f32 sums after it, and the sink's gradient.
#pragma once

#include "../attention/row_statistics.cuh"
#include "../attention/row_sum.cuh"
#include "../ptx/math.cuh"
#include "../ptx/sync.cuh"
#include "backward_block.cuh"

namespace heddle::sm90 {

/// `Main` is the AttentionBackward (or by gradient) of the same configuration. All kernels have
/// kThreads threads and no shared memory.
template <class Main>
struct AttentionBackwardRows {
  using C = typename Main::C;
  using Input = typename Main::Input;
  using Gradient = typename Main::Gradient;
  static constexpr int kRows = 64;  // of a block of prepare: whole tiles, or a part of one
  static constexpr int kThreads = 256;
  static constexpr bool kExact = C::kPlanes > 1;  ///< f32
  static constexpr bool kStatsGradient = attention::kArgumentLayout.stats_gradient;
  static constexpr float kLargest = 0x1.fffffep127f;  ///< number

  HEDDLE_DEVICE static void load_eight(const Input* p, float (&x)[8]) {
    if constexpr (is_same<Input, float>) {
#pragma unroll
      for (int i = 0; i < 8; i += 4) {
        const float4 four = *reinterpret_cast<const float4*>(p + i);
        x[i] = four.x, x[i + 1] = four.y, x[i + 2] = four.z, x[i + 3] = four.w;
      }
    } else {
      const uint4 packed = *reinterpret_cast<const uint4*>(p);
      ptx::unpack<Input>(packed.x, x[0], x[1]);
      ptx::unpack<Input>(packed.y, x[2], x[3]);
      ptx::unpack<Input>(packed.z, x[4], x[5]);
      ptx::unpack<Input>(packed.w, x[6], x[7]);
    }
  }

  HEDDLE_DEVICE static void store_eight(Gradient* p, const float (&x)[8]) {
    if constexpr (is_same<Gradient, float>) {
      reinterpret_cast<float4*>(p)[0] = make_float4(x[0], x[1], x[2], x[3]);
      reinterpret_cast<float4*>(p)[1] = make_float4(x[4], x[5], x[6], x[7]);
    } else {
      *reinterpret_cast<uint4*>(p) =
          make_uint4(ptx::pack<Gradient>(x[0], x[1]), ptx::pack<Gradient>(x[2], x[3]),
                     ptx::pack<Gradient>(x[4], x[5]), ptx::pack<Gradient>(x[6], x[7]));
    }
  }

  /// Where the first of a row's `count` numbers lies: those of a tile lie together, kTileM apart.
  HEDDLE_DEVICE static i64 place_of(i64 line, int count) {
    return count > 1 ? line + line / Main::kTileM * Main::kTileM : line;
  }
  HEDDLE_DEVICE static i64 delta_place(i64 line) { return place_of(line, C::kPlanes); }
  HEDDLE_DEVICE static i64 lse_place(i64 line) { return place_of(line, Main::kStatistics); }

  /// A row's -log-sum-exp, or its maximum and the logarithm of its sum as the exponent wants them:
  /// P is 0 of a row with no key.
  HEDDLE_DEVICE static attention::RowStatistic statistic_of(const attention::ForwardParameters& p,
                                                            int batch, int head, int row) {
    const auto load = [&](const attention::Tensor& of) {
      return *attention::element_pointer<const float>(of, batch, head, row, 0);
    };
    if constexpr (C::kMaxAndSum) {
      const attention::RowStatistic of =
          attention::row_statistic<kExact, C::kInputIsLog2>(load(p.max), load(p.sum_exp));
      return {-of.reference, -of.log2_sum};
    } else {
      const float stats = load(p.stats);
      const bool lost = !Main::kPlainScore &&
                        attention::weights_are_lost(p.stats_log2 ? stats * attention::kLn2 : stats);
      if (stats == attention::minus_infinity() || lost) return {attention::minus_infinity(), 0.0f};
      if (kExact || p.stats_log2) return {-stats, 0.0f};
      // A sink may be so large that log2 units have no such number: its own weight is 1 then.
      return {ptx::max_or_nan(-attention::kLog2E * stats, -kLargest), 0.0f};
    }
  }

  /// dL/d(log-sum-exp) of a row. One without weights has no gradients, whatever its own is.
  HEDDLE_DEVICE static float stats_gradient(const attention::BackwardParameters& p, int batch,
                                            int head, int row,
                                            const attention::RowStatistic& statistic) {
    if (statistic.reference == attention::minus_infinity()) return 0.0f;
    return *attention::element_pointer<const float>(p.d_stats, batch, head, row, 0);
  }

  /// delta = rowsum(dO o O), less dL/d(log-sum-exp), the log-sum-exp as the exponent wants it,
  /// cleared sums. Grid (q_rounded / kRows, heads, batch).
  HEDDLE_DEVICE static void prepare(const BackwardArguments& args) {
    ptx::grid_dependents_launch();
    const attention::BackwardParameters& p = args.problem;
    const int head = blockIdx.y, batch = blockIdx.z + p.forward.first_batch,
              row0 = blockIdx.x * kRows;
    const i64 line = static_cast<i64>(batch * p.forward.q_heads + head) * args.q_rounded + row0;
    using Sum = typename Choice<kExact, double, float>::Type;
    if constexpr (C::kPlanes > 1) {
      if (row0 == 0 && threadIdx.x == 0)
        args.head_units[batch * p.forward.q_heads + head] = Main::units_of(args, batch, head);
    }

    if constexpr (!C::kAllKeys) {
      float4* clear = reinterpret_cast<float4*>(args.d_q_sum + line * Main::kDqWidth);
#pragma unroll
      for (int i = threadIdx.x; i < kRows * Main::kDqWidth / 4; i += kThreads)
        clear[i] = make_float4(0, 0, 0, 0);
    }
    if constexpr (C::kDeterministic) {
      constexpr int kTiles = ceil_div(kRows, Main::kTileM);
      if (threadIdx.x < kTiles * Main::kDqTurns)
        args.turns[line / Main::kTileM * Main::kDqTurns + threadIdx.x] = 0;
    }

    const int q_length =
        C::kLengths ? attention::length_of(p.forward.q_lengths, batch) : p.forward.q_length;
    // A power of two of lanes shares a row, 8 columns each.
    constexpr int kChunks = C::kVDim / 8;
    constexpr int kLanes = kChunks > 16 ? 32 : kChunks > 8 ? 16 : kChunks > 4 ? 8 : 4;
    constexpr int kRowsAtOnce = kThreads / kLanes;
    const int lane = threadIdx.x % kLanes;
#pragma unroll
    for (int pass = 0; pass < kRows / kRowsAtOnce; ++pass) {
      const int place = pass * kRowsAtOnce + threadIdx.x / kLanes, row = row0 + place;
      Sum sum = 0;
#pragma unroll
      for (int n = 0; n < ceil_div(kChunks, kLanes); ++n) {
        const int chunk = n * kLanes + lane;
        if (row >= q_length || chunk >= kChunks) continue;
        float x[8], y[8];
        load_eight(attention::element_pointer<Input>(p.forward.o, batch, head, row, chunk * 8), x);
        load_eight(attention::element_pointer<Input>(p.d_o, batch, head, row, chunk * 8), y);
#pragma unroll
        for (int i = 0; i < 8; ++i) sum += static_cast<Sum>(x[i]) * y[i];
      }
#pragma unroll
      for (int apart = kLanes / 2; apart > 0; apart /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, apart);
      if (lane == 0) {
        attention::RowStatistic statistic{attention::minus_infinity(), 0.0f};
        if (row < q_length) statistic = statistic_of(p.forward, batch, head, row);
        if constexpr (kStatsGradient) sum -= stats_gradient(p, batch, head, row, statistic);
        args.negative_lse[lse_place(line + place)] = statistic.reference;
        if constexpr (C::kMaxAndSum)
          args.negative_lse[lse_place(line + place) + Main::kTileM] = statistic.log2_sum;
        const float delta = static_cast<float>(sum);
        args.delta[delta_place(line + place)] = delta;
        if constexpr (kExact)
          args.delta[delta_place(line + place) + Main::kTileM] = static_cast<float>(sum - delta);
      }
    }
  }

  /// dQ = scale * sum, from fragment order to rows. Grid (q_rounded / kTileM, heads, batch).
  HEDDLE_DEVICE static void finish(const BackwardArguments& args) {
    ptx::grid_dependency_wait();
    const attention::BackwardParameters& p = args.problem;
    const int head = blockIdx.y, batch = blockIdx.z + p.forward.first_batch,
              row0 = blockIdx.x * Main::kTileM;
    const float* sums =
        args.d_q_sum +
        (static_cast<i64>(batch * p.forward.q_heads + head) * args.q_rounded + row0) *
            Main::kDqWidth;
    Gradient* out = attention::element_pointer<Gradient>(p.d_q, batch, head, row0, 0);
    const float scale = Main::scale_of(args) * Main::kOfSlope;
    // Rows past a dense length are written as zeros, past a ragged one left alone.
    const int rows =
        (C::kLengths && p.d_q.offsets != nullptr ? attention::length_of(p.forward.q_lengths, batch)
                                                 : p.forward.q_length) -
        row0;
    if constexpr (C::kValues.turns_sums())
      finish_turned(sums, out, p.d_q.stride[2], scale, rows);
    else
      finish_rows(sums, out, p.d_q.stride[2], scale, rows);
  }

  HEDDLE_DEVICE static void finish_rows(const float* sums, Gradient* out, i64 stride, float scale,
                                        int rows) {
    // A unit is eight columns of rows r and r + 8: sixteen sums side by side.
    constexpr int kTogether = Main::kSplitColumns ? Main::kDqColumns : Main::kDqWidth,
                  kGroups = kTogether / 8, kUnitsPerPart = 32 * kGroups;
    constexpr int kUnits = Main::kTileM * Main::kDqWidth / 16;
#pragma unroll
    for (int unit = threadIdx.x; unit < kUnits; unit += kThreads) {
      const int part = unit / kUnitsPerPart, group = unit % kGroups;
      const int quad = unit % kUnitsPerPart / kGroups;  // warp * 8 + lane / 4
      const float4* from = reinterpret_cast<const float4*>(
          sums + part * Main::kDqPart + group * Main::kDqGroupStride +
          quad / 8 * Main::kDqWarpStride + quad % 8 * 16);
      float upper[8], lower[8];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float4 x = from[i];
        upper[2 * i] = x.x * scale;
        upper[2 * i + 1] = x.y * scale;
        lower[2 * i] = x.z * scale;
        lower[2 * i + 1] = x.w * scale;
      }
      const int row = quad / 8 * 16 + quad % 8 + (Main::kSplitColumns ? 0 : 64 * part);
      int column = group * 8 + (Main::kSplitColumns ? part * Main::kDqColumns : 0);
      if constexpr (C::kValues.shares() > 1) {
        constexpr int kShare = C::kValues.share_of(C::kQkDim);
        const int of_share = column % Main::kDqColumns;
        if (of_share >= kShare) continue;
        column = column / Main::kDqColumns * kShare + of_share;
      }
      if (column >= C::kQkDim) continue;
      if (row < rows) store_eight(out + row * stride + column, upper);
      if (row + 8 < rows) store_eight(out + (row + 8) * stride + column, lower);
    }
  }

  /// The same of a tile that consumers have made transposed, each its own columns: of a warp's 16
  /// columns and 8 rows four sums side by side are those of columns c and c + 8 in two rows.
  HEDDLE_DEVICE static void finish_turned(const float* sums, Gradient* out, i64 stride, float scale,
                                          int rows) {
    static_assert(is_same<Gradient, float>);
    constexpr int kOfBox = Main::kTileM * tile::kBoxColumns,
                  kShare = C::kValues.share_of(C::kQkDim);
#pragma unroll
    for (int i = threadIdx.x; i < Main::kTileM * Main::kDqWidth / 4; i += kThreads) {
      const int share = 4 * i / (Main::kTileM * Main::kDqColumns);
      const int box = 4 * i / kOfBox % (Main::kDqColumns / tile::kBoxColumns);
      const int in_box = i % (kOfBox / 4), lane = in_box % 32;
      const int row = in_box / 128 * 8 + tile::fragment_column(lane);
      const float4 x = reinterpret_cast<const float4*>(sums)[i];
      const float values[2][2] = {{x.x, x.y}, {x.z, x.w}};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int of_share = box * tile::kBoxColumns + tile::fragment_row(in_box % 128, half);
        const int column = share * kShare + of_share;
        if (of_share >= kShare || column >= C::kQkDim) continue;
#pragma unroll
        for (int next = 0; next < 2; ++next)
          if (row + next < rows) out[(row + next) * stride + column] = values[half][next] * scale;
      }
    }
  }

  /// d_sink = -sum over batch and rows of exp(sink - lse) * delta, in a fixed order. After prepare;
  /// grid (heads).
  HEDDLE_DEVICE static void sink(const BackwardArguments& args) {
    ptx::grid_dependency_wait();
    const attention::BackwardParameters& p = args.problem;
    const int head = blockIdx.x;
    // Sinks are natural, whatever scores are.
    const bool natural = C::kMaxAndSum ? !C::kInputIsLog2 : kExact && p.forward.stats_log2 == 0;
    const float sink = natural ? p.forward.sink[head]
                               : ptx::multiply_toward_zero(p.forward.sink[head], attention::kLog2E);
    const float to_log2 = natural ? attention::kLog2E : 1.0f;
    const auto term = [&](int batch, int row) {
      const i64 line = static_cast<i64>(batch * p.forward.q_heads + head) * args.q_rounded + row;
      const float* const lse = args.negative_lse + lse_place(line);
      const float log2_sum = C::kMaxAndSum ? lse[Main::kTileM] : 0.0f;
      const float exponent = attention::weight_exponent<false>(sink + *lse, to_log2, log2_sum);
      return -ptx::exp2(exponent) * args.delta[delta_place(line)];
    };
    const float sum = attention::sum_of_rows<kThreads>(p.forward.batch, p.forward.q_length, term);
    if (threadIdx.x == 0) p.d_sink[head] = sum;
  }
};

}  // namespace heddle::sm90
