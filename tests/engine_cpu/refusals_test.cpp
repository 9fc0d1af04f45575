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

TEST(Refusals, ForwardNamesWhatBreaksTheContract) {
  const Refusal refusals[] = {
      {"q is f64, but the CPU engine takes f32, bf16, f16",
       [](auto& p) { p.structure.operands[0].dtype = DataType::f64; }},
      {"q has dims [2, 4, 9, 8], but must have [2, 4, 8, 8]",
       [](auto& p) { p.sizes.layouts[0].dims[2] = 9; }},
      {"must each divide that of query heads (4)", [](auto& p) { p.sizes.k_heads = 3; }},
      {"o is required", [](auto& p) { p.structure.o = problem::kAbsent; }},
      {"q is operand 99, of only 5", [](auto& p) { p.structure.q = 99; }},
      {"q_length is -1, but must not be negative", [](auto& p) { p.sizes.q_length = -1; }},
      {"above the CPU engine's limit", [](auto& p) { p.sizes.kv_length = int64_t{1} << 50; }},
      {"neither of which may be negative", [](auto& p) { p.sizes.layouts[1].strides[2] = -8; }},
      {"spans more than 2^59", [](auto& p) { p.sizes.layouts[1].strides[2] = int64_t{1} << 60; }},
      {"would be written on top of itself", [](auto& p) { p.sizes.layouts[3].strides[2] = 0; }},
      {"5 operands but 4 layouts", [](auto& p) { p.sizes.layouts.pop_back(); }},
      {"1 key bounds but 0 bound constants", [](auto& p) { p.sizes.bound_constants.clear(); }},
      {"no node 3 for its root", [](auto& p) { p.structure.score.root = 3; }},
      {"only derivatives may",
       [](auto& p) { p.structure.score.nodes[0].op = problem::ScoreOp::gradient; }},
      {"v_head_dim is 0", [](auto& p) { p.structure.v_head_dim = 0; }},
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
