#include <gtest/gtest.h>

#include <cmath>

#include "problem/score_builder.h"
#include "problem/score_derivative.h"
#include "problem/score_evaluate.h"
#include "support/random.h"

namespace heddle::problem {
namespace {

using testing::Random;
using Node = ScoreBuilder::Node;

constexpr OperandId kBias = 3, kGate = 5;

/// A node list, not simplified: what a door might hand over.
struct Plain {
  ScoreExpression expression;

  Plain() { expression.nodes.clear(), expression.nodes.reserve(32); }
  int32_t add(ScoreNode node) {
    expression.nodes.push_back(node);
    expression.root = static_cast<int32_t>(expression.nodes.size()) - 1;
    return expression.root;
  }
};

ScoreExpression random_expression(Random& random) {
  Plain plain;
  std::vector<int32_t> numbers;  // nodes to draw operands from
  const auto leaf = [&](ScoreOp op) { numbers.push_back(plain.add({op})); };
  leaf(ScoreOp::dot);
  leaf(ScoreOp::row);
  leaf(ScoreOp::column);
  for (OperandId operand : {kBias, kGate}) {
    ScoreNode node{ScoreOp::load};
    node.operand = operand;
    numbers.push_back(plain.add(node));
  }
  for (double value : {0.0, 1.0, -0.7, 2.0}) {
    ScoreNode node{ScoreOp::constant};
    node.value = value;
    numbers.push_back(plain.add(node));
  }
  const auto pick = [&] {
    return numbers[static_cast<size_t>(
        random.integer(0, static_cast<int64_t>(numbers.size()) - 1))];
  };
  const int64_t count = random.integer(1, 12);
  for (int64_t n = 0; n < count; ++n) {
    const auto op = static_cast<ScoreOp>(
        random.integer(static_cast<int64_t>(ScoreOp::add), static_cast<int64_t>(ScoreOp::select)));
    ScoreNode node{op};
    node.a = pick();
    if (arity(op) > 1) node.b = pick();
    if (arity(op) > 2) node.c = pick();
    numbers.push_back(plain.add(node));
  }
  return plain.expression;
}

ScoreLeaves random_leaves(Random& random, double& bias, double& gate) {
  ScoreLeaves leaves;
  leaves.dot = random.uniform(-2, 2);
  leaves.row = static_cast<double>(random.integer(0, 9));
  leaves.column = static_cast<double>(random.integer(0, 9));
  leaves.gradient = random.uniform(-2, 2);
  bias = random.uniform(-2, 2);
  gate = random.uniform(0.1, 2);
  leaves.load = [&bias, &gate](OperandId operand) { return operand == kBias ? bias : gate; };
  return leaves;
}

bool same(double x, double y) {
  return (std::isnan(x) && std::isnan(y)) || x == y ||
         std::fabs(x - y) <= 1e-12 * std::fmax(1, std::fabs(x));
}

TEST(Score, ArityAndNamesFollowTheOps) {
  EXPECT_EQ(arity(ScoreOp::dot), 0);
  EXPECT_EQ(arity(ScoreOp::gradient), 0);
  EXPECT_EQ(arity(ScoreOp::add), 2);
  EXPECT_EQ(arity(ScoreOp::modulo), 2);
  EXPECT_EQ(arity(ScoreOp::negate), 1);
  EXPECT_EQ(arity(ScoreOp::ceil), 1);
  EXPECT_EQ(arity(ScoreOp::greater_equal), 2);
  EXPECT_EQ(arity(ScoreOp::logical_or), 2);
  EXPECT_EQ(arity(ScoreOp::logical_not), 1);
  EXPECT_EQ(arity(ScoreOp::select), 3);
  EXPECT_STREQ(name(ScoreOp::dot), "dot");
  EXPECT_STREQ(name(ScoreOp::select), "select");
  EXPECT_STREQ(name(ScoreOp::greater_equal), "greater_equal");
  EXPECT_STREQ(name(ScoreOp::tangent), "tangent");
}

TEST(Score, SimplifiedMeansTheSame) {
  for (uint64_t seed = 0; seed < 20000; ++seed) {
    Random random(seed);
    const ScoreExpression expression = random_expression(random);
    const ScoreExpression simple = simplified(expression);
    ASSERT_LE(simple.nodes.size(), expression.nodes.size());
    double bias, gate;
    const ScoreLeaves leaves = random_leaves(random, bias, gate);
    ASSERT_TRUE(same(evaluate(expression, leaves), evaluate(simple, leaves))) << seed;
  }
}

TEST(Score, SimplifiedFoldsConstantsAndDropsDeadNodes) {
  ScoreBuilder b;
  const Node dot = b.leaf(ScoreOp::dot);
  b.apply(ScoreOp::tangent_hyperbolic, dot);  // dead
  const Node two = b.apply(ScoreOp::add, b.constant(1), b.constant(1));
  const Node kept = b.apply(ScoreOp::select, b.apply(ScoreOp::less, two, b.constant(3)), dot, two);
  EXPECT_TRUE(b.expression(b.apply(ScoreOp::multiply, kept, b.constant(1))).is_identity());
  EXPECT_EQ(b.expression(kept).nodes.size(), 1u);
}

TEST(Score, DerivativesMatchCentralDifferences) {
  int checked = 0, singular = 0;
  for (uint64_t seed = 0; seed < 30000; ++seed) {
    Random random(seed);
    const ScoreExpression score = random_expression(random);
    double bias, gate;
    ScoreLeaves leaves = random_leaves(random, bias, gate);
    double* const variable[3] = {&leaves.dot, &bias, &gate};
    const ScoreExpression derivative[3] = {derivative_by_dot(score),
                                           derivative_by_load(score, kBias),
                                           derivative_by_load(score, kGate)};
    for (int n = 0; n < 3; ++n) {
      const double centre = *variable[n];
      const auto difference = [&](double step) {
        *variable[n] = centre + step;
        const double above = evaluate(score, leaves);
        *variable[n] = centre - step;
        const double below = evaluate(score, leaves);
        *variable[n] = centre;
        return (above - below) / (2 * step);
      };
      // Where two steps disagree the expression is not smooth there, or overflows.
      const double coarse = difference(1e-5), fine = difference(2.5e-6);
      if (!std::isfinite(coarse) || std::fabs(coarse) > 1e6) continue;
      if (!(std::fabs(evaluate(score, leaves)) < 1e4)) continue;  // differences cancel
      if (std::fabs(coarse - fine) > 1e-6 * std::fmax(1, std::fabs(fine))) continue;
      const double actual = evaluate(derivative[n], leaves);
      // sqrt(x - x), 0^x: flat, but a step of the chain rule has an infinite slope.
      if (!std::isfinite(actual)) {
        ++singular;
        continue;
      }
      ASSERT_NEAR(actual, leaves.gradient * fine, 1e-4 * std::fmax(1, std::fabs(fine)))
          << "seed " << seed << ", variable " << n;
      if (fine != 0) ++checked;
    }
  }
  EXPECT_GT(checked, 5000);
  EXPECT_LT(singular, checked / 100);
}

// A cell whose gradient is 0 (it is masked, or its probability is) has derivative exactly 0.
TEST(Score, NoGradientMeansNoDerivativeHoweverSingular) {
  for (ScoreOp op : {ScoreOp::logarithm, ScoreOp::square_root, ScoreOp::reciprocal_square_root,
                     ScoreOp::reciprocal}) {
    ScoreBuilder b;
    const ScoreExpression score = b.expression(b.apply(op, b.leaf(ScoreOp::dot)));
    ScoreLeaves leaves;  // dot and gradient are 0
    EXPECT_EQ(evaluate(derivative_by_dot(score), leaves), 0) << name(op);
  }
}

TEST(Score, TheBranchNotTakenDoesNotLeak) {
  ScoreBuilder b;
  const Node dot = b.leaf(ScoreOp::dot);
  const Node keep = b.apply(ScoreOp::greater_equal, b.leaf(ScoreOp::row), b.leaf(ScoreOp::column));
  const Node scaled = b.apply(ScoreOp::multiply, dot, b.load(kBias));
  const ScoreExpression score =
      b.expression(b.apply(ScoreOp::select, keep, scaled, b.constant(-INFINITY)));
  ScoreLeaves leaves;
  leaves.row = 1, leaves.column = 2, leaves.dot = 3, leaves.gradient = 1;
  leaves.load = [](OperandId) { return NAN; };
  EXPECT_EQ(evaluate(derivative_by_dot(score), leaves), 0);
  EXPECT_EQ(evaluate(derivative_by_load(score, kBias), leaves), 0);
}

TEST(Score, SoftCapsDerivativeUsesTheUncappedScore) {
  // 5 tanh(x / 5) has slope 1 - tanh^2(x / 5).
  ScoreBuilder b;
  const Node capped =
      b.apply(ScoreOp::multiply, b.constant(5),
              b.apply(ScoreOp::tangent_hyperbolic,
                      b.apply(ScoreOp::divide, b.leaf(ScoreOp::dot), b.constant(5))));
  ScoreLeaves leaves;
  leaves.dot = 4, leaves.gradient = 2;
  const double t = std::tanh(4.0 / 5);
  EXPECT_NEAR(evaluate(derivative_by_dot(b.expression(capped)), leaves), 2 * (1 - t * t), 1e-14);
}

TEST(Score, ADerivativesConstantFactorsAreTakenOut) {
  ScoreBuilder b;
  const Node dot = b.leaf(ScoreOp::dot);
  const auto times = [&](double factor, Node x) {
    return b.apply(ScoreOp::multiply, b.constant(factor), x);
  };
  const auto slope = [&](Node score) { return factored(derivative_by_dot(b.expression(score))); };
  const FactoredDerivative linear = slope(times(3, b.apply(ScoreOp::divide, dot, b.constant(8))));
  EXPECT_EQ(linear.factor, 3.0 / 8);
  EXPECT_EQ(linear.rest.nodes[static_cast<size_t>(linear.rest.root)].op, ScoreOp::gradient);
  // 1e-4 tanh(2 x) has slope 2e-4 (1 - tanh^2(2 x)).
  const Node bent = times(1e-4, b.apply(ScoreOp::tangent_hyperbolic, times(2, dot)));
  const FactoredDerivative of_bent = slope(bent);
  EXPECT_NEAR(of_bent.factor, 2e-4, 1e-18);
  ScoreLeaves leaves;
  leaves.dot = 0.3, leaves.gradient = 5;
  EXPECT_NEAR(evaluate(of_bent.rest, leaves), 5 * (1 - std::pow(std::tanh(0.6), 2)), 1e-14);
  // What f32 has no number for stays where it is.
  const Node tiny = times(1e-30, times(1e-30, dot));
  EXPECT_EQ(slope(tiny).factor, 1);
  EXPECT_DOUBLE_EQ(evaluate(slope(tiny).rest, leaves), 5e-60);
}

TEST(Score, AChainOfAHundredThousandOpsIsBuiltAndDerivedInLinearTime) {
  ScoreBuilder b;
  Node x = b.leaf(ScoreOp::dot);
  for (int n = 0; n < 50'000; ++n) {
    x = b.apply(ScoreOp::negate, b.apply(ScoreOp::absolute, x));
  }
  const ScoreExpression score = b.expression(x);
  ScoreLeaves leaves;
  leaves.dot = 3, leaves.gradient = 2;
  EXPECT_EQ(evaluate(score, leaves), -3);
  EXPECT_EQ(evaluate(derivative_by_dot(score), leaves), -2);
}

}  // namespace
}  // namespace heddle::problem
