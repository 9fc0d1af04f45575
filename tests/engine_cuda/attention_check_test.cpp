// What no attention kernel takes is refused before anything is compiled.
#include "engine/cuda/attention_check.h"

#include <gtest/gtest.h>

#include "engine/cuda/attention_backward_sm80.h"
#include "engine/cuda/attention_backward_sm90.h"
#include "engine/cuda/attention_forward_sm80.h"
#include "engine/cuda/attention_forward_sm90.h"
#include "kernels/cases.h"
#include "problem/score_builder.h"

namespace heddle::engine::cuda {
namespace {

problem::ScoreExpression sines(int count) {
  problem::ScoreBuilder b;
  auto x = b.leaf(problem::ScoreOp::dot);
  for (int n = 0; n < count; ++n) x = b.apply(problem::ScoreOp::sine, x);
  return b.expression(x);
}

TEST(AttentionCheck, LongScoresAndDerivativesAreRefused) {
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
  EXPECT_EQ(configure_backward_sm90(backward).status().message(), sentence);
}

}  // namespace
}  // namespace heddle::engine::cuda
