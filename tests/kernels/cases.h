// The problems whose kernels the matrix compiles: an attention of some head dims and type with a
// set of features.
#pragma once

#include <string>
#include <vector>

#include "problem/attention.h"
#include "problem/fp8_attention.h"

namespace heddle::engine::cuda {

enum class Feature {
  causal,
  window,
  soft_cap,
  factor,        ///< a constant, of the dot product
  bias,          ///< and, in the backward, its gradient
  wide_bias,     ///< the same in f32
  row_bias,      ///< one number a row, without a gradient
  boolean_mask,  ///< of every cell, which selects the score or -inf
  alibi,
  philox,
  threefry,
  dropout_mask,
  block_mask,
  paged,
  ring,      ///< of as many rows as keys
  i8_codes,  ///< of K and V, with a scale for each channel
  i4_codes,
  f8_codes,
  unaligned,
  log2,
  negative_scale,
  sink,
  statistics,      ///< the row maximum and sum, in the backward in place of the log-sum-exp
  stats_gradient,  ///< backward only
  output_alone,    ///< no log-sum-exp
  lengths,
  ragged,
  deterministic,
  wide_results,      ///< of f32: O, or dQ, dK and dV
  scores,            ///< written, in f32
  weights,           ///< the same after the softmax, in the type of Q
  rope_halves,       ///< of Q, all columns, by angles
  rope_interleaved,  ///< of Q, half of the columns, by tables at positions
  rope_leading,      ///< of Q and K, the first columns, up to a quarter, by angles
};

struct Case {
  DataType dtype = DataType::bf16;
  int qk_dim = 64, v_dim = 64;
  std::vector<Feature> features;
  std::string architecture = "sm_80";
  int64_t length = 512;
  /// Of the score (with 2.5 if it takes two), or added to it, of the distance of query and key
  /// (with 3).
  problem::ScoreOp function = problem::ScoreOp::dot;
  bool of_distance = false;

  bool has(Feature feature) const;
  /// Whether an attention with its features has a backward: of caches, and of O alone, there is
  /// none.
  bool has_backward() const;
};

/// Functions of scores that are no single instruction, whose code is in every cell of a tile.
std::vector<problem::ScoreOp> long_functions();

/// "bf16_128_128_causal_sink_sm_90a": a name GoogleTest takes.
std::string title(const Case& c);

problem::AttentionProblem forward_of(const Case& c);
/// The same, of so many rows of queries and keys.
problem::AttentionProblem forward_of(const Case& c, int64_t rows, int64_t keys);
/// dQ, dK and dV, and the gradients of what the features read: dBias, dSink.
problem::AttentionBackwardProblem backward_of(const Case& c);

/// The same forward of f8e4m3, with all scales and amax.
problem::Fp8AttentionProblem fp8_of(const Case& c);
problem::Fp8AttentionBackwardProblem fp8_backward_of(const Case& c);

}  // namespace heddle::engine::cuda
