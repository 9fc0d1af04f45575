// Attention on the CUDA engine against the f64 definition: seeded random problems over the whole
// contract, each with poisoned outputs, gaps and tails.
#include <algorithm>
#include <iterator>

#include "gpu/attention_options.h"
#include "gpu/gpu_test.h"

namespace heddle::testing {
namespace {

class AttentionOnGpu : public OnGpu {};

TEST_F(AttentionOnGpu, ForwardMatchesTheDefinition) {
  run([](Random& random) { return random_sdpa(random, gpu_options()); });
}

TEST_F(AttentionOnGpu, ForwardOfAlignedTensorsMatchesTheDefinition) {
  AttentionOptions options = aligned_options();
  options.max_head_dim = 256;
  run([&options](Random& random) { return random_sdpa(random, options); });
}

TEST_F(AttentionOnGpu, ForwardOfFewRowsMatchesTheDefinition) {
  run([](Random& random) { return random_sdpa(random, decode_options()); });
}

TEST_F(AttentionOnGpu, ForwardOfFewRowsOfCachesMatchesTheDefinition) {
  run([](Random& random) { return random_sdpa(random, cache_options(decode_options())); });
}

TEST_F(AttentionOnGpu, ForwardOfCachesMatchesTheDefinition) {
  run([](Random& random) {
    AttentionOptions options =
        random.structure().one_of({aligned_options(), gpu_options(), aligned_f32_options()});
    options.codes = 0.7;
    options.rings = 0.3;
    return random_sdpa(random, options);
  });
}

// Their rows are zeros, which are keys like others.
TEST_F(AttentionOnGpu, ForwardOfPagesThatDoNotExistMatchesTheDefinition) {
  const AttentionOptions all[] = {decode_options(), cache_options(decode_options()),
                                  wide_decode_options(), gpu_options(), f32_options()};
  run(
      [&all](Random& random, int64_t number) {
        AttentionOptions options = all[number % std::ssize(all)];
        options.max_length = std::min<int64_t>(options.max_length, 1000);
        options.padding = options.paged = 1;
        options.ragged = options.rings = options.dropout = 0;
        options.missing_pages = 0.3;
        return random_sdpa(random, options);
      },
      40, 2);
}

/// Many keys of i8 codes whose columns each lie on one side of 0, as a model's often do, and
/// statistics of rows that see all of them.
Program keys_on_one_side(Random& random) {
  AttentionOptions options = decode_options();
  options.codes = 1;
  options.min_head_dim = options.head_dim_step = 32;
  options.paged = options.padding = options.bias = options.alibi = options.bounds = 0;
  options.score_mod = options.sink = options.log2_input = options.tensor_scale = 0;
  options.query_size = 0.2;
  while (true) {
    Program program = random_sdpa(random, options);
    const auto& op = std::get<graph::Sdpa>(program.graph.nodes.back().op);
    const graph::Tensor& k = program.graph[op.k];
    if (k.dtype != DataType::i8 || op.stats == graph::kNone || k.dims[2] < 500) continue;
    const auto column_code = [&](int64_t head, int64_t column) {
      const double size = 60 + static_cast<double>((7 * head + 13 * column) % 50);
      return column % 3 == 0 ? -size : size;
    };
    for (int64_t b = 0; b < k.dims[0]; ++b)
      for (int64_t h = 0; h < k.dims[1]; ++h)
        for (int64_t s = 0; s < k.dims[2]; ++s)
          for (int64_t d = 0; d < k.dims[3]; ++d)
            program.set(op.k, column_code(h, d) + std::round(random.uniform(-8, 8)), b, h, s, d);
    return program;
  }
}

// A query that is rounded, times the scales of columns, errs alike beside all keys.
TEST_F(AttentionOnGpu, StatisticsOfCodesOnOneSideMatchTheDefinition) {
  run([](Random& random, int64_t) { return keys_on_one_side(random); }, 12, 1);
}

TEST_F(AttentionOnGpu, ForwardThatWritesScoresMatchesTheDefinition) {
  run([](Random& random) {
    AttentionOptions options = random.structure().one_of(
        {aligned_options(), gpu_options(), f32_options(), cache_options(decode_options())});
    options.scores = 1;
    return random_sdpa(random, options);
  });
}

TEST_F(AttentionOnGpu, BackwardMatchesTheDefinition) {
  run([](Random& random) { return random_sdpa_backward(random, gpu_options()); });
}

TEST_F(AttentionOnGpu, BackwardOfAlignedTensorsMatchesTheDefinition) {
  run([](Random& random) { return random_sdpa_backward(random, aligned_backward_options()); });
}

// Rows that lie behind one another, whose statistics do not: of those there are rows past a length.
TEST_F(AttentionOnGpu, ForwardOfRaggedTensorsBesideDenseStatisticsMatchesTheDefinition) {
  for (AttentionOptions options :
       {aligned_options(), gpu_options(), decode_options(), aligned_f32_options()}) {
    options.padding = options.ragged = 1;
    run([&options](Random& random) {
      Program program = random_sdpa(random, options);
      const auto& op = std::get<graph::Sdpa>(program.graph.nodes.back().op);
      for (const graph::TensorId id : {op.stats, op.max, op.sum_exp}) {
        if (id == graph::kNone) continue;
        graph::Tensor& statistic = program.graph[id];
        statistic.ragged_offset = graph::kNone;
        statistic.ragged_offset_multiplier = 1;
        statistic.strides = *dense_strides(statistic.dims);
        program.allocate(id);
      }
      return program;
    });
  }
}

TEST_F(AttentionOnGpu, BackwardOfRaggedTensorsMatchesTheDefinition) {
  AttentionOptions options = aligned_backward_options();
  options.padding = options.ragged = 1;
  run([&options](Random& random) { return random_sdpa_backward(random, options); });
}

TEST_F(AttentionOnGpu, ForwardWithScoreTilesMatchesTheDefinition) {
  run([](Random& random) { return random_sdpa(random, score_tile_options()); });
}

TEST_F(AttentionOnGpu, BackwardWithScoreTilesMatchesTheDefinition) {
  run([](Random& random) { return random_sdpa_backward(random, score_tile_options()); });
}

// Whole rows hidden by a finite number, in half of the problems by a kernel made for Hopper.
TEST_F(AttentionOnGpu, ForwardWithHiddenRowsMatchesTheDefinition) {
  run([](Random& random) { return random_sdpa(random, hidden_row_options(random)); });
}

TEST_F(AttentionOnGpu, BackwardWithHiddenRowsMatchesTheDefinition) {
  run([](Random& random) { return random_sdpa_backward(random, hidden_row_options(random)); });
}

// Given the rows' maxima and sums in place of log-sum-exps.
TEST_F(AttentionOnGpu, BackwardOfMaximaAndSumsMatchesTheDefinition) {
  run([](Random& random) {
    AttentionOptions options =
        random.structure().one_of({aligned_backward_options(), score_tile_options(), gpu_options(),
                                   f32_options(), aligned_f32_backward_options()});
    options.max_and_sum = 1;
    options.log2_input = 0;  // refused where scores may be huge: maxima are natural
    return random_sdpa_backward(random, options);
  });
}

TEST_F(AttentionOnGpu, BackwardOfMaximaAndSumsWithHiddenRowsMatchesTheDefinition) {
  run([](Random& random) {
    AttentionOptions options = hidden_row_options(random);
    options.max_and_sum = 1;
    return random_sdpa_backward(random, options);
  });
}

TEST_F(AttentionOnGpu, ForwardOfRowsWithANanMatchesTheDefinition) {
  run([](Random& random) { return random_sdpa(random, undefined_row_options(random)); });
}

TEST_F(AttentionOnGpu, ForwardOfScoreFunctionsMatchesTheDefinition) {
  run([](Random& random) { return random_sdpa(random, score_function_options(random)); });
}

TEST_F(AttentionOnGpu, BackwardOfScoreFunctionsMatchesTheDefinition) {
  run([](Random& random) { return random_sdpa_backward(random, score_function_options(random)); });
}

// The definition takes seconds for each: few of them.
TEST_F(AttentionOnGpu, ForwardOfLongRowsMatchesTheDefinition) {
  run([](Random& random, int64_t) { return random_sdpa(random, long_options()); }, 12, 3);
}

TEST_F(AttentionOnGpu, BackwardOfLongRowsMatchesTheDefinition) {
  run([](Random& random, int64_t) { return random_sdpa_backward(random, long_options()); }, 12, 3);
}

TEST_F(AttentionOnGpu, ForwardOfFewRowsOfWideHeadsMatchesTheDefinition) {
  run([](Random& random) { return random_sdpa(random, wide_decode_options()); });
}

// So many that a block meets several steps of them, and of more than one sequence.
TEST_F(AttentionOnGpu, ForwardOfFewRowsOfWideHeadsAndManyKeysMatchesTheDefinition) {
  run(
      [](Random& random, int64_t) {
        AttentionOptions options = wide_decode_options();
        options.max_length = 30000;
        options.max_group = 20;
        options.max_query_length = 1;
        options.max_work = 4e8;
        return random_sdpa(random, options);
      },
      16, 2);
}

// What absorbed latent attention is: a latent of 512 columns and 64 that are rotated.
// A tile of 64 keys lies in more pages than a warp has lanes.
TEST_F(AttentionOnGpu, ForwardOfLatentsInPagesOfOneRowMatchesTheDefinition) {
  run(
      [](Random& random, int64_t number) {
        AttentionOptions options = wide_decode_options();
        options.min_head_dim = options.max_head_dim = 512;
        options.more_key_columns = options.values_in_keys = options.padding = options.paged = 1;
        options.any_head_dim = options.cumulative = options.ragged = 0;
        options.page_rows = 1;
        options.max_key_heads = 1;
        options.max_group = number % 2 == 0 ? 16 : 128;
        options.max_length = 700;
        return random_sdpa(random, options);
      },
      4, 2);
}

TEST_F(AttentionOnGpu, ForwardOfLatentsMatchesTheDefinition) {
  run(
      [](Random& random, int64_t number) {
        AttentionOptions options = wide_decode_options();
        options.min_head_dim = options.max_head_dim = 512;
        options.more_key_columns = options.values_in_keys = 1;
        options.any_head_dim = 0;
        options.max_key_heads = 1;
        options.max_group = number % 2 == 0 ? 16 : 128;
        options.max_length = number % 2 == 0 ? 12000 : 2000;
        options.max_query_length = number % 4 == 3 ? 100 : 1;
        return random_sdpa(random, options);
      },
      16, 2);
}

/// Of all types and strides.
AttentionOptions wide_head_options(Random& random) {
  AttentionOptions options = beyond_a_warp(
      random.structure().one_of({aligned_options(), gpu_options(), gpu_options(), f32_options()}));
  options.any_head_dim = 0.2;
  return options;
}

TEST_F(AttentionOnGpu, ForwardOfWideHeadsMatchesTheDefinition) {
  run([](Random& random) { return random_sdpa(random, wide_head_options(random)); });
}

TEST_F(AttentionOnGpu, ForwardOfWideHeadsThatWritesScoresMatchesTheDefinition) {
  run([](Random& random) {
    AttentionOptions options = wide_head_options(random);
    options.scores = 1;
    return random_sdpa(random, options);
  });
}

TEST_F(AttentionOnGpu, BackwardOfWideHeadsMatchesTheDefinition) {
  run([](Random& random) { return random_sdpa_backward(random, wide_head_options(random)); });
}

TEST_F(AttentionOnGpu, BackwardOfWideHeadsOfMaximaAndSumsMatchesTheDefinition) {
  run([](Random& random) {
    AttentionOptions options = wide_head_options(random);
    options.max_and_sum = 1;
    options.log2_input = 0;  // refused where scores may be huge: maxima are natural
    return random_sdpa_backward(random, options);
  });
}

// The narrowest heads have tiles of their own.
TEST_F(AttentionOnGpu, BackwardOfNarrowHeadsMatchesTheDefinition) {
  AttentionOptions options = gpu_options();
  options.max_head_dim = 16;
  run([&options](Random& random) { return random_sdpa_backward(random, options); });
}

TEST_F(AttentionOnGpu, ForwardOfEveryPairOfFeaturesMatchesTheDefinition) {
  run([](Random& random,
         int64_t number) { return random_sdpa(random, feature_pair_options(number)); },
      2 * kFeaturePairs, 2);
}

TEST_F(AttentionOnGpu, BackwardOfEveryPairOfFeaturesMatchesTheDefinition) {
  run([](Random& random,
         int64_t number) { return random_sdpa_backward(random, feature_pair_options(number)); },
      2 * kFeaturePairs, 2);
}

TEST_F(AttentionOnGpu, ForwardWithRopeMatchesTheDefinition) {
  run([](Random& random) {
    AttentionOptions options = random.chance(0.5) ? aligned_options() : gpu_options();
    options.rope = 1;
    return random_sdpa(random, options);
  });
}

TEST_F(AttentionOnGpu, BackwardWithRopeMatchesTheDefinition) {
  run([](Random& random) {
    AttentionOptions options = random.chance(0.5) ? aligned_backward_options() : gpu_options();
    options.rope = 1;
    return random_sdpa_backward(random, options);
  });
}

// Each tensor packed or dense for itself: of dense results rows past a sequence are written too.
AttentionOptions partly_ragged_options(Random& random, const AttentionOptions& aligned) {
  AttentionOptions options = random.structure().chance(0.5) ? aligned : gpu_options();
  options.padding = options.ragged = 1;
  options.dense_beside_ragged = 0.5;
  return options;
}

TEST_F(AttentionOnGpu, ForwardOfPartlyRaggedTensorsMatchesTheDefinition) {
  run([](Random& random) {
    return random_sdpa(random, partly_ragged_options(random, aligned_options()));
  });
}

TEST_F(AttentionOnGpu, BackwardOfPartlyRaggedTensorsMatchesTheDefinition) {
  run([](Random& random) {
    return random_sdpa_backward(random, partly_ragged_options(random, aligned_backward_options()));
  });
}

AttentionOptions dropping_options(Random& random, const AttentionOptions& aligned,
                                  const AttentionOptions& aligned_f32) {
  AttentionOptions options = random.one_of({aligned, aligned, aligned_f32, gpu_options()});
  options.dropout = 1;
  options.rng_dump = random.chance(0.1) ? 1 : 0;
  return options;
}

// Each pass draws the bits anew, and in another order.
TEST_F(AttentionOnGpu, ForwardWithDropoutMatchesTheDefinition) {
  run([](Random& random) {
    return random_sdpa(random, dropping_options(random, aligned_options(), aligned_f32_options()));
  });
}

TEST_F(AttentionOnGpu, BackwardWithDropoutMatchesTheDefinition) {
  run([](Random& random) {
    return random_sdpa_backward(random, dropping_options(random, aligned_backward_options(),
                                                         aligned_f32_backward_options()));
  });
}

AttentionOptions options_of_either_kind(Random& random) {
  return random.chance(0.5) ? aligned_backward_options() : gpu_options();
}

AttentionOptions narrow_options(Random& random) {
  AttentionOptions options = options_of_either_kind(random);
  options.bias = 1;
  options.narrow = 0.8;
  return options;
}

// Columns, rows and single numbers, each with its gradient.
TEST_F(AttentionOnGpu, ForwardWithANarrowBiasMatchesTheDefinition) {
  run([](Random& random) { return random_sdpa(random, narrow_options(random)); });
}

TEST_F(AttentionOnGpu, BackwardWithANarrowBiasMatchesTheDefinition) {
  run([](Random& random) { return random_sdpa_backward(random, narrow_options(random)); });
}

AttentionOptions by_value_options(Random& random) {
  AttentionOptions options = narrow_options(random);
  options.max_batch = options.max_key_heads = options.max_group = 1;
  options.sink = options.padding = 0.5;
  options.by_value = 0.7;
  return options;
}

TEST_F(AttentionOnGpu, ForwardOfNumbersPassedByValueMatchesTheDefinition) {
  run([](Random& random) { return random_sdpa(random, by_value_options(random)); });
}

TEST_F(AttentionOnGpu, BackwardOfNumbersPassedByValueMatchesTheDefinition) {
  run([](Random& random) { return random_sdpa_backward(random, by_value_options(random)); });
}

const std::vector<DataType> kAnyType{DataType::bf16, DataType::f16, DataType::f32};

TEST_F(AttentionOnGpu, ForwardOfAnyRowsMatchesTheDefinition) {
  run([](Random& random) { return random_sdpa(random, any_rows_options(kAnyType)); });
}

TEST_F(AttentionOnGpu, BackwardOfAnyRowsMatchesTheDefinition) {
  run([](Random& random) { return random_sdpa_backward(random, any_rows_options(kAnyType)); });
}

// A step of a generation, whose keys are padded.
TEST_F(AttentionOnGpu, ForwardOfFewRowsOfAnyHeadDimMatchesTheDefinition) {
  AttentionOptions options = decode_options();
  options.any_head_dim = 1;
  options.shared_keys = options.wide = 0.3;
  run([&options](Random& random) { return random_sdpa(random, options); });
}

AttentionOptions wide_options(Random& random) {
  AttentionOptions options = options_of_either_kind(random);
  options.wide = 0.6;
  return options;
}

TEST_F(AttentionOnGpu, ForwardToF32MatchesTheDefinition) {
  run([](Random& random) { return random_sdpa(random, wide_options(random)); });
}

TEST_F(AttentionOnGpu, BackwardOfMixedTypesMatchesTheDefinition) {
  run([](Random& random) { return random_sdpa_backward(random, wide_options(random)); });
}

/// Of all kernels, f32 ones too, from either form of the statistics.
AttentionOptions stats_gradient_options(Random& random) {
  AttentionOptions options = random.structure().one_of(
      {aligned_backward_options(), gpu_options(), f32_options(), aligned_f32_backward_options()});
  options.stats_gradient = 1;
  options.max_and_sum = 0.5;
  options.log2_input = 0;  // refused of the pair where scores may be huge: maxima are natural
  return options;
}

TEST_F(AttentionOnGpu, BackwardOfLogSumExpsMatchesTheDefinition) {
  run([](Random& random) { return random_sdpa_backward(random, stats_gradient_options(random)); });
}

TEST_F(AttentionOnGpu, ForwardOfManyBatchEntriesMatchesTheDefinition) {
  run(
      [](Random& random, int64_t) {
        return random_sdpa(random, many_entries_options(options_of_either_kind(random)));
      },
      12, 1);
}

TEST_F(AttentionOnGpu, BackwardOfManyBatchEntriesMatchesTheDefinition) {
  run(
      [](Random& random, int64_t) {
        return random_sdpa_backward(random, many_entries_options(options_of_either_kind(random)));
      },
      12, 1);
}

// More query tiles than a GPU has processors, so that persistent blocks pass from one to the next.
AttentionOptions many_tiles_options(Random& random) {
  AttentionOptions options = aligned_options();
  options.min_batch = 24;
  options.max_batch = 32;
  options.max_key_heads = options.max_group = 4;
  options.max_length = 200;
  options.min_head_dim = random.chance(0.5) ? 200 : 8;
  options.max_head_dim = 256;
  options.max_work = 0;
  options.bounds = 0.8;
  // Mostly as plain as what is tiled for speed alone.
  options.single_row = options.padding = options.bias = options.score_mod = options.log2_input =
      options.tensor_scale = options.dropout = 0.1;
  return options;
}

TEST_F(AttentionOnGpu, ForwardOfManyTilesMatchesTheDefinition) {
  run([](Random& random, int64_t) { return random_sdpa(random, many_tiles_options(random)); }, 24,
      3);
}

TEST_F(AttentionOnGpu, ForwardInF32MatchesTheDefinition) {
  run([](Random& random) { return random_sdpa(random, f32_options()); });
}

TEST_F(AttentionOnGpu, ForwardOfAlignedF32MatchesTheDefinition) {
  run([](Random& random) { return random_sdpa(random, aligned_f32_options()); });
}

TEST_F(AttentionOnGpu, BackwardInF32MatchesTheDefinition) {
  run([](Random& random) { return random_sdpa_backward(random, f32_options()); });
}

TEST_F(AttentionOnGpu, BackwardOfAlignedF32MatchesTheDefinition) {
  run([](Random& random) { return random_sdpa_backward(random, aligned_f32_backward_options()); });
}

TEST_F(AttentionOnGpu, BackwardOfWideF32WithWhatScoresReadMatchesTheDefinition) {
  AttentionOptions options = aligned_f32_backward_options();
  options.min_head_dim = 72;
  options.bias = options.score_mod = options.boolean_mask = 0.6;
  options.padding = 0.2;
  run([&options](Random& random) { return random_sdpa_backward(random, options); });
}

AttentionOptions aligned_f32_of_lengths(Random& random) {
  AttentionOptions options = aligned_f32_backward_options();
  options.padding = 1;
  options.ragged = 0.5;
  // Half of them as plain as what the narrow kernels take.
  if (random.structure().chance(0.5))
    options.bias = options.alibi = options.score_mod = options.dropout = options.boolean_mask = 0;
  return options;
}

TEST_F(AttentionOnGpu, ForwardOfAlignedF32WithLengthsMatchesTheDefinition) {
  run([](Random& random) { return random_sdpa(random, aligned_f32_of_lengths(random)); });
}

TEST_F(AttentionOnGpu, BackwardOfAlignedF32WithLengthsMatchesTheDefinition) {
  run([](Random& random) { return random_sdpa_backward(random, aligned_f32_of_lengths(random)); });
}

}  // namespace
}  // namespace heddle::testing
