// Sinks from one end of f32's range to the other: a row's whole weight goes there, or none, and
// what scores are taken to in log2 units may be beyond that range.
#include <cmath>

#include "gpu/attention_program.h"

namespace heddle::testing {
namespace {

/// The last is all that a row weighs.
const std::vector<double> kSinks = {-INFINITY, -3.4e38, -1e38, 0.5, 3.4e38};

class SinksOnGpu : public OnGpu {};

// A head of each sink; causal, so that the first rows see no key where there are more of them.
TEST_F(SinksOnGpu, MayBeOfAnySize) {
  const int64_t heads = std::ssize(kSinks);
  const auto change = [&](Program& program, graph::AttentionAttributes& a) {
    a.right_bound = 0;
    a.sink = program.add("sink", DataType::f32, {1, heads, 1, 1});
    program.allocate(a.sink);
    for (int64_t h = 0; h < heads; ++h) program.set(a.sink, kSinks[static_cast<size_t>(h)], 0, h);
  };
  for (const bool backward : {false, true}) {
    for (AttentionShape shape : {AttentionShape{DataType::bf16, heads},
                                 {DataType::bf16, heads, 70, 90, 60},
                                 {DataType::bf16, heads, 3, 300, 64},
                                 {DataType::f32, heads},
                                 {DataType::f32, heads, 70, 90, 60}}) {
      shape.backward = backward;
      Built built = build(attention_program(shape, change));
      ASSERT_TRUE(built.executable.is_ok()) << built.executable.status().message();
      execute(built);
      EXPECT_TRUE(matches_definition(built)) << shape;
    }
  }
}

// As a NaN among a row's scores does, one makes O and the statistics NaN, also of rows that see no
// key.
TEST_F(SinksOnGpu, MakeTheirRowsNan) {
  for (const Shape& shape : {Shape{DataType::bf16, 90, 70, 64},
                             {DataType::bf16, 90, 70, 60},
                             {DataType::bf16, 3, 300, 64},
                             {DataType::f32, 90, 70, 64},
                             {DataType::f32, 90, 70, 60}}) {
    SCOPED_TRACE(fmt::format("{}, {} rows, {} keys, head_dim {}", name(shape.dtype), shape.rows,
                             shape.keys, shape.head_dim));
    Program program = program_of(shape);
    program.may_be_undefined = true;
    auto& op = std::get<graph::Sdpa>(program.graph.nodes[0].op);
    op.attention.padding_mask = true;
    op.attention.seq_len_q = program.add("rows", DataType::i32, {1, 1, 1, 1});
    op.attention.seq_len_kv = program.add("keys", DataType::i32, {1, 1, 1, 1});
    program.allocate(op.attention.seq_len_q), program.allocate(op.attention.seq_len_kv);
    program.set_integer(op.attention.seq_len_q, shape.rows);
    program.set_integer(op.attention.seq_len_kv, 0);
    program.set(op.attention.sink, NAN, 0, 3);
    Built built = build(std::move(program));
    ASSERT_TRUE(built.executable.is_ok()) << built.executable.status().message();
    execute(built);
    EXPECT_TRUE(matches_definition(built));
  }
}

}  // namespace
}  // namespace heddle::testing
