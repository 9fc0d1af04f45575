// Rotary embedding standing alone, forward and (with kInverse) backward. A thread rotates the same
// columns of one row in several heads, so that sines and cosines are found once.
#pragma once

#include "vector.cuh"

namespace heddle::streaming {

/// Defaults a generated configuration derives from and overrides.
struct RopeConfig {
  using X = bf16;
  using Y = bf16;
  /// Pairs of a thread: 8 (halves) or 4 (interleaved) of 16 bits, 4 or 2 of f32; 1 where
  /// rope_dim / 2, head_dim, strides or addresses are no multiples of that.
  static constexpr int kPairs = 8;
  static constexpr bool kInterleaved = false;  ///< pairs (2j, 2j+1), else (j, j + rope_dim/2)
  static constexpr bool kTables = false;       ///< cosines and sines, else angles
  static constexpr bool kInverse = false;      ///< the angle's sign turned
  static constexpr bool kPositions = false, kPositionsPerRow = false;
};

/// Sine and cosine to about 2 ulp for |x| up to 1e5: reduced by pi/2 in three parts, then
/// polynomials (least squares on [-pi/4, pi/4]).
HEDDLE_DEVICE void sine_cosine(float x, float& sine, float& cosine) {
  constexpr float kTwoOverPi = 0.636619772f;
  const float turns = rintf(x * kTwoOverPi);
  float r = fmaf(turns, -1.5707962513e+0f, x);
  r = fmaf(turns, -7.5497894159e-8f, r);
  r = fmaf(turns, -5.3903029534e-15f, r);
  const float r2 = r * r;
  const float s =
      fmaf(fmaf(fmaf(-1.9515295891e-4f, r2, 8.3321608736e-3f), r2, -1.6666654611e-1f), r2 * r, r);
  const float c =
      fmaf(fmaf(fmaf(2.443315711809948e-5f, r2, -1.388731625493765e-3f), r2, 4.166664568298827e-2f),
           r2 * r2, fmaf(-0.5f, r2, 1.0f));
  const int quadrant = static_cast<int>(turns);
  sine = quadrant & 1 ? c : s;
  cosine = quadrant & 1 ? s : c;
  if (quadrant & 2) sine = -sine;
  if ((quadrant + 1) & 2) cosine = -cosine;
}

template <class Config>
struct Rope {
  using C = Config;
  using X = typename C::X;
  using Y = typename C::Y;
  static constexpr int kThreads = 256;
  static constexpr int kPairs = C::kPairs;
  /// Elements of a run: halves take two runs of a row, interleaved pairs one of double length.
  static constexpr int kRun = C::kInterleaved ? 2 * kPairs : kPairs;

  /// Units of a row: those that rotate, then those that pass.
  HEDDLE_DEVICE static constexpr int units_of(int head_dim, int rope_dim) {
    return rope_dim / (2 * kPairs) + (head_dim - rope_dim) / kRun;
  }

  HEDDLE_DEVICE static i64 table_row(const RopeArguments& args, int batch, int row) {
    if constexpr (!C::kPositions) return row;
    const i64 index = batch * args.position_batch_stride +
                      (C::kPositionsPerRow ? row * args.position_row_stride : 0);
    const i64 at = args.positions_are_64_bit ? static_cast<const i64*>(args.positions)[index]
                                             : static_cast<const i32*>(args.positions)[index];
    return C::kPositionsPerRow ? at : row + at;
  }

  /// Grid (ceil(length * units / kThreads), ceil(heads / heads_per_block), batch).
  HEDDLE_DEVICE static void run(const RopeArguments& args) {
    const int units = args.rope_dim / (2 * kPairs) + (args.head_dim - args.rope_dim) / kRun;
    const int index = blockIdx.x * kThreads + threadIdx.x;
    const int row = index / units, unit = index - row * units;
    if (row >= args.length) return;
    const int batch = blockIdx.z, head0 = blockIdx.y * args.heads_per_block;
    const int heads = min_of(args.heads - head0, args.heads_per_block);
    const X* x = static_cast<const X*>(args.x) + batch * args.x_stride[0] +
                 head0 * args.x_stride[1] + row * args.x_stride[2];
    Y* y = static_cast<Y*>(args.y) + batch * args.y_stride[0] + head0 * args.y_stride[1] +
           row * args.y_stride[2];
    const int passing = args.head_dim - args.rope_dim,
              rotating_units = args.rope_dim / (2 * kPairs);

    if (unit >= rotating_units) {
      const int column = (unit - rotating_units) * kRun;
      for (int head = 0; head < heads; ++head) {
        Packed<X, kRun> in;
        Packed<Y, kRun> out;
        in.load(x + head * args.x_stride[1] + column);
#pragma unroll
        for (int n = 0; n < kRun; ++n) out.set(n, in.get(n) * args.scale);
        out.store(y + head * args.y_stride[1] + column);
      }
      return;
    }

    float cosine[kPairs], sine[kPairs];
    const i64 entry = table_row(args, batch, row) * args.table_stride + unit * kPairs;
#pragma unroll
    for (int n = 0; n < kPairs; ++n) {
      if constexpr (C::kTables) {
        cosine[n] = args.cosines[entry + n];
        sine[n] = args.sines[entry + n];
      } else {
        sine_cosine(args.angles[entry + n], sine[n], cosine[n]);
      }
      cosine[n] *= args.scale;
      sine[n] *= C::kInverse ? -args.scale : args.scale;
    }
    const int column = passing + unit * kRun, apart = args.rope_dim / 2;
#pragma unroll 4
    for (int head = 0; head < heads; ++head) {
      const X* from = x + head * args.x_stride[1] + column;
      Y* to = y + head * args.y_stride[1] + column;
      if constexpr (C::kInterleaved) {
        Packed<X, kRun> in;
        Packed<Y, kRun> out;
        in.load(from);
#pragma unroll
        for (int n = 0; n < kPairs; ++n) {
          const float a = in.get(2 * n), b = in.get(2 * n + 1);
          out.set(2 * n, a * cosine[n] - b * sine[n]);
          out.set(2 * n + 1, b * cosine[n] + a * sine[n]);
        }
        out.store(to);
      } else {
        Packed<X, kRun> first, second;
        Packed<Y, kRun> out_first, out_second;
        first.load(from);
        second.load(from + apart);
#pragma unroll
        for (int n = 0; n < kPairs; ++n) {
          const float a = first.get(n), b = second.get(n);
          out_first.set(n, a * cosine[n] - b * sine[n]);
          out_second.set(n, b * cosine[n] + a * sine[n]);
        }
        out_first.store(to);
        out_second.store(to + apart);
      }
    }
  }
};

}  // namespace heddle::streaming
