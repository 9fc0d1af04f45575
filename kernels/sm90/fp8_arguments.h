// What the Hopper forward of fp8 operands, and the kernel before it, are given at launch. Plain
// types: host and device share them.
#pragma once

#include "forward_arguments.h"

namespace heddle::sm90 {

/// Keys of a tile of values, and rows that it has: one for each column of V, and more behind fewer
/// than 128.
inline constexpr int kFp8Keys = 128, kFp8ValueRows = 128;

/// Q and K are mapped as pairs of fp8, V as fp8_values.cuh lays it out, O not at all. Scales are
/// f32 in device memory, or null for 1; an amax is the bits of an f32, or null.
struct Fp8ForwardArguments : ForwardArguments {
  const float *descale_q, *descale_k, *descale_v, *descale_s, *scale_s, *scale_o;
  unsigned *amax_s, *amax_o;
};

/// Of the kernel before it.
struct Fp8ValuesArguments {
  attention::Tensor v;
  attention::Lengths kv_lengths;
  int heads, tiles;  ///< of values, and of a head's keys
  /// [batch][heads][tiles][kFp8ValueRows][kFp8Keys]
  unsigned char* values;
  unsigned *amax_s, *amax_o;  ///< where they begin at 0
};

}  // namespace heddle::sm90
