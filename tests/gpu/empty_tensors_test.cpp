// Tensors without elements, which no graph has but a caller of the engine may: outputs that exist
// hold what the definition says of rows without keys, and keys without rows.
#include <gtest/gtest.h>

#include <cmath>

#include "core/rounding.h"
#include "engine/cuda/engine.h"
#include "gpu/device_memory.h"
#include "kernels/cases.h"
#include "kernels/streaming_cases.h"

namespace heddle::testing {
namespace {

using engine::cuda::backward_of;
using engine::cuda::Case;
using engine::cuda::Feature;
using engine::cuda::forward_of;
using problem::AttentionSizes;
using problem::AttentionStructure;
using problem::OperandId;

struct Outcome {
  Status status;
  std::vector<std::vector<unsigned char>> results;  ///< of each wanted operand
};

Outcome execute(const DeviceContext& context, const problem::Problem& problem,
                const std::vector<problem::OperandType>& types,
                const std::vector<problem::OperandLayout>& layouts,
                const std::vector<OperandId>& wanted) {
  const auto plan = engine::cuda::cuda_engine().plan(problem);
  if (!plan.is_ok()) return {plan.status(), {}};
  std::vector<std::unique_ptr<DeviceBlock>> blocks;
  std::vector<void*> buffers;
  std::vector<int64_t> bytes;
  for (size_t n = 0; n < types.size(); ++n) {
    bytes.push_back(*element_count(layouts[n].dims) * size_of(types[n].dtype));
    blocks.push_back(std::make_unique<DeviceBlock>(bytes.back()));
    buffers.push_back(bytes.back() > 0 ? blocks.back()->pointer() : nullptr);
  }
  const DeviceBlock workspace((*plan)->workspace_bytes());
  Outcome outcome{(*plan)->execute(buffers, workspace.pointer(), nullptr), {}};
  if (outcome.status.is_ok()) outcome.status = context.synchronise();
  for (OperandId id : wanted) {
    const auto at = static_cast<size_t>(id);
    std::vector<unsigned char> result(static_cast<size_t>(bytes[at]));
    if (outcome.status.is_ok() && !result.empty())
      outcome.status = blocks[at]->copy_to(result.data(), bytes[at]);
    outcome.results.push_back(std::move(result));
  }
  return outcome;
}

Outcome execute(const DeviceContext& context, const problem::Problem& problem,
                const AttentionStructure& structure, const AttentionSizes& sizes,
                const std::vector<OperandId>& wanted) {
  return execute(context, problem, structure.operands, sizes.layouts, wanted);
}

bool all_zero(const std::vector<unsigned char>& bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](unsigned char byte) { return byte == 0; });
}

/// Sets the rows of queries or keys to none, or the batch.
void empty(const AttentionStructure& structure, AttentionSizes& sizes,
           const std::vector<OperandId>& of, int dim) {
  for (OperandId id : of) {
    if (id != problem::kAbsent) sizes.layouts[static_cast<size_t>(id)].dims[dim] = 0;
  }
  if (dim == 0) {
    sizes.batch = 0;
  } else if (std::find(of.begin(), of.end(), structure.k) != of.end()) {
    sizes.kv_length = 0;
  } else {
    sizes.q_length = 0;
  }
  if (structure.block_mask != problem::kAbsent)
    sizes.layout(structure.block_mask).dims = {sizes.batch, sizes.q_heads,
                                               divide_up(sizes.q_length, int64_t{128}),
                                               divide_up(sizes.kv_length, int64_t{8 * 128})};
}

class EmptyTensors : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override { ASSERT_TRUE(context_.status().is_ok()) << context_.status().message(); }
  /// A case that Hopper's kernels take, or one that the general ones do.
  static Case some_case() {
    return {.features = GetParam() ? std::vector<Feature>{Feature::causal}
                                   : std::vector<Feature>{Feature::causal, Feature::block_mask}};
  }
  DeviceContext context_;
};

