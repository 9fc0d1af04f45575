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
  p.operands = {{DataType::bf16}, {DataType::f32}, {DataType::bf16}};
  p.layouts = {{{6, 40}, {40, 1}}, {{1, 40}, {0, 1}}, {{6, 40}, {40, 1}}};
  p.x = 0, p.weight = 1, p.y = 2;
  return p;
}

RopeProblem rope() {
  RopeProblem p;
  p.operands = {{DataType::f16}, {DataType::f16}, {DataType::f32}};
  p.layouts = {
      {{1, 2, 5, 8}, {0, 40, 8, 1}}, {{1, 2, 5, 8}, {0, 40, 8, 1}}, {{5, 1, 1, 8}, {8, 0, 0, 1}}};
  p.x = 0, p.y = 1, p.rope.angles = 2, p.rope.rope_dim = 8;
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
  p.x = kAbsent;
  EXPECT_SAYS(p, "x is operand -1");
  p = norm();
  p.normalised_dims = 3;
  EXPECT_SAYS(p, "3 dims are normalised, of the 2");
  p = norm();
  p.operands[0].dtype = DataType::i32;
  EXPECT_SAYS(p, "x is i32");
  p = norm();
  p.layouts[1].dims[1] = 39;
  EXPECT_SAYS(p, "weight has dims [1, 39]");
  p = norm();
  p.layouts[2].strides[0] = 20;
  EXPECT_SAYS(p, "elements overlap");
  p = norm();
  p.layouts[0].strides[0] = int64_t{1} << 62;
  EXPECT_SAYS(p, "span more than 64 bits");
  p = norm();
  p.layouts = {{{6, 4, 10}, {80, 20, 1}}, {{1, 4, 10}, {0, 10, 1}}, {{6, 4, 10}, {40, 10, 1}}};
  p.normalised_dims = 2;
  EXPECT_SAYS(p, "one stride along the 2 normalised dims");
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
  p.rope.rope_dim = 7;
  EXPECT_SAYS(p, "rope_dim is 7");
  p = rope();
  p.rope.cosines = p.rope.sines = 2;
  EXPECT_SAYS(p, "and not both");
  p = rope();
  p.layouts[2].dims[0] = 4;
  EXPECT_SAYS(p, "angles has dims [4, 1, 1, 8]");
  p = rope();
  p.layouts[1].dims[2] = 4;
  EXPECT_SAYS(p, "y has dims [1, 2, 4, 8]");
  p = rope();
  p.layouts[1].strides[1] = 8;
  EXPECT_SAYS(p, "elements overlap");
  p = rope();
  p.scale = INFINITY;
  EXPECT_SAYS(p, "expected a finite number");
  p = rope();
  p.lengths = 2;
  EXPECT_SAYS(p, "within an attention alone");
}

// The weight gradient sums over rows in parts that depend on the rows alone.
TEST(NormPlan, TheWeightGradientHasTheSameBitsOnAnyNumberOfWorkers) {
  const int64_t rows = 1000, width = 96;
  NormBackwardProblem p;
  p.operands = {
      {DataType::f32}, {DataType::f32}, {DataType::f32}, {DataType::f32}, {DataType::f32}};
  const Dims whole{rows, width}, dense{width, 1}, column{1, width};
  p.layouts = {
      {whole, dense}, {whole, dense}, {column, {0, 1}}, {{rows, 1}, {1, 0}}, {column, {0, 1}}};
  p.dy = 0, p.x = 1, p.weight = 2, p.inv_rms = 3, p.d_weight = 4;
  Random random(3);
  std::vector<Block> blocks;
  for (const auto& layout : p.layouts) {
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

}  // namespace
}  // namespace heddle::testing
