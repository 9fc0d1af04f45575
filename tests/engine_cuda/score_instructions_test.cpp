#include "engine/cuda/score_instructions.h"

#include <gtest/gtest.h>

#include "problem/score_builder.h"

namespace heddle::engine::cuda {
namespace {

using problem::ScoreBuilder;
using problem::ScoreExpression;
using problem::ScoreOp;

/// dot + 2^(-(head + 1) / 2) (column - row)
ScoreExpression alibi() {
  ScoreBuilder b;
  const auto exponent = b.apply(ScoreOp::multiply, b.constant(-0.5),
                                b.apply(ScoreOp::add, b.leaf(ScoreOp::head), b.constant(1)));
  const auto slope = b.apply(ScoreOp::power, b.constant(2), exponent);
  const auto distance = b.apply(ScoreOp::subtract, b.leaf(ScoreOp::column), b.leaf(ScoreOp::row));
  return b.expression(
      b.apply(ScoreOp::add, b.leaf(ScoreOp::dot), b.apply(ScoreOp::multiply, slope, distance)));
}

/// (row - column) modulo `divisor`
ScoreExpression modulo(double divisor) {
  ScoreBuilder b;
  const auto distance = b.apply(ScoreOp::subtract, b.leaf(ScoreOp::row), b.leaf(ScoreOp::column));
  return b.expression(b.apply(ScoreOp::modulo, distance, b.constant(divisor)));
}

bool root_is_of_positions(const ScoreExpression& expression) {
  return is_modulo_of_positions(expression, expression.nodes[static_cast<size_t>(expression.root)]);
}

TEST(ScoreInstructions, WhatIsTheSameInAllCellsCostsNothing) {
  EXPECT_EQ(instructions(alibi(), false), 3);
  EXPECT_EQ(instructions(alibi(), true), 3);
}

TEST(ScoreInstructions, FunctionsOfF32AreLonger) {
  ScoreBuilder b;
  const ScoreExpression logarithm = b.expression(b.apply(ScoreOp::logarithm, b.leaf(ScoreOp::dot)));
  EXPECT_LT(instructions(logarithm, false), instructions(logarithm, true));
}

TEST(ScoreInstructions, TheLongerTheCodeTheFewerCellsHaveItSideBySide) {
  EXPECT_EQ(cells_side_by_side(alibi(), false), 0);
  ScoreBuilder b;
  EXPECT_EQ(cells_side_by_side(b.expression(b.apply(ScoreOp::error_function, b.leaf(ScoreOp::dot))),
                               false),
            8);
  EXPECT_EQ(cells_side_by_side(b.expression(b.apply(ScoreOp::sine, b.leaf(ScoreOp::dot))), false),
            4);
}

TEST(ScoreInstructions, ModulosInWholeNumbersAreOfPositions) {
  EXPECT_TRUE(root_is_of_positions(modulo(3)));
  EXPECT_TRUE(root_is_of_positions(modulo(-7)));
  EXPECT_FALSE(root_is_of_positions(modulo(2.5)));
  EXPECT_FALSE(root_is_of_positions(modulo(0)));
  EXPECT_FALSE(root_is_of_positions(modulo(1e30)));
  ScoreBuilder b;
  EXPECT_FALSE(root_is_of_positions(
      b.expression(b.apply(ScoreOp::modulo, b.leaf(ScoreOp::dot), b.constant(3)))));
}

TEST(ScoreInstructions, ModulosOfLongSumsAreNotOfPositions) {
  ScoreBuilder b;
  auto sum = b.leaf(ScoreOp::row);
  for (int i = 0; i < 100; ++i) sum = b.apply(ScoreOp::add, sum, sum);
  EXPECT_FALSE(root_is_of_positions(b.expression(b.apply(ScoreOp::modulo, sum, b.constant(3)))));
}

}  // namespace
}  // namespace heddle::engine::cuda
