// Plans at sizes that come at an execution: the result is the definition's, and bit by bit that of
// a plan made for these sizes, in the workspace of the largest.
#include "api/late_sizes.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <functional>
#include <thread>

#include "api/count_allocations.h"
#include "api/shapes_of.h"
#include "engine/cuda/target_engine.h"
#include "engine/devices.h"
#include "graph/text.h"
#include "graph/validate.h"
#include "support/attention_features.h"
#include "support/cache_programs.h"
#include "support/compare.h"
#include "support/part.h"
#include "support/pointwise_programs.h"
#include "support/smaller.h"
#include "support/streaming_programs.h"

namespace heddle::api {
namespace {

using graph::TensorId;
using heddle::testing::AttentionOptions;
using heddle::testing::Program;
using heddle::testing::Random;

std::shared_ptr<const Executable> build(const graph::Graph& graph) {
  auto built = Executable::build(graph, engine::engines(engine::Device::cpu));
  EXPECT_TRUE(built.is_ok()) << built.status().message();
  return built.is_ok() ? *built : nullptr;
}

/// Executes on the program's memory, in as many poisoned bytes of workspace as the plan says.
Status execute(const Executable& executable, int64_t workspace_bytes, Program& program) {
  std::vector<Binding> bindings;
  for (const auto& [uid, pointer] : program.buffers()) bindings.push_back({uid, pointer});
  heddle::testing::Block workspace(workspace_bytes);
  HEDDLE_TRY(executable.execute(bindings, workspace.data(), nullptr));
  for (const unsigned char* p = workspace.data() + workspace_bytes;
       p < workspace.data() + workspace.size(); ++p) {
    if (*p != heddle::testing::kPoison)
      return error(Code::graph_execution_failed, "wrote past the workspace");
  }
  return {};
}

void expect_same_bits(const Program& one, const Program& other) {
  for (const auto& [uid, block] : one.memory) {
    const heddle::testing::Block& like = other.memory.at(uid);
    EXPECT_TRUE(std::equal(block.data(), block.data() + block.size(), like.data()))
        << "uid " << uid;
  }
}

/// Whether the smaller program is one that the rules allow.
bool check(Random& random, Program planned_for, DataType io) {
  EXPECT_TRUE(graph::validate(planned_for.graph).is_ok());
  const auto planned = build(planned_for.graph);
  Program less = smaller(random, planned_for);
  const std::vector<Shape> shapes = shapes_of(*planned, less.graph, random.chance(0.5));
  const auto late = planned->resized(shapes);
  if (const Status valid = graph::validate(less.graph); !valid.is_ok()) {
    EXPECT_EQ(late.status().code(), valid.code()) << late.status().message();
    return false;
  }
  EXPECT_TRUE(late.is_ok()) << late.status().message();
  if (!late.is_ok()) return false;
  const heddle::testing::Definition definition(less, io);
  Program exactly = less;
  const Status done = execute(**late, planned->workspace_bytes(), less);
  EXPECT_TRUE(done.is_ok()) << done.message();
  EXPECT_TRUE(definition.is_met_by(less));
  const auto exact = build(less.graph);
  EXPECT_TRUE(execute(*exact, exact->workspace_bytes(), exactly).is_ok());
  expect_same_bits(less, exactly);
  return true;
}

using Draw = std::function<Program(Random&, const AttentionOptions&)>;

/// Counts the programs that were run.
int64_t sweep(const Draw& draw, const AttentionOptions& options, uint64_t first, uint64_t count) {
  int64_t run = 0;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    if (!heddle::testing::part().has(seed)) {
      ++run;
      continue;
    }
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    const Program program = draw(random, options);
    run += check(random, program, io_dtype(program));
    if (::testing::Test::HasFailure()) break;
  }
  return run;
}

AttentionOptions everything() {
  AttentionOptions options;
  options.rope = 0.3;
  return options;
}

AttentionOptions decoding() {
  AttentionOptions options;
  options.max_query_length = 4, options.single_row = 0.5, options.max_length = 2500;
  options.max_batch = 2;
  return options;
}

TEST(LateSizes, RandomForward) {
  EXPECT_GT(sweep(heddle::testing::random_sdpa, everything(), 1, 200), 150);
  EXPECT_GT(sweep(heddle::testing::random_sdpa, decoding(), 1000, 20), 15);
}

TEST(LateSizes, RandomForwardOfEachFeature) {
  for (const auto& feature : heddle::testing::kAttentionFeatures) {
    SCOPED_TRACE(feature.name);
    AttentionOptions options = heddle::testing::plain_attention();
    feature.switch_on(options);
    EXPECT_GT(sweep(heddle::testing::random_sdpa, options, 2000, 6), 0);
  }
}

TEST(LateSizes, RandomBackward) {
  AttentionOptions options = everything();
  options.whole_rows = 0;  // the statistics stay those of all keys
  EXPECT_GT(sweep(heddle::testing::random_sdpa_backward, options, 3000, 100), 75);
}

/// sdpa, or its backward, over dense tensors.
graph::Graph dense_attention(DataType dtype, bool backward, int64_t batch, int64_t q_heads,
                             int64_t kv_heads, int64_t q_length, int64_t kv_length, int64_t dim) {
  graph::Graph graph;
  graph.io_dtype = dtype;
  const Dims query{batch, q_heads, q_length, dim}, key{batch, kv_heads, kv_length, dim};
  const auto add = [&](const char* name, const Dims& dims, DataType type) {
    graph::Tensor tensor;
    tensor.name = name, tensor.dims = dims, tensor.dtype = type;
    return graph.add(tensor);
  };
  const TensorId q = add("q", query, dtype), k = add("k", key, dtype), v = add("v", key, dtype);
  const TensorId o = add("o", query, dtype);
  const TensorId stats = add("stats", {batch, q_heads, q_length, 1}, DataType::f32);
  if (backward) {
    graph::SdpaBackward op;
    op.q = q, op.k = k, op.v = v, op.o = o, op.stats = stats;
    op.d_o = add("dO", query, dtype), op.d_q = add("dQ", query, dtype);
    op.d_k = add("dK", key, dtype), op.d_v = add("dV", key, dtype);
    op.deterministic = true;
    graph.nodes.push_back({"backward", op});
  } else {
    graph::Sdpa op;
    op.q = q, op.k = k, op.v = v, op.o = o, op.stats = stats;
    graph.nodes.push_back({"forward", op});
  }
  EXPECT_TRUE(validate(graph).is_ok()) << validate(graph).message();
  return graph;
}

TEST(LateSizes, RandomRowsOneByOne) {
  const auto sweep_of = [](Program (*draw)(Random&), uint64_t first) {
    return sweep([draw](Random& random, const AttentionOptions&) { return draw(random); }, {},
                 first, 40);
  };
  EXPECT_GT(sweep_of(heddle::testing::random_rope, 6000), 35);
  EXPECT_GT(sweep_of(heddle::testing::random_rms_norm, 6100), 35);
  EXPECT_GT(sweep_of(heddle::testing::random_rms_norm_backward, 6200), 35);
  EXPECT_GT(sweep_of(heddle::testing::random_layer_norm, 6300), 35);
  EXPECT_GT(sweep_of(heddle::testing::random_layer_norm_backward, 6400), 35);
  EXPECT_GT(sweep_of(heddle::testing::random_pointwise, 6500), 25);
}

/// Two pointwise results that are made together stay so, or the shapes are refused.
TEST(LateSizes, PointwiseOpsArePutTogetherAsPlanned) {
  Program program;
  program.graph.io_dtype = DataType::f32;
  const auto add = [&](const char* name, const Dims& dims) {
    return program.add(name, DataType::f32, dims);
  };
  const TensorId x = add("x", {1, 8}), a = add("a", {4, 8}), b = add("b", {4, 8});
  using graph::PointwiseMode;
  program.graph.nodes = {
      {"c",
       graph::PointwiseNode{.mode = PointwiseMode::add, .a = a, .b = x, .y = add("c", {4, 8})}},
      {"d",
       graph::PointwiseNode{.mode = PointwiseMode::sub, .a = b, .b = x, .y = add("d", {4, 8})}}};
  const auto planned = build(program.graph);
  ASSERT_TRUE(planned);
  EXPECT_EQ(planned->step_count(), 1u);
  const int64_t uid_a = planned->graph()[a].uid, uid_b = planned->graph()[b].uid;
  EXPECT_TRUE(planned->resized(std::vector<Shape>{{uid_a, {3, 8}}, {uid_b, {3, 8}}}).is_ok());
  const auto apart = planned->resized(std::vector<Shape>{{uid_a, {3, 8}}, {uid_b, {2, 8}}});
  EXPECT_NE(apart.status().message().find(
                "results dims [1, 1, 3, 8] and [1, 1, 2, 8], expected the same as planned"),
            std::string::npos)
      << apart.status().message();
}

/// Fewer entries and fewer new rows than a plan of caches is made for.
TEST(LateSizes, RandomCacheAppends) {
  heddle::testing::CacheOptions options;
  options.has_past = options.in_place = 1;
  const Draw draw = [&](Random& random, const AttentionOptions&) {
    return heddle::testing::random_cache_append(random, options);
  };
  EXPECT_GT(sweep(draw, {}, 6300, 80), 70);
}

TEST(LateSizes, WorkspaceIsNoLarger) {
  for (uint64_t seed = 1; seed <= 3000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    const auto length = [&] { return int64_t{1} << random.integer(0, 13); };
    const DataType dtype = random.one_of({DataType::f32, DataType::bf16});
    const bool backward = random.chance(0.3);
    const int64_t kv_heads = random.integer(1, 8), q_heads = kv_heads * random.integer(1, 8);
    const int64_t dim = 8 * random.integer(1, 32);
    const int64_t batch = random.integer(1, 64);
    const int64_t q_length = random.integer(1, length()), kv_length = random.integer(1, length());
    const auto planned =
        build(dense_attention(dtype, backward, batch, q_heads, kv_heads, q_length, kv_length, dim));
    const auto less =
        dense_attention(dtype, backward, random.integer(1, batch), q_heads, kv_heads,
                        random.integer(1, q_length), random.integer(1, kv_length), dim);
    const auto late = planned->resized(shapes_of(*planned, less, false));
    ASSERT_TRUE(late.is_ok()) << late.status().message();
    EXPECT_LE((*late)->workspace_bytes(), planned->workspace_bytes());
  }
}

/// Draws programs, plans them for an architecture and lowers smaller ones; counts those that the
/// plan's kernels run.
int64_t lower_smaller(const Draw& draw, const AttentionOptions& options, const char* architecture,
                      uint64_t first, uint64_t count) {
  const auto engine = engine::cuda::target_engine(*engine::cuda::target_named(architecture));
  const engine::Engine* const engines[] = {engine.get()};
  int64_t run = 0;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    Program program = draw(random, options);
    EXPECT_TRUE(graph::validate(program.graph).is_ok());
    const auto planned = Executable::build(program.graph, engines);
    if (!planned.is_ok()) continue;
    Program less = smaller(random, program);
    if (!graph::validate(less.graph).is_ok()) continue;
    const auto late = (*planned)->resized(shapes_of(**planned, less.graph, false));
    run += late.is_ok();
    if (late.is_ok()) {
      EXPECT_LE((*late)->workspace_bytes(), (*planned)->workspace_bytes());
    } else {
      EXPECT_EQ(late.status().code(), Code::graph_not_supported) << late.status().message();
    }
  }
  return run;
}

