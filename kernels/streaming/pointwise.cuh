// Pointwise ops: a thread reads a vector of each input, computes a generated program element by
// element in f32, and writes a vector of each result. All is read before anything is written: a
// result may lie where an input of its layout does.
#pragma once

#include "../attention/score_functions.cuh"
#include "../ptx/sync.cuh"
#include "pointwise_arguments.h"
#include "vector.cuh"

namespace heddle::streaming {

/// The first element of a vector.
struct PointwisePlace {
  i64 batch, head, row, column;
};
/// An element's indices, as programs read them.
using PointwiseCell = PointwisePlace;

/// How an operand's row is stepped through.
enum class Columns { one, dense, strided };

/// A boolean is a byte, true unless 0.
HEDDLE_DEVICE float number_of(u8 x) { return x != 0 ? 1.0f : 0.0f; }
HEDDLE_DEVICE float number_of(i32 x) { return static_cast<float>(x); }
template <typename T>
HEDDLE_DEVICE float number_of(T x) {
  return ptx::widen(x);
}

/// Rounded once. Integers saturate, and NaN is their 0, as cvt has it.
template <typename T>
HEDDLE_DEVICE T element_of(float x) {
  if constexpr (is_same<T, u8>)
    return x != 0;
  else if constexpr (is_same<T, i32>)
    return __float2int_rz(x);
  else
    return ptx::narrow<T>(x);
}

/// kVector elements of an operand from a place on.
template <typename T, Columns kColumns, int kVector>
struct PointwiseVector {
  static constexpr bool kPacked = kColumns == Columns::dense && !is_same<T, u8> && !is_same<T, i32>;

  HEDDLE_DEVICE static T* address(const PointwiseOperand& operand, const PointwisePlace& at) {
    const i64 column = kColumns == Columns::one     ? 0
                       : kColumns == Columns::dense ? at.column
                                                    : at.column * operand.stride[3];
    return static_cast<T*>(operand.data) + at.batch * operand.stride[0] +
           at.head * operand.stride[1] + at.row * operand.stride[2] + column;
  }
  /// Elements from one of the vector to the next.
  HEDDLE_DEVICE static i64 step(const PointwiseOperand& operand) {
    return kColumns == Columns::strided ? operand.stride[3] : 1;
  }

  HEDDLE_DEVICE static void load(const PointwiseOperand& operand, const PointwisePlace& at,
                                 float (&to)[kVector]) {
    const T* const from = address(operand, at);
    if constexpr (kPacked) {
      Packed<T, kVector> all;
      all.load(from);
      all.get(to);
    } else {
      const float first = number_of(*from);
#pragma unroll
      for (int n = 0; n < kVector; ++n)
        to[n] = kColumns == Columns::one || n == 0 ? first : number_of(from[n * step(operand)]);
    }
  }

  HEDDLE_DEVICE static void store(const PointwiseOperand& operand, const PointwisePlace& at,
                                  const float (&from)[kVector]) {
    T* const to = address(operand, at);
    if constexpr (kPacked) {
      Packed<T, kVector> all;
      all.set(from);
      all.store(to);
    } else {
#pragma unroll
      for (int n = 0; n < kVector; ++n) to[n * step(operand)] = element_of<T>(from[n]);
    }
  }
};

/// Grid ceil(vectors / kThreads). Program::run(arguments, place) does the work of a vector of
/// Program::kVector elements.
template <class Program>
struct Pointwise {
  static constexpr unsigned kThreads = 256;

  HEDDLE_DEVICE static void run(const PointwiseArguments& args) {
    ptx::grid_dependents_launch();
    const unsigned vector = blockIdx.x * kThreads + threadIdx.x;
    if (vector >= args.vectors) return;
    const unsigned row = vector / args.row_vectors, head = row / args.rows;
    const unsigned batch = head / args.heads;
    Program::run(args, {batch, head - batch * args.heads, row - head * args.rows,
                        static_cast<i64>(vector - row * args.row_vectors) * Program::kVector});
  }
};

}  // namespace heddle::streaming
