// The row-wise passes around the Hopper backward of fp8 operands: what it needs per query row
// before it, dQ from the f32 sums after it.
#pragma once

#include "../attention/largest.cuh"
#include "attention_backward_rows.cuh"
#include "fp8_backward_arguments.h"
#include "fp8_rows.cuh"

namespace heddle::sm90 {

/// `Main` is the AttentionBackwardFp8 of the same configuration. Grids and threads are
/// AttentionBackwardRows's.
template <class Main>
struct Fp8BackwardRows {
  using Rows = AttentionBackwardRows<Main>;
  using C = typename Main::C;
  static constexpr int kRows = Rows::kRows, kThreads = Rows::kThreads;
  static constexpr int kDim = C::kVDim;
  static_assert(C::kQkDim == kDim && kDim == 128);

  /// 16 codes as numbers.
  HEDDLE_DEVICE static void numbers(const uint4& codes, u32 (&halves)[8]) {
    const u32 words[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      halves[2 * i] = ptx::unpack_e4m3(words[i]);
      halves[2 * i + 1] = ptx::unpack_e4m3(words[i] >> 16);
    }
  }

  HEDDLE_DEVICE static void store_wide(unsigned short* to, const u32 (&halves)[8]) {
    u32 pairs[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float low, high;
      ptx::unpack<f16>(halves[i], low, high);
      pairs[i] = ptx::pack<bf16>(low, high);
    }
    reinterpret_cast<uint4*>(to)[0] = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
    reinterpret_cast<uint4*>(to)[1] = make_uint4(pairs[4], pairs[5], pairs[6], pairs[7]);
  }

  HEDDLE_DEVICE static Fp8BackwardUnits units_of(const Fp8BackwardRowsArguments& args) {
    const attention::ForwardParameters& p = args.problem.forward;
    const float scale = p.scale_operand != nullptr ? *p.scale_operand : p.scale;
    const bool has_unit = *args.scale_d_p != 0.0f;
    const float unit = has_unit ? *args.scale_d_p : 1.0f;
    const float d_s = *args.descale_d_p * (has_unit ? 1.0f : 0.0f);
    Fp8BackwardUnits units;
    units.score = scale * *args.descale_q * *args.descale_k;
    units.d_p = scale * *args.descale_d_o * *args.descale_v * unit;
    units.delta = scale * *args.descale_d_o * *args.descale_o * unit;
    units.d_s = 1.0f / unit;
    units.d_q = d_s * *args.descale_k;
    units.d_k = d_s * *args.descale_q;
    units.d_v = *args.descale_d_o * (*args.scale_s * *args.descale_s);
    units.scale_d_q = scale_at(args.scale_d_q);
    units.scale_d_k = scale_at(args.scale_d_k);
    units.scale_d_v = scale_at(args.scale_d_v);
    return units;
  }

  /// Heads that were written last are read first, as long as the L2 has them: these passes go the
  /// other way than the main kernel.
  HEDDLE_DEVICE static int backwards(int block, int blocks) { return blocks - 1 - block; }

  /// Where a largest magnitude begins.
  HEDDLE_DEVICE static void begin(u32* amax) {
    if (amax != nullptr) *amax = 0;
  }