TEST(LateSizes, OnAGpuKernelsAreThePlans) {
  for (const char* architecture : {"sm_80", "sm_90a"}) {
    SCOPED_TRACE(architecture);
    AttentionOptions options = everything();
    options.max_length = 700;
    EXPECT_GT(lower_smaller(heddle::testing::random_sdpa, options, architecture, 4000, 60), 50);
    EXPECT_GT(
        lower_smaller(heddle::testing::random_sdpa_backward, everything(), architecture, 4500, 60),
        50);
  }
}

/// A plan for up to 400 queries and 300 keys, and memory for it.
class OneProcess : public ::testing::Test {
 protected:
  static constexpr int64_t kQueries = 400, kKeys = 300, kDim = 8;

  Status execute_at(int64_t q_length, int64_t kv_length) {
    const Shape shapes[] = {{1, {1, 1, q_length, kDim}, {}},
                            {2, {1, 1, kv_length, kDim}, {}},
                            {3, {1, 1, kv_length, kDim}, {}}};
    HEDDLE_ASSIGN(const auto executable, late_sizes.find_or_make(*planned, shapes));
    std::array<Binding, 5> bindings;
    for (size_t i = 0; i < 5; ++i) bindings[i] = {static_cast<int64_t>(i) + 1, memory[i].data()};
    return executable->execute(bindings, workspace.data(), nullptr);
  }

