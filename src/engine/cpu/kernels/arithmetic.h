// The ways a product of matrices is computed. Operands are held in 32-bit words in each, so packing
// and tiling are one code:
//
//   Singles  a word is one f32; a step is a multiply-add. Any dtype, converted when packed.
//   Pairs    a word is two bf16 that are neighbours along the summed dim; a step is the dot product
//            of two pairs, added in f32. Twice the speed, where the machine has it and Q, K and V
//            are bf16; probabilities and their gradients are then rounded to bf16.
//   Tiles    the same words, multiplied tile by tile (tile_products.h): sums are over whole tiles,
//            and words past the last element are zeros.
//   Parts    f32 in three parts, f16 in two: each element is a sum of bf16 numbers, the first what
//            it begins with, the next what that leaves. Of each part there is a plane of words as
//            Tiles has them, and a product is those of planes whose share f32 holds: six, or four.
//            What is left out of a product of f32 is 2^-25 of it on average. Where tiles are 16
//            times as fast as multiply-adds that is 2.7 and 4 times their speed. Numbers too large
//            or too small for it are Singles' (takes()).
#pragma once

#include <cstddef>

#include "engine/cpu/kernels/memory.h"

namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL {

struct Singles {
  static constexpr int kPack = 1, kParts = 1;
  static constexpr int kDepth = 1;  ///< words that a sum is over whole numbers of
  static constexpr int kPanelRows = panel_rows(kShape, Products::singles);
  static Float step(Float a, Float b, Float sum) { return multiply_add(a, b, sum); }

  /// Whether a row of the operand can be used where it lies.
  static bool lies_ready(const View& v) { return is_own_row(v); }
  /// The row's elements as words.
  static void read(const View& v, const char* p, int64_t columns, Real* words) {
    read_row(v.element, p, v.stride[3], v.element_bytes, columns, words);
  }
  /// Whether the numbers of these words, of Parts of their first plane, may be multiplied so.
  static bool takes(const Real*, int64_t) { return true; }
};

/// Words from one plane of A's parts to the next, and of B's.
struct PlanePitch {
  int64_t a = 0, b = 0;
};

/// Words that hold `count` elements.
template <class Arithmetic>
inline int64_t words_filled(int64_t count) {
  return (count + Arithmetic::kPack - 1) / Arithmetic::kPack;
}
/// Words of a plane that a sum over `count` elements takes.
template <class Arithmetic>
inline int64_t depth_of(int64_t count) {
  return round_up(words_filled<Arithmetic>(count), Arithmetic::kDepth);
}
/// The same of all planes.
template <class Arithmetic>
inline int64_t words_of(int64_t count) {
  return Arithmetic::kParts * depth_of<Arithmetic>(count);
}
/// Columns of scores are computed in whole vectors, and so many that sums over them are whole.
template <class Arithmetic>
inline constexpr int64_t kColumnUnit =
    Arithmetic::kPack* Arithmetic::kDepth > kLanes ? Arithmetic::kPack* Arithmetic::kDepth : kLanes;

#if defined(HEDDLE_CPU_LEVEL_BF16)
struct Pairs {
  static constexpr int kPack = 2, kDepth = 1, kParts = 1;
  static constexpr int kPanelRows = panel_rows(kShape, Products::pairs);
  static Float step(Float a, Float b, Float sum) { return add_dot_of_pairs(a, b, sum); }

  static bool lies_ready(const View& v) { return v.stride[3] == 1 && v.dims[3] % 2 == 0; }
  static void read(const View& v, const char* p, int64_t columns, Real* words) {
    uint16_t* out = reinterpret_cast<uint16_t*>(words);
    if (v.stride[3] == 1) {
      __builtin_memcpy(out, p, static_cast<size_t>(columns) * 2);
    } else {
      for (int64_t d = 0; d < columns; ++d)
        __builtin_memcpy(out + d, p + d * v.stride[3] * 2, sizeof *out);
    }
    if (columns % 2 != 0) out[columns] = 0;
  }
  static bool takes(const Real*, int64_t) { return true; }
};

struct Tiles : Pairs {
  static constexpr int kDepth = 16;
  static constexpr int kPanelRows = panel_rows(kShape, Products::tiles);
};

/// x[0 .. count) of f32 as planes of bf16 that begin `plane` numbers apart; count: whole pairs of
/// vectors. Each part but the last is cut off, which costs half of what rounding it does.
template <int kParts>
inline void split_numbers(const float* x, int64_t count, uint16_t* out, int64_t plane) {
  for (int64_t i = 0; i < count; i += 2 * kLanes) {
    Float low = load(x + i), high = load(x + i + kLanes);
    for (int n = 0; n + 1 < kParts; ++n) {
      const Float first = cut_to_bf16(low), second = cut_to_bf16(high);
      store_bf16_fast(out + n * plane + i, first, second);
      low = subtract(low, first), high = subtract(high, second);
    }
    store_bf16_fast(out + (kParts - 1) * plane + i, low, high);
  }
}

template <int kPlanes>
struct Parts {
  static constexpr int kPack = 2, kDepth = 16, kParts = kPlanes;
  static constexpr int kPanelRows = panel_rows(kShape, Products::tiles);

  static bool lies_ready(const View&) { return false; }
  static void read(const View& v, const char* p, int64_t columns, Real* words) {
    constexpr int64_t kStrip = 4 * kLanes;
    const int64_t plane = kPack * depth_of<Parts>(columns);
    Real numbers[kStrip];
    for (int64_t d = 0; d < plane; d += kStrip) {
      const int64_t count = smaller(kStrip, plane - d), there = smaller(count, columns - d);
      fill(numbers + there, count - there, 0);
      read_row(v.element, p + d * v.stride[3] * v.element_bytes, v.stride[3], v.element_bytes,
               there, numbers);
      split_numbers<kPlanes>(numbers, count, reinterpret_cast<uint16_t*>(words) + d, plane);
    }
  }

  /// Finite numbers, the sums of whose products are far from the largest f32; and 0, or so large
  /// that no part is below the normal range, where it is 0 to tiles. Whole vectors of words.
  static bool takes(const Real* words, int64_t count) {
    const Float most = all(0x1p56f), least = all(0x1p-100f), yes = all(1);
    Float is_out = zero();
    const auto look_at = [&](Float number) {
      const Float x = absolute(number);
      is_out = select(less_equal(x, most), is_out, yes);
      is_out = select(less(x, least), select(equal(x, zero()), is_out, yes), is_out);
    };
    for (int64_t i = 0; i < count; i += kLanes) {
      const Float pairs = load(words + i);
      look_at(low_of_pairs(pairs));
      look_at(high_of_pairs(pairs));
    }
    return max_of_lanes(is_out) == 0;
  }
};

#endif

}  // namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL
