// What attention programs are drawn for the tensor-core kernels.
#pragma once

#include "support/attention_features.h"

namespace heddle::testing {

/// Both 16-bit types, lengths around and past the tile sizes.
AttentionOptions gpu_options();
/// Dense tensors, whose rows the copy engine can fetch: on Hopper these run the kernels made for
/// it.
AttentionOptions aligned_options();
/// What Hopper's backward kernels take is drawn most often.
AttentionOptions aligned_backward_options();
/// Few rows of queries and up to 3000 keys, which may be paged.
AttentionOptions decode_options();
/// Few rows of many heads, which are wide: all of them may see one head of keys, whose first
/// columns may be the values.
AttentionOptions wide_decode_options();
/// Of caches: keys and values in codes, in rings, in pages or in rows.
AttentionOptions cache_options(AttentionOptions options);
/// With a bias or booleans in every cell, which the copy engine can fetch.
AttentionOptions score_tile_options();
/// With a bias or a score_mod that hides every third row by a finite number.
AttentionOptions hidden_row_options(Random& random);
/// With a NaN in every fifth row of Q.
AttentionOptions undefined_row_options(Random& random);
/// With a score_mod of more than arithmetic.
AttentionOptions score_function_options(Random& random);
/// Few queries and so many keys that kernels choose tiles and orders for them.
AttentionOptions long_options();
/// In f32: any strides by the general kernels, aligned tensors of narrow heads by Hopper's.
AttentionOptions f32_options();
AttentionOptions aligned_f32_options();
/// What no kernel takes as it is, long enough for copies: any head dims and strides, keys that
/// batch entries or heads share, f32 results. `dtypes` are of Q, K and V.
AttentionOptions any_rows_options(std::vector<DataType> dtypes);
AttentionOptions aligned_f32_backward_options();
/// Some head dims of which are beyond what a warp holds sums of, up to 576 of Q and K.
AttentionOptions beyond_a_warp(AttentionOptions options);
/// More batch entries than a grid has layers, of few short rows each.
AttentionOptions many_entries_options(AttentionOptions options);
inline constexpr int64_t kFeaturePairs = kAttentionFeatureCount * (kAttentionFeatureCount + 1) / 2;
/// Every two features (one alone, where they are the same), by number: first of tensors with any
/// strides, then of such as the copy engine can fetch, and so on.
AttentionOptions feature_pair_options(int64_t number);

}  // namespace heddle::testing
