// Rotary embedding of rows of 16-bit elements:
//   y = scale * R(angle) x   on the trailing rope_dim columns, scale * x on those before,
// where R turns pairs of columns: (j, j + rope_dim/2) for halves (NeoX), (2j, 2j+1) for interleaved
// (GPT-J), counted from the first rotated column. Results are rounded to the element type once.
#pragma once

#include "../ptx/math.cuh"
#include "../streaming/sine_cosine.cuh"
#include "operand.cuh"
#include "rope_parameters.h"

namespace heddle::attention {

/// Row of the tables for row `row` of a sequence.
HEDDLE_DEVICE i64 rope_position(const RopeParameters& rope, int batch, int row) {
  i64 at = row;
  if (rope.positions != nullptr) {
    const i64 value = load_integer(
        rope.positions, batch * rope.position_batch_stride + row * rope.position_row_stride,
        rope.positions_are_64_bit);
    at = rope.positions_per_row ? value : row + value;
  }
  at = at < rope.table_rows ? at : rope.table_rows - 1;
  return at > 0 ? at : 0;
}

HEDDLE_DEVICE void load_eight(float (&to)[8], const float* from) {
  const float4 low = __ldg(reinterpret_cast<const float4*>(from)),
               high = __ldg(reinterpret_cast<const float4*>(from) + 1);
  to[0] = low.x, to[1] = low.y, to[2] = low.z, to[3] = low.w;
  to[4] = high.x, to[5] = high.y, to[6] = high.z, to[7] = high.w;
}

/// Turns eight pairs (x, y) packed in two 16-byte chunks.
template <typename T>
HEDDLE_DEVICE void rotate_halves(u32 (&x)[4], u32 (&y)[4], const float (&c)[8], const float (&s)[8],
                                 float scale) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float a[2], b[2];
    ptx::unpack<T>(x[i], a[0], a[1]);
    ptx::unpack<T>(y[i], b[0], b[1]);
    float u[2], v[2];
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      u[n] = scale * (a[n] * c[2 * i + n] - b[n] * s[2 * i + n]);
      v[n] = scale * (b[n] * c[2 * i + n] + a[n] * s[2 * i + n]);
    }
    x[i] = ptx::pack<T>(u[0], u[1]);
    y[i] = ptx::pack<T>(v[0], v[1]);
  }
}

/// Turns the four neighbouring pairs of one 16-byte chunk.
template <typename T>
HEDDLE_DEVICE void rotate_interleaved(u32 (&x)[4], const float (&c)[4], const float (&s)[4],
                                      float scale) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float a, b;
    ptx::unpack<T>(x[i], a, b);
    x[i] = ptx::pack<T>(scale * (a * c[i] - b * s[i]), scale * (b * c[i] + a * s[i]));
  }
}

template <typename T>
HEDDLE_DEVICE void scale_chunk(u32 (&x)[4], float scale) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float a, b;
    ptx::unpack<T>(x[i], a, b);
    x[i] = ptx::pack<T>(a * scale, b * scale);
  }
}

/// Rotates one row in place, all of it or this thread's share: chunks are reached through
/// `load(chunk, value)` and `store(chunk, value)`, 8 columns each. The `threads` that share the row
/// call with their own `thread`. kRopeDim and the columns before it are multiples of 16 (halves)
/// or 8.
template <typename T, int kDim, int kRopeDim, RopePairing kPairing, class Load, class Store>
HEDDLE_DEVICE void rotate_row(const RopeParameters& rope, i64 position, int thread, int threads,
                              const Load& load, const Store& store) {
  constexpr int kFirst = (kDim - kRopeDim) / 8;
  static_assert((kDim - kRopeDim) % 8 == 0, "columns before the rotated ones come in chunks of 8");
  const float* cosines = rope.cosines + position * rope.table_stride;
  const float* sines = rope.sines + position * rope.table_stride;
  if constexpr (kPairing == RopePairing::halves) {
    static_assert(kRopeDim % 16 == 0, "both halves come in chunks of 8");
    constexpr int kHalf = kRopeDim / 16;
#pragma unroll 4
    for (int n = thread; n < kHalf; n += threads) {
      u32 x[4], y[4];
      float c[8], s[8];
      load_eight(c, cosines + 8 * n);
      load_eight(s, sines + 8 * n);
      load(kFirst + n, x);
      load(kFirst + kHalf + n, y);
      rotate_halves<T>(x, y, c, s, rope.scale);
      store(kFirst + n, x);
      store(kFirst + kHalf + n, y);
    }
  } else {
    static_assert(kRopeDim % 8 == 0, "pairs come in chunks of 8 columns");
#pragma unroll 4
    for (int n = thread; n < kRopeDim / 8; n += threads) {
      u32 x[4];
      const float4 c = __ldg(reinterpret_cast<const float4*>(cosines) + n),
                   s = __ldg(reinterpret_cast<const float4*>(sines) + n);
      load(kFirst + n, x);
      rotate_interleaved<T>(x, {c.x, c.y, c.z, c.w}, {s.x, s.y, s.z, s.w}, rope.scale);
      store(kFirst + n, x);
    }
  }
  if constexpr (kFirst > 0) {
    if (rope.scale != 1.f) {
      for (int n = thread; n < kFirst; n += threads) {
        u32 x[4];
        load(n, x);
        scale_chunk<T>(x, rope.scale);
        store(n, x);
      }
    }
  }
}

/// Rotates whole tensors from `from` to `to` (rows on 16 bytes), one row of one (batch, head) by
/// eight neighbouring threads; blocks of 128 threads, grid (ceil(rows / 16), heads, batch). Rows
/// past a length are left alone.
template <typename T, int kDim, int kRopeDim, RopePairing kPairing>
HEDDLE_DEVICE void rope_rows(const RopeRowsArguments& args) {
  const int row = blockIdx.x * 16 + threadIdx.x / 8, thread = threadIdx.x % 8;
  const int head = blockIdx.y, batch = blockIdx.z;
  if (row >= length_of(args.lengths, batch)) return;
  const T* from = head_pointer<const T>(args.from, batch, head) + row * args.from.stride[2];
  T* to = head_pointer<T>(args.to, batch, head) + row * args.to.stride[2];
  const auto load = [&](int chunk, u32(&x)[4]) {
    const uint4 value = *reinterpret_cast<const uint4*>(from + 8 * chunk);
    x[0] = value.x, x[1] = value.y, x[2] = value.z, x[3] = value.w;
  };
  const auto store = [&](int chunk, const u32(&x)[4]) {
    *reinterpret_cast<uint4*>(to + 8 * chunk) = make_uint4(x[0], x[1], x[2], x[3]);
  };
  rotate_row<T, kDim, kRopeDim, kPairing>(args.rope, rope_position(args.rope, batch, row), thread,
                                          8, load, store);
  if constexpr (kDim > kRopeDim) {
    if (args.rope.scale == 1.f) {
      for (int n = thread; n < (kDim - kRopeDim) / 8; n += 8) {
        u32 x[4];
        load(n, x);
        store(n, x);
      }
    }
  }
}

/// Tables from angles: one thread an entry of [rows, columns].
HEDDLE_DEVICE void rope_tables(const RopeTableArguments& args) {
  const int index = blockIdx.x * blockDim.x + threadIdx.x;
  if (index >= args.rows * args.columns) return;
  const int row = index / args.columns, column = index % args.columns;
  const float angle = args.angles[row * args.row_stride + column * args.column_stride];
  streaming::sine_cosine(angle, args.sines[index], args.cosines[index]);
}

}  // namespace heddle::attention
