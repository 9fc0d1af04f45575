// What the kernels of attention on fp8 operands are told.
#pragma once

#include "engine/cpu/arguments.h"

namespace heddle::engine::cpu {

/// Query rows and keys of a tile: two tiles of scores are 64 KiB.
inline constexpr int64_t kFp8Rows = 64, kFp8Keys = 128;

/// A result, where it is wanted: what sums of codes are multiplied by, and numbers before they are
/// rounded. Of the numbers between the two the largest magnitude, by the bits of an f32 (which
/// order as magnitudes do, NaN last), is raised.
struct Fp8Result {
  const View* view;  ///< null: not wanted
  float descale, scale;
  uint32_t* amax;
};

/// Numbers that are held in fp8 on the way.
struct Fp8Held {
  bool is_held;  ///< else they stay as they are, and `scale` is 1
  Element element;
  float scale;
  uint32_t* amax;
};

struct Fp8Pass {
  AttentionArguments a;
  float score_scale;  ///< of dots of codes
  Fp8Held p;
  Fp8Result o;
};

struct Fp8BackwardPass {
  AttentionArguments a;
  const View* d_o;
  float score_scale;
  float attn_scale;
  float d_p_descale, d_descale;  ///< of dots of codes: dO V^T, dO O
  Fp8Held p, d_s;
  Fp8Result d_q, d_k, d_v;
};

/// A tile: of head `h` the rows from `first` on. Of Q's heads, or K's or V's for their gradients.
struct Fp8Task {
  int64_t b, h, first;
};

/// Where a worker's scratch holds what, in bytes.
struct Fp8Scratch {
  int64_t q, o, d_o;                             ///< rows of Q, O, dO
  int64_t k_columns, k_rows, v_columns, v_rows;  ///< keys: a row for each column of K, or each key
  int64_t s, d_s;                                ///< [kFp8Rows][kFp8Keys]
  int64_t max, sum, row_dot;                     ///< a number a row
  int64_t result;                                ///< sums of a tile of rows or keys
  int64_t bytes;
};

Fp8Scratch fp8_scratch(int64_t qk_dim, int64_t v_dim);

}  // namespace heddle::engine::cpu
