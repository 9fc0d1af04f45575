// A workspace's size is a function of sizes: measured on one machine, it serves every other.
#include <gtest/gtest.h>
#include <tbb/task_arena.h>

#include <set>

#include "engine/cpu/engine.h"
#include "engine_cpu/levels.h"
#include "engine_cpu/problems.h"
#include "support/attention_programs.h"
#include "support/compare.h"
#include "support/pointwise_programs.h"
#include "support/run.h"
#include "support/streaming_programs.h"

namespace heddle::testing {
namespace {

using engine::Plan;
using engine::Problem;
using PlanOf = Result<std::shared_ptr<const Plan>>;

PlanOf planned(const Problem& problem, int workers) {
  PlanOf plan = error(Code::invalid_value, "not planned");
  tbb::task_arena(workers).execute([&] { plan = engine::cpu_engine().plan(problem); });
  return plan;
}

void expect_one_size(const Problem& problem, const std::string& what) {
  std::set<int64_t> sizes;
  for (engine::cpu::Isa isa : available_levels()) {
    const ForcedLevel level(isa);
    for (int workers : {1, 2, 16, 64, 200}) {
      const PlanOf plan = planned(problem, workers);
      ASSERT_TRUE(plan.is_ok()) << what << ": " << plan.status().message();
      sizes.insert((*plan)->workspace_bytes());
    }
  }
  EXPECT_EQ(sizes.size(), 1u) << what << ": " << *sizes.begin() << " to " << *sizes.rbegin();
}

/// As most attentions are: head dims and lengths of models, and a step of decoding.
std::vector<Problem> usual_problems() {
  std::vector<Problem> problems;
  for (DataType dtype : {DataType::f32, DataType::bf16}) {
    for (int32_t head_dim : {64, 128}) {
      for (int64_t length : {1, 100, 512, 2048, 8192}) {
        problems.push_back(causal_attention(dtype, 1, 8, 2, length, head_dim));
        problems.push_back(causal_attention_backward(dtype, 2, 8, 8, length, head_dim));
      }
      problem::AttentionProblem decoding = causal_attention(dtype, 1, 8, 2, 8192, head_dim);
      decoding.sizes.q_length = 1;
      for (size_t id : {0, 3, 4})
        decoding.sizes.layouts[id] = dense({1, 8, 1, id == 4 ? 1 : head_dim});
      problems.push_back(decoding);
    }
  }
  return problems;
}

TEST(Workspace, IsTheSameOnEveryMachine) {
  for (const Problem& problem : usual_problems()) expect_one_size(problem, "of a model");
}

AttentionOptions with_rope() {
  AttentionOptions options;
  options.rope = 0.3, options.max_length = 300;
  return options;
}
AttentionOptions decoding() {
  AttentionOptions options;
  options.max_batch = options.max_key_heads = 1, options.max_group = 8, options.max_length = 5000;
  options.score_mod = options.single_row = 1;
  return options;
}

/// Draws `count` programs of each kind; `test` gets each and what it is.
template <class Test>
void for_random_programs(int count, const Test& test) {
  for (uint64_t seed = 0; seed < static_cast<uint64_t>(count); ++seed) {
    const auto draw = [&](const char* kind, const auto& program) {
      Random random(seed);
      test(program(random), fmt::format("{}, seed {}", kind, seed));
    };
    draw("sdpa", [](Random& random) { return random_sdpa(random, with_rope()); });
    draw("decoding", [](Random& random) { return random_sdpa(random, decoding()); });
    draw("sdpa_backward", [](Random& random) { return random_sdpa_backward(random, with_rope()); });
    draw("rms_norm", [](Random& random) { return random_rms_norm(random); });
    draw("rms_norm_backward", [](Random& random) { return random_rms_norm_backward(random); });
    draw("layer_norm", [](Random& random) { return random_layer_norm(random); });
    draw("layer_norm_backward", [](Random& random) { return random_layer_norm_backward(random); });
    draw("rope", [](Random& random) { return random_rope(random); });
    draw("pointwise", [](Random& random) { return random_pointwise(random); });
  }
}

TEST(Workspace, OfAnyProgramIsTheSameOnEveryMachine) {
  for_random_programs(15, [](const Program& program, const std::string& what) {
    const auto schedule = fusion::fuse(program.graph);
    ASSERT_TRUE(schedule.is_ok()) << schedule.status().message();
    for (const fusion::Step& step : schedule->steps) expect_one_size(step.problem, what);
  });
}

/// A plan that another machine measured.
class MeasuredElsewhere final : public Plan {
 public:
  MeasuredElsewhere(std::shared_ptr<const Plan> here, int64_t bytes)
      : here_(std::move(here)), bytes_(bytes) {}
  int64_t workspace_bytes() const override { return bytes_; }
  Status execute(std::span<void* const> buffers, void* workspace, void* stream) const override {
    return here_->execute(buffers, workspace, stream);
  }
  std::string description() const override { return here_->description(); }

