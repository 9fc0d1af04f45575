// The definition of each op: it reads its inputs from `values` and leaves its results there.
#pragma once

#include "reference/values.h"

namespace heddle::reference {

/// O = dropout(softmax(S)) V, with Stats, Max and Sum_exp of each row.
void sdpa(const graph::Sdpa& op, Values& values);
/// dQ, dK, dV, dBias and dSink from dO, O and Stats.
void sdpa_backward(const graph::SdpaBackward& op, Values& values);
/// The same of fp8 operands, with scales and largest magnitudes.
void sdpa_fp8(const graph::SdpaFp8& op, Values& values);
void sdpa_fp8_backward(const graph::SdpaFp8Backward& op, Values& values);
/// y = output_scale R(+-angle) x.
void rope(const graph::Rope& op, Values& values);
/// y = scale x / sqrt(mean(x^2) + epsilon) + bias; x, in its place, is the sum with a residual.
void rms_norm(const graph::RmsNorm& op, Values& values);
/// dx, d_scale and d_bias of rms_norm.
void rms_norm_backward(const graph::RmsNormBackward& op, Values& values);
/// y = scale (x - mean) / sqrt(variance + epsilon) + bias.
void layer_norm(const graph::LayerNorm& op, Values& values);
/// dx, d_scale and d_bias of layer_norm.
void layer_norm_backward(const graph::LayerNormBackward& op, Values& values);
/// layer_norm of each channel, of each batch entry or of all.
void instance_norm(const graph::InstanceNorm& op, Values& values);
void batch_norm(const graph::BatchNorm& op, Values& values);
/// dx, d_scale and d_bias of theirs.
void instance_norm_backward(const graph::InstanceNormBackward& op, Values& values);
void batch_norm_backward(const graph::BatchNormBackward& op, Values& values);
/// New rows of K and V behind those that caches hold; Q, K and V as these take them.
void cache_append(const graph::CacheAppend& op, Values& values);
/// y = mode(a, b, c), element by element.
void pointwise(const graph::PointwiseNode& op, Values& values);

}  // namespace heddle::reference