  std::shared_ptr<const Executable> planned =
      build(dense_attention(DataType::f32, false, 1, 1, 1, kQueries, kKeys, kDim));
  LateSizes late_sizes;
  std::vector<std::vector<float>> memory{5, std::vector<float>(kQueries* kDim, 0.5F)};
  std::vector<unsigned char> workspace =
      std::vector<unsigned char>(static_cast<size_t>(planned->workspace_bytes()));
};

TEST_F(OneProcess, AHundredThousandLengthsLeaveMemoryLevel) {
  constexpr int64_t kKeyLengths = 250;
  static_assert(kQueries * kKeyLengths == 100'000);
  int64_t turns = 0, live = 0;
  for (int64_t q_length = 1; q_length <= kQueries; ++q_length) {
    if (!heddle::testing::part().has(static_cast<uint64_t>(q_length))) continue;
    for (int64_t kv_length = 1; kv_length <= kKeyLengths; ++kv_length) {
      const Status done = execute_at(q_length, kv_length);
      ASSERT_TRUE(done.is_ok()) << done.message();
    }
    // The first lengths fill what is kept, and what threads keep for themselves.
    if (++turns == 10) live = heddle::testing::live_bytes();
  }
  ASSERT_GT(turns, 10);
  EXPECT_LT(heddle::testing::live_bytes(), live + (64 << 10));
}

TEST_F(OneProcess, LengthsUsedLatelyAllocateNothing) {
  constexpr auto kKept = static_cast<int64_t>(LateSizes::kCapacity);
  for (int64_t n = 1; n <= kKept; ++n) ASSERT_TRUE(execute_at(1, n).is_ok());
  const int64_t before = heddle::testing::allocations();
  for (int64_t n = 1; n <= kKept; ++n) ASSERT_TRUE(execute_at(1, n).is_ok());
  EXPECT_EQ(heddle::testing::allocations(), before);
  ASSERT_TRUE(execute_at(1, kKept + 1).is_ok());
  EXPECT_GT(heddle::testing::allocations(), before);
}

TEST_F(OneProcess, ManyThreadsAtOnce) {
  std::vector<std::thread> threads;
  std::atomic<int> right = 0;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int64_t n = 1; n <= 60; ++n) {
        const Shape shape[] = {{2, {1, 1, n + t, kDim}, {}}, {3, {1, 1, n + t, kDim}, {}}};
        const auto executable = late_sizes.find_or_make(*planned, shape);
        right += executable.is_ok() && (*executable)->graph()[1].dims[2] == n + t;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, 240);
}

