// The kernels of one instruction set, as the rest of the engine calls them.
#pragma once

#include "engine/cpu/arguments.h"
#include "engine/cpu/norm_arguments.h"
#include "engine/cpu/scratch.h"

namespace heddle::engine::cpu {

/// Keys a forward tile visits at a time. Scores of a panel of 14 rows (15 KiB) stay in L1 between
/// the product that makes them, the softmax and the product that reads them.
inline constexpr int64_t kForwardKeys = 256;
/// Pitch of the scores of a panel.
inline constexpr int64_t kScorePitch = kForwardKeys + kPitchGap;

/// Real, here and below: what a pass computes in, float or double.
///
/// One forward pass, ready to run. Query heads that share K and V heads form a group; its rows are
/// numbered position first (i * group + head in group), so a tile of rows holds all heads of a few
/// positions and packs their keys once.
template <class Real>
struct ForwardPass {
  AttentionArguments a;
  Products products;
  int64_t group;      ///< query heads that share both a K head and a V head
  int64_t tile_rows;  ///< rows of a task
  bool has_few_rows;  ///< at most KernelShape::few_rows of them: K and V are not packed
  /// What O loses where blocks of keys are added to it is added in the end: a backward reads it as
  /// D = rowsum(dO * O), and what that is off dQ has times the row's mean key.
  bool keeps_lost;
  /// Given few rows and K or V of codes that tiles multiply (code_tiles.h): the most bytes that one
  /// of them takes there; else 0.
  int32_t code_bytes;
  /// Parts that the keys a tile sees are cut into, whole blocks of kForwardKeys, each a task of its
  /// own (decoding).
  int64_t splits;
  /// With splits > 1: per part, batch entry, head and row the unnormalised output, the running
  /// maximum and the sum.
  Real *partial_o, *partial_max, *partial_sum;
  ForwardScratch scratch;
};

struct ForwardTask {
  int64_t b, first_head, first_row, split;
};

/// Rotation of the rows of one tensor. `table` holds, per table row, rope_dim/2 cosines and as many
/// sines; row s of batch entry b uses row s of table b (of the only one if table_batches is 1).
template <class Real>
struct RopePass {
  const View *angles, *cosines, *sines, *positions;
  bool per_row, interleaved, inverse;
  int64_t rope_dim, first_column, length, table_batches;
  Real scale;
  Real* table;
  const View *in, *out;
  const View* lengths;  ///< of ragged tensors: rows past them are left alone
  bool lengths_cumulative;
  int64_t heads, columns;
};

/// New rows of Q, K and V on their way to rotated Q and to caches (problem/cache_append.h). Absent
/// operands are null; k and v are views into q where all three are packed there.
struct CacheAppendPass {
  const View *q, *k, *v, *q_out, *k_cache, *v_cache;
  const View *cosines, *sines, *positions;
  const float *q_weight, *k_weight;  ///< of norms
  double q_epsilon, k_epsilon;
  bool interleaved;
  int64_t q_heads, kv_heads, rope_dim, qk_dim, v_dim;
  const int64_t *past, *added;  ///< rows of each batch entry
};

/// Pointwise ops: each result is the value of a step of the program.
struct PointwisePass {
  Score program;
  struct Result {
    int32_t step;
    const View* y;
  };
  const Result* results;
  int32_t result_count;
};

/// Elements [first, first + count) of a row, count at most kPointwiseStrip.
struct PointwiseStrip {
  int64_t b, h, row, first, count;
};
/// So many that the cost of choosing ops is small and their values stay in the caches: 1 KiB each.
inline constexpr int64_t kPointwiseStrip = 256;

/// The gradient of an operand that the score loads: the sum of `derivative` over the dims along
/// which the operand was broadcast.
struct LoadGradientPass {
  const View* gradient;
  Score derivative;
};

/// One backward pass, ready to run.
template <class Real>
struct BackwardPass {
  AttentionArguments a;
  Products products;
  bool has_few_rows;  ///< of the forward whose statistics it reads: dots are summed as there
  const View *d_o, *d_q, *d_k, *d_v, *d_sink;
  const View* d_stats;  ///< null: 0
  Score d_dot;
  const RopePass<Real>*d_q_rope, *d_k_rope;  ///< null, or how dQ and dK are turned back
  int32_t longest_score;                     ///< steps of the longest expression
  bool sums_loads;     ///< some operand that the score loads wants its gradient
  bool keeps_dots;     ///< some expression reads the scaled dot after the softmax
  int64_t group;       ///< query heads that share both a K head and a V head
  int64_t heads;       ///< query heads of a task: whole groups of K heads and of V heads
  int64_t chunks;      ///< parts the keys are cut into, each a task that sums its own dQ
  int64_t chunk_keys;  ///< a multiple of the instruction set's backward_keys
  Real* d_q_sum;       ///< [chunks, batch, q_heads, q_length, qk_dim rounded up to a panel]
  Real* row_dot;       ///< D = rowsum(dO * O) - d_stats, [batch, q_heads, q_length]
  /// What D is more, likewise, if the row sum is rounded as the sums that dP = dO V^T are.
  Real* one_key_rest;
  /// A row's score gradients add up to P_sink * D + d_stats. What rounding leaves beside that would
  /// be multiplied by what all keys have in common (a bias, say), and come out far larger than dQ:
  /// it is taken off again. Null where that sum is not known.
  Real* d_s_sum;  ///< rowsum(dS), [chunks, batch, q_heads, q_length]
  /// rowsum(P), likewise, where a sink has the rest of the weights; null: 1. A D that is e too
  /// large makes the sum of dS less by rowsum(P) e, and what it should be more by P_sink e.
  Real* weight_sum;
  /// The mean key by the weights of a tile's rows: the sum over keys of P K, then that of P,
  /// [chunks, batch, q_heads, tiles of backward_rows, mean_key_pitch()].
  Real* mean_key;
  /// rowsum(dS) for gradients of loads along whole rows, [batch, q_heads, q_length]; null where it
  /// is not known what that should be.
  Real* d_s_rest;
  BackwardScratch scratch,
      load_scratch;  ///< of gradients; of loads' gradients, whose products are Singles