  /// What AttentionBackwardRows::prepare makes, delta in the unit of dS, and Q and dO in bf16.
  HEDDLE_DEVICE static void prepare(const Fp8BackwardRowsArguments& args) {
    ptx::grid_dependents_launch();
    const attention::BackwardParameters& p = args.problem;
    const int head = backwards(blockIdx.y, gridDim.y),
              batch = backwards(blockIdx.z, gridDim.z) + p.forward.first_batch,
              row0 = blockIdx.x * kRows;
    const i64 flat_head = static_cast<i64>(batch) * p.forward.q_heads + head;
    const i64 line = flat_head * args.q_rounded + row0;
    if (line == 0 && threadIdx.x == 0) {
      *args.units = units_of(args);
      begin(args.amax.d_q);
      begin(args.amax.d_k);
      begin(args.amax.d_v);
      begin(args.amax.d_p);
    }
    float4* clear = reinterpret_cast<float4*>(args.d_q_sum + line * Main::kDqWidth);
#pragma unroll
    for (int i = threadIdx.x; i < kRows * Main::kDqWidth / 4; i += kThreads)
      clear[i] = make_float4(0, 0, 0, 0);
    if constexpr (C::kDeterministic) {
      if (threadIdx.x < Main::kDqTurns)
        args.turns[line / Main::kTileM * Main::kDqTurns + threadIdx.x] = 0;
    }

    const float unit = units_of(args).delta;
    constexpr int kLanes = kDim / 16, kRowsAtOnce = kThreads / kLanes;
    const int lane = threadIdx.x % kLanes;
#pragma unroll
    for (int i = 0; i < kRows / kRowsAtOnce; ++i) {
      const int place = i * kRowsAtOnce + threadIdx.x / kLanes, row = row0 + place;
      float sum = 0.0f;
      if (row < p.forward.q_length) {
        const auto load = [&](const attention::Tensor& of) {
          return *reinterpret_cast<const uint4*>(
              attention::element_pointer<u8>(of, batch, head, row, 16 * lane));
        };
        u32 o[8], d_o[8], q[8];
        numbers(load(p.forward.o), o);
        numbers(load(p.d_o), d_o);
        numbers(load(p.forward.q), q);
#pragma unroll
        for (int n = 0; n < 8; ++n) {
          float x[2], y[2];
          ptx::unpack<f16>(o[n], x[0], x[1]);
          ptx::unpack<f16>(d_o[n], y[0], y[1]);
          sum += x[0] * y[0] + x[1] * y[1];
        }
        const i64 wide = (flat_head * p.forward.q_length + row) * kDim + 16 * lane;
        store_wide(args.wide_d_o + wide, d_o);
        store_wide(args.wide_q + wide, q);
      }
#pragma unroll
      for (int apart = kLanes / 2; apart > 0; apart /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, apart);
      if (lane == 0) {
        args.negative_lse[line + place] =
            row < p.forward.q_length ? Rows::statistic_of(p.forward, batch, head, row).reference
                                     : attention::minus_infinity();
        args.delta[line + place] = sum * unit;
      }
    }
  }

  /// dQ from its sums, in fragment order, to rows.
  HEDDLE_DEVICE static void finish(const Fp8BackwardRowsArguments& args) {
    ptx::grid_dependency_wait();
    const attention::BackwardParameters& p = args.problem;
    const int head = backwards(blockIdx.y, gridDim.y),
              batch = backwards(blockIdx.z, gridDim.z) + p.forward.first_batch,
              row0 = blockIdx.x * Main::kTileM;
    const float* sums =
        args.d_q_sum +
        (static_cast<i64>(batch * p.forward.q_heads + head) * args.q_rounded + row0) *
            Main::kDqWidth;
    const Fp8BackwardUnits units = *args.units;
    u32 largest = 0;
    // A unit is eight columns of rows r and r + 8: sixteen sums side by side.
    constexpr int kGroups = Main::kDqColumns / 8, kUnitsPerPart = 32 * kGroups;
    constexpr int kUnits = Main::kTileM * Main::kDqWidth / 16;
#pragma unroll
    for (int unit = threadIdx.x; unit < kUnits; unit += kThreads) {
      const int part = unit / kUnitsPerPart, group = unit % kGroups;
      const int quad = unit % kUnitsPerPart / kGroups;  // warp * 8 + lane / 4
      const float4* from = reinterpret_cast<const float4*>(
          sums + part * Main::kDqPart + group * Main::kDqGroupStride +
          quad / 8 * Main::kDqWarpStride + quad % 8 * 16);
      u32 codes[2][2];  // [row half][four columns]
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float4 x = from[i];
        const float number[4] = {x.x * units.d_q, x.y * units.d_q, x.z * units.d_q,
                                 x.w * units.d_q};
#pragma unroll
        for (int n = 0; n < 4; ++n)
          largest = attention::larger(largest, attention::magnitude(number[n]));
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const u32 pair = ptx::pack_e4m3(number[2 * half] * units.scale_d_q,
                                          number[2 * half + 1] * units.scale_d_q);
          if (i % 2 == 0)
            codes[half][i / 2] = pair;
          else
            codes[half][i / 2] |= pair << 16;
        }
      }
      const int row = row0 + quad / 8 * 16 + quad % 8;
      const int column = group * 8 + part * Main::kDqColumns;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (row + 8 * half < p.forward.q_length)
          *reinterpret_cast<uint2*>(
              attention::element_pointer<u8>(p.d_q, batch, head, row + 8 * half, column)) =
              make_uint2(codes[half][0], codes[half][1]);
      }
    }
    attention::raise(args.amax.d_q, largest);
  }
};

}  // namespace heddle::sm90
