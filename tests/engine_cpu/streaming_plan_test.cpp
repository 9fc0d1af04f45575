// Norm and rope plans: the same bits in every run and on any number of workers, and each refusal in
// words.
#include <gtest/gtest.h>
#include <tbb/task_arena.h>

#include <cstring>

#include "engine/cpu/engine.h"
#include "support/program.h"
#include "support/run.h"

namespace heddle::testing {
namespace {

using problem::kAbsent;
using problem::NormBackwardProblem;
using problem::NormProblem;
using problem::RopeProblem;

NormProblem norm() {
  NormProblem p;
  p.structure.operands = {{DataType::bf16}, {DataType::f32}, {DataType::bf16}};
  p.sizes.layouts = {{{6, 40}, {40, 1}}, {{1, 40}, {0, 1}}, {{6, 40}, {40, 1}}};
  p.structure.x = 0, p.structure.weight = 1, p.structure.y = 2;
  return p;
}

RopeProblem rope() {
  RopeProblem p;
  p.structure.operands = {{DataType::f16}, {DataType::f16}, {DataType::f32}};
  p.sizes.layouts = {
      {{1, 2, 5, 8}, {0, 40, 8, 1}}, {{1, 2, 5, 8}, {0, 40, 8, 1}}, {{5, 1, 1, 8}, {8, 0, 0, 1}}};
  p.structure.x = 0, p.structure.y = 1, p.structure.rope.angles = 2, p.structure.rope.rope_dim = 8;
  return p;
}

template <class P>
std::string refusal(const P& problem) {
  const auto plan = engine::cpu_engine().plan(problem);
  return plan ? "" : plan.status().message();
}

#define EXPECT_SAYS(problem, words) \
  EXPECT_NE(refusal(problem).find(words), std::string::npos) << refusal(problem)

TEST(NormPlan, RefusesInWords) {
  EXPECT_EQ(refusal(norm()), "");
  NormProblem p = norm();
  p.structure.x = kAbsent;
  EXPECT_SAYS(p, "x is required");
  p = norm();
  p.structure.operands[0].dtype = DataType::i32;
  EXPECT_SAYS(p, "x is i32");
  p = norm();
  p.sizes.layouts = {
      {{6, 4, 10}, {80, 20, 1}}, {{1, 4, 10}, {0, 10, 1}}, {{6, 4, 10}, {40, 10, 1}}};
  p.structure.normalised_dims = 2;
  EXPECT_SAYS(p, "one stride along the 2 normalised dims");
  // A weight that is broadcast along the inner dim, or the outer one, has no one stride; along both
  // it has 0.
  for (const Dims& strides : {Dims{0, 1, 0}, Dims{0, 0, 1}}) {
    p.sizes.layouts = {{{6, 4, 10}, {40, 10, 1}}, {{1, 4, 10}, strides}, {{6, 4, 10}, {40, 10, 1}}};
    EXPECT_SAYS(p, "one stride along the 2 normalised dims");
  }
  p.sizes.layouts[1].strides = {0, 0, 0};
  EXPECT_EQ(refusal(p), "");
  p = norm();
  p.structure.centred = true;
  EXPECT_EQ(refusal(p), "");
  p.structure.operands.push_back({DataType::i32});
  p.sizes.layouts.push_back({{6, 1}, {1, 0}});
  p.structure.mean = 3;
  EXPECT_SAYS(p, "layer_norm: mean is i32, but the CPU engine takes");
}

TEST(NormPlan, RefusesBuffersInWords) {
  const auto plan = engine::cpu_engine().plan(norm()).value();
  Block x(480), weight(160), y(480), workspace(plan->workspace_bytes());
  void* missing[] = {x.data(), weight.data(), nullptr};
  EXPECT_NE(plan->execute(missing, workspace.data(), nullptr).message().find("y has no buffer"),
            std::string::npos);
  void* crooked[] = {x.data() + 1, weight.data(), y.data()};
  EXPECT_NE(plan->execute(crooked, workspace.data(), nullptr).message().find("not aligned"),
            std::string::npos);
  void* few[] = {x.data()};
  EXPECT_NE(plan->execute(few, workspace.data(), nullptr).message().find("1 buffers were given"),
            std::string::npos);
}

TEST(RopePlan, RefusesInWords) {
  EXPECT_EQ(refusal(rope()), "");
  RopeProblem p = rope();
  p.structure.rope.rope_dim = 7;
  EXPECT_SAYS(p, "rope_dim is 7");
  p = rope();
  p.structure.operands[2].dtype = DataType::i32;
  EXPECT_SAYS(p, "angles is i32, but the CPU engine takes");
}

// The weight gradient sums over rows in parts that depend on the rows alone.
void expect_same_bits_on_any_number_of_workers(bool centred) {
  const int64_t rows = 1000, width = 96;
  NormBackwardProblem p;
  p.structure.centred = centred;
  p.structure.operands = {
      {DataType::f32}, {DataType::f32}, {DataType::f32}, {DataType::f32}, {DataType::f32}};
  const Dims whole{rows, width}, dense{width, 1}, column{1, width};
  p.sizes.layouts = {
      {whole, dense}, {whole, dense}, {column, {0, 1}}, {{rows, 1}, {1, 0}}, {column, {0, 1}}};
  p.structure.dy = 0, p.structure.x = 1, p.structure.weight = 2, p.structure.inv_rms = 3,
  p.structure.d_weight = 4;
  if (centred) p.structure.mean = p.structure.inv_rms;
  Random random(3);
  std::vector<Block> blocks;
  for (const auto& layout : p.sizes.layouts) {
    const int64_t count = *element_count(layout.dims);
    Block& block = blocks.emplace_back(count * 4);
    for (int64_t n = 0; n < count; ++n) store(DataType::f32, block.data(), n, random.normal());
  }
  std::vector<Block> results;
  for (int workers : {1, 2, 3, 5}) {
    tbb::task_arena arena(workers);
    Block result(width * 4);
    arena.execute([&] {
      const auto plan = engine::cpu_engine().plan(p).value();
      Block workspace(plan->workspace_bytes());
      std::vector<void*> buffers;
      for (Block& block : blocks) buffers.push_back(block.data());
      buffers[4] = result.data();
      EXPECT_TRUE(plan->execute(buffers, workspace.data(), nullptr).is_ok());
    });
    results.push_back(result);
  }
  for (const Block& result : results) {
    EXPECT_EQ(std::memcmp(result.data(), results[0].data(), static_cast<size_t>(result.size())), 0);
  }
}

TEST(NormPlan, TheWeightGradientHasTheSameBitsOnAnyNumberOfWorkers) {
  expect_same_bits_on_any_number_of_workers(false);
  expect_same_bits_on_any_number_of_workers(true);
}

// A problem may have them, if no graph does: rows of one number are their bias, no rows nothing.
TEST(NormPlan, OfOneColumnAndOfNoRows) {
  for (const int64_t rows : {0, 3}) {
    NormProblem p;
    p.structure.centred = true;
    p.structure.operands.assign(5, {DataType::f32});
    const Dims whole{rows, 1}, strides{1, 0};
    p.sizes.layouts = {
        {whole, strides}, {{1, 1}, {0, 0}}, {{1, 1}, {0, 0}}, {whole, strides}, {whole, strides}};
    p.structure.x = 0, p.structure.weight = 1, p.structure.bias = 2, p.structure.y = 3;
    p.structure.mean = 4;
    const auto plan = engine::cpu_engine().plan(p);
    ASSERT_TRUE(plan.is_ok()) << plan.status().message();
    float x[] = {1e30F, -3, 7}, weight = 2, bias = 5, y[] = {-1, -1, -1}, mean[] = {-1, -1, -1};
    Block workspace((*plan)->workspace_bytes());
    void* buffers[] = {x, &weight, &bias, y, mean};
    const Status status = (*plan)->execute(buffers, workspace.data(), nullptr);
    ASSERT_TRUE(status.is_ok()) << status.message();
    for (int64_t row = 0; row < 3; ++row) {
      EXPECT_EQ(y[row], rows > 0 ? bias : -1);
      EXPECT_EQ(mean[row], rows > 0 ? x[row] : -1);
    }
  }
}

}  // namespace
}  // namespace heddle::testing
