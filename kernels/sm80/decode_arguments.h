// What the decode kernel is given at launch. Plain types: host and device share it.
#pragma once

#include "../attention/parameters.h"

namespace heddle::sm80 {

/// The workspace by which blocks that meet parts of one sequence put them together.
struct DecodeParts {
  /// Sums of values [block][2][row][v_dim], then the rows' maxima and sums [block][2][row][2]. A
  /// block's parts are of the first sequence it meets, begun by another, and of the last, begun by
  /// itself.
  float* sums;
  float* statistics;
  /// How many blocks have left their part of a sequence: a counter for each block that begins one
  /// which others go on with, kArrivedStride apart; of any content at first, and 0 when all have.
  unsigned long long* arrived;
  /// What the counters hold once a launch has taken them over: a number, above kArrivedBits low
  /// bits, that the memory does not hold by chance.
  unsigned long long claim;
};
inline constexpr int kArrivedBits = 24;
inline constexpr int kArrivedStride = 32;  ///< 256 bytes: no two counters share a line

struct DecodeArguments {
  DecodeParts parts;
  attention::ForwardParameters problem;
};

}  // namespace heddle::sm80
