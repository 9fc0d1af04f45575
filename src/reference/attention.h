// What the forward and the backward pass of attention share: lengths, visible keys, scores and the
// keep mask of dropout, each as the contract words it (graph/graph.h).
#pragma once

#include "reference/codes.h"
#include "reference/score_mod.h"
#include "reference/values.h"

namespace heddle::reference {

/// Extents of an attention and the attributes that decide its scores.
struct Attention {
  const graph::AttentionAttributes& attributes;
  graph::TensorId q;
  Cache k, v;
  bool log2_input = false;  ///< the scaled dot is in log2 units
  int64_t batch, q_heads, k_heads, v_heads, q_length, kv_length;

  /// The key and value head that query head `h` attends to (GQA).
  int64_t k_head(int64_t h) const { return h / (q_heads / k_heads); }
  int64_t v_head(int64_t h) const { return h / (q_heads / v_heads); }
};

Attention attention(const graph::Sdpa& op, const Values& values);
Attention attention(const graph::SdpaBackward& op, const Values& values);

/// Rows and keys of batch entry `b` that exist: len_q[b], len_kv[b].
struct Lengths {
  int64_t q, kv;
};
Lengths lengths_of(const Attention& a, int64_t b, const Values& values);

/// Padding, diagonal bounds, rings and block mask. `cell` lies within `lengths`.
bool is_visible(const Attention& a, const Lengths& lengths, const Cell& cell, const Values& values);

/// slope_h of ALiBi: a geometric sequence over the heads.
double alibi_slope(int64_t head, int64_t heads);

/// The number that multiplies Q K^T.
double attention_scale(const Attention& a, const Values& values);

/// Scores of one batch entry and query head, in natural units; -inf where the key is not visible.
/// `scaled_dot` holds attn_scale * Q K^T, in natural units, for the derivative of score_mod.
struct Scores {
  Matrix score, scaled_dot;
};
Scores scores_of(const Attention& a, int64_t b, int64_t h, const Lengths& lengths, const Matrix& q,
                 const Matrix& k, const Values& values);

/// What dropout multiplies a probability by: 1/(1-p) or 0, or mask * scale.
double dropout_factor(const Attention& a, const Cell& cell, const Values& values);
/// Writes the exact 0/1 keep mask if it is wanted, over all of [B,Hq,Sq,Skv].
void write_rng_dump(const Attention& a, Values& values);

}  // namespace heddle::reference