 private:
  std::shared_ptr<const Plan> here_;
  int64_t bytes_;
};

/// Measures with some workers of the first instruction set, and runs with others of the best.
class Travelling final : public engine::Engine {
 public:
  Travelling(int measured, int run) : measured_(measured), run_(run) {}
  std::string_view name() const override { return "travelling"; }
  PlanOf plan(const Problem& problem) const override {
    int64_t bytes = 0;
    {
      const ForcedLevel level(engine::cpu::kIsas[0]);
      HEDDLE_ASSIGN(const auto there, planned(problem, measured_));
      bytes = there->workspace_bytes();
    }
    HEDDLE_ASSIGN(auto here, planned(problem, run_));
    return std::shared_ptr<const Plan>(std::make_shared<MeasuredElsewhere>(std::move(here), bytes));
  }

 private:
  int measured_, run_;
};

TEST(Workspace, MeasuredOnOneMachineServesAnother) {
  for_random_programs(8, [](const Program& drawn, const std::string& what) {
    for (auto [measured, run_with] : {std::pair{2, 64}, {64, 2}, {1, 200}, {200, 1}}) {
      Program program = drawn;
      const Travelling engine(measured, run_with);
      Status status;
      tbb::task_arena(run_with).execute([&] { status = run(program, engine); });
      ASSERT_TRUE(status.is_ok()) << what << ": " << status.message();
      ASSERT_TRUE(matches_reference(program, io_dtype(program)))
          << what << ", measured with " << measured << ", run with " << run_with;
    }
  });
}

// A plan of sizes within others' runs in their workspace.
TEST(Workspace, GrowsWithEverySize) {
  const auto bytes = [](const Problem& problem) {
    return engine::cpu_engine().plan(problem).value()->workspace_bytes();
  };
  for (DataType dtype : {DataType::f32, DataType::bf16}) {
    int64_t forward = 0, backward = 0;
    for (int64_t length = 1; length < 3000; length += length / 16 + 1) {
      const int64_t before[] = {forward, backward};
      forward = bytes(causal_attention(dtype, 1, 6, 3, length, 40));
      backward = bytes(causal_attention_backward(dtype, 1, 6, 3, length, 40));
      EXPECT_GE(forward, before[0]) << length;
      EXPECT_GE(backward, before[1]) << length;
    }
    forward = backward = 0;
    for (int64_t batch = 1; batch < 300; batch += batch / 16 + 1) {
      const int64_t before[] = {forward, backward};
      forward = bytes(causal_attention(dtype, batch, 6, 3, 700, 40));
      backward = bytes(causal_attention_backward(dtype, batch, 6, 3, 700, 40));
      EXPECT_GE(forward, before[0]) << batch;
      EXPECT_GE(backward, before[1]) << batch;
    }
  }
}

TEST(Workspace, IsLinearInTheSequence) {
  const auto bytes = [](int64_t length) {
    const auto plan =
        engine::cpu_engine().plan(causal_attention_backward(DataType::f32, 1, 4, 4, length, 64));
    return (*plan)->workspace_bytes();
  };
  EXPECT_LT(bytes(32768) - bytes(16384), 2.2 * static_cast<double>(bytes(16384) - bytes(8192)));
  // Sums of dQ for 16 parts of the keys, and what does not grow.
  EXPECT_LT(bytes(32768), int64_t{4} * 32768 * 64 * 4 * 20);
}

// Near the largest sizes that the engine takes: 2^48 elements.
TEST(Workspace, DoesNotOverflow) {
  const int64_t length = INT32_MAX;
  for (const Problem& problem :
       {Problem(causal_attention(DataType::f32, 1, 1, 1, length, 64)),
        Problem(causal_attention_backward(DataType::f32, 1, 1, 1, length, 1)),
        Problem(causal_attention_backward(DataType::f32, 1, 1, 1, length, 8192))}) {
    const PlanOf plan = planned(problem, 2);
    ASSERT_TRUE(plan.is_ok()) << plan.status().message();
    EXPECT_GT((*plan)->workspace_bytes(), 0);
    EXPECT_LT((*plan)->workspace_bytes(), int64_t{1} << 60);
  }
}

}  // namespace
}  // namespace heddle::testing
