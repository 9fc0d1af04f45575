#include "engine/cuda/rope_stages.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/cases.h"

namespace heddle::engine::cuda {
namespace {

using problem::AttentionBackwardProblem;
using problem::AttentionProblem;
using problem::kAbsent;
using problem::OperandId;
using problem::Rope;
using problem::RopeProblem;

constexpr int64_t kBytesOfOne = 2 * 8 * 512 * 64 * 2;  // batch, heads, rows, columns, bf16

Rope some_rope(OperandId angles, OperandId rotated = kAbsent) {
  return {.rope_dim = 32, .angles = angles, .rotated = rotated};
}

OperandId add_like(AttentionProblem& problem, OperandId like, DataType dtype = DataType::bf16) {
  problem.structure.operands.push_back({.dtype = dtype});
  problem.sizes.layouts.push_back(problem.sizes.layouts[static_cast<size_t>(like)]);
  return static_cast<OperandId>(problem.structure.operands.size()) - 1;
}

AttentionProblem rotated_forward() {
  AttentionProblem problem = forward_of({.features = {Feature::causal}});
  const OperandId angles = add_like(problem, problem.structure.stats, DataType::f32);
  const Dims table{512, 1, 1, 32};
  problem.sizes.layouts.back() = {.dims = table, .strides = *dense_strides(table)};
  problem.structure.q_rope = some_rope(angles);
  problem.structure.k_rope = some_rope(angles);
  problem.sizes.q_rope_scale = 0.5;
  return problem;
}

const RopeProblem& rope_at(const Stages& stages, size_t n) {
  return std::get<RopeProblem>(stages.steps[n]);
}

TEST(RopeStages, RotateQueriesAndKeysIntoTemporariesThatTheAttentionReads) {
  const AttentionProblem problem = rotated_forward();
  const Stages stages = rope_stages(problem, "sm_80");
  const auto temporary = static_cast<OperandId>(problem.structure.operands.size());
  ASSERT_EQ(stages.steps.size(), 3u);
  EXPECT_EQ(stages.temporary_bytes, (std::vector{kBytesOfOne, kBytesOfOne}));
  EXPECT_EQ(rope_at(stages, 0).x, problem.structure.q);
  EXPECT_EQ(rope_at(stages, 0).y, temporary);
  EXPECT_EQ(rope_at(stages, 0).scale, 0.5);
  EXPECT_EQ(rope_at(stages, 1).x, problem.structure.k);
  EXPECT_EQ(rope_at(stages, 1).y, temporary + 1);
  EXPECT_EQ(rope_at(stages, 1).scale, 1.0);
  EXPECT_FALSE(rope_at(stages, 0).inverse);
  const auto& attention = std::get<AttentionProblem>(stages.steps[2]);
  EXPECT_FALSE(attention.structure.q_rope || attention.structure.k_rope);
  EXPECT_EQ(attention.structure.q, temporary);
  EXPECT_EQ(attention.structure.k, temporary + 1);
  EXPECT_EQ(attention.structure.v, problem.structure.v);
  for (size_t n : {0, 1}) EXPECT_EQ(rope_at(stages, n).operands, attention.structure.operands);
  EXPECT_EQ(attention.structure.operands.size(), stages.operand_count);
}

TEST(RopeStages, LeaveBothToHoppersPlanWhereItsKernelRotatesTheQueries) {
  AttentionProblem problem = rotated_forward();
  ASSERT_TRUE(has_rope_stages(problem, "sm_90a"));
  const Stages stages = rope_stages(problem, "sm_90a");
  ASSERT_EQ(stages.steps.size(), 1u);
  EXPECT_EQ(stages.temporary_bytes, std::vector{kBytesOfOne});
  const auto& attention = std::get<AttentionProblem>(stages.steps[0]);
  EXPECT_EQ(attention.structure.q, problem.structure.q);
  EXPECT_EQ(attention.structure.k, problem.structure.k);
  EXPECT_EQ(attention.structure.q_rope, problem.structure.q_rope);
  EXPECT_EQ(attention.sizes.q_rope_scale, 0.5);
  EXPECT_EQ(attention.structure.k_rope->rotated,
            static_cast<OperandId>(problem.structure.operands.size()));
  EXPECT_FALSE(has_rope_stages(attention, "sm_90a")) << "one plan takes it";
  EXPECT_TRUE(has_rope_stages(attention, "sm_80"));
  problem.structure.k_rope->rotated = add_like(problem, problem.structure.k);
  EXPECT_FALSE(has_rope_stages(problem, "sm_90a")) << "it needs no temporary";
  problem.structure.q_rope->rope_dim = 24;  // its halves are no whole chunks of 16 bytes
  EXPECT_EQ(rope_stages(problem, "sm_90a").steps.size(), 3u);
}

TEST(RopeStages, RotateIntoTheOperandThatAsksForIt) {
  AttentionProblem problem = rotated_forward();
  const OperandId rotated = add_like(problem, problem.structure.q);
  problem.structure.q_rope->rotated = rotated;
  problem.structure.k_rope.reset();
  const Stages stages = rope_stages(problem, "sm_80");
  ASSERT_EQ(stages.steps.size(), 2u);
  EXPECT_TRUE(stages.temporary_bytes.empty());
  EXPECT_EQ(rope_at(stages, 0).y, rotated);
  EXPECT_EQ(rope_at(stages, 0).rope.rotated, kAbsent);
  EXPECT_EQ(std::get<AttentionProblem>(stages.steps[1]).structure.q, rotated);
}

AttentionBackwardProblem rotated_backward() {
  AttentionBackwardProblem problem = backward_of({.features = {Feature::causal}});
  AttentionProblem forward{problem.structure.forward, problem.sizes};
  const OperandId angles = add_like(forward, forward.structure.stats, DataType::f32);
  problem.structure.forward = forward.structure;
  problem.sizes = forward.sizes;
  problem.structure.d_q_rope = problem.structure.d_k_rope = some_rope(angles);
  problem.d_k_rope_scale = 0.25;
  return problem;
}

TEST(RopeStages, TurnGradientsBackWhereTheyLie) {
  const AttentionBackwardProblem problem = rotated_backward();
  const Stages stages = rope_stages(problem);
  ASSERT_EQ(stages.steps.size(), 3u);
  EXPECT_TRUE(stages.temporary_bytes.empty());
  const auto& attention = std::get<AttentionBackwardProblem>(stages.steps[0]);
  EXPECT_FALSE(has_rope_stages(attention));
  EXPECT_EQ(attention.structure.d_q, problem.structure.d_q);
  for (auto [n, id] : {std::pair{size_t{1}, problem.structure.d_q}, {2, problem.structure.d_k}}) {
    EXPECT_EQ(rope_at(stages, n).x, id);
    EXPECT_EQ(rope_at(stages, n).y, id);
    EXPECT_TRUE(rope_at(stages, n).inverse);
  }
  EXPECT_EQ(rope_at(stages, 1).scale, 1.0);
  EXPECT_EQ(rope_at(stages, 2).scale, 0.25);
}

TEST(RopeStages, KeepTheGradientBeforeRotationIfItIsAskedFor) {
  AttentionBackwardProblem problem = rotated_backward();
  problem.structure.d_q_rope->rotated = problem.structure.forward.o;
  problem.structure.d_k = kAbsent;
  const Stages stages = rope_stages(problem);
  ASSERT_EQ(stages.steps.size(), 2u) << "no dK, nothing to turn back";
  EXPECT_EQ(std::get<AttentionBackwardProblem>(stages.steps[0]).structure.d_q,
            problem.structure.forward.o);
  EXPECT_EQ(rope_at(stages, 1).x, problem.structure.forward.o);
  EXPECT_EQ(rope_at(stages, 1).y, problem.structure.d_q);
}

TEST(RopeStages, GradientsOfAnotherTypeAreTurnedBackFromATemporary) {
  AttentionBackwardProblem problem = rotated_backward();
  problem.structure.forward.operands[static_cast<size_t>(problem.structure.d_q)].dtype =
      DataType::f32;
  const Stages stages = rope_stages(problem);
  EXPECT_EQ(stages.temporary_bytes, std::vector{kBytesOfOne});
  EXPECT_EQ(rope_at(stages, 1).y, problem.structure.d_q);
  const auto& attention = std::get<AttentionBackwardProblem>(stages.steps[0]);
  EXPECT_EQ(attention.structure.d_q, rope_at(stages, 1).x);
  EXPECT_EQ(attention.structure.forward.operands.back().dtype, DataType::bf16);
}

TEST(RopeStages, TurnRaggedGradientsBackUpToTheirLengths) {
  AttentionBackwardProblem problem = rotated_backward();
  auto& forward = problem.structure.forward;
  forward.q_lengths = forward.stats;  // any operand will do: only its name is passed on
  forward.q_lengths_cumulative = true;
  EXPECT_EQ(rope_at(rope_stages(problem), 1).lengths, kAbsent)
      << "past a dense one there are zeros";
  forward.operands[static_cast<size_t>(problem.structure.d_q)].ragged_offsets = forward.stats;
  const Stages stages = rope_stages(problem);
  EXPECT_EQ(rope_at(stages, 1).lengths, forward.stats);
  EXPECT_TRUE(rope_at(stages, 1).lengths_cumulative);
  EXPECT_EQ(rope_at(stages, 2).lengths, kAbsent);
}

// A step of a plan that notes what it is given.
struct Call {
  const QueuedPlan* plan;
  std::vector<void*> buffers;
  void* workspace;
};

class NotingPlan final : public QueuedPlan {
 public:
  NotingPlan(int64_t bytes, std::vector<Call>& calls) : bytes_(bytes), calls_(calls) {}
  int64_t workspace_bytes() const override { return bytes_; }
  Status execute(std::span<void* const> buffers, void* workspace, Queue&) const override {
    calls_.push_back({this, {buffers.begin(), buffers.end()}, workspace});
    return {};
  }
  std::string description() const override { return "step"; }

