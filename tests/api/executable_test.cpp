#include "api/executable.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <thread>

#include "api/count_allocations.h"
#include "engine/devices.h"
#include "graph/validate.h"
#include "support/compare.h"
#include "support/program.h"

namespace heddle::api {
namespace {

using graph::kNone;
using graph::TensorId;

void fill_random(heddle::testing::Program& program, TensorId id, uint64_t seed) {
  heddle::testing::Random random(seed);
  program.allocate(id);
  program.fill(id, [&] { return random.normal(); });
}

/// Causal sdpa with grouped heads; with `chained`, a second one whose queries are the first's
/// output, virtual.
heddle::testing::Program causal_attention(bool chained = false) {
  heddle::testing::Program program;
  graph::Graph& graph = program.graph;
  graph.io_dtype = DataType::f32;
  const Dims query{2, 4, 33, 32}, key{2, 2, 33, 32};
  graph::Sdpa op;
  op.q = program.add("q", DataType::f32, query);
  op.k = program.add("k", DataType::f32, key);
  op.v = program.add("v", DataType::f32, key);
  op.o = program.add("o", DataType::f32, query);
  op.attention.attn_scale = 0.2;
  op.attention.right_bound = 0;
  for (TensorId id : {op.q, op.k, op.v}) fill_random(program, id, static_cast<uint64_t>(id) + 1);
  if (chained) {
    graph::Sdpa second = op;
    second.q = op.o;
    graph[op.o].is_virtual = true;
    second.o = program.add("o2", DataType::f32, query);
    program.allocate(second.o);
    graph.nodes.push_back({"second", second});
  } else {
    op.stats = program.add("stats", DataType::f32, {2, 4, 33, 1});
    program.allocate(op.o);
    program.allocate(op.stats);
  }
  graph.nodes.push_back({"first", op});
  EXPECT_TRUE(validate(graph).is_ok()) << validate(graph).message();
  return program;
}

std::shared_ptr<const Executable> build(const graph::Graph& graph) {
  auto built = Executable::build(graph, engine::engines(engine::Device::cpu));
  EXPECT_TRUE(built.is_ok()) << built.status().message();
  return built.is_ok() ? *built : nullptr;
}

std::vector<Binding> bindings_of(heddle::testing::Program& program) {
  std::vector<Binding> bindings;
  for (const auto& [uid, pointer] : program.buffers()) bindings.push_back({uid, pointer});
  return bindings;
}

/// Workspace full of NaN, beginning at an odd address, with a guard behind it.
class Workspace {
 public:
  explicit Workspace(const Executable& executable)
      : bytes_(executable.workspace_bytes()), memory_(static_cast<size_t>(bytes_) + 65, 0xff) {}
  void* data() { return memory_.data() + 1; }
  bool guard_is_whole() const {
    return std::all_of(memory_.begin() + 1 + bytes_, memory_.end(),
                       [](unsigned char c) { return c == 0xff; });
  }

