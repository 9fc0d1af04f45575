#include "engine/cuda/legal_stages.h"

#include <gtest/gtest.h>

#include "kernels/cases.h"
#include "kernels/lowered.h"

namespace heddle::engine::cuda {
namespace {

using problem::AttentionBackwardProblem;
using problem::AttentionProblem;
using problem::AttentionStructure;
using problem::OperandId;

constexpr int64_t kBytesOfOne = 2 * 8 * 512 * 64 * 4;  // batch, heads, rows, columns, f32

DataType& type_of(AttentionStructure& structure, OperandId id) { return structure.type(id).dtype; }

const CopyStep& copy_at(const Stages& stages, size_t n) {
  return std::get<CopyStep>(stages.steps[n]);
}

std::vector<std::string> words_of(const Stages& stages) {
  std::vector<std::string> all;
  for (const Stage& stage : stages.steps)
    if (const auto* copy = std::get_if<CopyStep>(&stage)) all.push_back(words_of(*copy));
  return all;
}
using Words = std::vector<std::string>;

std::vector<std::string> kernels_of(const problem::Problem& problem, const char* architecture) {
  const Result<Lowering> lowering = lowered(problem, architecture);
  if (!lowering.is_ok()) return {lowering.status().message()};
  std::vector<std::string> names;
  for (const LoweredKernel& kernel : lowering->kernels) names.push_back(kernel.name);
  return names;
}

// Types ------------------------------------------------------------------------------------------

TEST(LegalStages, AreNoneWhereKernelsTakeTheTypes) {
  AttentionProblem problem = forward_of({});
  for (DataType o : {DataType::bf16, DataType::f32}) {
    type_of(problem.structure, problem.structure.o) = o;
    EXPECT_FALSE(legal_stages(problem, Rows::as_they_lie));
  }
  EXPECT_FALSE(legal_stages(forward_of({.dtype = DataType::f32}), Rows::as_they_lie));
  AttentionBackwardProblem backward = backward_of({});
  problem::AttentionBackwardStructure& s = backward.structure;
  EXPECT_FALSE(legal_stages(backward, Rows::as_they_lie));
  for (OperandId id : {s.d_q, s.d_k, s.d_v}) type_of(s.forward, id) = DataType::f32;
  EXPECT_FALSE(legal_stages(backward, Rows::as_they_lie));
}

// f64 is not silently computed in f32, of dO in f32 either.
TEST(LegalStages, RefuseF64ByName) {
  const Words refusal{"cuda: sdpa q is f64, expected bf16, f16, f32"};
  AttentionProblem forward = forward_of({.dtype = DataType::f64});
  AttentionBackwardProblem backward = backward_of({.dtype = DataType::f64});
  EXPECT_EQ(kernels_of(forward, "sm_90a"), refusal);
  EXPECT_EQ(kernels_of(backward, "sm_90a"), refusal);
  type_of(forward.structure, forward.structure.o) = DataType::f32;
  type_of(backward.structure.forward, backward.structure.d_o) = DataType::f32;
  for (const char* architecture : {"sm_80", "sm_90a"}) {
    EXPECT_EQ(kernels_of(forward, architecture), refusal);
    EXPECT_EQ(kernels_of(backward, architecture), refusal);
  }
}

// The sums that kernels have are not rounded on their way.
TEST(LegalStages, F32ResultsOf16BitOperandsAreTheSameKernelsOwn) {
  AttentionProblem forward = forward_of({});
  type_of(forward.structure, forward.structure.o) = DataType::f32;
  AttentionBackwardProblem backward = backward_of({});
  problem::AttentionBackwardStructure& s = backward.structure;
  for (OperandId id : {s.d_q, s.d_k, s.d_v}) type_of(s.forward, id) = DataType::f32;
  EXPECT_EQ(kernels_of(forward, "sm_90a"), Words{"attention_forward"});
  EXPECT_EQ(lowered(forward, "sm_90a")->units[0].made_for.features, "results f32");
  EXPECT_EQ(kernels_of(backward, "sm_90a"),
            (Words{"attention_backward_prepare", "attention_backward_main",
                   "attention_backward_finish"}));
  EXPECT_EQ(kernels_of(forward, "sm_80"), Words{"attention_forward"});
  EXPECT_EQ(
      kernels_of(backward, "sm_80"),
      (Words{"attention_backward_delta", "attention_backward_keys", "attention_backward_queries"}));
}

TEST(LegalStages, ResultsOfAnotherTypeAreRoundedOnceFromF32) {
  AttentionProblem problem = forward_of({});
  type_of(problem.structure, problem.structure.o) = DataType::f16;
  const Stages stages = *legal_stages(problem, Rows::as_they_lie);
  EXPECT_EQ(words_of(stages), Words{"o converted to f16"});
  const auto& attention = std::get<AttentionProblem>(stages.steps[0]);
  EXPECT_EQ(attention.structure.type(attention.structure.o).dtype, DataType::f32);
  EXPECT_FALSE(legal_stages(attention, Rows::as_they_lie));
}

TEST(LegalStages, WidenWhatIsReadWhereItsTypesDiffer) {
  AttentionBackwardProblem problem = backward_of({});
  AttentionStructure& forward = problem.structure.forward;
  type_of(forward, problem.structure.d_o) = DataType::f32;
  type_of(forward, problem.structure.d_k) = DataType::f32;
  const Stages stages = *legal_stages(problem, Rows::as_they_lie);
  EXPECT_EQ(words_of(stages),
            (Words{"q converted to f32", "k converted to f32", "v converted to f32",
                   "o converted to f32", "dQ converted to bf16", "dV converted to bf16"}));
  EXPECT_EQ(stages.temporary_bytes, std::vector(6, kBytesOfOne));
  const auto& attention = std::get<AttentionBackwardProblem>(stages.steps[4]);
  EXPECT_EQ(attention.structure.d_o, problem.structure.d_o);
  EXPECT_EQ(attention.structure.d_k, problem.structure.d_k);
  EXPECT_EQ(copy_at(stages, 0).x, forward.q);
  EXPECT_EQ(copy_at(stages, 0).y, attention.structure.forward.q);
  EXPECT_EQ(copy_at(stages, 5).x, attention.structure.d_q);
  EXPECT_EQ(copy_at(stages, 5).y, problem.structure.d_q);
}

TEST(LegalStages, CopyPagesAsTheyLie) {
  AttentionProblem problem = forward_of({.features = {Feature::paged}});
  AttentionStructure& s = problem.structure;
  type_of(s, s.q) = DataType::f32;
  s.v = s.k;  // one container
  const Stages stages = *legal_stages(problem, Rows::for_copy_engine);
  EXPECT_EQ(words_of(stages),
            (Words{"k converted to f32", "v converted to f32", "o converted to bf16"}));
  const auto& attention = std::get<AttentionProblem>(stages.steps[2]);
  for (OperandId id : {attention.structure.k, attention.structure.v})
    EXPECT_EQ(attention.structure.type(id).storage, s.type(s.k).storage);
  for (size_t n : {0, 1}) {
    const CopyStep& copy = copy_at(stages, n);
    for (OperandId id : {copy.x, copy.y}) EXPECT_FALSE(copy.types.type(id).storage.is_paged());
  }
}

TEST(LegalStages, WriteRaggedResultsUpToTheirLengths) {
  AttentionBackwardProblem problem = backward_of({.features = {Feature::ragged}});
  AttentionStructure& forward = problem.structure.forward;
  type_of(forward, problem.structure.d_k) = DataType::f32;
  const Stages stages = *legal_stages(problem, Rows::as_they_lie);
  EXPECT_EQ(words_of(stages), (Words{"dQ converted to bf16", "dV converted to bf16"}));
  EXPECT_EQ(copy_at(stages, 1).lengths, forward.q_lengths);
  EXPECT_EQ(copy_at(stages, 2).lengths, forward.kv_lengths);
}

// Rows -------------------------------------------------------------------------------------------

TEST(LegalStages, PadHeadDimsWithZerosAndCutResults) {
  const AttentionBackwardProblem problem = backward_of({.qk_dim = 36, .v_dim = 64});
  const Stages stages = *legal_stages(problem, Rows::for_copy_engine);
  EXPECT_EQ(words_of(stages),
            (Words{"q padded from 36 to 40 columns", "k padded from 36 to 40 columns",
                   "dQ cut from 40 to 36 columns", "dK cut from 40 to 36 columns"}));
  const auto& attention = std::get<AttentionBackwardProblem>(stages.steps[2]);
  EXPECT_EQ(attention.structure.forward.qk_head_dim, 40);
  EXPECT_EQ(attention.structure.forward.v_head_dim, 64);
  EXPECT_EQ(attention.sizes.layout(attention.structure.d_q).dims, (Dims{2, 8, 512, 40}));
  EXPECT_FALSE(legal_stages(attention, Rows::for_copy_engine));
  EXPECT_EQ(
      kernels_of(problem, "sm_90a"),
      (Words{"copy_rows", "copy_rows", "attention_backward_prepare", "attention_backward_main",
             "attention_backward_finish", "copy_rows", "copy_rows"}));
  EXPECT_EQ(kernels_of(problem, "sm_80"),
            (Words{"copy_rows", "copy_rows", "attention_backward_delta", "attention_backward_keys",
                   "attention_backward_queries", "copy_rows", "copy_rows"}));
}

/// With keys and values of the first batch entry for all of them.
AttentionProblem shared_keys(int64_t length) {
  AttentionProblem problem = forward_of({.length = length});
  for (OperandId id : {problem.structure.k, problem.structure.v})
    problem.sizes.layout(id).strides[0] = 0;
  return problem;
}

TEST(LegalStages, CopySharedKeysForHoppersKernelsAlone) {
  const AttentionProblem problem = shared_keys(512);
  EXPECT_EQ(words_of(*legal_stages(problem, Rows::for_copy_engine)),
            (Words{"k copied", "v copied"}));
  EXPECT_FALSE(legal_stages(problem, Rows::on_16_bytes));
  EXPECT_EQ(kernels_of(problem, "sm_90a"), (Words{"copy_rows", "copy_rows", "attention_forward"}));
  EXPECT_EQ(
      lowered(problem, "sm_90a")->description,
      "k copied, sm_90a; v copied, sm_90a; attention forward, Hopper kernel, 192 x 128 tiles, "
      "sm_90a");
  EXPECT_EQ(kernels_of(problem, "sm_80"), Words{"attention_forward"});
}

TEST(LegalStages, CopyNoRowsOfFewKeysOrQueries) {
  EXPECT_FALSE(legal_stages(shared_keys(255), Rows::for_copy_engine));
  EXPECT_TRUE(legal_stages(shared_keys(256), Rows::for_copy_engine));
  EXPECT_EQ(kernels_of(forward_of({.qk_dim = 36, .v_dim = 36, .length = 200}), "sm_90a"),
            Words{"attention_forward"});
  AttentionBackwardProblem backward = backward_of({.qk_dim = 36, .v_dim = 36});
  backward.sizes.q_length = 64;
  EXPECT_FALSE(legal_stages(backward, Rows::on_16_bytes));
}

TEST(LegalStages, CopyNothingForNobody) {
  for (int dim : {0, 1, 2}) {
    AttentionProblem problem = shared_keys(512);
    AttentionStructure& s = problem.structure;
    problem::AttentionSizes& sizes = problem.sizes;
    (dim == 0 ? sizes.batch : dim == 1 ? sizes.q_heads : sizes.q_length) = 0;
    for (OperandId id : {s.q, s.o, s.stats}) sizes.layout(id).dims[dim] = 0;
    if (dim == 0)
      for (OperandId id : {s.k, s.v}) sizes.layout(id).dims[dim] = 0;
    EXPECT_FALSE(legal_stages(problem, Rows::for_copy_engine)) << dim;
    for (const char* architecture : {"sm_80", "sm_90a"}) {
      const Result<Lowering> lowering = lowered(problem, architecture);
      EXPECT_TRUE(lowering.is_ok()) << dim << ": " << lowering.status().message();
    }
  }
}

TEST(LegalStages, PadForTheDecodeKernel) {
  AttentionProblem problem = forward_of({.qk_dim = 36, .v_dim = 36});
  const AttentionStructure& s = problem.structure;
  problem.sizes.q_length = 1;
  for (OperandId id : {s.q, s.o, s.stats}) problem.sizes.layout(id).dims[2] = 1;
  for (const char* architecture : {"sm_80", "sm_90a"})
    EXPECT_EQ(kernels_of(problem, architecture),
              (Words{"copy_rows", "copy_rows", "copy_rows", "attention_decode", "copy_rows"}));
}

TEST(LegalStages, KeepRaggedQueriesAndOutputsTogether) {
  AttentionProblem problem = forward_of({.features = {Feature::ragged}});
  problem.sizes.layout(problem.structure.q).strides[2] += 4;
  const Stages stages = *legal_stages(problem, Rows::for_copy_engine);
  EXPECT_EQ(words_of(stages), (Words{"q copied", "o copied"}));
  EXPECT_EQ(copy_at(stages, 2).lengths, problem.structure.q_lengths);
  const auto& attention = std::get<AttentionProblem>(stages.steps[1]);
  EXPECT_FALSE(legal_stages(attention, Rows::for_copy_engine));
  EXPECT_EQ(kernels_of(problem, "sm_90a"),
            (Words{"copy_rows", "attention_forward", "sequence_maps", "copy_rows"}));
}

}  // namespace
}  // namespace heddle::engine::cuda
