// What the decode kernel is given at launch. Plain types: host and device share it.
#pragma once

#include "../ptx/tensor_map.h"
#include "decode_keys.h"

namespace heddle::sm80 {

/// The workspace by which blocks that meet parts of one sequence put them together.
struct DecodeParts {
  /// Sums of values [block][2][row][v_dim], then the rows' maxima and sums [block][2][row][2]. A
  /// block's parts are of the first sequence it meets, begun by another, and of the last, begun by
  /// itself.
  float* sums;
  float* statistics;
  /// A flag for each part and each block that reads it [block][2][reader], kFlagStride apart:
  /// `claim` from when the part is there until its reader has seen that, else anything but that.
  unsigned long long* flags;
  unsigned long long claim;  ///< a number that the memory does not hold by chance
};
/// 256 bytes: of nearer ones written at the same time initcheck takes some for never written.
inline constexpr int kFlagStride = 32;

/// The rows of queries that share a head of keys.
struct DecodeRows {
  int group;   ///< heads
  int blocks;  ///< that a kernel takes them in; twins' are one
};

/// With Config::kMaps: K and V, as sm90::ForwardMaps has them, of pages with their page in the
/// place of the batch entry.
template <bool kThere>
struct DecodeMaps {
  TensorMap k, v;
  alignas(8) int log_box_rows;  ///< of pages: log2 of the rows of a copy
};
template <>
struct DecodeMaps<false> {
  static constexpr TensorMap k{}, v{};
  static constexpr int log_box_rows = 0;
};

struct DecodeArguments : DecodeMaps<attention::kArgumentLayout.maps> {
  DecodeParts parts;
  DecodeRows rows;
  DecodeSplit split;
  DecodeCounts counts;  ///< where no batch entry has lengths of its own
  attention::ForwardParameters problem;
};

}  // namespace heddle::sm80
