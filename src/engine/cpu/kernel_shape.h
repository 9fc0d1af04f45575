// What of an instruction set decides how memory is laid out and how work is cut. The shapes of all
// of them are known on every machine: a workspace has room for any, as a program may run elsewhere
// than where its workspace was measured.
#pragma once

#include <cstdint>

namespace heddle::engine::cpu {

/// How a product of matrices is computed (kernels/arithmetic.h).
enum class Products : uint8_t { singles, pairs, tiles, tiles_of_halves, tiles_of_thirds };

constexpr bool are_by_tiles(Products products) { return products >= Products::tiles; }
/// bf16 numbers whose sum an element is, each in a plane of its own.
constexpr int parts_of(Products products) {
  return products == Products::tiles_of_thirds ? 3 : products == Products::tiles_of_halves ? 2 : 1;
}

struct KernelShape {
  int lanes;  ///< numbers of a vector: f32, or f64
  /// Register block of the microkernels: so many rows of two vectors.
  int panel_rows, panel_columns;
  int few_rows;  ///< most rows of a group for which packing its keys does not pay
  int64_t backward_rows, backward_keys;  ///< of a tile: whole panels of rows and of columns
  Products of_bf16;                      ///< how it multiplies bf16, at its fastest
  Products of_f16 = Products::singles, of_f32 = Products::singles;  ///< likewise
};

/// Rows of a panel: the microkernel's, or two tiles'.
constexpr int panel_rows(const KernelShape& shape, Products products) {
  return are_by_tiles(products) ? 32 : shape.panel_rows;
}

/// 6 rows x 2 vectors of accumulators: 12 of the 16 registers of SSE2.
inline constexpr KernelShape kPortableShape{4, 6, 8, 6, 96, 192, Products::singles};
/// 6 rows x 2 vectors of accumulators (12 of 16 registers), two of B and one broadcast of A.
inline constexpr KernelShape kAvx2Shape{8, 6, 16, 6, 96, 192, Products::singles};
/// 14 rows x 2 vectors of accumulators (28 of 32 registers), two of B and one broadcast of A.
inline constexpr KernelShape kAvx512Shape{16, 14, 32, 8, 112, 224, Products::singles};
inline constexpr KernelShape kAvx512Bf16Shape{16, 14, 32, 8, 112, 224, Products::pairs};
inline constexpr KernelShape kAmxShape{
    16, 14, 32, 8, 112, 224, Products::tiles, Products::tiles_of_halves, Products::tiles_of_thirds};

inline constexpr KernelShape kShapes[] = {kPortableShape, kAvx2Shape, kAvx512Shape,
                                          kAvx512Bf16Shape, kAmxShape};

/// The same with f64: half the lanes.
inline constexpr KernelShape kPortableF64Shape{2, 6, 4, 6, 96, 96, Products::singles};
inline constexpr KernelShape kAvx2F64Shape{4, 6, 8, 6, 96, 96, Products::singles};
inline constexpr KernelShape kAvx512F64Shape{8, 14, 16, 8, 112, 112, Products::singles};

inline constexpr KernelShape kF64Shapes[] = {kPortableF64Shape, kAvx2F64Shape, kAvx512F64Shape};

}  // namespace heddle::engine::cpu
