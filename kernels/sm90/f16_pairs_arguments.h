// What the kernels that make pairs of f16 are given, and how others find their results. Plain
// types: host and device share it.
#pragma once

#include "../attention/parameters.h"

namespace heddle::sm90 {

/// Where an f32 tensor [batch, heads, rows, columns] lies as pairs: what their readers need beside
/// a tensor map.
struct F16Pairs {
  const float* units;  ///< [batch, heads]: what 1 in the pairs stands for
  const float* norms;  ///< [batch, heads]: largest row norm, squared, in those units
  int heads;
};

/// Blocks that share the search for a head's largest value.
inline constexpr int kPairParts = 32;
/// Rows that a block cuts into pairs, and threads of every block.
inline constexpr int kPairRows = 64, kPairThreads = 256;

struct PairedTensor {
  attention::Tensor source;  ///< f32, dense columns, rows on 16 bytes
  attention::Lengths rows;   ///< of each batch entry; those past them are not read
  int heads;
  int columns;  ///< a multiple of 8
  float least;  ///< squared norm, in units, of rows that are not zero
  /// f16 [batch, heads, rows.full, 2, columns rounded up to 64]; zeros past an entry's rows, as far
  /// as tiles reach.
  void* pairs;
  float* largest;  ///< [batch, heads, kPairParts]
  float* units;    ///< [batch, heads]
  float* norms;    ///< [batch, heads]
};

struct PairsArguments {
  PairedTensor tensors[4];
  int batch;
  unsigned* fallback;  ///< set if a tensor holds what pairs cannot, else cleared
};

}  // namespace heddle::sm90
