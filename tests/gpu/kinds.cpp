#include "gpu/kinds.h"

#include "gpu/attention_options.h"
#include "support/cache_programs.h"
#include "support/channel_norm_programs.h"
#include "support/fp8_programs.h"
#include "support/pointwise_programs.h"
#include "support/streaming_programs.h"

namespace heddle::testing {
namespace {

/// Few heads and short rows: sanitizers and the definition are slow.
AttentionOptions small(AttentionOptions options) {
  options.max_batch = options.max_key_heads = options.max_group = 2;
  options.max_length = 200;
  return options;
}

/// Of more keys than tiles are fitted to.
AttentionOptions many_keys(AttentionOptions options) {
  options = small(options);
  options.max_length = 700;
  options.key_step = 330;
  return options;
}

AttentionOptions padded(AttentionOptions options) {
  options.padding = 1;
  options.ragged = 0;
  return small(options);
}

AttentionOptions packed(AttentionOptions options) {
  options.padding = options.ragged = 1;
  return small(options);
}

AttentionOptions rotated(AttentionOptions options) {
  options.rope = 1;
  return small(options);
}

/// A part of the columns, the first or the last, in whole chunks as Hopper's forward turns them.
AttentionOptions partly_rotated(AttentionOptions options) {
  options.dtypes = {DataType::bf16};
  options.min_head_dim = options.head_dim_step = options.rope_step = 16;
  return rotated(options);
}

AttentionOptions wide(AttentionOptions options) {
  options.min_head_dim = 136;
  options.max_head_dim = 256;
  return small(options);
}

/// Keys of up to 192 columns, values of up to 128, and scores that are dot products.
AttentionOptions of_latents(AttentionOptions options) {
  options.min_head_dim = 72;
  options.max_head_dim = 128;
  options.more_key_columns = 1;
  options.bias = options.alibi = options.score_mod = options.dropout = options.deterministic = 0;
  options.max_batch = options.max_key_heads = options.max_group = 2;
  options.max_length = 400;
  return options;
}

/// Given the rows' maxima and sums.
AttentionOptions apart(AttentionOptions options) {
  options.max_and_sum = 1;
  return options;
}

/// Keys of several tiles, whose blocks add to the same dQ.
AttentionOptions in_order(AttentionOptions options) {
  options.max_length = 500;
  options.deterministic = 1;
  return options;
}

AttentionOptions dropping(AttentionOptions options) {
  options.dropout = 1;
  return small(options);
}

/// A sink of one head, lengths of one batch entry.
AttentionOptions by_value(AttentionOptions options) {
  options = small(options);
  options.max_batch = options.max_key_heads = options.max_group = 1;
  options.sink = options.padding = 0.5;
  options.ragged = 0;
  options.by_value = 1;
  return options;
}

/// Of a bias alone, or of booleans alone.
AttentionOptions score_tiles_of(double bias, double booleans) {
  AttentionOptions options = score_tile_options();
  options.bias = bias;
  options.score_mod = options.boolean_mask = booleans;
  return small(options);
}

/// What no block has, or few blocks have, of their own: entries have their lengths.
AttentionOptions gradients_apart() {
  AttentionOptions options = score_tiles_of(1, 0);
  options.padding = 1;
  return options;
}

/// Of up to eight batch entries, and keys of several blocks.
AttentionOptions gradients_of_tiles() {
  AttentionOptions options = score_tiles_of(1, 0);
  options.wide_bias = options.padding = 0;
  options.max_batch = 8;
  options.max_length = 400;
  options.max_head_dim = 128;
  return options;
}

AttentionOptions narrow_bias(AttentionOptions options) {
  options.bias = options.narrow = 1;
  return options;
}

/// Results in f32, whatever Q, K and V are.
AttentionOptions to_f32(AttentionOptions options) {
  options.wide = 1;
  return small(options);
}

/// Rows that are copied: of enough keys.
AttentionOptions odd_head_dims(AttentionOptions options) {
  options = small(options);
  options.max_length = 500;
  options.any_head_dim = 1;
  return options;
}
AttentionOptions sharing_keys(AttentionOptions options) {
  options = small(options);
  options.min_batch = 2;
  options.max_length = 500;
  options.shared_keys = 1;
  return options;
}

AttentionOptions wide_f32() {
  AttentionOptions options = aligned_f32_options();
  options.min_head_dim = 72;
  return small(options);
}

AttentionOptions of_head_dims(int64_t least, int64_t most, AttentionOptions options) {
  options.min_head_dim = least;
  options.max_head_dim = most;
  return options;
}

/// Columns that warp groups share, above 256 those of two blocks.
AttentionOptions shared_columns(int64_t least, int64_t most) {
  AttentionOptions options = of_head_dims(least, most, beyond_a_warp(aligned_f32_options()));
  options.statistics = 0;
  return options;
}

/// 16 bits: columns that two blocks share.
AttentionOptions of_two_blocks() {
  return of_head_dims(264, 512, beyond_a_warp(aligned_backward_options()));
}

/// More tiles than an H200 has processors (132): blocks pass from one to the next.
AttentionOptions many_tiles(AttentionOptions options) {
  options = small(options);
  options.min_batch = 140;
  options.max_batch = 150;
  options.max_length = 140;
  options.max_work = 0;
  return options;
}

/// Sanitizers are slow.
AttentionOptions few_rows(AttentionOptions options) {
  options = small(options);
  options.max_length = 1200;
  return options;
}

/// Of codes alone, or in rings alone.
AttentionOptions of_codes(AttentionOptions options) {
  options.codes = 1;
  options.min_head_dim = options.head_dim_step = 32;
  return options;
}
AttentionOptions in_rings(AttentionOptions options) {
  options.rings = 1;
  options.ragged = 0;
  return options;
}

/// Scores far apart, already in log2 units.
AttentionOptions in_log2(AttentionOptions options) {
  options.log2_input = 1;
  options.query_size = 4;
  return options;
}

AttentionOptions many_sequences(AttentionOptions options) {
  options = many_tiles(options);
  options.max_length = 600;
  options.max_head_dim = 64;
  return options;
}

/// Rows of `columns` at most, several to a block.
constexpr NormOptions kNarrowRows{.aligned = 1, .max_aligned_columns = 1024};
constexpr NormOptions kOddRows{.aligned = 0};
constexpr NormOptions kRows{.aligned = 1, .max_aligned_columns = 4096};
constexpr NormOptions kLongRows{.aligned = 1, .max_aligned_columns = 16384};
constexpr NormOptions kWideRows{.aligned = 1, .max_aligned_columns = 40000};
constexpr NormOptions kSums{.aligned = 1, .max_aligned_columns = 4096, .residual = 1};
constexpr NormOptions kWideSums{.aligned = 1, .max_aligned_columns = 40000, .residual = 1};

}  // namespace

const std::vector<Kind>& kinds() {
  static const std::vector<Kind> all = {
      {"hopper_forward",
       [](Random& r) { return random_sdpa(r, small(aligned_options())); },
       {"attention forward", "Hopper"}},
      {"hopper_forward_padded",
       [](Random& r) { return random_sdpa(r, padded(aligned_options())); },
       {"attention forward", "Hopper"}},
      {"hopper_forward_packed",
       [](Random& r) { return random_sdpa(r, packed(aligned_options())); },
       {"attention forward", "Hopper"}},
      {"hopper_backward",
       [](Random& r) { return random_sdpa_backward(r, small(aligned_backward_options())); },
       {"attention backward", "Hopper"}},
      {"hopper_forward_of_many_keys",
       [](Random& r) { return random_sdpa(r, many_keys(aligned_options())); },
       {"attention forward", "Hopper"}},
      {"hopper_backward_of_many_keys",
       [](Random& r) { return random_sdpa_backward(r, many_keys(aligned_backward_options())); },
       {"attention backward", "Hopper"}},
      {"hopper_backward_padded",
       [](Random& r) { return random_sdpa_backward(r, padded(aligned_backward_options())); },
       {"attention backward", "Hopper"}},
      {"hopper_backward_packed",
       [](Random& r) { return random_sdpa_backward(r, packed(aligned_backward_options())); },
       {"attention backward", "Hopper"}},
      {"hopper_forward_wide",
       [](Random& r) { return random_sdpa(r, wide(aligned_options())); },
       {"attention forward", "Hopper"}},
      {"hopper_backward_wide",
       [](Random& r) { return random_sdpa_backward(r, wide(aligned_backward_options())); },
       {"attention backward", "Hopper"}},
      {"hopper_backward_transposed",
       [](Random& r) { return random_sdpa_backward(r, of_latents(aligned_backward_options())); },
       {"attention backward", "64 x 96 tiles"}},
      {"hopper_backward_in_order",
       [](Random& r) {
         return random_sdpa_backward(r, in_order(small(aligned_backward_options())));
       },
       {"attention backward", "Hopper", "in a fixed order"}},
      {"hopper_backward_wide_in_order",
       [](Random& r) {
         return random_sdpa_backward(r, in_order(wide(aligned_backward_options())));
       },
       {"attention backward", "Hopper", "in a fixed order"}},
      {"hopper_forward_dropout",
       [](Random& r) { return random_sdpa(r, dropping(aligned_options())); },
       {"attention forward", "Hopper"}},
      {"hopper_backward_dropout",
       [](Random& r) { return random_sdpa_backward(r, dropping(aligned_backward_options())); },
       {"attention backward", "Hopper"}},
      {"hopper_forward_bias_tiles",
       [](Random& r) { return random_sdpa(r, score_tiles_of(1, 0)); },
       {"attention forward", "score tiles"}},
      {"hopper_forward_boolean_tiles",
       [](Random& r) { return random_sdpa(r, score_tiles_of(0, 1)); },
       {"attention forward", "score tiles"}},
      {"hopper_backward_bias_tiles",
       [](Random& r) { return random_sdpa_backward(r, score_tiles_of(1, 0)); },
       {"attention backward", "with score tiles,"}},
      {"hopper_backward_boolean_tiles",
       [](Random& r) { return random_sdpa_backward(r, score_tiles_of(0, 1)); },
       {"attention backward", "with score tiles,"}},
      {"hopper_backward_bias_gradient",
       [](Random& r) { return random_sdpa_backward(r, gradients_apart()); },
       {"attention backward", "score tiles and their gradient,"}},
      {"hopper_backward_bias_gradient_by_tiles",
       [](Random& r) { return random_sdpa_backward(r, gradients_of_tiles()); },
       {"attention backward", "their gradient by tiles"}},
      {"hopper_backward_bias_gradient_by_clusters",
       [](Random& r) { return random_sdpa_backward(r, gradients_of_tiles()); },
       {"attention backward", "their gradient by clusters"}},
      {"hopper_backward_bias_gradient_by_clusters_in_order",
       [](Random& r) { return random_sdpa_backward(r, in_order(gradients_of_tiles())); },
       {"attention backward", "their gradient by clusters", "in a fixed order"}},
      {"hopper_forward_rotated",
       [](Random& r) { return random_sdpa(r, rotated(aligned_options())); },
       {"attention forward of rotated queries and keys"}},
      {"decode",
       [](Random& r) { return random_sdpa(r, few_rows(decode_options())); },
       {"attention forward", "decode kernel"}},
      {"decode_together",
       [](Random& r) {
         AttentionOptions options = few_rows(wide_decode_options());
         options.values_in_keys = 0;
         return random_sdpa(r, options);
       },
       {"attention forward", "decode kernel", "keys a step of all warps"}},
      {"decode_together_of_values_in_keys",
       [](Random& r) {
         AttentionOptions options = few_rows(wide_decode_options());
         options.values_in_keys = 1;
         return random_sdpa(r, options);
       },
       {"attention forward", "decode kernel", "keys a step of all warps"}},
      {"decode_by_warp_groups",
       [](Random& r) {
         AttentionOptions options = few_rows(wide_decode_options());
         options.values_in_keys = 0;
         return random_sdpa(r, options);
       },
       {"attention forward", "decode kernel", "keys a step by warp groups"}},
      {"decode_by_warp_groups_of_values_in_keys",
       [](Random& r) {
         AttentionOptions options = few_rows(wide_decode_options());
         options.values_in_keys = options.more_key_columns = 1;
         return random_sdpa(r, options);
       },
       {"attention forward", "decode kernel", "keys a step by warp groups"}},
      {"decode_by_warp_groups_of_twins",
       [](Random& r) {
         AttentionOptions options = few_rows(wide_decode_options());
         options.values_in_keys = options.more_key_columns = 1;
         options.max_group = 150;
         return random_sdpa(r, options);
       },
       {"attention forward", "decode kernel", "keys a step by warp groups of twins"}},
      {"decode_packed",
       [](Random& r) { return random_sdpa(r, few_rows(packed(decode_options()))); },
       {"attention forward", "decode kernel"}},
      {"decode_of_more_sequences_than_blocks",
       [](Random& r) { return random_sdpa(r, many_sequences(decode_options())); },
       {"attention forward", "decode kernel"}},
      {"decode_of_codes",
       [](Random& r) { return random_sdpa(r, few_rows(of_codes(decode_options()))); },
       {"attention forward", "decode kernel of codes"}},
      {"decode_of_codes_in_rings",
       [](Random& r) { return random_sdpa(r, few_rows(in_rings(of_codes(decode_options())))); },
       {"attention forward", "decode kernel of codes", "in a ring"}},
      {"decode_after_codes",
       [](Random& r) {
         AttentionOptions options = few_rows(decode_options());
         options.codes = 1;
         return random_sdpa(r, options);
       },
       {"from codes", "decode kernel"}},
      {"hopper_forward_after_codes",
       [](Random& r) {
         AttentionOptions options = small(aligned_options());
         options.codes = 1;
         return random_sdpa(r, options);
       },
       {"from codes", "attention forward", "Hopper"}},
      {"general_forward_in_rings_after_codes",
       [](Random& r) {
         AttentionOptions options = small(in_rings(gpu_options()));
         options.codes = 1;
         return random_sdpa(r, options);
       },
       {"from codes", "attention forward", "general"}},
      {"decode_in_log2",
       [](Random& r) { return random_sdpa(r, in_log2(many_sequences(decode_options()))); },
       {"attention forward", "decode kernel"}},
      {"general_forward",
       [](Random& r) { return random_sdpa(r, small(gpu_options())); },
       {"attention forward", "general"}},
      {"general_backward",
       [](Random& r) { return random_sdpa_backward(r, small(gpu_options())); },
       {"attention backward", "general"}},
      {"hopper_backward_apart",
       [](Random& r) { return random_sdpa_backward(r, apart(small(aligned_backward_options()))); },
       {"attention backward", "Hopper"}},
      {"hopper_backward_wide_apart",
       [](Random& r) { return random_sdpa_backward(r, apart(wide(aligned_backward_options()))); },
       {"attention backward", "Hopper"}},
      {"hopper_backward_bias_gradient_apart",
       [](Random& r) { return random_sdpa_backward(r, apart(score_tiles_of(1, 0))); },
       {"attention backward", "score tiles and their gradient"}},
      {"f32_hopper_backward_apart",
       [](Random& r) {
         return random_sdpa_backward(r, apart(small(aligned_f32_backward_options())));
       },
       {"attention backward", "64 x 128 tiles of f16 pairs"}},
      {"f32_hopper_backward_wide_apart",
       [](Random& r) {
         return random_sdpa_backward(r, apart(small(aligned_f32_backward_options())));
       },
       {"attention backward", "64 x 64 tiles of f16 pairs"}},
      {"general_backward_apart",
       [](Random& r) { return random_sdpa_backward(r, apart(small(gpu_options()))); },
       {"attention backward", "general"}},
      {"f32_general_backward_apart",
       [](Random& r) { return random_sdpa_backward(r, apart(small(f32_options()))); },
       {"attention backward", "general"}},
      {"rotated_forward",
       [](Random& r) { return random_sdpa(r, rotated(aligned_options())); },
       {"rope"}},
      {"partly_rotated_forward",
       [](Random& r) { return random_sdpa(r, partly_rotated(aligned_options())); },
       {"rope"}},
      {"partly_rotated_backward",
       [](Random& r) {
         return random_sdpa_backward(r, partly_rotated(aligned_backward_options()));
       },
       {"rope"}},
      {"rotated_backward",
       [](Random& r) { return random_sdpa_backward(r, rotated(aligned_backward_options())); },
       {"rope"}},
      {"f32_hopper_forward",
       [](Random& r) { return random_sdpa(r, small(aligned_f32_options())); },
       {"attention forward", "of f16 pairs"}},
      {"f32_hopper_backward",
       [](Random& r) { return random_sdpa_backward(r, small(aligned_f32_backward_options())); },
       {"attention backward", "of f16 pairs"}},
      {"f32_hopper_backward_wide",
       [](Random& r) { return random_sdpa_backward(r, small(aligned_f32_backward_options())); },
       {"attention backward", "64 x 64 tiles of f16 pairs"}},
      {"f32_hopper_forward_padded",
       [](Random& r) { return random_sdpa(r, padded(aligned_f32_options())); },
       {"attention forward", "of f16 pairs"}},
      {"f32_hopper_forward_packed",
       [](Random& r) { return random_sdpa(r, packed(aligned_f32_options())); },
       {"attention forward", "of f16 pairs"}},
      {"f32_hopper_backward_of_few_queries",
       [](Random& r) {
         return random_sdpa_backward(r,
                                     small(of_head_dims(200, 256, aligned_f32_backward_options())));
       },
       {"attention backward", "32 x 64 tiles of f16 pairs"}},
      {"f32_hopper_backward_of_few_queries_packed",
       [](Random& r) {
         return random_sdpa_backward(
             r, packed(of_head_dims(200, 256, aligned_f32_backward_options())));
       },
       {"attention backward", "32 x 64 tiles of f16 pairs"}},
      {"f32_hopper_backward_by_two_blocks",
       [](Random& r) {
         return random_sdpa_backward(
             r, small(of_head_dims(264, 512, beyond_a_warp(aligned_f32_backward_options()))));
       },
       {"attention backward", "columns in 4 parts"}},
      {"f32_hopper_backward_by_two_blocks_padded",
       [](Random& r) {
         return random_sdpa_backward(
             r, padded(of_head_dims(264, 512, beyond_a_warp(aligned_f32_backward_options()))));
       },
       {"attention backward", "columns in 4 parts"}},
      {"f32_hopper_backward_padded",
       [](Random& r) { return random_sdpa_backward(r, padded(aligned_f32_backward_options())); },
       {"attention backward", "of f16 pairs"}},
      {"f32_hopper_backward_packed",
       [](Random& r) { return random_sdpa_backward(r, packed(aligned_f32_backward_options())); },
       {"attention backward", "of f16 pairs"}},
      {"f32_general_forward",
       [](Random& r) { return random_sdpa(r, small(f32_options())); },
       {"attention forward", "general"}},
      {"f32_general_backward",
       [](Random& r) { return random_sdpa_backward(r, small(f32_options())); },
       {"attention backward", "general"}},
      {"forward_by_value",
       [](Random& r) { return random_sdpa(r, by_value(aligned_options())); },
       {"attention forward", "after numbers passed by value"}},
      {"backward_by_value",
       [](Random& r) { return random_sdpa_backward(r, by_value(aligned_backward_options())); },
       {"attention backward", "after numbers passed by value"}},
      {"rotated_backward_by_value",
       [](Random& r) {
         return random_sdpa_backward(r, by_value(rotated(aligned_backward_options())));
       },
       {"rope", "after numbers passed by value"}},
      {"general_forward_by_value",
       [](Random& r) { return random_sdpa(r, narrow_bias(by_value(gpu_options()))); },
       {"attention forward", "general", "after numbers passed by value"}},
      {"hopper_forward_narrow_bias",
       [](Random& r) { return random_sdpa(r, narrow_bias(small(aligned_options()))); },
       {"attention forward", "Hopper"}},
      {"hopper_backward_narrow_bias",
       [](Random& r) {
         return random_sdpa_backward(r, narrow_bias(small(aligned_backward_options())));
       },
       {"attention backward", "Hopper"}},
      {"general_backward_narrow_bias",
       [](Random& r) { return random_sdpa_backward(r, narrow_bias(small(gpu_options()))); },
       {"attention backward", "general"}},
      {"hopper_forward_to_f32",
       [](Random& r) { return random_sdpa(r, to_f32(aligned_options())); },
       {"attention forward", "Hopper"}},
      {"hopper_backward_to_f32",
       [](Random& r) { return random_sdpa_backward(r, to_f32(aligned_backward_options())); },
       {"attention backward", "Hopper"}},
      {"hopper_forward_of_padded_rows",
       [](Random& r) { return random_sdpa(r, odd_head_dims(aligned_options())); },
       {"padded", "attention forward, Hopper", "cut"}},
      {"hopper_backward_of_padded_rows",
       [](Random& r) { return random_sdpa_backward(r, odd_head_dims(aligned_backward_options())); },
       {"padded", "attention backward, Hopper", "cut"}},
      {"hopper_forward_of_copied_keys",
       [](Random& r) { return random_sdpa(r, sharing_keys(aligned_options())); },
       {"k copied", "attention forward, Hopper"}},
      {"general_forward_of_any_head_dim",
       [](Random& r) { return random_sdpa(r, small(any_rows_options({DataType::bf16}))); },
       {"attention forward, general"}},
      {"general_backward_of_any_head_dim",
       [](Random& r) { return random_sdpa_backward(r, small(any_rows_options({DataType::bf16}))); },
       {"attention backward, general"}},
      {"hopper_forward_in_parts",
       [](Random& r) { return random_sdpa(r, small(beyond_a_warp(aligned_options()))); },
       {"attention forward, Hopper", "O in parts"}},
      {"hopper_forward_in_parts_packed",
       [](Random& r) { return random_sdpa(r, packed(beyond_a_warp(aligned_options()))); },
       {"attention forward, Hopper", "O in parts"}},
      {"general_forward_in_parts",
       [](Random& r) { return random_sdpa(r, small(beyond_a_warp(gpu_options()))); },
       {"attention forward, general", "O in parts"}},
      {"general_forward_in_parts_packed",
       [](Random& r) { return random_sdpa(r, packed(beyond_a_warp(gpu_options()))); },
       {"attention forward, general", "O in parts"}},
      {"hopper_backward_by_two_blocks",
       [](Random& r) { return random_sdpa_backward(r, small(of_two_blocks())); },
       {"attention backward, Hopper", "columns in 2 parts"}},
      {"hopper_backward_by_two_blocks_padded",
       [](Random& r) { return random_sdpa_backward(r, padded(of_two_blocks())); },
       {"attention backward, Hopper", "columns in 2 parts"}},
      {"hopper_backward_by_two_blocks_packed",
       [](Random& r) { return random_sdpa_backward(r, packed(of_two_blocks())); },
       {"attention backward, Hopper", "columns in 2 parts"}},
      {"hopper_backward_by_two_blocks_in_order",
       [](Random& r) { return random_sdpa_backward(r, in_order(small(of_two_blocks()))); },
       {"attention backward, Hopper", "in a fixed order, columns in 2 parts"}},
      {"hopper_backward_by_two_blocks_dropout",
       [](Random& r) { return random_sdpa_backward(r, dropping(of_two_blocks())); },
       {"attention backward, Hopper", "columns in 2 parts"}},
      {"hopper_backward_by_two_blocks_apart",
       [](Random& r) { return random_sdpa_backward(r, apart(small(of_two_blocks()))); },
       {"attention backward, Hopper", "columns in 2 parts"}},
      {"hopper_backward_by_two_blocks_bias_tiles",
       [](Random& r) {
         return random_sdpa_backward(r,
                                     of_head_dims(264, 512, beyond_a_warp(score_tiles_of(1, 0))));
       },
       {"attention backward, Hopper", "with score tiles,", "columns in 2 parts"}},
      {"general_backward_in_parts",
       [](Random& r) { return random_sdpa_backward(r, small(beyond_a_warp(gpu_options()))); },
       {"attention backward, general", "sums in parts"}},
      {"f32_general_forward_in_parts",
       [](Random& r) { return random_sdpa(r, small(beyond_a_warp(f32_options()))); },
       {"attention forward, general", "O in parts"}},
      {"f32_general_backward_in_parts",
       [](Random& r) { return random_sdpa_backward(r, small(beyond_a_warp(f32_options()))); },
       {"attention backward, general", "sums in parts"}},
      {"f32_hopper_forward_wide",
       [](Random& r) { return random_sdpa(r, wide_f32()); },
       {"attention forward", "of f16 pairs"}},
      {"f32_hopper_forward_of_shared_columns",
       [](Random& r) { return random_sdpa(r, small(shared_columns(136, 256))); },
       {"attention forward, Hopper", "columns in 2 parts"}},
      {"f32_hopper_forward_of_shared_columns_packed",
       [](Random& r) { return random_sdpa(r, packed(shared_columns(136, 256))); },
       {"attention forward, Hopper", "columns in 2 parts"}},
      {"f32_hopper_forward_by_two_blocks",
       [](Random& r) { return random_sdpa(r, small(shared_columns(264, 512))); },
       {"attention forward, Hopper", "columns in 4 parts"}},
      {"f32_hopper_forward_by_two_blocks_padded",
       [](Random& r) { return random_sdpa(r, padded(shared_columns(264, 512))); },
       {"attention forward, Hopper", "columns in 4 parts"}},
      {"f32_hopper_forward_by_two_blocks_many_tiles",
       [](Random& r) { return random_sdpa(r, many_tiles(shared_columns(264, 512))); },
       {"attention forward, Hopper", "columns in 4 parts"}},
      {"general_forward_packed",
       [](Random& r) { return random_sdpa(r, packed(gpu_options())); },
       {"attention forward", "general"}},
      {"general_backward_packed",
       [](Random& r) { return random_sdpa_backward(r, packed(gpu_options())); },
       {"attention backward", "general"}},
      {"hopper_forward_many_tiles",
       [](Random& r) { return random_sdpa(r, many_tiles(aligned_options())); },
       {"attention forward", "Hopper"}},
      {"hopper_forward_rotated_many_tiles",
       [](Random& r) { return random_sdpa(r, many_tiles(rotated(aligned_options()))); },
       {"attention forward of rotated queries"}},
      {"hopper_forward_bias_of_many_tiles",
       [](Random& r) { return random_sdpa(r, many_tiles(score_tiles_of(1, 0))); },
       {"attention forward", "score tiles"}},
      {"hopper_backward_many_tiles",
       [](Random& r) { return random_sdpa_backward(r, many_tiles(aligned_backward_options())); },
       {"attention backward", "Hopper"}},
      {"hopper_forward_many_entries",
       [](Random& r) { return random_sdpa(r, many_entries_options(aligned_options())); },
       {"attention forward", "Hopper"}},
      {"hopper_backward_many_entries",
       [](Random& r) {
         return random_sdpa_backward(r, many_entries_options(aligned_backward_options()));
       },
       {"attention backward", "Hopper"}},
      {"general_backward_many_entries",
       [](Random& r) { return random_sdpa_backward(r, many_entries_options(gpu_options())); },
       {"attention backward", "general"}},
      {"rms_norm", [](Random& r) { return random_rms_norm(r, kRows); }, {"in registers"}},
      {"rms_norm_odd",
       [](Random& r) { return random_rms_norm(r, kOddRows); },
       {"in registers", "vectors of 1,"}},
      {"rms_norm_wide", [](Random& r) { return random_rms_norm(r, kWideRows); }, {"read twice"}},
      {"rms_norm_of_sums", [](Random& r) { return random_rms_norm(r, kSums); }, {"in registers"}},
      {"rms_norm_of_wide_sums",
       [](Random& r) { return random_rms_norm(r, kWideSums); },
       {"read twice"}},
      {"rms_norm_backward",
       [](Random& r) { return random_rms_norm_backward(r, kRows); },
       {"in registers"}},
      {"rms_norm_backward_narrow",
       [](Random& r) { return random_rms_norm_backward(r, kNarrowRows); },
       {"in registers"}},
      {"rms_norm_backward_odd",
       [](Random& r) { return random_rms_norm_backward(r, kOddRows); },
       {"in registers", "vectors of 1,"}},
      {"rms_norm_backward_wide",
       [](Random& r) { return random_rms_norm_backward(r, kWideRows); },
       {"read twice"}},
      {"layer_norm", [](Random& r) { return random_layer_norm(r, kRows); }, {"in registers"}},
      {"layer_norm_narrow",
       [](Random& r) { return random_layer_norm(r, kNarrowRows); },
       {"in registers"}},
      {"layer_norm_odd",
       [](Random& r) { return random_layer_norm(r, kOddRows); },
       {"in registers", "vectors of 1,"}},
      {"layer_norm_wide",
       [](Random& r) { return random_layer_norm(r, kWideRows); },
       {"read three times"}},
      {"layer_norm_of_sums",
       [](Random& r) { return random_layer_norm(r, kSums); },
       {"in registers"}},
      {"layer_norm_of_wide_sums",
       [](Random& r) { return random_layer_norm(r, kWideSums); },
       {"read three times"}},
      {"layer_norm_backward",
       [](Random& r) { return random_layer_norm_backward(r, kRows); },
       {"in registers"}},
      {"layer_norm_backward_narrow",
       [](Random& r) { return random_layer_norm_backward(r, kNarrowRows); },
       {"in registers"}},
      {"layer_norm_backward_odd",
       [](Random& r) { return random_layer_norm_backward(r, kOddRows); },
       {"in registers", "vectors of 1,"}},
      {"layer_norm_backward_long",
       [](Random& r) { return random_layer_norm_backward(r, kLongRows); },
       {"d_bias in shared memory"}},
      {"layer_norm_backward_wide",
       [](Random& r) { return random_layer_norm_backward(r, kWideRows); },
       {"read twice"}},
      {"instance_norm", random_instance_norm, {"instance_norm"}},
      {"instance_norm_backward", random_instance_norm_backward, {"instance_norm"}},
      {"batch_norm", random_batch_norm, {"batch_norm"}},
      {"batch_norm_backward", random_batch_norm_backward, {"batch_norm"}},
      {"rope", random_rope, {"rope"}},
      {"pointwise", random_pointwise, {"pointwise"}},
      {"fp8_hopper_forward",
       [](Random& r) { return random_sdpa_fp8(r, {.for_hopper = true}); },
       {"fp8 attention forward, Hopper kernel"}},
      {"fp8_hopper_backward",
       [](Random& r) { return random_sdpa_fp8_backward(r, {.for_hopper = true}); },
       {"fp8 attention backward, Hopper kernels"}},
      {"fp8_forward_by_16_bits",
       [](Random& r) { return random_sdpa_fp8(r); },
       {"factors", "attention forward"}},
      {"fp8_backward_by_16_bits",
       [](Random& r) { return random_sdpa_fp8_backward(r); },
       {"factors", "attention backward"}},
      {"cache_append", [](Random& r) { return random_cache_append(r, {}); }, {"cache append"}},
  };
  return all;
}

}  // namespace heddle::testing
