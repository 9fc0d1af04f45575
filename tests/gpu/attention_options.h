// What attention programs are drawn for the tensor-core kernels.
#pragma once

#include "support/attention_features.h"

namespace heddle::testing {

/// Both 16-bit types, lengths around and past the tile sizes.
inline AttentionOptions gpu_options() {
  AttentionOptions options;
  options.dtypes = {DataType::bf16, DataType::f16};
  options.max_length = 200;
  options.max_head_dim = 128;
  options.unaligned = 0.15;
  options.max_work = 5e7;
  return options;
}

/// Dense tensors, whose rows the copy engine can fetch: on Hopper these run the kernels made for
/// it.
inline AttentionOptions aligned_options() {
  AttentionOptions options = gpu_options();
  options.odd_strides = 0;
  options.max_length = 400;
  options.paged = options.block_mask = options.rng_dump = 0;
  return options;
}

/// What Hopper's backward kernels take is drawn most often.
inline AttentionOptions aligned_backward_options() {
  AttentionOptions options = aligned_options();
  options.max_head_dim = 256;
  options.bias = options.value_heads_differ = options.ragged = 0.05;
  return options;
}

/// In f32: any strides by the general kernels, aligned tensors of narrow heads by Hopper's.
inline AttentionOptions f32_options() {
  AttentionOptions options = gpu_options();
  options.dtypes = {DataType::f32};
  options.max_head_dim = 256;
  return options;
}

inline AttentionOptions aligned_f32_options() {
  AttentionOptions options = f32_options();
  options.odd_strides = 0;
  options.max_length = 400;
  options.max_head_dim = 128;
  options.paged = options.block_mask = options.rng_dump = options.padding = 0;
  return options;
}

inline AttentionOptions aligned_f32_backward_options() {
  AttentionOptions options = aligned_f32_options();
  options.max_head_dim = 64;
  options.bias = options.alibi = options.score_mod = options.dropout = 0.1;
  return options;
}

/// Every two features (one alone, where they are the same), by number: first of tensors with any
/// strides, then of such as the copy engine can fetch, and so on.
inline constexpr int64_t kFeaturePairs = kAttentionFeatureCount * (kAttentionFeatureCount + 1) / 2;
inline AttentionOptions feature_pair_options(int64_t number) {
  AttentionOptions options = plain_attention();
  options.dtypes = {DataType::bf16, DataType::f16};
  options.max_length = 200;
  options.max_head_dim = 128;
  options.max_work = 5e7;
  if (number / kFeaturePairs % 2 == 1) options.odd_strides = 0;
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
