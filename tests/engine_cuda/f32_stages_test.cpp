#include "engine/cuda/f32_stages.h"

#include <gtest/gtest.h>

#include "kernels/cases.h"

namespace heddle::engine::cuda {
namespace {

using problem::AttentionBackwardProblem;
using problem::AttentionProblem;
using problem::OperandId;

constexpr int64_t kBytesOfOne = 2 * 8 * 512 * 64 * 4;  // batch, heads, rows, columns, f32

DataType& type_of(problem::AttentionStructure& structure, OperandId id) {
  return structure.operands[static_cast<size_t>(id)].dtype;
}

const RopeStep& copy_at(const Stages& stages, size_t n) {
  return std::get<RopeStep>(stages.steps[n]);
}

TEST(F32Stages, AreOfMixedTypesAlone) {
  AttentionProblem problem = forward_of({});
  EXPECT_FALSE(f32_stages(problem));
  EXPECT_FALSE(f32_stages(forward_of({.dtype = DataType::f32})));
  type_of(problem.structure, problem.structure.o) = DataType::f32;
  EXPECT_TRUE(f32_stages(problem));
  EXPECT_FALSE(f32_stages(backward_of({})));
}

TEST(F32Stages, WidenWhatIsReadAndLeaveAnF32ResultWhereItLies) {
  AttentionProblem problem = forward_of({.features = {Feature::causal}});
  type_of(problem.structure, problem.structure.o) = DataType::f32;
  const Stages stages = *f32_stages(problem);
  ASSERT_EQ(stages.steps.size(), 4u);
  EXPECT_EQ(stages.temporary_bytes, std::vector(3, kBytesOfOne));
  const auto& attention = std::get<AttentionProblem>(stages.steps[3]);
  const OperandId given[] = {problem.structure.q, problem.structure.k, problem.structure.v};
  const OperandId read[] = {attention.structure.q, attention.structure.k, attention.structure.v};
  for (size_t n = 0; n < 3; ++n) {
    EXPECT_EQ(copy_at(stages, n).rope.structure.x, given[n]);
    EXPECT_EQ(copy_at(stages, n).rope.structure.y, read[n]);
    EXPECT_EQ(copy_at(stages, n).rope.structure.rope.rope_dim, 0);
    EXPECT_EQ(attention.structure.operands[static_cast<size_t>(read[n])].dtype, DataType::f32);
  }
  EXPECT_EQ(attention.structure.o, problem.structure.o);
  EXPECT_FALSE(f32_stages(attention));
}

TEST(F32Stages, CopyPagesAsTheyLie) {
  AttentionProblem problem = forward_of({.features = {Feature::paged}});
  type_of(problem.structure, problem.structure.o) = DataType::f32;
  problem.structure.v = problem.structure.k;  // one container
  const Stages stages = *f32_stages(problem);
  const auto& attention = std::get<AttentionProblem>(stages.steps[3]);
  const auto table = [](const auto& structure, OperandId id) {
    return structure.operands[static_cast<size_t>(id)].storage.page_table();
  };
  for (OperandId id : {attention.structure.k, attention.structure.v})
    EXPECT_EQ(table(attention.structure, id), table(problem.structure, problem.structure.k));
  for (size_t n : {1, 2}) {
    EXPECT_EQ(table(copy_at(stages, n).rope.structure, copy_at(stages, n).rope.structure.x),
              problem::kAbsent);
    EXPECT_EQ(table(copy_at(stages, n).rope.structure, copy_at(stages, n).rope.structure.y),
              problem::kAbsent);
  }
}

TEST(F32Stages, RoundGradientsOnceUpToTheLengthsOfRaggedOnes) {
  AttentionBackwardProblem problem = backward_of({.features = {Feature::ragged}});
  problem::AttentionStructure& forward = problem.structure.forward;
  type_of(forward, problem.structure.d_k) = DataType::f32;
  const Stages stages = *f32_stages(problem);
  ASSERT_EQ(stages.steps.size(), 8u) << "five are read, two rounded";
  const auto& attention = std::get<AttentionBackwardProblem>(stages.steps[5]);
  EXPECT_EQ(attention.structure.d_k, problem.structure.d_k);
  EXPECT_EQ(copy_at(stages, 6).rope.structure.x, attention.structure.d_q);
  EXPECT_EQ(copy_at(stages, 6).rope.structure.y, problem.structure.d_q);
  EXPECT_EQ(copy_at(stages, 6).lengths, forward.q_lengths);
  EXPECT_EQ(copy_at(stages, 7).rope.structure.y, problem.structure.d_v);
  EXPECT_EQ(copy_at(stages, 7).lengths, forward.kv_lengths);
}

}  // namespace
}  // namespace heddle::engine::cuda
