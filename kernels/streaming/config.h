// What a generated source says of the streaming kernels. Plain numbers: host and device share them.
#pragma once

#include "../ptx/element.h"

namespace heddle::streaming {

struct NormConfig {
  Element x = Element::bf16, w = Element::bf16, b = Element::bf16, y = Element::bf16;
  Element mean = Element::f32, statistic = Element::f32;
  Element number = Element::f32;  ///< of all arithmetic: f32 or f64
  int vector = 8;                 ///< elements an access: 16 bytes of x, or 1
  int row_dims = 1, column_dims = 1;
  int vectors = 2;            ///< of a thread
  int threads_per_row = 256;  ///< 8 .. 512, a power of two
  bool centred = false;       ///< LayerNorm, else RMSNorm
  bool bias = false;
  /// Of what is added to x before, and of the sum.
  Element residual = Element::bf16, residual_bias = Element::bf16, sum = Element::bf16;
  bool adds_residual = false, adds_residual_bias = false, wants_sum = false;
};

struct NormBackwardConfig {
  Element x = Element::bf16, w = Element::bf16, dy = Element::bf16;
  Element dx = Element::bf16, d_weight = Element::bf16, d_bias = Element::bf16;
  Element mean = Element::f32, statistic = Element::f32;
  Element number = Element::f32;  ///< of all arithmetic: f32 or f64
  int vector = 8;                 ///< elements an access: 16 bytes of x, or 1
  int row_dims = 1, column_dims = 1;
  int vectors = 2;            ///< of a thread
  int threads_per_row = 256;  ///< 64 .. 512, a power of two
  bool centred = false;       ///< LayerNorm, else RMSNorm
  bool prefetch = true;       ///< the next row, in registers: vectors up to 2
  bool wants_dx = true, wants_d_weight = true, wants_d_bias = false;
  bool d_bias_shared = false;  ///< its sums lie in shared memory, else in registers
};

/// Of instance and batch norm.
struct ChannelNormConfig {
  Element x = Element::bf16, w = Element::bf16, b = Element::bf16, y = Element::bf16;
  Element mean = Element::f32, statistic = Element::f32;
  Element running = Element::f32, running_var = Element::f32;
  Element next = Element::f32, next_var = Element::f32;
  Element number = Element::f32;  ///< of all arithmetic: f32 or f64
  int vector = 1;                 ///< elements an access: columns are stepped through one by one
  int row_dims = 1, column_dims = 1;
  int across = 1;  ///< neighbouring rows of a block, side by side in a warp: 32, or 1
  bool bias = false, running_statistics = false;
};

struct ChannelNormBackwardConfig {
  Element x = Element::bf16, w = Element::bf16, dy = Element::bf16;
  Element dx = Element::bf16, d_weight = Element::bf16, d_bias = Element::bf16;
  Element mean = Element::f32, statistic = Element::f32;
  Element number = Element::f32;
  int vector = 1;
  int row_dims = 1, column_dims = 1;
  int across = 1;
};

struct RopeConfig {
  Element x = Element::bf16, y = Element::bf16;
  Element number = Element::f32;  ///< of all arithmetic: f32 or f64
  /// Of a thread: 8 (halves) or 4 (interleaved) of 16 bits, 4 or 2 of f32; fewer where
  /// rope_dim / 2, head_dim or strides are no multiples of that.
  int pairs = 8;
  bool aligned = true;       ///< whether runs of elements lie on their size
  bool interleaved = false;  ///< pairs (2j, 2j+1), else (j, j + rope_dim/2)
  bool tables = false;       ///< cosines and sines, else angles
  bool positions = false, positions_per_row = false;
  bool ragged = false;   ///< x, y or both, or they have lengths
  bool inverse = false;  ///< the angle's sign turned
  bool rounded = false;  ///< cosines and sines, as by a kernel of attention (rotation.cuh)
};

/// Of a copy, whose arithmetic is f32's.
struct CopyConfig {
  Element x = Element::bf16, y = Element::bf16;  ///< x may be codes: i8, f8e4m3, u8 (of 4 bits)
  int x_each = 8, y_each = 8;  ///< elements an access: at most 16 bytes, and a run of the kernel
  bool ragged = false;         ///< x, y or both, or they have lengths
};

/// Of a scaled copy, whose arithmetic is f32's.
struct ScaledCopyConfig {
  Element x = Element::f8e4m3, y = Element::f32;  ///< of fp8, 16 bits or f32
  int run = 4;              ///< elements a thread takes at once: 4, aligned to their size, or 1
  bool writes = true;       ///< y; else the largest magnitude alone is wanted
  bool reciprocal = false;  ///< factor / x
  bool ragged = false;      ///< x, y or both, or they have lengths
};

/// Of new rows for caches, whose arithmetic is f32's.
struct CacheAppendConfig {
  Element q = Element::bf16, k = Element::bf16, v = Element::bf16, q_out = Element::bf16;
  /// i8, f8e4m3 and u8 (two columns of 4 bits) are codes.
  Element k_cache = Element::bf16, v_cache = Element::bf16;
  Element q_weight = Element::bf16, k_weight = Element::bf16;
  Element cosine = Element::f32, sine = Element::f32;
  int qk_dim = 128, v_dim = 128;
  int rope_dim = 0;
  /// Columns an access, aligned to their size: 4, 2 or 1; of rope_dim / 2 a divisor.
  int run = 4;
  int table_run = 4;         ///< of a table, up to as many; 1 whatever its column stride
  bool wide = false;         ///< strides have 64 bits
  bool interleaved = false;  ///< pairs (2j, 2j+1), else (j, j + rope_dim/2)
  bool paged = false, ring = false;
  bool caches = true;  ///< else Q alone is rotated
  bool q_norm = false, k_norm = false;
  /// Of numbers of batch entries, or rows; 0: there are none.
  int new_length_bits = 0, total_length_bits = 0, position_bits = 0;
};

/// Threads that take a row of so many columns, two runs each at least: a power of two, a warp at
/// most.
constexpr int append_lanes(int columns, int run) {
  int lanes = 1;
  while (lanes < 32 && lanes * 2 * run < columns) lanes *= 2;
  return lanes;
}

}  // namespace heddle::streaming
