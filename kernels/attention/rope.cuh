// Rotary embedding of rows of 16-bit elements:
//   y = scale * R(angle) x   on rope_dim columns from one on, scale * x on the others,
// where R turns pairs of columns: (j, j + rope_dim/2) for halves (NeoX), (2j, 2j+1) for interleaved
// (GPT-J), counted from the first rotated column. Cosines and sines are rounded to 2^-12 of the
// largest of their row, results to the element type.
#pragma once

#include "../ptx/math.cuh"
#include "../streaming/rotation.cuh"
#include "../streaming/sine_cosine.cuh"
#include "operand.cuh"
#include "rope_parameters.h"

namespace heddle::attention {

template <typename T>
HEDDLE_DEVICE u32 scale_pair(u32 pair, float scale) {
  float a, b;
  ptx::unpack<T>(pair, a, b);
  return ptx::pack<T>(a * scale, b * scale);
}

/// How a warp turns 16 rows where they lie in shared memory: in steps of eight pairs a row, whose
/// columns are two chunks of 8 (halves: one of each half of the row; interleaved: neighbours). As
/// ldmatrix gives them, a lane has two elements of each chunk in row lane / 4 and in the eighth row
/// after it, so that it needs four rotations: they lie together, those of a step one lane after the
/// other.
template <int kRopeDim, RopePairing kPairing, int kFirstColumn>
struct RopeSteps {
  static constexpr bool kHalves = kPairing == RopePairing::halves;
  static constexpr int kPairs = kRopeDim / 2;
  static constexpr int kCount = rotations_of(kRopeDim) / 8;
  static constexpr int kFirst = kFirstColumn / 8;  ///< chunks before the rotated ones
  static_assert(kRopeDim % (kHalves ? 16 : 8) == 0, "pairs come in whole chunks");
  static_assert(kFirstColumn % 8 == 0, "columns before the rotated ones come in chunks of 8");

  /// The chunk of a step that a lane addresses. Of an odd number of chunks the last is turned
  /// twice, to the same.
  HEDDLE_DEVICE static int chunk(int step, int lane) {
    return kFirst +
           (kHalves ? step + lane / 16 * kCount : min_of(2 * step + lane / 16, kRopeDim / 8 - 1));
  }

  /// Where a lane's rotations of a step begin among those of kRotationRows rows.
  HEDDLE_DEVICE static int place(int warp, int step, int lane) {
    return ((warp * kCount + step) * 32 + lane) * 4;
  }
  /// Where the rotation of a pair lies among them.
  HEDDLE_DEVICE static int place_of(int row, int pair) {
    const int half = row % 16 / 8;
    const int lane = row % 8 * 4 + (kHalves ? pair % 8 / 2 : pair % 4);
    return place(row / 16, pair / 8, lane) +
           (kHalves ? 2 * half + pair % 2 : pair % 8 / 4 * 2 + half);
  }

  /// Turns a lane's share of a step: rows of the first eight in x[0] and x[2], the others in x[1]
  /// and x[3].
  template <typename T>
  HEDDLE_DEVICE static void turn(u32 (&x)[4], const u32 (&rotations)[4]) {
    float a[4][2], c[4], s[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      ptx::unpack<T>(x[i], a[i][0], a[i][1]);
      ptx::unpack<f16>(rotations[i], c[i], s[i]);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (!kHalves) {
        streaming::turn_pair(a[i][0], a[i][1], c[i], s[i]);
      } else if (i < 2) {
#pragma unroll
        for (int n = 0; n < 2; ++n)
          streaming::turn_pair(a[i][n], a[i + 2][n], c[2 * i + n], s[2 * i + n]);
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = ptx::pack<T>(a[i][0], a[i][1]);
  }
};

/// Row of the tables for row `row` of a sequence.
HEDDLE_DEVICE i64 rope_position(const RotationArguments& args, int batch, int row) {
  if (args.positions == nullptr) return streaming::nearest_row(0, row, args.table_rows);
  const i64 position = load_integer(
      args.positions, batch * args.position_batch_stride + row * args.position_row_stride,
      args.positions_are_64_bit);
  return streaming::nearest_row(position, args.positions_per_row ? 0 : row, args.table_rows);
}

/// The rotations of one row for each warp of a block.
template <int kRopeDim, RopePairing kPairing>
HEDDLE_DEVICE void make_rotations(const RotationArguments& args, int block) {
  using Steps = RopeSteps<kRopeDim, kPairing, 0>;
  constexpr int kPairs = 8 * Steps::kCount, kPerLane = ceil_div(kPairs, 32);
  const int index = (block * kRotationThreads + threadIdx.x) / 32, lane = threadIdx.x % 32;
  if (index >= args.batches * args.rows) return;
  const int batch = index / args.rows;
  const int row = min_of(index - batch * args.rows, args.length - 1);
  const i64 position = rope_position(args, batch, row);
  float cosines[kPerLane], sines[kPerLane], largest = 0;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int n = lane + 32 * i;
    cosines[i] = sines[i] = 0;
    if (n >= kPairs) continue;
    const int pair = n < Steps::kPairs ? n : n - 4;  // of the last chunk once more
    const i64 first = position * args.first_stride[0] + pair * args.first_stride[1];
    if (args.angles != nullptr) {
      streaming::sine_cosine(args.angles[first], sines[i], cosines[i]);
    } else {
      cosines[i] = args.cosines[first];
      sines[i] = args.sines[position * args.second_stride[0] + pair * args.second_stride[1]];
    }
    cosines[i] *= args.scale;
    sines[i] *= args.scale;
    largest = ptx::max(largest, ptx::max(fabsf(cosines[i]), fabsf(sines[i])));
  }
#pragma unroll
  for (int apart = 16; apart > 0; apart /= 2)
    largest = ptx::max(largest, __shfl_xor_sync(0xffffffffu, largest, apart));
  const streaming::RotationUnit unit = streaming::rotation_unit(largest);
  unsigned* const group = args.rotations + i64{index / kRotationRows} * (kRotationRows * kPairs);
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int n = lane + 32 * i;
    if (n < kPairs)
      group[Steps::place_of(index % kRotationRows, n)] =
          streaming::packed_rotation(cosines[i], sines[i], unit);
  }
  if (lane == 0) args.units[index] = unit.unit;
}

}  // namespace heddle::attention
