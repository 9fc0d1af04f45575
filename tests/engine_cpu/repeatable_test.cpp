// The same inputs give the same bits, whatever the workspace held and whichever core did what.
#include <gtest/gtest.h>

#include <cstring>

#include "engine/cpu/engine.h"
#include "engine_cpu/levels.h"
#include "engine_cpu/problems.h"
#include "support/program.h"
#include "support/random.h"

namespace heddle::testing {
namespace {

struct Memory {
  std::vector<Block> blocks;
  std::vector<void*> buffers;
};

Memory memory_of(const std::vector<problem::OperandType>& types,
                 const std::vector<problem::OperandLayout>& layouts, uint64_t seed) {
  Random random(seed);
  Memory m;
  for (size_t n = 0; n < types.size(); ++n) {
    const int64_t count = *element_count(layouts[n].dims);
    m.blocks.emplace_back(count * size_of(types[n].dtype));
    for (int64_t i = 0; i < count; ++i)
      store(types[n].dtype, m.blocks.back().data(), i, random.normal());
  }
  for (Block& block : m.blocks) m.buffers.push_back(block.data());
  return m;
}

/// Runs the problem twice from differently filled workspaces and compares every operand's bytes.
void expect_repeatable(const engine::Problem& problem,
                       const std::vector<problem::OperandType>& types,
                       const std::vector<problem::OperandLayout>& layouts) {
  const auto plan = engine::cpu_engine().plan(problem);
  ASSERT_TRUE(plan.is_ok()) << plan.status().message();
  std::vector<Memory> runs;
  for (int run = 0; run < 2; ++run) {
    Memory m = memory_of(types, layouts, 7);
    Block workspace((*plan)->workspace_bytes());
    std::memset(workspace.data(), run == 0 ? 0 : 0xFF,
                static_cast<size_t>((*plan)->workspace_bytes()));
    const Status status = (*plan)->execute(m.buffers, workspace.data(), nullptr);
    ASSERT_TRUE(status.is_ok()) << status.message();
    runs.push_back(std::move(m));
  }
  for (size_t n = 0; n < types.size(); ++n) {
    EXPECT_EQ(std::memcmp(runs[0].blocks[n].data(), runs[1].blocks[n].data(),
                          static_cast<size_t>(runs[0].blocks[n].size())),
              0)
        << "operand " << n << ", " << (*plan)->description();
  }
}

TEST(Repeatable, ForwardAndBackwardBitForBit) {
  for (engine::cpu::Isa isa : available_levels()) {
    const ForcedLevel level(isa);
    for (DataType dtype : {DataType::f32, DataType::bf16, DataType::f16}) {
      const auto forward = causal_attention(dtype, 1, 6, 2, 390, 40);
      expect_repeatable(forward, forward.structure.operands, forward.sizes.layouts);
      const auto backward = causal_attention_backward(dtype, 1, 3, 1, 700, 40);
      expect_repeatable(backward, backward.structure.forward.operands, backward.sizes.layouts);
    }
  }
}

}  // namespace
}  // namespace heddle::testing
