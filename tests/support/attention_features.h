// The features of attention, each to be switched on by itself or beside another.
#pragma once

#include <iterator>

#include "support/attention_programs.h"

namespace heddle::testing {

/// Only the plain attention; features are then switched on by name.
inline AttentionOptions plain_attention() {
  AttentionOptions o;
  o.value_heads_differ = o.tensor_scale = o.log2_input = o.bias = o.alibi = o.padding =
      o.cumulative = o.ragged = o.bounds = o.bottom_right = o.score_mod = o.block_mask = o.dropout =
          o.rng_dump = o.sink = o.paged = o.rope = 0;
  return o;
}

struct AttentionFeature {
  const char* name;
  void (*switch_on)(AttentionOptions&);
};
inline constexpr AttentionFeature kAttentionFeatures[] = {
    {"value_heads", [](AttentionOptions& o) { o.value_heads_differ = 1; }},
    {"tensor_scale", [](AttentionOptions& o) { o.tensor_scale = 1; }},
    {"log2_input", [](AttentionOptions& o) { o.log2_input = 1; }},
    {"bias", [](AttentionOptions& o) { o.bias = 1; }},
    {"alibi", [](AttentionOptions& o) { o.bounds = o.alibi = 1; }},
    {"padding", [](AttentionOptions& o) { o.padding = 1; }},
    {"cumulative", [](AttentionOptions& o) { o.padding = o.cumulative = 1; }},
    {"ragged", [](AttentionOptions& o) { o.padding = o.ragged = 1; }},
    {"dense_beside_ragged",
     [](AttentionOptions& o) { o.padding = o.ragged = 1, o.dense_beside_ragged = 0.5; }},
    {"bounds", [](AttentionOptions& o) { o.bounds = 1; }},
    {"bottom_right", [](AttentionOptions& o) { o.bounds = o.bottom_right = 1; }},
    {"score_mod", [](AttentionOptions& o) { o.score_mod = 1; }},
    {"block_mask", [](AttentionOptions& o) { o.block_mask = 1; }},
    {"dropout", [](AttentionOptions& o) { o.dropout = 1; }},
    {"rng_dump", [](AttentionOptions& o) { o.dropout = o.rng_dump = 1; }},
    {"sink", [](AttentionOptions& o) { o.sink = 1; }},
    {"paged", [](AttentionOptions& o) { o.padding = o.paged = 1; }},
    {"rope", [](AttentionOptions& o) { o.rope = 1; }},
    {"stats_gradient", [](AttentionOptions& o) { o.stats_gradient = 1; }},
    {"max_and_sum", [](AttentionOptions& o) { o.max_and_sum = 1; }},
};
/// How K and V are stored in caches, and scores, which the CPU engine alone reads and writes.
inline constexpr AttentionFeature kCacheFeatures[] = {
    {"codes", [](AttentionOptions& o) { o.codes = 0.8; }},
    {"rings", [](AttentionOptions& o) { o.rings = 1; }},
    {"scores", [](AttentionOptions& o) { o.scores = 1; }},
};
inline constexpr size_t kAttentionFeatureCount = std::size(kAttentionFeatures);

}  // namespace heddle::testing
