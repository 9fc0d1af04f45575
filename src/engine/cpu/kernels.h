// The kernels of one instruction set, as the rest of the engine calls them.
#pragma once

#include "engine/cpu/arguments.h"

namespace heddle::engine::cpu {

/// Keys a forward tile visits at a time. Scores of a panel of 14 rows (15 KiB) stay in L1 between
/// the product that makes them, the softmax and the product that reads them.
inline constexpr int64_t kForwardKeys = 256;

/// One forward pass, ready to run. Query heads that share K and V heads form a group; its rows are
/// numbered position first (i * group + head in group), so a tile of rows holds all heads of a few
/// positions and packs their keys once.
struct ForwardPass {
  AttentionArguments a;
  int64_t group;       ///< query heads that share both a K head and a V head
  int64_t tile_rows;   ///< rows of a task
  int64_t splits;      ///< parts the keys are cut into, each a task of its own (decoding)
  int64_t split_keys;  ///< keys of a part, a multiple of kForwardKeys
  /// With splits > 1: per part, batch entry, head and row the unnormalised output, the running
  /// maximum and the sum.
  float *partial_o, *partial_max, *partial_sum;
};

struct ForwardTask {
  int64_t b, first_head, first_row, split;
};

/// One backward pass, ready to run.
struct BackwardPass {
  AttentionArguments a;
  const View* d_o;
  const View *d_q, *d_k, *d_v, *d_sink;
  Score d_dot;
  int64_t heads;       ///< query heads of a task: whole groups of both K and V heads
  int64_t group;       ///< query heads that share both a K head and a V head
  int64_t chunk_keys;  ///< keys of a task, a multiple of the kernel's key block
  int64_t chunks;
  float* d_q_sum;  ///< [chunks, batch, q_heads, q_length, qk_dim rounded up to a panel]
  float* row_dot;  ///< D = rowsum(dO * O), [batch, q_heads, q_length]
};

struct BackwardTask {
  int64_t b, first_head, chunk;
};

/// Rotation of the rows of one tensor; tables hold cos and sin of [positions, rope_dim / 2].
struct RopePass {
  const View *in, *out;
  const View *angles, *cosines, *sines, *positions, *lengths;
  bool interleaved, per_row, inverse, lengths_cumulative;
  int64_t rope_dim;
  float scale;
};

/// A gradient of an operand that the score loads: the sum of `derivative` over the dims along which
/// the operand was broadcast.
struct LoadGradientPass {
  const View* gradient;
  Score derivative;
};

struct Kernels {
  const char* name;
  int panel_rows, panel_columns;

  int64_t (*forward_scratch_bytes)(const ForwardPass&);
  void (*forward)(const ForwardPass&, const ForwardTask&, void* scratch);
  /// Joins the parts of rows [first, last) of one head.
  void (*combine)(const ForwardPass&, int64_t b, int64_t h, int64_t first, int64_t last,
                  void* scratch);
};

}  // namespace heddle::engine::cpu
