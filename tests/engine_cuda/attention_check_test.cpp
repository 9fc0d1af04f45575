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

using problem::AttentionBackwardProblem;

const Target kTarget = *target_named("sm_80");

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
  EXPECT_TRUE(configure_forward_sm80(forward, kTarget).is_ok());
  EXPECT_TRUE(configure_forward_sm90(forward).is_ok());
  EXPECT_TRUE(configure_backward_sm80(backward, kTarget).is_ok());
  EXPECT_TRUE(configure_backward_sm90(backward).is_ok());

  const std::string sentence =
      "cuda: a score or its derivative is about 2122 instructions; kernels take at most 2048";
  forward.structure.score = sines(21);
  EXPECT_EQ(configure_forward_sm80(forward, kTarget).status().message(), sentence);
  EXPECT_EQ(configure_forward_sm90(forward).status().message(), sentence);
  backward.structure.d_dot = sines(21);
  EXPECT_EQ(configure_backward_sm80(backward, kTarget).status().message(), sentence);
  EXPECT_EQ(configure_backward_sm90(backward).status().message(), sentence);
  backward.structure.d_dot = sines(20);
  backward.structure.load_gradients = {{.derivative = sines(21)}};
  EXPECT_EQ(configure_backward_sm80(backward, kTarget).status().message(), sentence);
  EXPECT_EQ(configure_backward_sm90(backward).status().message(), sentence);
}

// One row's may be of any size, and the others of its head keep their bits.
TEST(AttentionCheck, GradientsOfLogSumExpsOfF32AreTheGeneralKernels) {
  const AttentionBackwardProblem problem =
      backward_of({.dtype = DataType::f32, .features = {Feature::stats_gradient}});
  EXPECT_EQ(configure_backward_sm90(problem).status().message(),
            "cuda: the Hopper backward takes gradients of log-sum-exps of 16-bit attentions only");
  const Result<Lowering> lowering = lower(problem, *target_named("sm_90a"));
  ASSERT_TRUE(lowering.is_ok()) << lowering.status().message();
  EXPECT_NE(lowering->description.find("general kernels"), std::string::npos)
      << lowering->description;
}

// Kernels know lists of numbers by their address alone; a sink is copied to such a one.
TEST(AttentionCheck, ListsWithGapsAreNotReadAsIfTheyHadNone) {
  const Case c{.features = {Feature::lengths, Feature::sink}};
  const auto message = [](const problem::Problem& problem, const char* architecture) {
    return lower(problem, *target_named(architecture)).status().message();
  };
  const auto spread = [](problem::AttentionSizes& sizes, problem::OperandId id, int dim) {
    sizes.layout(id).strides[dim] = 3;
  };
  for (const char* architecture : {"sm_80", "sm_90a"}) {
    problem::AttentionProblem forward = forward_of(c);
    spread(forward.sizes, forward.structure.sink, 1);
    const Result<Lowering> lowering = lower(forward, *target_named(architecture));
    ASSERT_TRUE(lowering.is_ok()) << lowering.status().message();
    EXPECT_NE(lowering->description.find("sink copied"), std::string::npos)
        << lowering->description;
    spread(forward.sizes, forward.structure.kv_lengths, 0);
    EXPECT_NE(message(forward, architecture).find("cuda: sdpa seq_len_kv has dims"),
              std::string::npos)
        << message(forward, architecture);

    AttentionBackwardProblem backward = backward_of(c);
    EXPECT_EQ(message(backward, architecture), "");
    spread(backward.sizes, backward.structure.d_sink, 1);
    EXPECT_NE(message(backward, architecture).find("cuda: sdpa dSink has dims"), std::string::npos)
        << message(backward, architecture);
  }
}

TEST(AttentionCheck, HeadsWiderThanKernelsAreRefused) {
  const auto message = [](int qk, int v, const char* architecture) {
    const Case c{.qk_dim = qk, .v_dim = v, .length = 512};
    const Result<Lowering> forward = lower(forward_of(c), *target_named(architecture)),
                           backward = lower(backward_of(c), *target_named(architecture));
    EXPECT_EQ(forward.status().message(), backward.status().message());
    return forward.status().message();
  };
  for (const char* architecture : {"sm_80", "sm_86", "sm_90a"}) {
    EXPECT_EQ(message(576, 512, architecture), "");
    EXPECT_EQ(message(584, 512, architecture),
              "cuda: sdpa head_dim 584 (q, k) and 512 (v); kernels take at most 576 and 512");
    EXPECT_EQ(message(8, 520, architecture),
              "cuda: sdpa head_dim 8 (q, k) and 520 (v); kernels take at most 576 and 512");
  }
}

TEST(AttentionCheck, HeadsWiderThanHoppersKernelsAreTheGeneralOnes) {
  const Case c{.qk_dim = 576, .v_dim = 512, .length = 512};
  // Forward, O is in parts there too.
  EXPECT_TRUE(configure_forward_sm90(forward_of(c)).is_ok());
  EXPECT_EQ(configure_forward_sm90(forward_of({.qk_dim = 320, .v_dim = 64})).status().message(),
            "cuda: sdpa head_dim 320 (q, k) and 64 (v); the Hopper kernel takes at most 256");
  EXPECT_EQ(configure_backward_sm90(backward_of(c)).status().message(),
            "cuda: sdpa head_dim 576 (q, k) and 512 (v); the Hopper backward takes at most 512");
  EXPECT_TRUE(configure_backward_sm90(backward_of({.qk_dim = 320, .v_dim = 320})).is_ok());
  for (const problem::Problem& problem :
       {problem::Problem(forward_of(c)), problem::Problem(backward_of(c))}) {
    const Result<Lowering> lowering = lower(problem, *target_named("sm_90a"));
    ASSERT_TRUE(lowering.is_ok()) << lowering.status().message();
    EXPECT_NE(lowering->description.find("in parts"), std::string::npos) << lowering->description;
  }
}

// Maxima are natural: in other units a huge one is rounded, and no f32 holds the rest.
TEST(AttentionCheck, MaximaOfHugeScoresInLog2UnitsAreRefused) {
  const auto message = [](std::vector<Feature> features) {
    const AttentionBackwardProblem problem =
        backward_of({.qk_dim = 64, .v_dim = 64, .features = std::move(features), .length = 512});
    const Status general = configure_backward_sm80(problem, kTarget).status(),
                 hopper = configure_backward_sm90(problem).status();
    EXPECT_EQ(general.message(), hopper.message());
    return general.message();
  };
  EXPECT_EQ(message({Feature::bias, Feature::log2, Feature::statistics}),
            "cuda: sdpa_backward has max and sum_exp of scores in log2 units which may be huge; "
            "the kernel takes stats of these, for maxima are natural");
  EXPECT_EQ(message({Feature::bias, Feature::log2}), "");
  EXPECT_EQ(message({Feature::bias, Feature::statistics}), "");
  EXPECT_EQ(message({Feature::alibi, Feature::log2, Feature::statistics}), "");
}

}  // namespace
}  // namespace heddle::engine::cuda
