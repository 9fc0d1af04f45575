// Scores beside so many keys that Hopper's forward has three consumers for them, of rows that end
// within a tile.
#include <cmath>

#include "gpu/attention_program.h"
#include "gpu/gpu_test.h"

namespace heddle::testing {
namespace {

using graph::PointwiseMode;
using graph::TensorId;

enum class Score { booleans, soft_cap, alibi, bias, bias_of_keys, bias_of_rows, booleans_and_sink };

void make_scores(Score kind, Program& program, const AttentionShape& shape,
                 graph::AttentionAttributes& a) {
  Random random(static_cast<uint64_t>(shape.keys));
  const Dims cells{1, 1, shape.rows, shape.keys};
  ScoreSteps steps(program, shape.cells());
  const auto add = [&](const char* name, DataType dtype, const Dims& dims) {
    const TensorId id = program.add(name, dtype, dims);
    program.allocate(id);
    return id;
  };
  if (kind == Score::alibi) a.alibi_mask = true, a.right_bound = 0;
  if (kind == Score::bias || kind == Score::bias_of_keys || kind == Score::bias_of_rows) {
    a.bias = add("bias", shape.dtype,
                 {1, 1, kind == Score::bias_of_keys ? 1 : shape.rows,
                  kind == Score::bias_of_rows ? 1 : shape.keys});
    program.fill(a.bias, [&] { return random.normal(); });
  }
  if (kind == Score::soft_cap) {
    const TensorId cap = steps.constant(2.5);
    const TensorId capped = steps.apply(PointwiseMode::tanh_fwd,
                                        {steps.apply(PointwiseMode::div, {steps.score(), cap})});
    steps.apply(PointwiseMode::mul, {capped, cap});
    a.score_mod = steps.modifier();
  }
  if (kind == Score::booleans || kind == Score::booleans_and_sink) {
    const TensorId mask = add("mask", DataType::boolean, cells);
    // Some rows see nothing.
    for (int64_t i = 0; i < cells[2]; ++i)
      for (int64_t j = 0; j < cells[3]; ++j)
        program.set(mask, i % 97 != 5 && random.chance(0.7) ? 1 : 0, 0, 0, i, j);
    steps.apply(PointwiseMode::binary_select, {mask, steps.score(), steps.constant(-HUGE_VAL)});
    a.score_mod = steps.modifier();
  }
  if (kind == Score::booleans_and_sink) {
    a.sink = add("sink", DataType::f32, {1, shape.heads, 1, 1});
    program.fill(a.sink, [&] { return random.normal(); });
  }
}

class LongScoresOnGpu : public OnGpu {};

TEST_F(LongScoresOnGpu, MatchTheDefinition) {
  struct Case {
    AttentionShape shape;
    Score score;
    bool causal;
  };
  std::vector<Case> cases;
  for (DataType dtype : {DataType::bf16, DataType::f16})
    for (int64_t head_dim : {40, 64, 128})
      for (int64_t keys : {600, 2100, 8200})
        for (Score score : {Score::booleans, Score::soft_cap, Score::alibi, Score::bias,
                            Score::bias_of_keys, Score::bias_of_rows, Score::booleans_and_sink})
          for (bool causal : {false, true})
            cases.push_back({{dtype, 2, 333, keys, head_dim}, score, causal});
  at_once(static_cast<int64_t>(cases.size()), [&](int64_t n) {
    const Case& one = cases[static_cast<size_t>(n)];
    const auto change = [&](Program& program, graph::AttentionAttributes& a) {
      if (one.causal)
        a.right_bound = 0, a.diagonal_alignment = graph::DiagonalAlignment::bottom_right;
      make_scores(one.score, program, one.shape, a);
    };
    Built built = build(attention_program(one.shape, change, {}, n % 2 == 0));
    ASSERT_TRUE(built.executable.is_ok()) << built.executable.status().message();
    execute(built);
    EXPECT_TRUE(matches_definition(built))
        << one.shape << ", score " << static_cast<int>(one.score) << (one.causal ? ", causal" : "");
  });
}

}  // namespace
}  // namespace heddle::testing
