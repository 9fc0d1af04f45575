#include "gpu/attention_options.h"

namespace heddle::testing {

namespace {

/// 16-bit types, lengths around and past the tile sizes, and no more work than the definition does
/// in a moment.
AttentionOptions sized(AttentionOptions options) {
  options.dtypes = {DataType::bf16, DataType::f16};
  options.max_length = 200;
  options.max_head_dim = 128;
  options.max_work = 5e7;
  options.missing_pages = 0.1;
  return options;
}

/// Dense rows that the copy engine can fetch, and nothing that Hopper's kernels leave to others.
AttentionOptions aligned(AttentionOptions options) {
  options.odd_strides = 0;
  options.max_length = 640;  // up to 320 keys have tiles of their own
  options.paged = options.block_mask = options.rng_dump = 0;
  options.row_offsets = 1;
  return options;
}

/// What Hopper's backward seldom takes is seldom drawn.
AttentionOptions backward(AttentionOptions options) {
  options.bias = options.value_heads_differ = 0.05;
  return options;
}

}  // namespace

AttentionOptions gpu_options() {
  AttentionOptions options = sized({});
  options.unaligned = 0.15;
  return options;
}

AttentionOptions aligned_options() { return aligned(gpu_options()); }

AttentionOptions aligned_backward_options() {
  AttentionOptions options = backward(aligned_options());
  options.max_head_dim = 256;
  return options;
}

AttentionOptions decode_options() {
  AttentionOptions options = aligned(sized({}));
  options.max_query_length = 16;
  options.single_row = 0.3;
  options.max_length = 3000;
  options.max_group = 8;
  options.max_head_dim = 256;
  options.padding = 0.6;
  options.paged = 0.4;
  options.dropout = options.value_heads_differ = 0;
  return options;
}

AttentionOptions wide_decode_options() {
  AttentionOptions options = beyond_a_warp(decode_options());
  options.max_query_length = 4;
  options.single_row = 0.6;
  options.max_length = 1500;
  options.max_group = 40;
  options.max_key_heads = 2;
  options.values_in_keys = 0.6;
  return options;
}

AttentionOptions cache_options(AttentionOptions options) {
  options.codes = 0.7;
  options.rings = 0.3;
  options.min_head_dim = options.head_dim_step = 32;
  return options;
}

AttentionOptions score_tile_options() {
  AttentionOptions options = aligned_backward_options();
  options.key_step = 16;
  options.bias = 0.7;
  options.wide_bias = 0.3;
  options.score_mod = options.boolean_mask = 0.6;
  options.padding = 0.2;
  return options;
}

AttentionOptions hidden_row_options(Random& random) {
  Random& structure = random.structure();
  AttentionOptions options = structure.chance(0.5)   ? score_tile_options()
                             : structure.chance(0.5) ? gpu_options()
                                                     : f32_options();
  options.dtypes = {options.dtypes[0]};  // no f16, which is infinite there
  options.bias = 0.7;
  options.score_mod = 0.5;
  options.sink = 0;
  options.hidden_rows = 1;
  return options;
}

AttentionOptions undefined_row_options(Random& random) {
  Random& structure = random.structure();
  AttentionOptions options = structure.chance(0.3)   ? aligned_options()
                             : structure.chance(0.3) ? score_tile_options()
                             : structure.chance(0.5) ? aligned_f32_options()
                                                     : gpu_options();
  options.undefined_rows = 1;
  return options;
}

AttentionOptions score_function_options(Random& random) {
  Random& structure = random.structure();
  AttentionOptions options = structure.chance(0.4)   ? aligned_backward_options()
                             : structure.chance(0.5) ? gpu_options()
                                                     : aligned_f32_options();
  options.score_mod = options.score_functions = 1;
  options.padding = options.log2_input = 0;
  return options;
}

AttentionOptions long_options() {
  AttentionOptions options = aligned_options();
  options.max_query_length = 64;
  options.max_length = 9000;
  options.max_batch = options.max_key_heads = 1;
  options.max_group = 2;
  // One kernel in two is as plain as those that such lengths change.
  options.padding = options.bias = options.score_mod = options.log2_input = options.tensor_scale =
      options.dropout = 0.1;
  return options;
}

AttentionOptions f32_options() {
  AttentionOptions options = gpu_options();
  options.dtypes = {DataType::f32};
  options.max_head_dim = 256;
  return options;
}

AttentionOptions aligned_f32_options() {
  AttentionOptions options = aligned(f32_options());
  options.max_head_dim = 128;
  return options;
}

AttentionOptions any_rows_options(std::vector<DataType> dtypes) {
  AttentionOptions options = sized({});
  options.dtypes = std::move(dtypes);
  options.max_length = 600;
  options.max_batch = options.max_key_heads = options.max_group = 2;
  options.any_head_dim = 0.5;
  options.unaligned = options.shared_keys = options.wide = 0.3;
  options.block_mask = options.rng_dump = 0.05;
  options.rope = 0.2;
  return options;
}

AttentionOptions aligned_f32_backward_options() { return backward(aligned_f32_options()); }

AttentionOptions beyond_a_warp(AttentionOptions options) {
  options.min_head_dim = 200;
  options.max_head_dim = 512;
  options.more_key_columns = 0.3;
  return options;
}

AttentionOptions many_entries_options(AttentionOptions options) {
  options.min_batch = 65'536;
  options.max_batch = 65'600;
  options.max_key_heads = options.max_group = 1;
  options.max_length = 3;
  options.max_head_dim = 16;
  options.max_work = 0;
  return options;
}

AttentionOptions feature_pair_options(int64_t number) {
  AttentionOptions options = sized(plain_attention());
  if (number / kFeaturePairs % 2 == 1) {
    options.odd_strides = 0;
    options.row_offsets = 1;
  }
  int64_t pair = number % kFeaturePairs;
  size_t first = 0;
  for (size_t left = kAttentionFeatureCount; pair >= static_cast<int64_t>(left); --left) {
    pair -= static_cast<int64_t>(left);
    ++first;
  }
  kAttentionFeatures[first].switch_on(options);
  kAttentionFeatures[first + static_cast<size_t>(pair)].switch_on(options);
  return options;
}

}  // namespace heddle::testing
