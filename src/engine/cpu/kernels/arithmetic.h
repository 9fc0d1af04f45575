// The ways a product of matrices is computed. Operands are held in 32-bit words in each, so packing
// and tiling are one code:
//
//   Singles  a word is one f32; a step is a multiply-add. Any dtype, converted when packed.
//   Pairs    a word is two bf16 that are neighbours along the summed dim; a step is the dot product
//            of two pairs, added in f32. Twice the speed, where the machine has it and Q, K and V
//            are bf16; probabilities and their gradients are then rounded to bf16.
//   Tiles    the same words, multiplied tile by tile (tile_products.h): sums are over whole tiles
//   of
//            words, those past the last element are zeros.
#pragma once

#include <cstddef>

#include "engine/cpu/kernels/memory.h"

namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL {

struct Singles {
  static constexpr int kPack = 1;
  static constexpr int kDepth = 1;  ///< words that a sum is over whole numbers of
  static constexpr int kPanelRows = panel_rows(kShape, Products::singles);
  static Float step(Float a, Float b, Float sum) { return multiply_add(a, b, sum); }

  /// Whether a row of the operand can be used where it lies.
  static bool lies_ready(const View& v) { return is_own_row(v); }
  /// The row's elements as words.
  static void read(const View& v, const char* p, int64_t columns, Real* words) {
    read_row(v.element, p, v.stride[3], v.element_bytes, columns, words);
  }
};

/// Words that hold `count` elements.
template <class Arithmetic>
inline int64_t words_filled(int64_t count) {
  return (count + Arithmetic::kPack - 1) / Arithmetic::kPack;
}
/// Words that a sum over `count` elements takes.
template <class Arithmetic>
inline int64_t words_of(int64_t count) {
  return round_up(words_filled<Arithmetic>(count), Arithmetic::kDepth);
}
/// Columns of scores are computed in whole vectors, and so many that sums over them are whole.
template <class Arithmetic>
inline constexpr int64_t kColumnUnit =
    Arithmetic::kPack* Arithmetic::kDepth > kLanes ? Arithmetic::kPack* Arithmetic::kDepth : kLanes;

#if defined(HEDDLE_CPU_LEVEL_BF16)
struct Pairs {
  static constexpr int kPack = 2, kDepth = 1;
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
};

struct Tiles : Pairs {
  static constexpr int kDepth = 16;
  static constexpr int kPanelRows = panel_rows(kShape, Products::tiles);
};
#endif

}  // namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL
