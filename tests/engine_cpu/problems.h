// Small problems written out by hand.
#pragma once

#include <vector>

#include "problem/attention.h"

namespace heddle::testing {

inline problem::OperandLayout dense(Dims dims) {
  problem::OperandLayout layout{dims, *dense_strides(dims)};
  for (int d = 0; d < 4; ++d) {
    if (dims[d] == 1) layout.strides[d] = 0;
  }
  return layout;
}

/// q, k, v, o, stats as operands 0 to 4, dense BHSD, causal.
inline problem::AttentionProblem causal_attention(DataType dtype, int64_t batch, int64_t q_heads,
                                                  int64_t kv_heads, int64_t length,
                                                  int32_t head_dim) {
  problem::AttentionProblem p;
  problem::AttentionStructure& s = p.structure;
  problem::AttentionSizes& z = p.sizes;
  const Dims q{batch, q_heads, length, head_dim}, kv{batch, kv_heads, length, head_dim};
  for (const Dims& dims : {q, kv, kv, q, Dims{batch, q_heads, length, 1}}) {
    s.operands.push_back({z.layouts.size() == 4 ? DataType::f32 : dtype});
    z.layouts.push_back(dense(dims));
  }
  s.q = 0, s.k = 1, s.v = 2, s.o = 3, s.stats = 4;
  s.qk_head_dim = s.v_head_dim = head_dim;
  s.bounds = {{true, problem::Anchor::top_left}};
  z.batch = batch, z.q_heads = q_heads, z.k_heads = z.v_heads = kv_heads;
  z.q_length = z.kv_length = length;
  z.scale = 0.125;
  z.bound_constants = {1};
  return p;
}

/// The backward of causal_attention: dO, dQ, dK, dV are operands 5 to 8.
inline problem::AttentionBackwardProblem causal_attention_backward(DataType dtype, int64_t batch,
                                                                   int64_t q_heads,
                                                                   int64_t kv_heads, int64_t length,
                                                                   int32_t head_dim) {
  const problem::AttentionProblem forward =
      causal_attention(dtype, batch, q_heads, kv_heads, length, head_dim);
  problem::AttentionBackwardProblem p;
  p.structure.forward = forward.structure;
  p.sizes = forward.sizes;
  for (int like : {0, 0, 1, 2}) {
    p.structure.forward.operands.push_back({dtype});
    p.sizes.layouts.push_back(forward.sizes.layouts[static_cast<size_t>(like)]);
  }
  p.structure.d_o = 5, p.structure.d_q = 6, p.structure.d_k = 7, p.structure.d_v = 8;
  p.structure.deterministic = true;
  return p;
}

}  // namespace heddle::testing
