// Random programs, fused and run on the CPU engine, against the definition of the unfused graph.
#include <gtest/gtest.h>

#include "engine/cpu/engine.h"
#include "support/attention_programs.h"
#include "support/compare.h"
#include "support/part.h"
#include "support/run.h"

namespace heddle::testing {
namespace {

AttentionOptions with_rope() {
  AttentionOptions options;
  options.rope = 0.6;
  return options;
}

TEST(FusedPrograms, ForwardMatchesTheUnfusedDefinition) {
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    if (!part().has(seed)) continue;
    Random random(seed);
    Program program = random_sdpa(random, with_rope());
    const Status status = run(program, engine::cpu_engine());
    ASSERT_TRUE(status.is_ok()) << status.message() << ", seed " << seed;
    ASSERT_TRUE(matches_reference(program, io_dtype(program)));
  }
}

TEST(FusedPrograms, BackwardMatchesTheUnfusedDefinition) {
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    if (!part().has(seed)) continue;
    Random random(seed);
    Program program = random_sdpa_backward(random, with_rope());
    const Status status = run(program, engine::cpu_engine());
    ASSERT_TRUE(status.is_ok()) << status.message() << ", seed " << seed;
    ASSERT_TRUE(matches_reference(program, io_dtype(program)));
  }
}

// A training step's graph: the forward's rotated Q and K, O and Stats pass to the backward without
// being bound; each rotation happens once.
TEST(FusedPrograms, ForwardAndBackwardInOneGraph) {
  for (const bool saves_rotated : {false, true}) {
    Random random(11);
    Program program;
    program.graph.io_dtype = DataType::bf16;
    program.graph.intermediate_dtype = DataType::f32;
    const auto tensor = [&](const char* name, const Dims& dims, bool is_virtual, bool is_input) {
      const graph::TensorId id = program.add(name, DataType::bf16, dims);
      program.graph[id].is_virtual = is_virtual;
      if (!is_virtual) program.allocate(id);
      if (is_input) program.fill(id, [&] { return random.normal(); });
      return id;
    };
    const Dims query{2, 4, 33, 32}, key{2, 2, 40, 32};
    const auto q = tensor("q", query, false, true), k = tensor("k", key, false, true),
               v = tensor("v", key, false, true), d_o = tensor("dO", query, false, true),
               o = tensor("o", query, false, false), d_q = tensor("dQ", query, false, false),
               d_k = tensor("dK", key, false, false), d_v = tensor("dV", key, false, false),
               q_rotated = tensor("q_rotated", query, !saves_rotated, false),
               k_rotated = tensor("k_rotated", key, !saves_rotated, false),
               d_q_rotated = tensor("dQ_rotated", query, true, false),
               d_k_rotated = tensor("dK_rotated", key, true, false);
    const auto freqs = program.add("freqs", DataType::f32, {40, 1, 1, 32});
    program.allocate(freqs);
    program.fill(freqs, [&] { return random.uniform(-40, 40); });
    const auto stats = program.add("stats", DataType::f32, {2, 4, 33, 1});
    program.graph[stats].is_virtual = true;
    graph::AttentionAttributes a;
    a.attn_scale = 0.17;
    a.right_bound = 0;
    graph::Sdpa sdpa{.q = q_rotated, .k = k_rotated, .v = v, .o = o, .stats = stats};
    sdpa.attention = a;
    graph::SdpaBackward back{
        .q = q_rotated, .k = k_rotated, .v = v, .o = o, .d_o = d_o, .stats = stats};
    back.d_q = d_q_rotated, back.d_k = d_k_rotated, back.d_v = d_v, back.attention = a;
    program.graph.nodes = {
        {"rope_q", graph::Rope{.x = q, .freqs = freqs, .y = q_rotated}},
        {"rope_k", graph::Rope{.x = k, .freqs = freqs, .y = k_rotated}},
        {"sdpa", sdpa},
        {"sdpa_backward", back},
        {"rope_dq", graph::Rope{.x = d_q_rotated, .freqs = freqs, .y = d_q, .backward = true}},
        {"rope_dk", graph::Rope{.x = d_k_rotated, .freqs = freqs, .y = d_k, .backward = true}}};
    const Status status = run(program, engine::cpu_engine());
    ASSERT_TRUE(status.is_ok()) << status.message();
    const fusion::Schedule schedule = fusion::fuse(program.graph).value();
    ASSERT_EQ(schedule.steps.size(), 2u);
    EXPECT_EQ(schedule.intermediates.size(), saves_rotated ? 1u : 3u);
    EXPECT_TRUE(matches_reference(program, DataType::bf16));
  }
}

}  // namespace
}  // namespace heddle::testing