 private:
  int64_t bytes_;
  std::vector<unsigned char> memory_;
};

TEST(Executable, RunsAttention) {
  heddle::testing::Program program = causal_attention();
  const auto executable = build(program.graph);
  ASSERT_TRUE(executable);
  Workspace workspace(*executable);
  const Status status = executable->execute(bindings_of(program), workspace.data(), nullptr);
  ASSERT_TRUE(status.is_ok()) << status.message();
  EXPECT_TRUE(matches_reference(program, DataType::f32));
  EXPECT_TRUE(workspace.guard_is_whole());
  EXPECT_EQ(executable->engine(), "cpu");
  EXPECT_NE(executable->description().find("first: cpu, "), std::string::npos)
      << executable->description();
}

TEST(Executable, RunsAScoreOfTwentyThousandOpsAndAMaskThatDoubles) {
  heddle::testing::Program program;
  graph::Graph& graph = program.graph;
  graph.io_dtype = DataType::f32;
  const Dims dims{1, 1, 4, 16};
  graph::Sdpa op;
  op.q = program.add("q", DataType::f32, dims);
  op.k = program.add("k", DataType::f32, dims);
  op.v = program.add("v", DataType::f32, dims);
  op.o = program.add("o", DataType::f32, dims);
  for (TensorId id : {op.q, op.k, op.v}) fill_random(program, id, static_cast<uint64_t>(id) + 1);
  program.allocate(op.o);
  const TensorId mask = program.add("mask", DataType::f32, {1, 1, 4, 4});
  program.allocate(mask);
  for (int64_t i = 0; i < 16; ++i) program.set(mask, i % 4 <= i / 4, 0, 0, i / 4, i % 4);
  const TensorId hidden = program.add("hidden", DataType::f32, {1, 1, 1, 1});
  graph[hidden].constant = -INFINITY;
  const TensorId none = program.add("none", DataType::f32, {1, 1, 1, 1});
  graph[none].constant = 0;

  graph::ScoreModifier& score = op.attention.score_mod.emplace();
  const auto value = [&] {
    graph.tensors.emplace_back().is_virtual = true;
    return static_cast<TensorId>(graph.tensors.size()) - 1;
  };
  const auto apply = [&](graph::PointwiseMode mode, std::vector<TensorId> inputs) {
    return score.ops.emplace_back(graph::Pointwise{mode, std::move(inputs), value()}).output;
  };
  TensorId x = score.score_in = value(), shown = apply(graph::PointwiseMode::cmp_gt, {mask, none});
  for (int n = 0; n < 10'000; ++n) {
    x = apply(graph::PointwiseMode::neg, {apply(graph::PointwiseMode::abs, {x})});
  }
  for (int n = 0; n < 64; ++n) shown = apply(graph::PointwiseMode::logical_and, {shown, shown});
  score.score_out = apply(graph::PointwiseMode::binary_select, {shown, x, hidden});
  graph.nodes.push_back({"attention", op});
  ASSERT_TRUE(validate(graph).is_ok()) << validate(graph).message();

  const auto executable = build(graph);
  ASSERT_TRUE(executable);
  Workspace workspace(*executable);
  const Status status = executable->execute(bindings_of(program), workspace.data(), nullptr);
  ASSERT_TRUE(status.is_ok()) << status.message();
  EXPECT_TRUE(matches_reference(program, DataType::f32));
}

TEST(Executable, PassesIntermediatesThroughTheWorkspace) {
  heddle::testing::Program program = causal_attention(/*chained=*/true);
  const auto executable = build(program.graph);
  ASSERT_TRUE(executable);
  EXPECT_GE(executable->workspace_bytes(), 2 * 4 * 33 * 32 * 4);
  Workspace workspace(*executable);
  const Status status = executable->execute(bindings_of(program), workspace.data(), nullptr);
  ASSERT_TRUE(status.is_ok()) << status.message();
  EXPECT_TRUE(matches_reference(program, DataType::f32));
  EXPECT_TRUE(workspace.guard_is_whole());
}

TEST(Executable, TimesItsStepsAndComputesTheSame) {
  heddle::testing::Program program = causal_attention(true);
  const auto executable = build(program.graph);
  ASSERT_TRUE(executable);
  ASSERT_EQ(executable->step_count(), 2U);
  Workspace workspace(*executable);
  Result<engine::Marks> marks = engine::Marks::make(engine::Device::cpu, 4);
  ASSERT_TRUE(marks.is_ok());
  const Status status =
      executable->execute_marked(bindings_of(program), workspace.data(), nullptr, *marks, 1);
  ASSERT_TRUE(status.is_ok()) << status.message();
  EXPECT_TRUE(matches_reference(program, DataType::f32));
  for (const size_t step : {1, 2}) EXPECT_GT(*marks->seconds(step, step + 1), 0);
  EXPECT_EQ(executable->execute_marked(bindings_of(program), workspace.data(), nullptr, *marks, 2)
                .message(),
            "There are 2 marks from 2 on, expected 3 for 2 steps.");
}

TEST(Executable, SaysWhichPathServesEachAttention) {
  const auto one = build(causal_attention().graph), two = build(causal_attention(true).graph);
  EXPECT_TRUE(one->attention_paths().starts_with("flash: the 66 rows that share keys are more"))
      << one->attention_paths();
  EXPECT_EQ(two->attention_paths(), one->attention_paths() + "; " + one->attention_paths());
}

TEST(Executable, PortsAreInAscendingUid) {
  heddle::testing::Program program = causal_attention();
  graph::Graph graph = program.graph;
  graph.tensors[0].uid = 90;
  graph.tensors[3].uid = 70;
  const auto executable = build(graph);
  ASSERT_TRUE(executable);
  std::vector<std::string> names;
  for (const Port& port : executable->inputs())
    names.push_back(executable->graph()[port.tensor].name);
  for (const Port& port : executable->outputs())
    names.push_back(executable->graph()[port.tensor].name);
  EXPECT_EQ(names, (std::vector<std::string>{"k", "v", "q", "stats", "o"}));
}

TEST(Executable, AllocatesNothingToExecute) {
  heddle::testing::Program program = causal_attention(true);
  const auto executable = build(program.graph);
  ASSERT_TRUE(executable);
  Workspace workspace(*executable);
  const std::vector<Binding> bindings = bindings_of(program);
  ASSERT_TRUE(executable->execute(bindings, workspace.data(), nullptr).is_ok());
  const int64_t before = heddle::testing::allocations();
  const Status status = executable->execute(bindings, workspace.data(), nullptr);
  EXPECT_EQ(heddle::testing::allocations(), before);
  EXPECT_TRUE(status.is_ok());
}

TEST(Executable, ManyThreadsAtOnce) {
  const heddle::testing::Program program = causal_attention(true);
  const auto executable = build(program.graph);
  ASSERT_TRUE(executable);
  std::atomic<int> right = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      heddle::testing::Program mine = program;
      Workspace workspace(*executable);
      for (int i = 0; i < 5; ++i) {
        if (executable->execute(bindings_of(mine), workspace.data(), nullptr).is_ok()) ++right;
      }
      EXPECT_TRUE(matches_reference(mine, DataType::f32));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, 20);
}

class Pack : public ::testing::Test {
 protected:
  heddle::testing::Program program = causal_attention();
  std::shared_ptr<const Executable> executable = build(program.graph);
  Workspace workspace{*executable};
  std::vector<Binding> bindings = bindings_of(program);

