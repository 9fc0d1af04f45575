// f32 tensors as pairs of f16, what the f32 kernels multiply: x = unit * (high + low), high = x /
// unit rounded to f16 and low what that leaves, rounded as well: 22 bits together. The unit, a
// power of two for each head, brings the head's largest value to 2^14 .. 2^15, so that both parts
// keep all their bits down to 2^-17 of it, and smaller values an error of 2^-40 of it. That is no
// f32 for rows which are small beside the head's largest value, and pairs have no infinity: such
// the fallback flag is set, and general kernels compute instead.
#pragma once

#include "../attention/operand.cuh"
#include "../ptx/math.cuh"
#include "f16_pairs_arguments.h"

namespace heddle::sm90 {

struct F16PairsKernels {
  static constexpr int kMostTileRows = 128;  ///< of those that read pairs
  static constexpr int kMostExponent = 32;

  /// The largest finite magnitude of a part of a head's rows. Grid (kPairParts, most heads, tensors
  /// * batch).
  HEDDLE_DEVICE static void find_largest(const PairsArguments& args) {
    const PairedTensor& tensor = args.tensors[blockIdx.z / args.batch];
    const int head = blockIdx.y, batch = blockIdx.z % args.batch;
    if (threadIdx.x == 0 && blockIdx.x == 0 && head == 0 && blockIdx.z == 0) *args.fallback = 0;
    if (head >= tensor.heads) return;
    const int length = attention::length_of(tensor.rows, batch);
    const int rows = ceil_div(length, kPairParts), first = blockIdx.x * rows;
    const int vectors = tensor.columns / 4;
    const int count = (min_of(first + rows, length) - first) * vectors;
    const float* source =
        attention::element_pointer<const float>(tensor.source, batch, head, first, 0);
    float most = 0;
#pragma unroll 4
    for (int i = threadIdx.x; i < count; i += kPairThreads) {
      const float4 x = *reinterpret_cast<const float4*>(
          source + i / vectors * tensor.source.stride[2] + i % vectors * 4);
      const float values[4] = {fabsf(x.x), fabsf(x.y), fabsf(x.z), fabsf(x.w)};
#pragma unroll
      for (float value : values) {
        if (value < __int_as_float(0x7f800000)) most = ptx::max(most, value);
      }
    }
    __shared__ float of_warps[kPairThreads / 32];
    most = warp_max(most);
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = most;
    __syncthreads();
    if (threadIdx.x >= 32) return;
    most = warp_max(threadIdx.x < kPairThreads / 32 ? of_warps[threadIdx.x] : 0.0f);
    if (threadIdx.x == 0) {
      const i64 flat_head = static_cast<i64>(batch) * tensor.heads + head;
      tensor.largest[flat_head * kPairParts + blockIdx.x] = most;
      if (blockIdx.x == 0) tensor.norms[flat_head] = 0;
    }
  }

  /// Writes the pairs, eight columns a thread. Grid (ceil(rows / kPairRows), most heads, tensors *
  /// batch).
  HEDDLE_DEVICE static void split(const PairsArguments& args) {
    const PairedTensor& tensor = args.tensors[blockIdx.z / args.batch];
    const int head = blockIdx.y, batch = blockIdx.z % args.batch, first = blockIdx.x * kPairRows;
    const int length = attention::length_of(tensor.rows, batch);
    const int written = min_of(tensor.rows.full, length + kMostTileRows);
    if (head >= tensor.heads || first >= written) return;
    const i64 flat_head = static_cast<i64>(batch) * tensor.heads + head;
    const float most =
        warp_max(tensor.largest[flat_head * kPairParts + static_cast<int>(threadIdx.x) % 32]);
    // 2^14 .. 2^15 is exponent 14. Up to kMostExponent products of three units are within f32.
    const int found = static_cast<int>(__float_as_uint(most) >> 23) - 127;
    const int exponent = min_of(max_of(found, -kMostExponent), kMostExponent);
    bool falls_back = most != 0 && found != exponent;
    const float factor = __uint_as_float(static_cast<u32>(127 + 14 - exponent) << 23);
    if (threadIdx.x == 0 && blockIdx.x == 0)
      tensor.units[flat_head] = __uint_as_float(static_cast<u32>(127 - 14 + exponent) << 23);

    const int padded = round_up(tensor.columns, 64), chunks = padded / 8;
    // The lanes of a row lie side by side, a power of two of them.
    int lanes = 8;
    while (lanes < min_of(chunks, 32)) lanes *= 2;
    const int rows = length - first, written_here = written - first;
    const float* source =
        attention::element_pointer<const float>(tensor.source, batch, head, first, 0);
    uint4* target =
        static_cast<uint4*>(tensor.pairs) + (flat_head * tensor.rows.full + first) * 2 * chunks;
    float norm = 0;
#pragma unroll 2
    for (int i = threadIdx.x; i < kPairRows * lanes; i += kPairThreads) {
      const int row = i / lanes;
      float squares = 0;
      bool is_zero = true;
      for (int chunk = i % lanes; chunk < chunks; chunk += lanes) {
        float4 x[2] = {make_float4(0, 0, 0, 0), make_float4(0, 0, 0, 0)};
        if (row < rows && 8 * chunk < tensor.columns) {
          const float4* from =
              reinterpret_cast<const float4*>(source + row * tensor.source.stride[2] + 8 * chunk);
          x[0] = from[0];
          x[1] = from[1];
        }
        const float values[8] = {x[0].x, x[0].y, x[0].z, x[0].w, x[1].x, x[1].y, x[1].z, x[1].w};
        u32 high[4], low[4];
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          const float a = values[2 * n] * factor, b = values[2 * n + 1] * factor;
          squares += a * a + b * b;
          is_zero = is_zero && values[2 * n] == 0 && values[2 * n + 1] == 0;
          high[n] = ptx::pack<f16>(a, b);
          float near_a, near_b;
          ptx::unpack<f16>(high[n], near_a, near_b);
          low[n] = ptx::pack<f16>(a - near_a, b - near_b);
        }
        if (row >= written_here) continue;
        target[row * 2 * chunks + chunk] = make_uint4(high[0], high[1], high[2], high[3]);
        target[row * 2 * chunks + chunks + chunk] = make_uint4(low[0], low[1], low[2], low[3]);
      }
      for (int apart = 1; apart < lanes; apart *= 2)
        squares += __shfl_xor_sync(0xffffffffu, squares, apart);
      norm = ptx::max(norm, squares);
      // False of NaN. Squares of numbers far below the head's largest are 0, too.
      const bool fits =
          squares == 0 ? is_zero : squares >= tensor.least && squares < __int_as_float(0x7f800000);
      falls_back = falls_back || !fits;
    }
    if (falls_back) *args.fallback = 1;
    // Of floats that are not negative the order is that of their bits.
    norm = warp_max(norm);
    if (threadIdx.x % 32 == 0)
      atomicMax(reinterpret_cast<int*>(tensor.norms) + flat_head, __float_as_int(norm));
  }

 private:
  HEDDLE_DEVICE static float warp_max(float x) {
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2)
      x = ptx::max(x, __shfl_xor_sync(0xffffffffu, x, apart));
    return x;
  }
};

}  // namespace heddle::sm90
