// Every kind of kernel on a few problems: what compute-sanitizer watches (tests/gpu/run
// --sanitizers), and how plans are executed: on two streams at once, inside a CUDA graph, and what
// a call costs the host.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <thread>

#include "engine/cuda/device.h"
#include "engine/cuda/kernel.h"
#include "engine/cuda/kernel_cache.h"
#include "engine/cuda/target.h"
#include "gpu/attention_options.h"
#include "gpu/device_graph.h"
#include "gpu/gpu_test.h"
#include "support/cache_programs.h"
#include "support/pointwise_programs.h"
#include "support/streaming_programs.h"

namespace heddle::testing {
namespace {

/// Programs of `draw` whose plan's description has all of these words.
struct Kind {
  const char* name;
  Program (*draw)(Random&);
  std::vector<const char*> words;
};

/// Few heads and short rows: sanitizers and the definition are slow.
AttentionOptions small(AttentionOptions options) {
  options.max_batch = options.max_key_heads = options.max_group = 2;
  options.max_length = 200;
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

AttentionOptions wide(AttentionOptions options) {
  options.min_head_dim = 136;
  options.max_head_dim = 256;
  return small(options);
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
       [](Random& r) { return random_sdpa_backward(r, score_tiles_of(1, 0)); },
       {"attention backward", "score tiles and their gradient"}},
      {"hopper_forward_rotated",
       [](Random& r) { return random_sdpa(r, rotated(aligned_options())); },
       {"attention forward of rotated queries and keys"}},
      {"decode",
       [](Random& r) { return random_sdpa(r, few_rows(decode_options())); },
       {"attention forward", "decode kernel"}},
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
      {"f32_hopper_forward_wide",
       [](Random& r) { return random_sdpa(r, wide_f32()); },
       {"attention forward", "of f16 pairs"}},
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
      {"rope", random_rope, {"rope"}},
      {"pointwise", random_pointwise, {"pointwise"}},
      {"cache_append", [](Random& r) { return random_cache_append(r, {}); }, {"cache append"}},
  };
  return all;
}

class EveryKind : public OnGpu, public ::testing::WithParamInterface<Kind> {
 protected:
  /// The n-th program of the kind, of kPrograms.
  static constexpr size_t kPrograms = 2;
  Built draw(size_t n) {
    const Found& mine = found().at(index_of(GetParam().name));
    if (n < mine.programs.size()) return mine.programs[n];
    ADD_FAILURE() << "too few programs of this kind in " << mine.tried << ", " << mine.refused
                  << " were refused: " << mine.refusal;
    Random random(0);
    return build(GetParam().draw(random));
  }

 private:
  static constexpr int64_t kSeeds = 200;
  struct Found {
    std::vector<Built> programs;
    int64_t tried = 0, refused = 0;
    std::string refusal;  ///< of the last one
  };
  static size_t index_of(std::string_view name) {
    const auto at = std::find_if(kinds().begin(), kinds().end(),
                                 [&](const Kind& kind) { return kind.name == name; });
    return static_cast<size_t>(at - kinds().begin());
  }

  /// Of every kind, by its index. Those of all kinds that this process tests are looked for at
  /// once, when the first is asked for: most of it is compilation.
  const std::vector<Found>& found() {
    // Kept to the end: a plan asks for its context when it goes, and that is gone by then.
    static std::vector<Found>* found = nullptr;
    if (found) return *found;
    found = new std::vector<Found>(kinds().size());
    at_once(static_cast<int64_t>(kinds().size()), [&](int64_t n) {
      const Kind& kind = kinds()[static_cast<size_t>(n)];
      // Kinds drawn alike are to be of different problems.
      if (is_tested(kind)) (*found)[static_cast<size_t>(n)] = some_of(kind, n * kSeeds);
    });
    return *found;
  }

