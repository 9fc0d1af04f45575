// Random attention programs over the whole contract: a graph, and memory with its inputs.
#pragma once

#include <vector>

#include "support/program.h"

namespace heddle::testing {

/// Extents, and how often each feature is drawn (0 never, 1 whenever the contract allows it).
struct AttentionOptions {
  std::vector<DataType> dtypes{DataType::f32, DataType::bf16, DataType::f16};
  DataType statistics_dtype = DataType::f32;  ///< of Stats, Max, Sum_exp, sink (f64: to difference)
  int64_t max_batch = 3, max_key_heads = 3, max_group = 4, max_length = 48, max_head_dim = 40;
  int64_t min_head_dim = 8;
  int64_t head_dim_step = 8;         ///< which the two above are multiples of
  double more_key_columns = 0;       ///< Q and K have 64 columns besides
  int64_t max_query_length = 0;      ///< 0: as max_length
  double max_work = 0;               ///< scores times columns, the definition's time; 0: any
  double single_row = 0.1;           ///< Sq = 1
  double value_heads_differ = 0.25;  ///< Hv != Hk
  double odd_strides = 0.7;          ///< else dense BHSD
  double unaligned = 0;              ///< given odd strides: no multiples of 8 elements
  double any_head_dim = 0;           ///< each from 1 to max_head_dim, else multiples of the step
  /// Values are the first columns of the keys, in the same memory: given no codes, forward only.
  double values_in_keys = 0;
  double shared_keys = 0;  ///< K and V each once for all batch entries, or heads
  double tensor_scale = 0.2;
  double log2_input = 0.15;
  double bias = 0.3, alibi = 0.2;
  double padding = 0.4, cumulative = 0.4, ragged = 0.4;  ///< the last two given padding
  double dense_beside_ragged = 0;                        ///< given ragged: each tensor for itself
  int64_t key_step = 1;                                  ///< key lengths are multiples of it
  double row_offsets = 0.5;  ///< of a ragged tensor: in whole rows, else in elements
  double bounds = 0.5, bottom_right = 0.5;
  double score_mod = 0.25;
  double score_functions = 0;  ///< given score_mod: roots, logarithms, angles, powers, remainders
  double boolean_mask = 0;     ///< given score_mod: hides, by an operand, whole runs of keys
  double wide_bias = 0;        ///< given a bias: in f32, whatever Q is
  double hidden_rows = 0;     ///< given a bias or score_mod: a third of the rows hidden whole; with
                              ///< max_and_sum always, also near the ends of f32's range
  double query_size = 1;      ///< of Q's numbers, and so of the scores
  double undefined_rows = 0;  ///< forward only: a NaN in every fifth row of Q
  double block_mask = 0.1;
  double dropout = 0.3, rng_dump = 0.3;
  double sink = 0.25;
  double paged = 0.2;          ///< forward only, given padding and not ragged
  int64_t page_rows = 0;       ///< a power of two; 0: one of 1 to 16
  double missing_pages = 0;    ///< given pages: each may be in no block
  double codes = 0;            ///< forward only, of K and V each: i8, 4 bits or f8e4m3 with scales
  double scores = 0;           ///< forward only, written beside the output
  double statistics = 1;       ///< forward only: how often rows' are results, of the usual
  double rings = 0;            ///< forward only, not ragged and not paged
  double rope = 0;             ///< of Q and K each
  int64_t rope_step = 2;       ///< rotated columns are so many times a number
  double deterministic = 0.5;  ///< backward only
  double max_and_sum = 0;      ///< backward only: Max and Sum_exp in place of Stats
  double whole_rows = 0.5;     ///< backward only: the statistics are said to be of its keys
  double stats_gradient = 0;   ///< backward only: the loss also reads the rows' log-sum-exps
  int64_t min_batch = 1;
  double wide = 0;      ///< each of O, dO, dQ, dK and dV is f32, beside 16-bit Q, K and V
  double narrow = 0;    ///< a bias or dropout mask has one row or one column
  double by_value = 0;  ///< bias, lengths and sink of one element are host memory
};

/// An sdpa node (after rope nodes, where drawn), its inputs filled and its outputs poisoned.
Program random_sdpa(Random& random, const AttentionOptions& options = {});
/// An sdpa_backward node (between rope and rope_backward nodes, where drawn). O and the rows'
/// statistics are the definition's own for the same inputs.
Program random_sdpa_backward(Random& random, const AttentionOptions& options = {});

/// The same behind its sdpa node: O and the rows' statistics are the engine's own. No score_mod
/// (two nodes would make its values) and no rope are drawn.
Program random_training_step(Random& random, const AttentionOptions& options = {});

/// What a naive computation is in: the dtype of Q, K and V. Of fp8 operands f32, whose weights are
/// then rounded to theirs; f16 if there is no scale by which that is done.
DataType io_dtype(const Program& program);

}  // namespace heddle::testing
