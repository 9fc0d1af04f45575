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

/// A share of a row's pairs, and their cosines and sines: 8 pairs whose columns are two chunks of 8
/// (halves), or 4 pairs in one chunk (interleaved).
template <int kDim, int kRopeDim, RopePairing kPairing>
struct RopeUnit {
  static constexpr bool kHalves = kPairing == RopePairing::halves;
  static constexpr int kPairs = kHalves ? 8 : 4;
  static constexpr int kCount = kRopeDim / 2 / kPairs;  ///< of a row
  static constexpr int kFirst = (kDim - kRopeDim) / 8;  ///< chunks before the rotated ones
  static_assert(kRopeDim % (2 * kPairs) == 0, "pairs come in whole chunks");
  static_assert((kDim - kRopeDim) % 8 == 0, "columns before the rotated ones come in chunks of 8");

  float4 cosines[kPairs / 4], sines[kPairs / 4];

  HEDDLE_DEVICE void load_tables(const RopeParameters& rope, i64 position, int n) {
    const i64 start = position * rope.table_stride + kPairs * n;
#pragma unroll
    for (int i = 0; i < kPairs / 4; ++i) {
      cosines[i] = __ldg(reinterpret_cast<const float4*>(rope.cosines + start) + i);
      sines[i] = __ldg(reinterpret_cast<const float4*>(rope.sines + start) + i);
    }
  }

  /// Turns unit `n` of a row; chunks are reached through load(chunk, value) and store(chunk,
  /// value).
  template <typename T, class Load, class Store>
  HEDDLE_DEVICE void rotate(int n, float scale, const Load& load, const Store& store) const {
    u32 x[4];
    load(kFirst + n, x);
    const float c[4] = {cosines[0].x, cosines[0].y, cosines[0].z, cosines[0].w},
                s[4] = {sines[0].x, sines[0].y, sines[0].z, sines[0].w};
    if constexpr (kHalves) {
      const float4 c1 = cosines[kPairs / 4 - 1], s1 = sines[kPairs / 4 - 1];
      u32 y[4];
      load(kFirst + kCount + n, y);
      rotate_halves<T>(x, y, {c[0], c[1], c[2], c[3], c1.x, c1.y, c1.z, c1.w},
                       {s[0], s[1], s[2], s[3], s1.x, s1.y, s1.z, s1.w}, scale);
      store(kFirst + kCount + n, y);
    } else {
      rotate_interleaved<T>(x, c, s, scale);
    }
    store(kFirst + n, x);
  }
};

/// Tables from angles: one thread an entry of [rows, columns].
HEDDLE_DEVICE void rope_tables(const RopeTableArguments& args) {
  const int index = blockIdx.x * blockDim.x + threadIdx.x;
  if (index >= args.rows * args.columns) return;
  const int row = index / args.columns, column = index % args.columns;
  const float angle = args.angles[row * args.row_stride + column * args.column_stride];
  streaming::sine_cosine(angle, args.sines[index], args.cosines[index]);
}

}  // namespace heddle::attention
