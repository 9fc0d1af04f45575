// Rotary embedding of rows of 16-bit elements:
//   y = scale * R(angle) x   on the trailing rope_dim columns, scale * x on those before,
// where R turns pairs of columns: (j, j + rope_dim/2) for halves (NeoX), (2j, 2j+1) for interleaved
// (GPT-J), counted from the first rotated column. Cosines and sines are rounded to 2^-12 of the
// largest of their row, results to the element type.
#pragma once

#include "../ptx/math.cuh"
#include "../streaming/sine_cosine.cuh"
#include "operand.cuh"
#include "rope_parameters.h"

namespace heddle::attention {

/// Turns eight pairs (x, y) packed in two 16-byte chunks.
template <typename T>
HEDDLE_DEVICE void rotate_halves(u32 (&x)[4], u32 (&y)[4], const u32 (&rotations)[8], float scale) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float a[2], b[2];
    ptx::unpack<T>(x[i], a[0], a[1]);
    ptx::unpack<T>(y[i], b[0], b[1]);
    float u[2], v[2];
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      float c, s;
      ptx::unpack<f16>(rotations[2 * i + n], c, s);
      u[n] = scale * (a[n] * c - b[n] * s);
      v[n] = scale * (b[n] * c + a[n] * s);
    }
    x[i] = ptx::pack<T>(u[0], u[1]);
    y[i] = ptx::pack<T>(v[0], v[1]);
  }
}

/// Turns the four neighbouring pairs of one 16-byte chunk.
template <typename T>
HEDDLE_DEVICE void rotate_interleaved(u32 (&x)[4], const u32 (&rotations)[4], float scale) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float a, b, c, s;
    ptx::unpack<T>(x[i], a, b);
    ptx::unpack<f16>(rotations[i], c, s);
    x[i] = ptx::pack<T>(scale * (a * c - b * s), scale * (b * c + a * s));
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

/// A share of a row's pairs and their rotations: 8 pairs whose columns are two chunks of 8
/// (halves), or 4 pairs in one chunk (interleaved). A row's rotations lie so that the first four of
/// each unit come before the second four of any: eight units then load from 128 bytes.
template <int kDim, int kRopeDim, RopePairing kPairing>
struct RopeUnit {
  static constexpr bool kHalves = kPairing == RopePairing::halves;
  static constexpr int kPairs = kHalves ? 8 : 4;
  static constexpr int kCount = kRopeDim / 2 / kPairs;  ///< of a row
  static constexpr int kFirst = (kDim - kRopeDim) / 8;  ///< chunks before the rotated ones
  static constexpr int kRowBytes = 2 * kRopeDim;        ///< of rotations
  static_assert(kRopeDim % (2 * kPairs) == 0, "pairs come in whole chunks");
  static_assert((kDim - kRopeDim) % 8 == 0, "columns before the rotated ones come in chunks of 8");

  /// Where the rotation of a pair lies in its row.
  HEDDLE_DEVICE static int place(int pair) {
    return pair % kPairs / 4 * (4 * kCount) + pair / kPairs * 4 + pair % 4;
  }

  u32 rotations[kPairs];
  float scale;

  /// The rotations of unit `n` of a row; load(place, value) loads four from a place in the row.
  template <class Load>
  HEDDLE_DEVICE void load_rotations(int n, const Load& load) {
#pragma unroll
    for (int i = 0; i < kPairs; i += 4) {
      u32 four[4];
      load(i * kCount + 4 * n, four);
#pragma unroll
      for (int j = 0; j < 4; ++j) rotations[i + j] = four[j];
    }
  }

  /// Turns unit `n` of a row; chunks are reached through load(chunk, value) and store(chunk,
  /// value).
  template <typename T, class Load, class Store>
  HEDDLE_DEVICE void rotate(int n, const Load& load, const Store& store) const {
    u32 x[4];
    load(kFirst + n, x);
    if constexpr (kHalves) {
      u32 y[4];
      load(kFirst + kCount + n, y);
      rotate_halves<T>(x, y, rotations, scale);
      store(kFirst + kCount + n, y);
    } else {
      rotate_interleaved<T>(x, rotations, scale);
    }
    store(kFirst + n, x);
  }
};

/// Row of the tables for row `row` of a sequence.
HEDDLE_DEVICE i64 rope_position(const RotationArguments& args, int batch, int row) {
  i64 at = row;
  if (args.positions != nullptr) {
    const i64 value = load_integer(
        args.positions, batch * args.position_batch_stride + row * args.position_row_stride,
        args.positions_are_64_bit);
    at = args.positions_per_row ? value : row + value;
  }
  at = at < args.table_rows ? at : args.table_rows - 1;
  return at > 0 ? at : 0;
}

/// The rotations of one row for each warp of a block.
template <int kRopeDim, RopePairing kPairing>
HEDDLE_DEVICE void make_rotations(const RotationArguments& args, int block) {
  using Unit = RopeUnit<kRopeDim, kRopeDim, kPairing>;
  constexpr int kPairs = kRopeDim / 2, kPerLane = ceil_div(kPairs, 32);
  const int index = (block * kRotationThreads + threadIdx.x) / 32, lane = threadIdx.x % 32;
  if (index >= args.batches * args.rows) return;
  const int batch = index / args.rows;
  const int row = min_of(index - batch * args.rows, args.length - 1);
  const i64 position = rope_position(args, batch, row);
  float cosines[kPerLane], sines[kPerLane], largest = 0;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int pair = lane + 32 * i;
    cosines[i] = sines[i] = 0;
    if (pair >= kPairs) continue;
    const i64 first = position * args.first_stride[0] + pair * args.first_stride[1];
    if (args.angles != nullptr) {
      streaming::sine_cosine(args.angles[first], sines[i], cosines[i]);
    } else {
      cosines[i] = args.cosines[first];
      sines[i] = args.sines[position * args.second_stride[0] + pair * args.second_stride[1]];
    }
    largest = ptx::max(largest, ptx::max(fabsf(cosines[i]), fabsf(sines[i])));
  }
#pragma unroll
  for (int apart = 16; apart > 0; apart /= 2)
    largest = ptx::max(largest, __shfl_xor_sync(0xffffffffu, largest, apart));
  // A power of two whose reciprocal is one too.
  const int exponent = min_of(max_of(__float_as_int(largest) >> 23, 1), 253);
  const float unit = __int_as_float(exponent << 23),
              per_unit = __int_as_float((254 - exponent) << 23);
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int pair = lane + 32 * i;
    if (pair < kPairs)
      args.rotations[i64{index} * kPairs + Unit::place(pair)] =
          ptx::pack<f16>(cosines[i] * per_unit, sines[i] * per_unit);
  }
  if (lane == 0) args.scales[index] = unit * args.scale;
}

}  // namespace heddle::attention