 private:
  int64_t bytes_;
  std::vector<Call>& calls_;
};

struct NoQueue final : Queue {
  Status launch(const Kernel&, const Launch&, std::span<void*>) override { return {}; }
};

TEST(RopeStages, ShareTheListOfOperandsAndTheScratchBehindTheTemporaries) {
  const AttentionProblem problem = rotated_forward();
  std::vector<Call> calls;
  int64_t scratch = 100;
  const auto plan = plan_stages(rope_stages(problem, "sm_80"), [&](const problem::Problem&) {
    return Result<std::shared_ptr<const QueuedPlan>>(
        std::make_shared<NotingPlan>(scratch += 50, calls));
  });
  ASSERT_TRUE(plan.is_ok()) << plan.status().message();
  EXPECT_EQ((*plan)->workspace_bytes(), 2 * kBytesOfOne + 250);
  EXPECT_EQ((*plan)->description(), "step; step; step");
  std::vector<void*> buffers;
  int memory[64];
  for (size_t n = 0; n < problem.structure.operands.size(); ++n) buffers.push_back(&memory[n]);
  std::vector<char> workspace(static_cast<size_t>((*plan)->workspace_bytes()));
  NoQueue queue;
  ASSERT_TRUE((*plan)->execute(buffers, workspace.data(), queue).is_ok());
  ASSERT_EQ(calls.size(), 3u);
  buffers.push_back(workspace.data());
  buffers.push_back(workspace.data() + kBytesOfOne);
  for (const Call& call : calls) {
    EXPECT_EQ(call.buffers, buffers);
    EXPECT_EQ(call.workspace, workspace.data() + 2 * kBytesOfOne);
  }
}

TEST(RopeStages, AStepThatIsRefusedRefusesAll) {
  const auto plan =
      plan_stages(rope_stages(rotated_forward(), "sm_80"), [](const problem::Problem& step) {
        if (std::holds_alternative<RopeProblem>(step))
          return Result<std::shared_ptr<const QueuedPlan>>(
              error(Code::graph_not_supported, "no rope"));
        return Result<std::shared_ptr<const QueuedPlan>>(std::shared_ptr<const QueuedPlan>());
      });
  EXPECT_EQ(plan.status().message(), "no rope");
}

}  // namespace
}  // namespace heddle::engine::cuda
