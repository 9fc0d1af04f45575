// The definition of each op: it reads its inputs from `values` and leaves its results there.
#pragma once

#include "reference/values.h"

namespace heddle::reference {

/// O = dropout(softmax(S)) V, with Stats, Max and Sum_exp of each row; graph-api 1.2, 2.1.
void sdpa(const graph::Sdpa& op, Values& values);
/// dQ, dK, dV, dBias and dSink from dO, O and Stats; graph-api 1.3, 2.2.
void sdpa_backward(const graph::SdpaBackward& op, Values& values);
/// y = output_scale R(+-angle) x; graph-api 1.5, 2.3.
void rope(const graph::Rope& op, Values& values);
/// y = scale x / sqrt(mean(x^2) + epsilon) + bias; graph-api 1.6, 2.6.
void rms_norm(const graph::RmsNorm& op, Values& values);
/// dx, d_scale and d_bias of rms_norm; graph-api 2.6.
void rms_norm_backward(const graph::RmsNormBackward& op, Values& values);

}  // namespace heddle::reference
