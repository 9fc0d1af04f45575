// Prefix sums of 64 bits at the ends of their range, whose difference takes 65.
#include <limits>

#include "gpu/attention_program.h"

namespace heddle::testing {
namespace {

class PrefixSumsOnGpu : public OnGpu {};

TEST_F(PrefixSumsOnGpu, MayLieAnywhere) {
  const auto change = [](Program& program, graph::AttentionAttributes& a) {
    a.padding_mask = true;
    for (graph::TensorId* of : {&a.cu_seq_len_q, &a.cu_seq_len_kv}) {
      *of = program.add("prefix sums", DataType::i64, {2, 1, 1, 1});
      program.allocate(*of);
      program.set_integer(*of, std::numeric_limits<int64_t>::min(), 0);
      program.set_integer(*of, std::numeric_limits<int64_t>::max(), 1);
    }
  };
  for (const AttentionShape& shape : {AttentionShape{DataType::bf16, 2, 40, 50, 64},
                                      AttentionShape{DataType::bf16, 2, 40, 50, 60},
                                      AttentionShape{DataType::bf16, 2, 3, 300, 64},
                                      AttentionShape{DataType::f32, 2, 40, 50, 64}}) {
    Built built = build(attention_program(shape, change));
    ASSERT_TRUE(built.executable.is_ok()) << built.executable.status().message();
    execute(built);
    EXPECT_TRUE(matches_definition(built)) << shape;
  }
}

}  // namespace
}  // namespace heddle::testing
