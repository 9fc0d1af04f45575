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

// K and V may be one tensor that each reads in its own way: codes with scales of their own, pages
// of a pool by tables of their own, beside queries that are it as well its first rows alone.
Program of_one_tensor(Random& random, const Dims& query, DataType type, const Dims& cache,
                      graph::Sdpa& op) {
  Program program;
  program.graph.io_dtype = DataType::f32;
  op.q = program.add("q", DataType::f32, query);
  op.k = op.v = program.add("keys and values", type, cache);
  op.o = program.add("o", DataType::f32, query);
  for (const auto id : {op.q, op.k, op.o}) program.allocate(id);
  program.fill(op.q, [&] { return random.normal(); });
  const bool codes = type == DataType::i8;
  program.fill(op.k, [&] { return codes ? random.integer(-100, 100) : random.normal(); });
  return program;
}

void expect_as_defined(Program& program, const graph::Sdpa& op) {
  program.graph.nodes = {{"sdpa", op}};
  const Status status = run(program, engine::cpu_engine());
  ASSERT_TRUE(status.is_ok()) << status.message();
  EXPECT_TRUE(matches_reference(program, DataType::f32));
}

TEST(FusedPrograms, KeysAndValuesAreCodesOfOneTensorWithScalesOfTheirOwn) {
  for (const int64_t rows : {1, 40}) {
    Random random(1);
    graph::Sdpa op;
    Program program = of_one_tensor(random, {2, 4, rows, 16}, DataType::i8, {2, 2, 50, 16}, op);
    op.k_scale = program.add("k_scale", DataType::f32, {1, 2, 1, 1});
    op.v_scale = program.add("v_scale", DataType::f32, {1, 1, 1, 16});
    for (const auto id : {op.k_scale, op.v_scale}) {
      program.allocate(id);
      program.fill(id, [&] { return random.uniform(0.01, 0.05); });
    }
    expect_as_defined(program, op);
  }
}

TEST(FusedPrograms, KeysAndValuesAreOtherPagesOfOnePool) {
  for (const int64_t rows : {1, 40}) {
    Random random(2);
    graph::Sdpa op;
    Program program = of_one_tensor(random, {1, 4, rows, 16}, DataType::f32, {8, 2, 16, 16}, op);
    op.page_table_k = program.add("page_table_k", DataType::i32, {1, 1, 4, 1});
    op.page_table_v = program.add("page_table_v", DataType::i32, {1, 1, 4, 1});
    op.attention.seq_len_q = program.add("seq_len_q", DataType::i32, {1, 1, 1, 1});
    op.attention.seq_len_kv = program.add("seq_len_kv", DataType::i32, {1, 1, 1, 1});
    op.attention.padding_mask = true;
    for (const auto id :
         {op.page_table_k, op.page_table_v, op.attention.seq_len_q, op.attention.seq_len_kv})
      program.allocate(id);
    for (int64_t page = 0; page < 4; ++page) {
      for (const auto& [table, block] :
           {std::pair{op.page_table_k, 7 - page}, std::pair{op.page_table_v, page}})
        program.set(table, static_cast<double>(block), 0, 0, page);
    }
    program.set_integer(op.attention.seq_len_q, rows);
    program.set_integer(op.attention.seq_len_kv, 50);
    expect_as_defined(program, op);
  }
}

TEST(FusedPrograms, KeysAreTheFirstRowsOfTheQueriesOwnTensor) {
  Random random(3);
  graph::Sdpa op;
  Program program = of_one_tensor(random, {2, 2, 20, 16}, DataType::f32, {2, 2, 20, 16}, op);
  op.q = op.k;
  op.max_seq_len_kv = 7;
  expect_as_defined(program, op);
}

}  // namespace
}  // namespace heddle::testing
