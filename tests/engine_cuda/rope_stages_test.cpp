#include "engine/cuda/rope_stages.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/cases.h"
#include "kernels/lowered.h"

namespace heddle::engine::cuda {
namespace {

using problem::AttentionBackwardProblem;
using problem::AttentionProblem;
using problem::kAbsent;
using problem::OperandId;
using problem::Rope;

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

const RopeStep& rope_at(const Stages& stages, size_t n) {
  return std::get<RopeStep>(stages.steps[n]);
}

TEST(RopeStages, RotateQueriesAndKeysIntoTemporariesThatTheAttentionReads) {
  const AttentionProblem problem = rotated_forward();
  const Stages stages = *rope_stages(problem);
  const auto temporary = static_cast<OperandId>(problem.structure.operands.size());
  ASSERT_EQ(stages.steps.size(), 3u);
  EXPECT_EQ(stages.temporary_bytes, (std::vector{kBytesOfOne, kBytesOfOne}));
  EXPECT_EQ(rope_at(stages, 0).rope.structure.x, problem.structure.q);
  EXPECT_EQ(rope_at(stages, 0).rope.structure.y, temporary);
  EXPECT_EQ(rope_at(stages, 0).rope.sizes.scale, 0.5);
  EXPECT_EQ(rope_at(stages, 1).rope.structure.x, problem.structure.k);
  EXPECT_EQ(rope_at(stages, 1).rope.structure.y, temporary + 1);
  EXPECT_EQ(rope_at(stages, 1).rope.sizes.scale, 1.0);
  EXPECT_FALSE(rope_at(stages, 0).rope.structure.inverse);
  const auto& attention = std::get<AttentionProblem>(stages.steps[2]);
  EXPECT_FALSE(attention.structure.q_rope || attention.structure.k_rope);
  EXPECT_EQ(attention.structure.q, temporary);
  EXPECT_EQ(attention.structure.k, temporary + 1);
  EXPECT_EQ(attention.structure.v, problem.structure.v);
  for (size_t n : {0, 1})
    EXPECT_EQ(rope_at(stages, n).rope.structure.operands, attention.structure.operands);
  EXPECT_EQ(attention.structure.operands.size(), stages.operand_count);
}

std::vector<std::string> kernels_of(const problem::Problem& problem, const char* architecture) {
  std::vector<std::string> names;
  const Result<Lowering> lowering = lowered(problem, architecture);
  for (const LoweredKernel& kernel : lowering->kernels) names.push_back(kernel.name);
  return names;
}

TEST(RopeStages, AreNoneWhereHoppersKernelRotatesTheQueries) {
  using Names = std::vector<std::string>;
  AttentionProblem problem = rotated_forward();
  const Result<Lowering> hopper = lowered(problem, "sm_90a");
  ASSERT_TRUE(hopper.is_ok()) << hopper.status().message();
  const Names together{"attention_forward", "rope_rotations"},
      apart{"rope", "rope", "attention_forward"};
  EXPECT_EQ(kernels_of(problem, "sm_90a"), together);
  EXPECT_EQ(kernels_of(problem, "sm_80"), apart);
  problem.structure.k_rope->rotated = add_like(problem, problem.structure.k);
  EXPECT_EQ(kernels_of(problem, "sm_90a"), together);
  EXPECT_EQ(hopper->workspace_bytes - lowered(problem, "sm_90a")->workspace_bytes, kBytesOfOne)
      << "the rotated keys are no temporary";
  problem.structure.q_rope->rope_dim = 16;  // of the first columns, or of later ones
  for (const int32_t first : {0, 8, 16}) {
    problem.structure.q_rope->first_column = first;
    EXPECT_EQ(kernels_of(problem, "sm_90a"), together);
  }
  problem.structure.q_rope->first_column = 4;
  EXPECT_EQ(kernels_of(problem, "sm_90a"), apart);
  problem.structure.q_rope->first_column = 8;
  problem.structure.q_rope->rope_dim = 24;  // its halves are no whole chunks of 16 bytes
  EXPECT_EQ(kernels_of(problem, "sm_90a"), apart);
}

TEST(RopeStages, RotateIntoTheOperandThatAsksForIt) {
  AttentionProblem problem = rotated_forward();
  const OperandId rotated = add_like(problem, problem.structure.q);
  problem.structure.q_rope->rotated = rotated;
  problem.structure.k_rope.reset();
  const Stages stages = *rope_stages(problem);
  ASSERT_EQ(stages.steps.size(), 2u);
  EXPECT_TRUE(stages.temporary_bytes.empty());
  EXPECT_EQ(rope_at(stages, 0).rope.structure.y, rotated);
  EXPECT_EQ(rope_at(stages, 0).rope.structure.rope.rotated, kAbsent);
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
  const Stages stages = *rope_stages(problem);
  ASSERT_EQ(stages.steps.size(), 3u);
  EXPECT_TRUE(stages.temporary_bytes.empty());
  const auto& attention = std::get<AttentionBackwardProblem>(stages.steps[0]);
  EXPECT_FALSE(rope_stages(attention));
  EXPECT_EQ(attention.structure.d_q, problem.structure.d_q);
  for (auto [n, id] : {std::pair{size_t{1}, problem.structure.d_q}, {2, problem.structure.d_k}}) {
    EXPECT_EQ(rope_at(stages, n).rope.structure.x, id);
    EXPECT_EQ(rope_at(stages, n).rope.structure.y, id);
    EXPECT_TRUE(rope_at(stages, n).rope.structure.inverse);
  }
  EXPECT_EQ(rope_at(stages, 1).rope.sizes.scale, 1.0);
  EXPECT_EQ(rope_at(stages, 2).rope.sizes.scale, 0.25);
}

TEST(RopeStages, KeepTheGradientBeforeRotationIfItIsAskedFor) {
  AttentionBackwardProblem problem = rotated_backward();
  problem.structure.d_q_rope->rotated = problem.structure.forward.o;
  problem.structure.d_k = kAbsent;
  const Stages stages = *rope_stages(problem);
  ASSERT_EQ(stages.steps.size(), 2u) << "no dK, nothing to turn back";
  EXPECT_EQ(std::get<AttentionBackwardProblem>(stages.steps[0]).structure.d_q,
            problem.structure.forward.o);
  EXPECT_EQ(rope_at(stages, 1).rope.structure.x, problem.structure.forward.o);
  EXPECT_EQ(rope_at(stages, 1).rope.structure.y, problem.structure.d_q);
}

TEST(RopeStages, GradientsOfAnotherTypeAreTurnedBackFromATemporary) {
  AttentionBackwardProblem problem = rotated_backward();
  DataType& type = problem.structure.forward.type(problem.structure.d_q).dtype;
  type = DataType::f32;
  EXPECT_TRUE(rope_stages(problem)->temporary_bytes.empty()) << "which kernels write";
  type = DataType::f16;
  const Stages stages = *rope_stages(problem);
  EXPECT_EQ(stages.temporary_bytes, std::vector{2 * kBytesOfOne});
  EXPECT_EQ(rope_at(stages, 1).rope.structure.y, problem.structure.d_q);
  const auto& attention = std::get<AttentionBackwardProblem>(stages.steps[0]);
  EXPECT_EQ(attention.structure.d_q, rope_at(stages, 1).rope.structure.x);
  EXPECT_EQ(attention.structure.forward.operands.back().dtype, DataType::f32);
}

TEST(RopeStages, TurnRaggedGradientsBackUpToTheirLengths) {
  AttentionBackwardProblem problem = rotated_backward();
  auto& forward = problem.structure.forward;
  forward.q_lengths = forward.stats;  // any operand will do: only its name is passed on
  forward.q_lengths_cumulative = true;
  EXPECT_EQ(rope_at(*rope_stages(problem), 1).lengths, kAbsent)
      << "past a dense one there are zeros";
  forward.operands[static_cast<size_t>(problem.structure.d_q)].storage =
      problem::Storage::ragged_by(forward.stats);
  const Stages stages = *rope_stages(problem);
  EXPECT_EQ(rope_at(stages, 1).lengths, forward.stats);
  EXPECT_TRUE(rope_at(stages, 1).lengths_cumulative);
  EXPECT_EQ(rope_at(stages, 2).lengths, kAbsent);
}

TEST(RopeStages, AStepThatIsRefusedRefusesAll) {
  AttentionProblem problem = rotated_forward();
  problem.structure.type(problem.structure.q_rope->angles).dtype = DataType::f64;
  const auto refused = lowered(problem, "sm_80");
  EXPECT_EQ(refused.status().message(), "cuda: rope angles is f64, but the kernel takes f32");
}

}  // namespace
}  // namespace heddle::engine::cuda
