// RMSNorm, LayerNorm, RoPE and pointwise ops standing alone and new rows for caches on the CUDA
// engine against the f64 definition: seeded random problems over the whole contract, each with
// poisoned outputs and gaps.
#include <algorithm>
#include <cstring>
#include <limits>

#include "gpu/gpu_test.h"
#include "support/cache_programs.h"
#include "support/channel_norm_programs.h"
#include "support/pointwise_programs.h"
#include "support/streaming_programs.h"

namespace heddle::testing {
namespace {

class StreamingOnGpu : public OnGpu {};

// Half of the rows are multiples of 8 elements, some wider than registers hold.
constexpr NormOptions kNorms{.aligned = 0.5, .max_aligned_columns = 24000};

TEST_F(StreamingOnGpu, RmsNormMatchesTheDefinition) {
  run([](Random& random) { return random_rms_norm(random, kNorms); });
}

// What is normalised is the sum of x, a residual and perhaps a bias.
constexpr NormOptions kSums{.aligned = 0.5, .max_aligned_columns = 24000, .residual = 1};

TEST_F(StreamingOnGpu, RmsNormOfASumMatchesTheDefinition) {
  run([](Random& random) { return random_rms_norm(random, kSums); });
}

TEST_F(StreamingOnGpu, LayerNormOfASumMatchesTheDefinition) {
  run([](Random& random) { return random_layer_norm(random, kSums); });
}

TEST_F(StreamingOnGpu, RmsNormBackwardMatchesTheDefinition) {
  run([](Random& random) { return random_rms_norm_backward(random, kNorms); });
}

TEST_F(StreamingOnGpu, LayerNormMatchesTheDefinition) {
  run([](Random& random) { return random_layer_norm(random, kNorms); });
}

TEST_F(StreamingOnGpu, LayerNormBackwardMatchesTheDefinition) {
  run([](Random& random) { return random_layer_norm_backward(random, kNorms); });
}

TEST_F(StreamingOnGpu, ChannelNormsMatchTheDefinition) {
  run(random_instance_norm);
  run(random_batch_norm);
}

TEST_F(StreamingOnGpu, ChannelNormsBackwardMatchTheDefinition) {
  run(random_instance_norm_backward);
  run(random_batch_norm_backward);
}

// A row with an infinity has a mean, though no variance.
TEST_F(StreamingOnGpu, NormsOfNoNumbersMatchTheDefinition) {
  run([](Random& random) { return with_no_numbers(random, random_rms_norm(random, kNorms)); });
  run([](Random& random) { return with_no_numbers(random, random_layer_norm(random, kSums)); });
  run([](Random& random) { return with_no_numbers(random, random_instance_norm(random)); });
  run([](Random& random) { return with_no_numbers(random, random_batch_norm(random)); });
}

TEST_F(StreamingOnGpu, RopeMatchesTheDefinition) { run(random_rope); }

TEST_F(StreamingOnGpu, PointwiseOpsMatchTheDefinition) { run(random_pointwise); }

TEST_F(StreamingOnGpu, PointwiseOpsAroundANormMatchTheDefinition) {
  run(random_pointwise_around_norm);
}

TEST_F(StreamingOnGpu, CacheAppendMatchesTheDefinition) {
  run([](Random& random) { return random_cache_append(random, {}); });
}

// NaN and infinities among new numbers and scales.
TEST_F(StreamingOnGpu, CacheAppendOfNoNumbersMatchesTheDefinition) {
  run([](Random& random) {
    return random_cache_append(random, {.codes = 0.9, .no_numbers = 0.1});
  });
}

// An odd number of pairs turns, more than a warp has lanes: the two codes of a byte are of pairs
// that one lane has after the other.
TEST_F(StreamingOnGpu, HalvesOfBytesMatchTheDefinition) {
  run([](Random& random) {
    return random_cache_append(random, {.code_types = {DataType::u8},
                                        .min_head_dim = 72,
                                        .max_head_dim = 96,
                                        .pairs = random.structure().one_of({33, 35}),
                                        .codes = 1,
                                        .rotates = 1});
  });
}

// Positions before and past the table read its first and its last row, those as well to which no
// row can be added in 64 bits.
TEST_F(StreamingOnGpu, RopeClampsPositionsToTheTable) {
  constexpr int64_t kBatch = 7, kLength = 3, kRows = 4;
  constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();
  constexpr int64_t kGiven[kBatch] = {-2, 0, 1, 3, 4, kLeast, std::numeric_limits<int64_t>::max()};
  const auto drawn = [&](int64_t positions, auto position_of) {
    Random random(1);
    Program program;
    program.graph.io_dtype = DataType::bf16;
    graph::Rope op;
    op.x = program.add("x", DataType::bf16, {kBatch, 2, kLength, 16});
    op.y = program.add("y", DataType::bf16, {kBatch, 2, kLength, 16});
    op.freqs = program.add("freqs", DataType::f32, {kRows, 1, 1, 16});
    op.positions = program.add("positions", DataType::i64, {kBatch, 1, positions, 1});
    for (graph::TensorId id : {op.x, op.y, op.freqs, op.positions}) program.allocate(id);
    program.fill(op.x, [&] { return random.normal(); });
    program.fill(op.freqs, [&] { return random.uniform(-3, 3); });
    for (int64_t b = 0; b < kBatch; ++b) {
      for (int64_t row = 0; row < positions; ++row)
        program.set_integer(op.positions, position_of(b, row), b * positions + row);
    }
    program.graph.nodes.push_back({"rope", op});
    return program;
  };
  for (const bool per_row : {false, true}) {
    Built expected = build(drawn(kLength, [&](int64_t b, int64_t row) {
      const int64_t near = std::clamp<int64_t>(kGiven[b], -kLength, kRows);
      return std::clamp<int64_t>(near + (per_row ? 0 : row), 0, kRows - 1);
    }));
    Built actual =
        build(drawn(per_row ? kLength : 1, [&](int64_t b, int64_t) { return kGiven[b]; }));
    for (Built* built : {&expected, &actual}) {
      ASSERT_TRUE(built->executable.is_ok()) << built->executable.status().message();
      execute(*built);
    }
    const int64_t y = (*actual.executable)->outputs()[0].uid;
    const Block &left = expected.program.memory.at(y), &right = actual.program.memory.at(y);
    EXPECT_EQ(std::memcmp(left.data(), right.data(), static_cast<size_t>(left.size())), 0)
        << (per_row ? "a position for each row" : "a position for each entry");
  }
}

// Every output of two runs, whose workspaces began with different contents.
TEST_F(StreamingOnGpu, GradientsHaveTheSameBitsEachTime) {
  for (Built& built : build_all(
           [](Random& random) {
             return random.seed() % 2 == 0 ? random_rms_norm_backward(random, kNorms)
                                           : random_layer_norm_backward(random, kNorms);
           },
           0, 40)) {
    ASSERT_TRUE(built.executable.is_ok()) << built.executable.status().message();
    Program again = built.program;
    execute(built);
    OnDevice device(again, **built.executable);
    for (int turn = 0; turn < 2; ++turn) {
      const Status executed = device.queue();
      ASSERT_TRUE(executed.is_ok()) << executed.message();
    }
    ASSERT_TRUE(context_.synchronise().is_ok());
    ASSERT_TRUE(device.copy_back().is_ok());
    for (const auto& [uid, block] : built.program.memory) {
      EXPECT_EQ(
          std::memcmp(block.data(), again.memory.at(uid).data(), static_cast<size_t>(block.size())),
          0)
          << "uid " << uid << ", " << (*built.executable)->description();
    }
  }
}

}  // namespace
}  // namespace heddle::testing
