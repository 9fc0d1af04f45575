// Attention on fp8 operands: an attention whose q, k, v (and o, dO) are of fp8 types, beside the
// scales of these, of what is rounded to fp8 on the way and of its results. The mathematics is
// graph::SdpaFp8's. Scales and largest magnitudes are f32 [1,1,1,1].
#pragma once

#include "problem/attention.h"

namespace heddle::problem {

struct Fp8AttentionStructure {
  AttentionStructure attention;  ///< its operand list holds the operands below too
  OperandId descale_q = kAbsent, descale_k = kAbsent, descale_v = kAbsent;
  OperandId descale_s = kAbsent, scale_s = kAbsent;  ///< absent: P is held as an engine likes
  OperandId scale_o = kAbsent;
  OperandId amax_s = kAbsent, amax_o = kAbsent;  ///< each written if present

  friend bool operator==(const Fp8AttentionStructure&, const Fp8AttentionStructure&) = default;
};

struct Fp8AttentionProblem {
  Fp8AttentionStructure structure;
  AttentionSizes sizes;

  friend bool operator==(const Fp8AttentionProblem&, const Fp8AttentionProblem&) = default;
};

struct Fp8AttentionBackwardStructure {
  AttentionBackwardStructure attention;
  OperandId descale_q = kAbsent, descale_k = kAbsent, descale_v = kAbsent, descale_o = kAbsent,
            descale_d_o = kAbsent, descale_s = kAbsent, descale_d_p = kAbsent;
  OperandId scale_s = kAbsent, scale_d_p = kAbsent;
  OperandId scale_d_q = kAbsent, scale_d_k = kAbsent, scale_d_v = kAbsent;
  OperandId amax_d_q = kAbsent, amax_d_k = kAbsent, amax_d_v = kAbsent, amax_d_p = kAbsent;

  friend bool operator==(const Fp8AttentionBackwardStructure&,
                         const Fp8AttentionBackwardStructure&) = default;
};

struct Fp8AttentionBackwardProblem {
  Fp8AttentionBackwardStructure structure;
  AttentionSizes sizes;

  friend bool operator==(const Fp8AttentionBackwardProblem&,
                         const Fp8AttentionBackwardProblem&) = default;
};

}  // namespace heddle::problem