TEST_P(EmptyTensors, RowsWithoutKeysAreZeroInTheForward) {
  problem::AttentionProblem problem = forward_of(some_case());
  const AttentionStructure& s = problem.structure;
  empty(s, problem.sizes, {s.k, s.v}, 2);
  const Outcome outcome = execute(context_, problem, s, problem.sizes, {s.o, s.stats});
  ASSERT_TRUE(outcome.status.is_ok()) << outcome.status.message();
  EXPECT_TRUE(all_zero(outcome.results[0]));
  const auto* stats = reinterpret_cast<const float*>(outcome.results[1].data());
  for (size_t n = 0; n < outcome.results[1].size() / sizeof(float); ++n)
    ASSERT_EQ(stats[n], -INFINITY) << n;
}

TEST_P(EmptyTensors, NoQueriesAndNoBatchWriteNothingInTheForward) {
  for (int dim : {0, 2}) {
    problem::AttentionProblem problem = forward_of(some_case());
    const AttentionStructure& s = problem.structure;
    std::vector<OperandId> emptied{s.q, s.o, s.stats};
    if (dim == 0) emptied.insert(emptied.end(), {s.k, s.v});
    empty(s, problem.sizes, emptied, dim);
    const Outcome outcome = execute(context_, problem, s, problem.sizes, {});
    EXPECT_TRUE(outcome.status.is_ok()) << outcome.status.message();
  }
}

TEST_P(EmptyTensors, GradientsWithoutAnotherSideAreZero) {
  for (bool keys : {true, false}) {
    problem::AttentionBackwardProblem problem = backward_of(some_case());
    const problem::AttentionBackwardStructure& s = problem.structure;
    const AttentionStructure& f = s.forward;
    empty(f, problem.sizes,
          keys ? std::vector{f.k, f.v, s.d_k, s.d_v} : std::vector{f.q, f.o, f.stats, s.d_o, s.d_q},
          2);
    const Outcome outcome = execute(context_, problem, f, problem.sizes, {s.d_q, s.d_k, s.d_v});
    ASSERT_TRUE(outcome.status.is_ok()) << outcome.status.message();
    for (const auto& gradient : outcome.results) EXPECT_TRUE(all_zero(gradient));
  }
}

class EmptyRows : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(context_.status().is_ok()) << context_.status().message(); }
  DeviceContext context_;
};

// Of RMSNorm and LayerNorm: few columns, which registers hold, and as many as are read again.
constexpr std::pair<int64_t, bool> kNorms[] = {
    {64, false}, {64, true}, {40000, false}, {40000, true}};

TEST_F(EmptyRows, OfANormAreNoWork) {
  for (const auto& [columns, centred] : kNorms) {
    const problem::NormProblem p =
        engine::cuda::norm_of({.columns = columns, .rows = 0, .centred = centred});
    const Outcome outcome = execute(context_, p, p.structure.operands, p.sizes.layouts, {});
    EXPECT_TRUE(outcome.status.is_ok()) << outcome.status.message();
  }
}

TEST_F(EmptyRows, OfANormSumToZeroGradients) {
  for (const auto& [columns, centred] : kNorms) {
    const problem::NormBackwardProblem p = engine::cuda::norm_backward_of(
        {.columns = columns, .rows = 0, .bias = true, .centred = centred});
    const Outcome outcome = execute(context_, p, p.structure.operands, p.sizes.layouts,
                                    {p.structure.d_weight, p.structure.d_bias});
    ASSERT_TRUE(outcome.status.is_ok()) << outcome.status.message();
    for (const auto& gradient : outcome.results) EXPECT_TRUE(all_zero(gradient)) << columns;
  }
}

TEST_F(EmptyRows, OfARopeAreNoWork) {
  for (int dim : {0, 1, 2}) {
    problem::RopeProblem p = engine::cuda::rope_of({});
    for (OperandId id : {p.structure.x, p.structure.y}) p.sizes.layout(id).dims[dim] = 0;
    const Outcome outcome = execute(context_, p, p.structure.operands, p.sizes.layouts, {});
    EXPECT_TRUE(outcome.status.is_ok()) << outcome.status.message();
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, EmptyTensors, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Hopper" : "General"; });

}  // namespace
}  // namespace heddle::testing
