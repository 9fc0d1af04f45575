// The general kernels' tiles: within every device's shared memory, for every head dim and type.
#include "engine/cuda/attention_sm80.h"

#include <gtest/gtest.h>

#include "engine/cuda/attention_backward_sm80.h"
#include "engine/cuda/attention_backward_sm90.h"
#include "engine/cuda/attention_forward_sm80.h"
#include "engine/cuda/attention_forward_sm90.h"
#include "engine/cuda/shared_tile.h"
#include "kernels/cases.h"
#include "problem/score_builder.h"

namespace heddle::engine::cuda {
namespace {

TEST(GeneralTiles, FitSharedMemoryForEveryHeadDim) {
  for (DataType type : {DataType::bf16, DataType::f16, DataType::f32}) {
    for (int dim = 1; dim <= 256; ++dim) {
      for (int64_t length : {1, 512}) {
        const Case c{.dtype = type, .qk_dim = dim, .v_dim = dim, .length = length};
        const auto forward = configure_forward_sm80(forward_of(c));
        ASSERT_TRUE(forward.is_ok()) << forward.status().message();
        EXPECT_LE(forward->shared_bytes, kSm80SharedLimit) << title(c);
        const auto backward = configure_backward_sm80(backward_of(c));
        ASSERT_TRUE(backward.is_ok()) << backward.status().message();
        for (const BackwardSm80Step& step : *backward)
          EXPECT_LE(step.shared_bytes, kSm80SharedLimit) << title(c);
      }
    }
  }
}

TEST(GeneralTiles, CountThreePlanesOfF32) {
  EXPECT_EQ(tile_bytes(64, 72, DataType::f32), 3 * tile_bytes(64, 72, DataType::bf16));
}

problem::ScoreExpression sines(int count) {
  problem::ScoreBuilder b;
  auto x = b.leaf(problem::ScoreOp::dot);
  for (int n = 0; n < count; ++n) x = b.apply(problem::ScoreOp::sine, x);
  return b.expression(x);
}

TEST(LongScores, AreRefusedBeforeTheyAreCompiled) {
  const Case c{.dtype = DataType::f32, .qk_dim = 64, .v_dim = 64, .length = 512};
  problem::AttentionProblem forward = forward_of(c);
  problem::AttentionBackwardProblem backward = backward_of(c);
  forward.structure.score = backward.structure.forward.score = sines(20);
  EXPECT_TRUE(configure_forward_sm80(forward).is_ok());
  EXPECT_TRUE(configure_forward_sm90(forward).is_ok());
  EXPECT_TRUE(configure_backward_sm80(backward).is_ok());
  EXPECT_TRUE(configure_backward_sm90(backward).is_ok());

  const std::string sentence =
      "cuda: a score or its derivative is about 2122 instructions; kernels take at most 2048";
  forward.structure.score = sines(21);
  EXPECT_EQ(configure_forward_sm80(forward).status().message(), sentence);
  EXPECT_EQ(configure_forward_sm90(forward).status().message(), sentence);
  backward.structure.d_dot = sines(21);
  EXPECT_EQ(configure_backward_sm80(backward).status().message(), sentence);
  EXPECT_EQ(configure_backward_sm90(backward).status().message(), sentence);
  backward.structure.d_dot = sines(20);
  backward.structure.load_gradients = {{.derivative = sines(21)}};
  EXPECT_EQ(configure_backward_sm80(backward).status().message(), sentence);
}

}  // namespace
}  // namespace heddle::engine::cuda
