// Activations: their derivatives against finite differences, and their values where they end.
#include "reference/activation.h"

#include <gtest/gtest.h>

#include <cmath>

#include "graph/names.h"

namespace heddle::reference {
namespace {

using graph::ActivationNumbers;
using Mode = graph::PointwiseMode;

const ActivationNumbers kNumbers{.relu_lower_clip = -0.7,
                                 .relu_upper_clip = 1.3,
                                 .relu_lower_clip_slope = 0.2,
                                 .elu_alpha = 0.6,
                                 .softplus_beta = -1.7,
                                 .swish_beta = 2.3};

TEST(Activations, DerivativesAreThoseOfTheDefinitions) {
  constexpr double kStep = 1e-6;
  for (const ActivationNumbers& numbers : {ActivationNumbers{}, kNumbers}) {
    for (int n = static_cast<int>(Mode::relu_fwd); n <= static_cast<int>(Mode::swish_bwd); ++n) {
      const auto mode = static_cast<Mode>(n);
      for (double x = -4.05; x < 4; x += 0.1) {
        const double a = graph::arity(mode) == 1 ? x : 0.75;
        const auto along = [&](double da, double db) {
          return apply(mode, numbers, a + da, x + db);
        };
        const Partials found = partials(mode, numbers, a, x);
        EXPECT_NEAR(found.a, (along(kStep, 0) - along(-kStep, 0)) / (2 * kStep), 1e-7)
            << graph::name(mode) << " at " << x;
        EXPECT_NEAR(found.b, (along(0, kStep) - along(0, -kStep)) / (2 * kStep), 1e-7)
            << graph::name(mode) << " at " << x;
      }
    }
  }
}

// The slope at x of the forward is what the backward multiplies by.
TEST(Activations, BackwardsAreTheForwardsDerivatives) {
  using Pair = std::pair<Mode, Mode>;
  for (const auto& [forward, backward] :
       {Pair{Mode::relu_fwd, Mode::relu_bwd}, Pair{Mode::tanh_fwd, Mode::tanh_bwd},
        Pair{Mode::sigmoid_fwd, Mode::sigmoid_bwd}, Pair{Mode::elu_fwd, Mode::elu_bwd},
        Pair{Mode::gelu_fwd, Mode::gelu_bwd},
        Pair{Mode::gelu_approx_tanh_fwd, Mode::gelu_approx_tanh_bwd},
        Pair{Mode::softplus_fwd, Mode::softplus_bwd}, Pair{Mode::swish_fwd, Mode::swish_bwd}}) {
    for (double x = -4.05; x < 4; x += 0.1)
      EXPECT_NEAR(apply(backward, kNumbers, 0.75, x), 0.75 * partials(forward, kNumbers, x, 0).a,
                  1e-15)
          << graph::name(forward) << " at " << x;
  }
}

TEST(Activations, OfWhatIsFarAway) {
  for (const ActivationNumbers& numbers :
       {ActivationNumbers{}, ActivationNumbers{.softplus_beta = 9}}) {
    EXPECT_EQ(apply(Mode::softplus_fwd, numbers, 1e300), 1e300);
    EXPECT_EQ(apply(Mode::softplus_fwd, numbers, -1e300), 0);
    EXPECT_EQ(apply(Mode::softplus_fwd, numbers, INFINITY), INFINITY);
    EXPECT_TRUE(std::isnan(apply(Mode::softplus_fwd, numbers, NAN)));
  }
  EXPECT_EQ(apply(Mode::relu_fwd, {}, -INFINITY), 0);
  EXPECT_EQ(apply(Mode::relu_bwd, {}, INFINITY, -1), 0);
  EXPECT_EQ(apply(Mode::relu_bwd, {}, 3, INFINITY), 3)
      << "without a clip there is none at infinity";
  EXPECT_EQ(apply(Mode::elu_fwd, {}, -INFINITY), -1);
  EXPECT_EQ(apply(Mode::gelu_approx_tanh_fwd, {}, -40), 0);
}

}  // namespace
}  // namespace heddle::reference
