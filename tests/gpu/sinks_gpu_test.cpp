// Sinks from one end of f32's range to the other: a row's whole weight goes there, or none, and
// what scores are taken to in log2 units may be beyond that range.
#include <cmath>

#include "gpu/attention_program.h"

namespace heddle::testing {
namespace {

/// The last is all that a row weighs.
const std::vector<double> kSinks = {-INFINITY, -3.4e38, -1e38, 0.5, 3.4e38};

class SinksOnGpu : public OnGpu {
 protected:
  static constexpr int64_t kHeads = 5;  ///< one of each sink

  static void add_sinks(Program& program, graph::AttentionAttributes& a) {
    a.sink = program.add("sink", DataType::f32, {1, kHeads, 1, 1});
    program.allocate(a.sink);
    for (int64_t h = 0; h < kHeads; ++h) program.set(a.sink, kSinks[static_cast<size_t>(h)], 0, h);
  }
  static std::vector<AttentionShape> shapes(int64_t rows, int64_t keys) {
    return {{DataType::bf16, kHeads, rows, keys, 64},
            {DataType::bf16, kHeads, rows, keys, 60},
            {DataType::bf16, kHeads, 3, 300, 64},
            {DataType::f32, kHeads, rows, keys, 64},
            {DataType::f32, kHeads, rows, keys, 60}};
  }
  void expect_definition(Program program, const AttentionShape& shape) {
    Built built = build(std::move(program));
    ASSERT_TRUE(built.executable.is_ok()) << built.executable.status().message();
    execute(built);
    EXPECT_TRUE(matches_definition(built)) << shape;
  }
};

// Causal, so that the first rows see no key where there are more of them.
TEST_F(SinksOnGpu, MayBeOfAnySize) {
  ASSERT_EQ(std::ssize(kSinks), kHeads);
  const auto change = [&](Program& program, graph::AttentionAttributes& a) {
    a.right_bound = 0;
    add_sinks(program, a);
  };
  for (const bool backward : {false, true}) {
    for (AttentionShape shape : shapes(70, 90)) {
      shape.backward = backward;
      expect_definition(attention_program(shape, change), shape);
    }
  }
}

// As a NaN among a row's scores does, one makes O and the statistics NaN, also of rows that see no
// key.
TEST_F(SinksOnGpu, MakeTheirRowsNan) {
  for (const AttentionShape& shape : shapes(90, 70)) {
    const auto change = [&](Program& program, graph::AttentionAttributes& a) {
      program.may_be_undefined = true;
      add_sinks(program, a);
      program.set(a.sink, NAN, 0, 3);
      a.padding_mask = true;
      a.seq_len_q = program.add("rows", DataType::i32, {1, 1, 1, 1});
      a.seq_len_kv = program.add("keys", DataType::i32, {1, 1, 1, 1});
      program.allocate(a.seq_len_q), program.allocate(a.seq_len_kv);
      program.set_integer(a.seq_len_q, shape.rows);
      program.set_integer(a.seq_len_kv, 0);
    };
    expect_definition(attention_program(shape, change), shape);
  }
}

}  // namespace
}  // namespace heddle::testing
