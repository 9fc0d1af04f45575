// What of an instruction set decides how memory is laid out and how work is cut. The shapes of all
// of them are known on every machine: a workspace has room for any, as a program may run elsewhere
// than where its workspace was measured.
#pragma once

#include <cstdint>

namespace heddle::engine::cpu {

struct KernelShape {
  int lanes;  ///< f32 of a vector
  /// Register block of the microkernels: so many rows of two vectors.
  int panel_rows, panel_columns;
  int few_rows;  ///< most rows of a group for which packing its keys does not pay
  int64_t backward_rows, backward_keys;  ///< of a tile: whole panels of rows and of columns
  bool multiplies_pairs;                 ///< has dot products of bf16 pairs
};

/// 6 rows x 2 vectors of accumulators: 12 of the 16 registers of SSE2.
inline constexpr KernelShape kPortableShape{4, 6, 8, 6, 96, 192, false};
/// 6 rows x 2 vectors of accumulators (12 of 16 registers), two of B and one broadcast of A.
inline constexpr KernelShape kAvx2Shape{8, 6, 16, 6, 96, 192, false};
/// 14 rows x 2 vectors of accumulators (28 of 32 registers), two of B and one broadcast of A.
inline constexpr KernelShape kAvx512Shape{16, 14, 32, 8, 112, 224, false};
inline constexpr KernelShape kAvx512Bf16Shape{16, 14, 32, 8, 112, 224, true};

inline constexpr KernelShape kShapes[] = {kPortableShape, kAvx2Shape, kAvx512Shape,
                                          kAvx512Bf16Shape};

}  // namespace heddle::engine::cpu
