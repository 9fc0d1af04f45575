// What the Hopper backward of fp8 operands, and the passes before and after it, are given at
// launch. Plain types: host and device share them.
#pragma once

#include "backward_arguments.h"

namespace heddle::sm90 {

/// What the scales of an execution make of sums of codes. dS is held times scale_dP, or as it is
/// where that is 0.
struct Fp8BackwardUnits {
  float score;                            ///< Q K^T to what the softmax is of
  float d_p, delta;                       ///< dO V^T, and rowsum(dO * O), to the unit of dS
  float d_s;                              ///< dS to the number it stands for
  float d_q, d_k, d_v;                    ///< sums to numbers
  float scale_d_q, scale_d_k, scale_d_v;  ///< numbers to codes
};

/// Largest magnitudes, bits of an f32, or null.
struct Fp8BackwardAmax {
  unsigned *d_q, *d_k, *d_v, *d_p;
};

/// The maps of BackwardArguments are of codes, in pairs.
struct Fp8BackwardArguments : BackwardArguments {
  TensorMap wide_q, wide_d_o;  ///< in bf16, made by prepare
  const Fp8BackwardUnits* units;
  Fp8BackwardAmax amax;
};

/// Of the passes before and after. Scales are f32 in device memory.
struct Fp8BackwardRowsArguments : BackwardWorkspace {
  attention::BackwardParameters problem;
  const float *descale_q, *descale_k, *descale_v, *descale_o, *descale_d_o, *descale_s,
      *descale_d_p;
  const float *scale_s, *scale_d_p;
  const float *scale_d_q, *scale_d_k, *scale_d_v;  ///< or null
  Fp8BackwardAmax amax;
  Fp8BackwardUnits* units;            ///< workspace
  unsigned short *wide_q, *wide_d_o;  ///< workspace [batch, q_heads, q_length, dim]
};

}  // namespace heddle::sm90
