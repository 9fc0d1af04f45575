// Elementwise operations: values, and the corners of each type.
#include <gtest/gtest.h>

#include "evaluated.h"

namespace heddle::hlo {
namespace {

std::string unary(const std::string& op, const std::string& shape, const std::string& x,
                  const std::string& attributes = "") {
  return value("x = " + shape + " constant(" + x + ") ROOT r = " + shape + " " + op + "(x)" +
               attributes);
}

std::string binary(const std::string& op, const std::string& shape, const std::string& x,
                   const std::string& y) {
  return value("x = " + shape + " constant(" + x + ") y = " + shape + " constant(" + y +
               ") ROOT r = " + shape + " " + op + "(x, y)");
}

TEST(Unary, Floats) {
  EXPECT_EQ(unary("abs", "f32[3]", "{-1, 0, 2}"), "{1, 0, 2}");
  EXPECT_EQ(unary("negate", "f32[2]", "{-1, 0}"), "{1, -0.0}");
  EXPECT_EQ(unary("sign", "f32[4]", "{-3, -0.0, 5, nan}"), "{-1, -0.0, 1, nan}");
  EXPECT_EQ(unary("ceil", "f32[2]", "{1.2, -1.2}"), "{2, -1}");
  EXPECT_EQ(unary("floor", "f32[2]", "{1.2, -1.2}"), "{1, -2}");
  EXPECT_EQ(unary("round-nearest-afz", "f32[3]", "{0.5, 1.5, -2.5}"), "{1, 2, -3}");
  EXPECT_EQ(unary("round-nearest-even", "f32[3]", "{0.5, 1.5, -2.5}"), "{0, 2, -2}");
  EXPECT_EQ(unary("sqrt", "f32[2]", "{4, -1}"), "{2, -nan}");
  EXPECT_EQ(unary("rsqrt", "f32[2]", "{4, 0}"), "{0.5, inf}");
  EXPECT_EQ(unary("cbrt", "f32[2]", "{27, -8}"), "{3, -2}");
  EXPECT_EQ(unary("exponential", "f32[3]", "{0, -inf, 1000}"), "{1, 0, inf}");
  EXPECT_EQ(unary("exponential-minus-one", "f64[1]", "{1e-20}"), "{1e-20}");
  EXPECT_EQ(unary("log", "f32[2]", "{1, 0}"), "{0, -inf}");
  EXPECT_EQ(unary("log-plus-one", "f64[1]", "{1e-20}"), "{1e-20}");
  EXPECT_EQ(unary("logistic", "f32[3]", "{0, 1000, -1000}"), "{0.5, 1, 0}");
  EXPECT_EQ(unary("tanh", "f32[2]", "{0, 100}"), "{0, 1}");
  EXPECT_EQ(unary("sine", "f32[1]", "{0}"), "{0}");
  EXPECT_EQ(unary("cosine", "f32[1]", "{0}"), "{1}");
  EXPECT_EQ(unary("erf", "f32[2]", "{0, 10}"), "{0, 1}");
}

TEST(Unary, Integers) {
  EXPECT_EQ(unary("abs", "s8[2]", "{-5, -128}"), "{5, -128}");
  EXPECT_EQ(unary("negate", "u8[2]", "{1, 0}"), "{255, 0}");
  EXPECT_EQ(unary("not", "u8[1]", "{5}"), "{250}");
  EXPECT_EQ(unary("not", "pred[2]", "{1, 0}"), "{0, 1}");
  EXPECT_EQ(unary("sign", "s32[3]", "{-7, 0, 7}"), "{-1, 0, 1}");
  EXPECT_EQ(unary("count-leading-zeros", "s32[3]", "{1, 0, -1}"), "{31, 32, 0}");
  EXPECT_EQ(unary("popcnt", "u8[2]", "{255, 5}"), "{8, 2}");
  EXPECT_EQ(value("x = f32[3] constant({1, inf, nan}) ROOT r = pred[3] is-finite(x)"), "{1, 0, 0}");
}

TEST(Binary, Floats) {
  EXPECT_EQ(binary("add", "f32[2]", "{1, 2}", "{3, 4}"), "{4, 6}");
  EXPECT_EQ(binary("divide", "f32[3]", "{1, -1, 0}", "{0, 0, 0}"), "{inf, -inf, -nan}");
  EXPECT_EQ(binary("maximum", "f32[3]", "{1, nan, 2}", "{2, 1, nan}"), "{2, nan, nan}");
  EXPECT_EQ(binary("minimum", "f32[3]", "{1, nan, 2}", "{2, 1, nan}"), "{1, nan, nan}");
  EXPECT_EQ(binary("power", "f32[2]", "{2, 9}", "{10, 0.5}"), "{1024, 3}");
  EXPECT_EQ(binary("remainder", "f32[2]", "{7.5, -7.5}", "{2, 2}"), "{1.5, -1.5}");
  EXPECT_EQ(binary("atan2", "f32[1]", "{0}", "{1}"), "{0}");
}

// Each result of bf16 arithmetic is rounded to nearest even: 256 + 1 has no bf16 of its own.
TEST(Binary, LowPrecisionRoundsEachResult) {
  EXPECT_EQ(binary("add", "bf16[2]", "{256, 256}", "{1, 3}"), "{256, 260}");
  EXPECT_EQ(binary("add", "f16[1]", "{2048}", "{1}"), "{2048}");
  EXPECT_EQ(value("x = bf16[1] constant({256}) y = bf16[1] constant({1}) "
                  "ROOT r = bf16[1] add(x, y)",
                  "", Precision::f64),
            "{257}");
}

TEST(Binary, IntegersWrapAndDivideAsXlaDefines) {
  EXPECT_EQ(binary("add", "s8[1]", "{127}", "{1}"), "{-128}");
  EXPECT_EQ(binary("multiply", "u32[1]", "{4294967295}", "{2}"), "{4294967294}");
  EXPECT_EQ(binary("divide", "s32[4]", "{7, -7, 5, -2147483648}", "{2, 2, 0, -1}"),
            "{3, -3, -1, -2147483648}");
  EXPECT_EQ(binary("remainder", "s32[4]", "{7, -7, 5, -2147483648}", "{2, 2, 0, -1}"),
            "{1, -1, 5, 0}");
  EXPECT_EQ(binary("power", "s32[4]", "{3, -1, 2, 2}", "{4, -3, -1, 40}"), "{81, -1, 0, 0}");
  EXPECT_EQ(binary("shift-left", "u8[3]", "{1, 1, 129}", "{7, 8, 1}"), "{128, 0, 2}");
  EXPECT_EQ(binary("shift-right-logical", "s8[2]", "{-128, -1}", "{7, 9}"), "{1, 0}");
  EXPECT_EQ(binary("shift-right-arithmetic", "s8[2]", "{-128, -1}", "{7, 9}"), "{-1, -1}");
  EXPECT_EQ(binary("xor", "u8[1]", "{12}", "{10}"), "{6}");
  EXPECT_EQ(binary("and", "pred[2]", "{1, 1}", "{1, 0}"), "{1, 0}");
}

TEST(Compare, OrdersAndNaN) {
  const std::string operands = "x = f32[3] constant({1, 2, nan}) y = f32[3] constant({2, 2, 2}) ";
  EXPECT_EQ(value(operands + "ROOT r = pred[3] compare(x, y), direction=LT"), "{1, 0, 0}");
  EXPECT_EQ(value(operands + "ROOT r = pred[3] compare(x, y), direction=GE"), "{0, 1, 0}");
  EXPECT_EQ(value(operands + "ROOT r = pred[3] compare(x, y), direction=NE"), "{1, 0, 1}");
  EXPECT_EQ(value(operands + "ROOT r = pred[3] compare(x, y), direction=GT, type=TOTALORDER"),
            "{0, 0, 1}");
  EXPECT_EQ(value("x = f32[2] constant({-0.0, 0}) y = f32[2] constant({0, -0.0}) "
                  "ROOT r = pred[2] compare(x, y), direction=LT, type=TOTALORDER"),
            "{1, 0}");
  EXPECT_EQ(value("x = u32[1] constant({4294967295}) y = u32[1] constant({1}) "
                  "ROOT r = pred[1] compare(x, y), direction=GT"),
            "{1}");
}

TEST(Select, ByArrayAndByScalar) {
  const std::string operands = "x = f32[2] constant({1, 2}) y = f32[2] constant({3, 4}) ";
  EXPECT_EQ(value(operands + "p = pred[2] constant({1, 0}) ROOT r = f32[2] select(p, x, y)"),
            "{1, 4}");
  EXPECT_EQ(value(operands + "p = pred[] constant(false) ROOT r = f32[2] select(p, x, y)"),
            "{3, 4}");
}

TEST(Clamp, ScalarBounds) {
  EXPECT_EQ(
      value("l = f32[] constant(-1) h = f32[] constant(1) x = f32[4] constant({-2, 0.5, 7, nan}) "
            "ROOT r = f32[4] clamp(l, x, h)"),
      "{-1, 0.5, 1, nan}");
}

TEST(Convert, TruncatesSaturatesWrapsAndRounds) {
  EXPECT_EQ(value("x = f32[5] constant({1.9, -1.9, 1e10, -inf, nan}) ROOT r = s8[5] convert(x)"),
            "{1, -1, 127, -128, 0}");
  EXPECT_EQ(value("x = f32[3] constant({-0.5, -3, 1e30}) ROOT r = u32[3] convert(x)"),
            "{0, 0, 4294967295}");
  EXPECT_EQ(value("x = s32[2] constant({300, -1}) ROOT r = u8[2] convert(x)"), "{44, 255}");
  EXPECT_EQ(value("x = f32[2] constant({0.1, 0}) ROOT r = pred[2] convert(x)"), "{1, 0}");
  EXPECT_EQ(value("x = f32[2] constant({257, 259}) ROOT r = bf16[2] convert(x)"), "{256, 260}");
  // Rounded once: through f32 this would become 1.0078125.
  EXPECT_EQ(value("x = f64[1] constant({1.00390625000001}) ROOT r = bf16[1] convert(x)"),
            "{1.008}");
  EXPECT_EQ(value("x = f32[3] constant({0.1, 448, 1000}) ROOT r = f8e4m3fn[3] convert(x)"),
            "{0.102, 448, nan}");
}

TEST(BitcastConvert, KeepsBitsAcrossWidths) {
  EXPECT_EQ(value("x = f32[1] constant({1}) ROOT r = u32[1] bitcast-convert(x)"), "{1065353216}");
  EXPECT_EQ(
      value("x = f32[1] constant({1}) ROOT r = u32[1] bitcast-convert(x)", "", Precision::f64),
      "{1065353216}");
  EXPECT_EQ(value("x = u32[1] constant({67305985}) ROOT r = u8[1,4] bitcast-convert(x)"),
            "{ { 1, 2, 3, 4 } }");
  EXPECT_EQ(value("x = u8[1,4] constant({{1, 2, 3, 4}}) ROOT r = u32[1] bitcast-convert(x)"),
            "{67305985}");
}

TEST(ReducePrecision, RoundsToFewerBits) {
  const std::string attributes = ", exponent_bits=5, mantissa_bits=2";
  EXPECT_EQ(unary("reduce-precision", "f32[4]", "{1.1, 1.2, 1e9, 1e-9}", attributes),
            "{1, 1.25, inf, 0}");
  EXPECT_EQ(unary("reduce-precision", "f64[3]", "{1.1, 1e-310, 5e-324}",
                  ", exponent_bits=11, mantissa_bits=2"),
            "{1, 0, 0}");
}

TEST(Map, AppliesItsComputation) {
  EXPECT_EQ(value("x = f32[2,2] constant({{1, 2}, {3, 4}}) "
                  "ROOT r = f32[2,2] map(x, x), dimensions={0,1}, to_apply=sum",
                  kAdd),
            "{ { 2, 4 }, { 6, 8 } }");
}

// The result's floating type may be another than the operand's.
TEST(MixedPrecision, CopyAndReducePrecisionGiveTheirOwnType) {
  EXPECT_EQ(value("x = bf16[2] constant({1, 2.5}) c = f32[2] copy(x) "
                  "ROOT r = f32[2,2] broadcast(c), dimensions={1}"),
            "{ { 1, 2.5 }, { 1, 2.5 } }");
  EXPECT_EQ(value("x = f32[3] constant({1, 2.5, 1.0625}) "
                  "ROOT r = bf16[3] reduce-precision(x), exponent_bits=8, mantissa_bits=3"),
            "{1, 2.5, 1}");
}

}  // namespace
}  // namespace heddle::hlo