  static bool is_tested(const Kind& kind) {
    const ::testing::UnitTest& all = *::testing::UnitTest::GetInstance();
    for (int n = 0; n < all.total_test_suite_count(); ++n) {
      const ::testing::TestSuite& suite = *all.GetTestSuite(n);
      if (std::string_view(suite.name()) != "Gpu/EveryKind") continue;
      for (int i = 0; i < suite.total_test_count(); ++i) {
        const ::testing::TestInfo& test = *suite.GetTestInfo(i);
        const std::string_view name = test.name();
        if (test.should_run() && name.substr(name.find('/') + 1) == kind.name) return true;
      }
    }
    return false;
  }

  static Found some_of(const Kind& kind, int64_t first) {
    Found found;
    int64_t more = kPrograms;
    // Where most are refused, something is wrong, and compiling the rest takes longer than all
    // tests.
    while (found.programs.size() < kPrograms && found.tried < kSeeds &&
           found.refused <= std::max(kSeeds / 10, found.tried / 2)) {
      const int64_t seed = first + found.tried;
      for (Built& built : build_all(kind.draw, seed, seed + more)) {
        if (!built.executable.is_ok()) {
          ++found.refused;
          found.refusal = built.executable.status().message();
        } else if (found.programs.size() < kPrograms && is_of(kind, built)) {
          found.programs.push_back(std::move(built));
        }
      }
      found.tried += more;
      more *= 2;
    }
    return found;
  }