  int64_t mean_key_pitch() const { return scratch.q_columns + kPitchGap; }
};

struct BackwardTask {
  int64_t b, first_head, chunk;
};

/// One tile of a load's gradient: batch, head, first row and first column, 0 where it is broadcast.
struct LoadGradientTask {
  int64_t b, h, i0, j0;
};

/// Attention's kernels.
template <class Real>
struct AttentionKernels {
  KernelShape shape;

  void (*forward)(const ForwardPass<Real>&, const ForwardTask&, void* scratch);
  /// Joins the parts of rows [first, last) of one head. Scratch of a row of O.
  void (*combine)(const ForwardPass<Real>&, int64_t b, int64_t h, int64_t first, int64_t last,
                  void* scratch);

  /// D of rows [first, last) of one head. Scratch of two rows of O, each in whole vectors.
  void (*row_dots)(const BackwardPass<Real>&, int64_t b, int64_t h, int64_t first, int64_t last,
                   void* scratch);
  /// dSink of one head, from row_dot.
  void (*sink_gradient)(const BackwardPass<Real>&, int64_t h);
  /// dK and dV of a chunk of keys, and the chunk's part of dQ.
  void (*backward)(const BackwardPass<Real>&, const BackwardTask&, void* scratch);
  /// dQ of rows [first, last) of one head, from its parts. Scratch of a row of d_q_sum.
  void (*query_gradients)(const BackwardPass<Real>&, int64_t b, int64_t h, int64_t first,
                          int64_t last, void* scratch);
  void (*load_gradient)(const BackwardPass<Real>&, const LoadGradientPass&, const LoadGradientTask&,
                        void* scratch);

  /// Rows [first, last) of all tables (numbered through), then rows [first, last) of batch entry b.
  /// Scratch of a row in whole vectors.
  void (*rope_table)(const RopePass<Real>&, int64_t first, int64_t last);
  void (*rope_rows)(const RopePass<Real>&, int64_t b, int64_t first, int64_t last, Real* scratch);
  /// Scores, or their probabilities, of a row. Scratch of a forward tile of one row.
  void (*write_scores)(const ForwardPass<Real>&, int64_t b, int64_t h, int64_t row, void* scratch);
  /// The exact keep mask of rows [first, last) of one head. Scratch of kForwardKeys.
  void (*dropout_dump)(const AttentionArguments&, int64_t b, int64_t h, int64_t first, int64_t last,
                       void* scratch);
};

/// All of an instruction set that compute in f32.
struct Kernels {
  const char* name;
  AttentionKernels<float> attention;

  /// Row s of batch entry b, of heads [first, last), numbered through: those of Q, then K, then V.
  /// Scratch of a row in whole vectors, and of rope_dim.
  void (*append_row)(const CacheAppendPass&, int64_t b, int64_t s, int64_t first, int64_t last,
                     float* scratch);

  /// Scratch of a ScoreValue of each step, then of a strip of each.
  void (*pointwise_strip)(const PointwisePass&, const PointwiseStrip&, void* scratch);

  /// Scratch of one padded row; of four.
  void (*norm_rows)(const NormPass<float>&, RowRange, float* scratch);
  void (*norm_backward_rows)(const NormBackwardPass<float>&, RowRange, int64_t chunk,
                             float* scratch);

  /// Some products of matrices, in kProductSampleFloats of memory; how many multiply-adds they are.
  int64_t (*product_sample)(Products, float* memory);
};

inline constexpr int64_t kProductSampleFloats = 10240;

}  // namespace heddle::engine::cpu