  Binding& of(const char* name) {
    for (Binding& binding : bindings) {
      for (const graph::Tensor& tensor : executable->graph().tensors) {
        if (tensor.name == name && tensor.uid == binding.uid) return binding;
      }
    }
    return bindings.at(99);
  }
  void expect_refusal(const std::string& sentence) {
    const Status status = executable->execute(bindings, workspace.data(), nullptr);
    EXPECT_EQ(status.code(), Code::invalid_variant_pack);
    EXPECT_NE(status.message().find(sentence), std::string::npos) << status.message();
    for (const char* output : {"o", "stats"}) {
      const TensorId id = output == std::string("o") ? 3 : 4;
      const auto& block = program.memory.at(executable->graph()[id].uid);
      EXPECT_TRUE(std::all_of(block.data(), block.data() + block.size(), [](unsigned char c) {
        return c == heddle::testing::kPoison;
      })) << "nothing may be written";
    }
  }
};

TEST_F(Pack, MissingUid) {
  const int64_t uid = of("k").uid;
  std::erase_if(bindings, [&](const Binding& b) { return b.uid == uid; });
  expect_refusal("Uid 2 not found in variant pack. It is the input tensor 'k' (uid 2).");
}
TEST_F(Pack, NullPointer) {
  of("o").pointer = nullptr;
  expect_refusal("The tensor 'o' (uid 4) is bound to a null pointer.");
}
TEST_F(Pack, Misaligned) {
  of("v").pointer = static_cast<char*>(of("v").pointer) + 2;
  expect_refusal("expected a multiple of 4, the size of f32");
}
TEST_F(Pack, OutputOnInput) {
  of("o").pointer = of("q").pointer;
  expect_refusal("The output tensor 'o' (uid 4) shares memory with the input tensor 'q' (uid 1)");
}
TEST_F(Pack, OutputOnOutput) {
  of("stats").pointer = static_cast<char*>(of("o").pointer) + 64;
  expect_refusal("shares memory with the output");
}
TEST_F(Pack, TensorOnWorkspace) {
  ASSERT_GT(executable->workspace_bytes(), 3);
  of("stats").pointer = static_cast<char*>(workspace.data()) + 3;
  expect_refusal("shares memory with the workspace");
}
TEST_F(Pack, ExtraUidsAreIgnored) {
  bindings.push_back({12345, nullptr});
  EXPECT_TRUE(executable->execute(bindings, workspace.data(), nullptr).is_ok());
  EXPECT_TRUE(matches_reference(program, DataType::f32));
}

/// Plans on the CPU engine, if it was told of every problem before.
class PreparedEngine final : public engine::Engine {
 public:
  std::string_view name() const override { return "prepared"; }
  Result<std::shared_ptr<const engine::Plan>> plan(const engine::Problem& problem) const override {
    if (prepared_ != 2) return error(Code::graph_not_supported, "{} problems came", prepared_);
    return engine::engines(engine::Device::cpu)[0]->plan(problem);
  }
  Status prepare(std::span<const engine::Problem* const> problems) const override {
    prepared_ = problems.size();
    return {};
  }