  static bool is_of(const Kind& kind, Built& built) {
    const std::string& plan = (*built.executable)->description();
    return std::all_of(kind.words.begin(), kind.words.end(),
                       [&](const char* word) { return plan.find(word) != std::string::npos; }) &&
           !matches_definition(built);  // which it would where no row is to be written
  }
};

TEST_P(EveryKind, MatchesTheDefinition) {
  for (size_t n = 0; n < kPrograms; ++n) {
    Built built = draw(n);
    ASSERT_TRUE(built.executable.is_ok()) << built.executable.status().message();
    execute(built);
    EXPECT_TRUE(matches_definition(built));
  }
}

// Two plans on a stream each, and one of them twice at once, each with its own buffers.
TEST_P(EveryKind, RunsOnTwoStreamsAtOnce) {
  Built first = draw(0), second = draw(1), same = first;
  ASSERT_TRUE(first.executable.is_ok() && second.executable.is_ok());
  OnDevice one(first.program, **first.executable), other(second.program, **second.executable),
      again(same.program, **same.executable);
  ASSERT_TRUE(one.status().is_ok() && other.status().is_ok() && again.status().is_ok());
  const DeviceStream left, right;
  ASSERT_TRUE(left.status().is_ok() && right.status().is_ok());
  for (int turn = 0; turn < 8; ++turn) {
    ASSERT_TRUE(one.queue(left.handle()).is_ok());
    ASSERT_TRUE(other.queue(right.handle()).is_ok());
    ASSERT_TRUE(again.queue(right.handle()).is_ok());
  }
  ASSERT_TRUE(left.synchronise().is_ok() && right.synchronise().is_ok());
  ASSERT_TRUE(one.copy_back().is_ok() && other.copy_back().is_ok() && again.copy_back().is_ok());
  for (Built* built : {&first, &second, &same}) EXPECT_TRUE(matches_definition(*built));
}

// One plan, on one stream, without waiting in between: each execution has the arguments it was
// given.
TEST_P(EveryKind, AlternatesBetweenBuffers) {
  Built first = draw(0), same = first;
  ASSERT_TRUE(first.executable.is_ok());
  OnDevice one(first.program, **first.executable), again(same.program, **same.executable);
  ASSERT_TRUE(one.status().is_ok() && again.status().is_ok());
  const DeviceStream stream;
  ASSERT_TRUE(stream.status().is_ok()) << stream.status().message();
  for (int turn = 0; turn < 20; ++turn) {
    ASSERT_TRUE(one.queue(stream.handle()).is_ok());
    ASSERT_TRUE(again.queue(stream.handle()).is_ok());
  }
  ASSERT_TRUE(stream.synchronise().is_ok());
  ASSERT_TRUE(one.copy_back().is_ok() && again.copy_back().is_ok());
  EXPECT_TRUE(matches_definition(first));
  EXPECT_TRUE(matches_definition(same));
}

// More sets of buffers than a plan keeps graphs for, on two streams, from two threads.
TEST_P(EveryKind, TakesManySetsOfBuffersInTurn) {
  Built first = draw(0), same = first;
  ASSERT_TRUE(first.executable.is_ok());
  const auto work_on = [this](Built& built) {
    ASSERT_TRUE(context_.make_current().is_ok());
    constexpr int kSets = 5;
    std::vector<Built> sets(kSets, built);
    std::vector<std::unique_ptr<OnDevice>> devices;
    for (Built& set : sets)
      devices.push_back(std::make_unique<OnDevice>(set.program, **set.executable));
    const DeviceStream stream;
    ASSERT_TRUE(stream.status().is_ok()) << stream.status().message();
    for (int turn = 0; turn < 40; ++turn) {
      for (const auto& device : devices)
        ASSERT_TRUE(device->queue(stream.handle(), turn % 3).is_ok());
    }
    ASSERT_TRUE(stream.synchronise().is_ok());
    for (int n = 0; n < kSets; ++n) {
      ASSERT_TRUE(devices[static_cast<size_t>(n)]->copy_back().is_ok());
      EXPECT_TRUE(matches_definition(sets[static_cast<size_t>(n)])) << "set " << n;
    }
  };
  std::jthread other(work_on, std::ref(same));
  work_on(first);
}

// Buffers go before the next ones come, which may lie where they lay; the plan goes while its work
// is under way, for none of which it waits.
TEST_P(EveryKind, GoesWhileItIsUnderWay) {
  Program program = draw(0).program;
  for (int n = 0; n < 3; ++n) {
    Built built = build(program);
    ASSERT_TRUE(built.executable.is_ok());
    const DeviceStream stream;
    ASSERT_TRUE(stream.status().is_ok()) << stream.status().message();
    {
      Program gone = program;
      const OnDevice device(gone, **built.executable);
      ASSERT_TRUE(device.queue(stream.handle()).is_ok());
      ASSERT_TRUE(stream.synchronise().is_ok());
    }
    OnDevice device(built.program, **built.executable);
    for (int turn = 0; turn < 200; ++turn) ASSERT_TRUE(device.queue(stream.handle()).is_ok());
    {
      const StreamHold hold(stream);
      ASSERT_TRUE(hold.status().is_ok()) << hold.status().message();
      for (int turn = 0; turn < 20; ++turn)
        ASSERT_TRUE(device.queue(stream.handle(), turn % 3).is_ok());
      built.executable = error(Code::invalid_value, "gone");
      EXPECT_TRUE(hold.holds());
    }
    ASSERT_TRUE(stream.synchronise().is_ok());
    ASSERT_TRUE(device.copy_back().is_ok());
    built.executable = build(program).executable;
    EXPECT_TRUE(matches_definition(built));
  }
}

// Recorded once, replayed twice, when the plan is gone: an execution neither allocates nor
// synchronises, and leaves its workspace so that the next finds nothing in it that it minds.
TEST_P(EveryKind, IsCapturedIntoAGraph) {
  Built built = build(draw(0).program);
  ASSERT_TRUE(built.executable.is_ok());
  OnDevice device(built.program, **built.executable);
  ASSERT_TRUE(device.status().is_ok()) << device.status().message();
  const DeviceGraph graph([&device](void* stream) { return device.queue(stream); });
  ASSERT_TRUE(graph.status().is_ok()) << graph.status().message();
  // Nothing ran yet: every output still holds its poison.
  ASSERT_TRUE(device.copy_back().is_ok());
  EXPECT_FALSE(matches_definition(built));
  built.executable = error(Code::invalid_value, "gone");
  for (int run = 0; run < 2; ++run) {
    const Status replayed = graph.replay();
    ASSERT_TRUE(replayed.is_ok()) << replayed.message();
  }
  ASSERT_TRUE(device.copy_back().is_ok());
  built.executable = build(built.program).executable;
  EXPECT_TRUE(matches_definition(built));
}

/// Microseconds of the host that one call takes, the device's left out: as few are queued as its
/// queue holds, and the least of some rounds counts.
double host_microseconds(const DeviceContext& context, const std::function<Status()>& call) {
  constexpr int kQueued = 40, kRounds = 60;
  double least = 1e9;
  for (int round = 0; round < kRounds; ++round) {
    EXPECT_TRUE(context.synchronise().is_ok());
    const auto begin = std::chrono::steady_clock::now();
    for (int n = 0; n < kQueued; ++n) EXPECT_TRUE(call().is_ok());
    const std::chrono::duration<double, std::micro> taken =
        std::chrono::steady_clock::now() - begin;
    least = std::min(least, taken.count() / kQueued);
  }
  return least;
}

/// What one launch of a kernel that does nothing costs the host, with a block of as many bytes as
/// attention's.
Result<double> idle_microseconds(const DeviceContext& context, void* stream) {
  using namespace engine::cuda;
  constexpr const char* kSource =
      "struct Arguments { char bytes[2048]; };\n"
      "extern \"C\" __global__ void idle(const __grid_constant__ Arguments arguments) {}\n";
  HEDDLE_ASSIGN(const Device device, current_device(*driver()));
  HEDDLE_ASSIGN(const std::shared_ptr<const Cubin> cubin,
                compiled_kernel(kSource, "idle", target_of(device).architecture));
  HEDDLE_ASSIGN(const std::shared_ptr<const Kernel> idle,
                Kernel::load(*driver(), device, cubin, "idle", 0));
  char bytes[2048] = {};
  void* arguments[] = {bytes};
  StreamQueue queue(*driver(), static_cast<CuStream>(stream));
  return host_microseconds(context, [&] { return idle->launch({}, queue, arguments); });
}

// Measured, not asserted: whatever the host does meanwhile would be in it.
TEST_P(EveryKind, HostTimeOfACall) {
  Built built = draw(0);
  ASSERT_TRUE(built.executable.is_ok());
  OnDevice device(built.program, **built.executable);
  ASSERT_TRUE(device.status().is_ok()) << device.status().message();
  const DeviceGraph graph([&device](void* queue) { return device.queue(queue); });
  ASSERT_TRUE(graph.status().is_ok()) << graph.status().message();
  const DeviceStream stream;
  ASSERT_TRUE(stream.status().is_ok()) << stream.status().message();
  const Result<double> idle = idle_microseconds(context_, stream.handle());
  ASSERT_TRUE(idle.is_ok()) << idle.status().message();
  const double same = host_microseconds(context_, [&] { return device.queue(stream.handle()); });
  Built copy = built;
  OnDevice other(copy.program, **built.executable);
  ASSERT_TRUE(other.status().is_ok()) << other.status().message();
  bool turn = false;
  const double in_turn = host_microseconds(context_, [&] {
    turn = !turn;
    return (turn ? other : device).queue(stream.handle());
  });
  int64_t place = 0;
  const double always_new = host_microseconds(context_, [&] {
    place = (place + 1) % OnDevice::kPlaces;
    return device.queue(stream.handle(), place);
  });
  std::printf(
      "%-28s %5.2f us of the host a call on the same buffers, %5.2f on two sets in turn, %5.2f on "
      "ever new ones; %zu kernels, an idle one's launch takes %.2f\n",
      GetParam().name, same, in_turn, always_new, graph.nodes(), *idle);
}

INSTANTIATE_TEST_SUITE_P(Gpu, EveryKind, ::testing::ValuesIn(kinds()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace heddle::testing
