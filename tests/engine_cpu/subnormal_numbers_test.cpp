// Threads that take subnormal numbers of f32 for 0, as XLA's do: what is read from codes is none of
// them, and workers are as the thread is that has work for them, whoever had some before.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "engine/cpu/engine.h"
#include "engine/cpu/parallel.h"
#include "engine_cpu/levels.h"
#include "engine_cpu/problems.h"
#include "engine_cpu/subnormal_mode.h"
#include "support/program.h"

namespace heddle::testing {
namespace {

constexpr int64_t kEntries = 8, kColumns = 32;  // as many columns in all as there are codes

/// Attention of `rows` queries to one key: O is V.
problem::AttentionProblem attention_to_codes(int64_t rows) {
  problem::AttentionProblem p = causal_attention(DataType::f32, kEntries, 1, 1, rows, kColumns);
  problem::AttentionStructure& s = p.structure;
  const auto scale = static_cast<problem::OperandId>(s.operands.size());
  s.operands.push_back({DataType::f32});
  p.sizes.layouts.push_back(dense({1, 1, 1, 1}));
  for (problem::OperandId id : {s.k, s.v}) {
    s.type(id).dtype = DataType::f8e4m3;
    s.type(id).scales = {problem::Scales::Per::tensor, scale};
    p.sizes.layout(id) = dense({kEntries, 1, 1, kColumns});
  }
  p.sizes.kv_length = 1;
  return p;
}

TEST(SubnormalNumbers, CodesAreWhatTheyStandFor) {
  for (engine::cpu::Isa isa : available_levels()) {
    const ForcedLevel level(isa);
    for (int64_t rows : {1, 40}) {  // keys where they lie, and packed
      SCOPED_TRACE(std::string(engine::cpu::name(isa)) + ", rows " + std::to_string(rows));
      const problem::AttentionProblem p = attention_to_codes(rows);
      const auto plan = engine::cpu_engine().plan(p);
      ASSERT_TRUE(plan.is_ok()) << plan.status().message();
      std::vector<Block> blocks;
      std::vector<void*> buffers;
      for (size_t n = 0; n < p.sizes.layouts.size(); ++n) {
        const int64_t bytes =
            *element_count(p.sizes.layouts[n].dims) * size_of(p.structure.operands[n].dtype);
        blocks.emplace_back(bytes);
        std::memset(blocks.back().data(), 0, static_cast<size_t>(bytes));
        buffers.push_back(blocks.back().data());
      }
      const auto is_nan = [](int64_t code) { return code % 128 == 127; };
      std::array<float, 256> numbers{};
      for (int64_t code = 0; code < 256; ++code) {
        if (is_nan(code)) continue;
        static_cast<uint8_t*>(buffers[2])[code] = static_cast<uint8_t>(code);
        numbers[static_cast<size_t>(code)] = f8e4m3_to_float(static_cast<uint8_t>(code));
      }
      *static_cast<float*>(buffers[5]) = 1;
      Block workspace((*plan)->workspace_bytes());
      {
        const FlushedToZero flushed;
        const Status status = (*plan)->execute(buffers, workspace.data(), nullptr);
        ASSERT_TRUE(status.is_ok()) << status.message();
      }
      const auto* const o = static_cast<const float*>(buffers[3]);
      for (int64_t code = 0; code < 256; ++code)
        for (int64_t row = 0; row < rows; ++row)
          ASSERT_EQ(o[(code / kColumns * rows + row) * kColumns + code % kColumns],
                    numbers[static_cast<size_t>(code)])
              << "code " << code << ", row " << row;
    }
  }
}

TEST(SubnormalNumbers, AreToWorkersWhatTheyAreToTheCaller) {
  constexpr int kWorkers = 4, kTasks = 64;
  const auto seen = [] {
    std::array<uint64_t, kTasks> found{};
    engine::cpu::for_each_task(kTasks, kWorkers, [&](int64_t task, int) {
      found[static_cast<size_t>(task)] = float_control() & kSubnormalsAreZero;
    });
    return found;
  };
  std::array<uint64_t, kTasks> none{}, all{};
  all.fill(kSubnormalsAreZero);
  EXPECT_EQ(seen(), none);
  {
    const FlushedToZero flushed;
    EXPECT_EQ(seen(), all);
  }
  EXPECT_EQ(seen(), none);
}

}  // namespace
}  // namespace heddle::testing