 private:
  mutable size_t prepared_ = 0;
};

TEST(Executable, EnginesPrepareAllProblemsTogether) {
  const PreparedEngine engine;
  const engine::Engine* const engines[] = {&engine};
  const auto built = Executable::build(causal_attention(true).graph, engines);
  EXPECT_TRUE(built.is_ok()) << built.status().message();
}

TEST(Executable, RefusesWithEveryEnginesReason) {
  graph::Graph graph = causal_attention().graph;
  for (graph::Tensor& tensor : graph.tensors)
    tensor.dtype = tensor.name == "stats" ? DataType::f32 : DataType::f64;
  const auto refused = Executable::build(graph, engine::engines(engine::Device::cpu));
  ASSERT_FALSE(refused.is_ok());
  EXPECT_EQ(refused.status().code(), Code::graph_execution_plan_creation_failed);
  EXPECT_EQ(refused.status().message().find("No execution plans support the graph. cpu: "), 0u)
      << refused.status().message();
  const auto none = Executable::build(causal_attention().graph, {});
  EXPECT_NE(none.status().message().find("There is no engine"), std::string::npos);
}

TEST(Executable, RefusesInvalidGraphs) {
  graph::Graph graph = causal_attention().graph;
  std::get<graph::Sdpa>(graph.nodes[0].op).attention.right_bound = -1;
  EXPECT_EQ(Executable::build(graph, engine::engines(engine::Device::cpu)).status().code(),
            Code::invalid_value);
}

/// A cache of 6 rows that one new row joins.
heddle::testing::Program append() {
  heddle::testing::Program program;
  graph::CacheAppend op;
  program.graph.io_dtype = DataType::f32;
  op.q = program.add("qkv", DataType::f32, {1, 3, 1, 16});
  op.past_k = program.add("past_k", DataType::f32, {1, 1, 6, 16});
  op.past_v = program.add("past_v", DataType::f32, {1, 1, 6, 16});
  op.seq_len_kv = program.add("total", DataType::i32, {1, 1, 1, 1});
  op.present_k = program.add("present_k", DataType::f32, {1, 1, 6, 16});
  op.present_v = program.add("present_v", DataType::f32, {1, 1, 6, 16});
  for (TensorId id : {op.q, op.past_k, op.past_v})
    fill_random(program, id, static_cast<uint64_t>(id) + 1);
  program.allocate(op.seq_len_kv);
  program.set_integer(op.seq_len_kv, 4);
  program.graph.nodes.push_back({"append", op});
  return program;
}

void expect_as_defined(heddle::testing::Program& program) {
  const auto executable = build(program.graph);
  ASSERT_TRUE(executable);
  heddle::testing::Program results = program;
  Workspace workspace(*executable);
  const Status status = executable->execute(bindings_of(results), workspace.data(), nullptr);
  ASSERT_TRUE(status.is_ok()) << status.message();
  ASSERT_TRUE(validate(program.graph).is_ok());
  EXPECT_TRUE(heddle::testing::Definition(program, DataType::f32).is_met_by(results));
}

TEST(Executable, PutsNewRowsIntoACacheInPlace) {
  heddle::testing::Program program = append();
  const auto op = std::get<graph::CacheAppend>(program.graph.nodes[0].op);
  program.in_place = {{program.graph[op.present_k].uid, program.graph[op.past_k].uid},
                      {program.graph[op.present_v].uid, program.graph[op.past_v].uid}};
  expect_as_defined(program);
}

// What a cache held before is there for whatever reads it behind the append.
TEST(Executable, RotatesACacheThatIsInPlace) {
  heddle::testing::Program program = append();
  const auto op = std::get<graph::CacheAppend>(program.graph.nodes[0].op);
  graph::Rope rope{.x = op.present_k};
  rope.freqs = program.add("freqs", DataType::f32, {6, 1, 1, 16});
  rope.y = program.add("rotated", DataType::f32, {1, 1, 6, 16});
  fill_random(program, rope.freqs, 9);
  for (const TensorId id : {rope.y, op.present_v}) program.allocate(id);
  program.graph.nodes.push_back({"rope", rope});
  program.in_place = {{program.graph[op.present_k].uid, program.graph[op.past_k].uid}};
  expect_as_defined(program);
}

/// Two results, each to lie where an input does: (x - y, x + y).
heddle::testing::Program butterfly() {
  heddle::testing::Program program;
  program.graph.io_dtype = DataType::f32;
  const Dims dims{2, 3, 4, 40}, strides{2 * 3 * 4 * 40, 80, 240, 1};  // views into wider rows
  TensorId ids[4];
  for (int n = 0; n < 4; ++n) {
    ids[n] = program.add(std::string(1, "xyde"[n]), DataType::f32, dims, strides);
    if (n < 2) fill_random(program, ids[n], static_cast<uint64_t>(n) + 1);
  }
  using Mode = graph::PointwiseMode;
  program.graph.nodes = {
      {"sub", graph::PointwiseNode{.mode = Mode::sub, .a = ids[0], .b = ids[1], .y = ids[2]}},
      {"add", graph::PointwiseNode{.mode = Mode::add, .a = ids[0], .b = ids[1], .y = ids[3]}}};
  return program;
}

TEST(Executable, PutsPointwiseResultsWhereTheirInputsLie) {
  heddle::testing::Program program = butterfly();
  const auto executable = build(program.graph);
  ASSERT_TRUE(executable);
  ASSERT_EQ(executable->step_count(), 1u);
  for (const auto& [d, e] : {std::pair{1, 2}, {2, 1}}) {
    program.in_place = {{3, d}, {4, e}};
    heddle::testing::Program results = program;
    Workspace workspace(*executable);
    const Status status = executable->execute(bindings_of(results), workspace.data(), nullptr);
    ASSERT_TRUE(status.is_ok()) << status.message();
    ASSERT_TRUE(validate(program.graph).is_ok());
    EXPECT_TRUE(heddle::testing::Definition(program, DataType::f32).is_met_by(results));
  }
}

TEST(Executable, RefusesAPointwiseResultThatAnInputReadLaterLiesUnder) {
  heddle::testing::Program program = butterfly();
  using Mode = graph::PointwiseMode;
  const TensorId y = program.add("z", DataType::f32, {2, 3, 4, 40});
  program.allocate(y);
  const auto first = std::get<graph::PointwiseNode>(program.graph.nodes[0].op);
  program.graph.nodes.push_back(
      {"later", graph::PointwiseNode{.mode = Mode::mul, .a = first.y, .b = first.a, .y = y}});
  const auto executable = build(program.graph);
  ASSERT_TRUE(executable);
  program.in_place = {{3, 1}};
  program.allocate(first.y + 1);
  Workspace workspace(*executable);
  EXPECT_NE(executable->execute(bindings_of(program), workspace.data(), nullptr)
                .message()
                .find("'d' (uid 3) shares memory with the input tensor 'x'"),
            std::string::npos);
}

TEST(Executable, RefusesACacheThatMeetsAnotherTensor) {
  heddle::testing::Program program = append();
  const auto op = std::get<graph::CacheAppend>(program.graph.nodes[0].op);
  const auto refusal = [&](std::unordered_map<int64_t, int64_t> in_place) {
    const auto executable = build(program.graph);
    heddle::testing::Program results = program;
    results.in_place = std::move(in_place);
    Workspace workspace(*executable);
    return executable->execute(bindings_of(results), workspace.data(), nullptr).message();
  };
  const auto uid = [&](TensorId id) { return program.graph[id].uid; };
  EXPECT_NE(refusal({{uid(op.present_k), uid(op.past_v)}, {uid(op.present_v), uid(op.past_k)}})
                .find("The output tensor 'present_k' (uid 5) shares memory with the input"),
            std::string::npos);
  // An op behind the append reads the past: what it was may not be lost by then.
  graph::Rope rope;
  rope.x = op.past_k;
  rope.freqs = program.add("freqs", DataType::f32, {6, 1, 1, 16});
  rope.y = program.add("rotated", DataType::f32, {1, 1, 6, 16});
  fill_random(program, rope.freqs, 9);
  program.allocate(rope.y);
  program.graph.nodes.push_back({"rope", rope});
  EXPECT_NE(refusal({{uid(op.present_k), uid(op.past_k)}, {uid(op.present_v), uid(op.past_v)}})
                .find("'present_k' (uid 5) shares memory with the input tensor 'past_k'"),
            std::string::npos);
}

// A value that no memory holds is made where it is read, behind the append: of rows that are there.
TEST(Executable, RefusesACacheWhosePastIsReadForAValueMadeLater) {
  heddle::testing::Program program = append();
  const auto op = std::get<graph::CacheAppend>(program.graph.nodes[0].op);
  const TensorId doubled = program.add("doubled", DataType::f32, {1, 1, 6, 16});
  const TensorId larger = program.add("larger", DataType::f32, {1, 1, 6, 16});
  program.graph[doubled].is_virtual = true;
  for (const TensorId id : {larger, op.present_v}) program.allocate(id);
  using Mode = graph::PointwiseMode;
  program.graph.nodes.insert(
      program.graph.nodes.begin(),
      {"double",
       graph::PointwiseNode{.mode = Mode::add, .a = op.past_k, .b = op.past_k, .y = doubled}});
  program.graph.nodes.push_back(
      {"compare",
       graph::PointwiseNode{.mode = Mode::max, .a = doubled, .b = op.present_k, .y = larger}});
  const auto executable = build(program.graph);
  ASSERT_TRUE(executable);
  program.in_place = {{program.graph[op.present_k].uid, program.graph[op.past_k].uid}};
  Workspace workspace(*executable);
  const std::string refusal =
      executable->execute(bindings_of(program), workspace.data(), nullptr).message();
  EXPECT_NE(refusal.find("'present_k' (uid 5) shares memory with the input tensor 'past_k'"),
            std::string::npos)
      << refusal;
}

}  // namespace
}  // namespace heddle::api