class Refusals : public ::testing::Test {
 protected:
  void expect_refusal(const std::vector<Shape>& shapes, const std::string& sentence) {
    const auto late = planned->resized(shapes);
    ASSERT_FALSE(late.is_ok()) << sentence;
    EXPECT_NE(late.status().message().find(sentence), std::string::npos) << late.status().message();
  }

  // q, k, v, o and stats are uids 1 to 5.
  std::shared_ptr<const Executable> planned =
      build(dense_attention(DataType::f32, false, 2, 4, 2, 33, 40, 16));
};

TEST_F(Refusals, BeyondTheMaxima) {
  expect_refusal(
      {{1, {2, 4, 34, 16}, {}}},
      "is given dims [2, 4, 34, 16], expected none to exceed those that it was planned with, "
      "[2, 4, 33, 16].");
  expect_refusal({{2, {2, 2, 41, 16}, {}}, {3, {2, 2, 41, 16}, {}}}, "expected none to exceed");
}
TEST_F(Refusals, NoLengths) {
  for (int64_t length : {int64_t{0}, int64_t{-1}, INT64_MIN})
    expect_refusal({{1, {2, 4, length, 16}, {}}}, "expected each from 1 to 2147483647");
}
TEST_F(Refusals, OperandsThatDoNotFit) {
  expect_refusal({{2, {2, 2, 20, 16}, {}}}, "length");
  expect_refusal({{1, {1, 4, 33, 16}, {}}}, "batch");
  expect_refusal({{1, {2, 4, 20, 16}, {}}, {4, {2, 4, 21, 16}, {}}}, "[2, 4, 20, 16]");
  expect_refusal({{1, {2, 4, 33}, {}}}, "expected none to exceed");
}
TEST_F(Refusals, Strides) {
  expect_refusal({{1, {2, 4, 20, 16}, {4, 3, 1}}}, "expected as many strides as dims");
  expect_refusal({{1, {2, 4, 20, 16}, {-2112, 528, 16, 1}}}, "expected none to be negative");
  expect_refusal({{4, {2, 4, 33, 16}, {2112, 528, 0, 1}}}, "on top of each other");
}
TEST_F(Refusals, HeadsAndHeadDims) {
  expect_refusal({{1, {2, 2, 33, 16}, {}}},
                 "an attention of 2, 2 and 2 heads of Q, K and V and head dims 16 and 16, expected "
                 "those that it was planned with, 4, 2 and 2 heads");
  expect_refusal({{1, {2, 4, 33, 8}, {}}, {2, {2, 2, 40, 8}, {}}}, "head dims 8 and 16");
}
TEST(LateSizes, AnAppendsHeadsArePlanned) {
  Random random(5);
  heddle::testing::CacheOptions options;
  options.has_past = options.in_place = 1, options.packed = options.paged = options.codes = 0;
  Program program = heddle::testing::random_cache_append(random, options);
  ASSERT_TRUE(graph::validate(program.graph).is_ok());
  const auto planned = build(program.graph);
  const auto& op = std::get<graph::CacheAppend>(program.graph.nodes[0].op);
  const graph::Tensor& q = program.graph[op.q];
  Dims dims = q.dims;
  dims[1] /= 2;
  ASSERT_GE(dims[1], 1);
  const Shape shape{q.uid, dims, q.strides};
  EXPECT_NE(
      planned->resized(std::array{shape}).status().message().find("The shapes give an append of"),
      std::string::npos)
      << planned->resized(std::array{shape}).status().message();
}

TEST_F(Refusals, Uids) {
  expect_refusal({{9, {1}, {}}}, "A shape is given for uid 9, expected that of a tensor");
  expect_refusal({{1, {2, 4, 3, 16}, {}}, {1, {2, 4, 3, 16}, {}}}, "Two shapes are given for the");
}
TEST_F(Refusals, EnginesThatTakeNoLaterSizes) {
  class Fixed final : public engine::Engine {
   public:
    std::string_view name() const override { return "fixed"; }
    Result<std::shared_ptr<const engine::Plan>> plan(
        const engine::Problem& problem) const override {
      return engine::engines(engine::Device::cpu)[0]->plan(problem);
    }
  };
  const Fixed engine;
  const engine::Engine* const engines[] = {&engine};
  const auto fixed = Executable::build(planned->graph(), engines);
  ASSERT_TRUE(fixed.is_ok());
  const Shape shapes[] = {{1, {2, 4, 3, 16}, {}}};
  EXPECT_EQ((*fixed)->resized(shapes).status().message(),
            "fixed: sizes are those of the plan, no later ones");
}

}  // namespace
}  // namespace heddle::api
