// What the CPU engine does not run, it declines in a sentence that names what was given.
#include <gtest/gtest.h>

#include <functional>

#include "engine/cpu/engine.h"
#include "engine_cpu/problems.h"

namespace heddle::testing {
namespace {

using problem::AttentionProblem;

struct Refusal {
  const char* sentence;  ///< a part of it
  std::function<void(AttentionProblem&)> breaks;
};

TEST(Refusals, ForwardNamesWhatTheEngineDoesNotRun) {
  const Refusal refusals[] = {
      {"q is f64 and k f32, but the CPU engine computes in f64 where q, k, v, o, their gradients "
       "and rows' statistics are all f64",
       [](auto& p) { p.structure.operands[0].dtype = DataType::f64; }},
      {"kv_length is 1125899906842624, above the CPU engine's limit of 2147483647",
       [](auto& p) {
         p.sizes.kv_length = int64_t{1} << 50;
         for (int id : {1, 2}) {
           p.sizes.layouts[id].dims[2] = p.sizes.kv_length;
           p.sizes.layouts[id].strides = {0, 0, 8, 1};
         }
       }},
      {"o is required", [](auto& p) { p.structure.o = problem::kAbsent; }},
  };
  for (const Refusal& refusal : refusals) {
    AttentionProblem p = causal_attention(DataType::f32, 2, 4, 2, 8, 8);
    ASSERT_TRUE(engine::cpu_engine().plan(p).is_ok());
    refusal.breaks(p);
    const auto plan = engine::cpu_engine().plan(p);
    ASSERT_FALSE(plan.is_ok()) << refusal.sentence;
    EXPECT_NE(plan.status().message().find(refusal.sentence), std::string::npos)
        << plan.status().message();
  }
}

TEST(Refusals, ExecuteChecksItsBuffers) {
  const AttentionProblem p = causal_attention(DataType::f32, 1, 1, 1, 8, 8);
  const auto plan = engine::cpu_engine().plan(p);
  ASSERT_TRUE(plan.is_ok());
  alignas(64) static float memory[1024];
  std::vector<char> bytes(static_cast<size_t>((*plan)->workspace_bytes()) + 64);
  void* workspace =
      reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(bytes.data()) + 63) / 64 * 64);
  std::vector<void*> buffers{memory, memory + 64, memory + 128, memory + 192, memory + 256};
  EXPECT_TRUE((*plan)->execute(buffers, workspace, nullptr).is_ok());
  EXPECT_NE((*plan)->execute(buffers, nullptr, nullptr).message().find("workspace is null"),
            std::string::npos);
  buffers[2] = nullptr;
  EXPECT_NE((*plan)->execute(buffers, workspace, nullptr).message().find("operand 2"),
            std::string::npos);
  buffers[2] = reinterpret_cast<char*>(memory) + 513;
  EXPECT_NE((*plan)->execute(buffers, workspace, nullptr).message().find("not aligned"),
            std::string::npos);
  buffers.pop_back();
  EXPECT_NE((*plan)->execute(buffers, workspace, nullptr).message().find("4 buffers"),
            std::string::npos);
}

}  // namespace
}  // namespace heddle::testing
