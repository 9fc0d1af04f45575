// Constants: what is read is what is written, to the bit.
#include "hlo/literal.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>

#include "hlo/float_text.h"
#include "hlo/minifloat.h"
#include "hlo/read.h"
#include "hlo/write.h"

namespace heddle::hlo {
namespace {

// How the constant of `shape` spelled `text` is written.
std::string written(const std::string& shape, const std::string& text) {
  auto module = read_text("HloModule m e { ROOT c = " + shape + " constant(" + text + ") }", "m");
  if (!module) return module.status().message();
  return to_string(*(*module)->entry()->root()->literal());
}

TEST(LiteralText, Forms) {
  EXPECT_EQ(written("f32[]", "-1e+30"), "-1e+30");
  EXPECT_EQ(written("f32[2,1,2]", "{{{1,2}},{{3,4}}}"), "{ { { 1, 2 } }, { { 3, 4 } } }");
  EXPECT_EQ(written("pred[]", "true"), "true");
  EXPECT_EQ(written("pred[3]", "{true, 0, 1}"), "{1, 0, 1}");
  EXPECT_EQ(written("c64[2]", "{(1, -2), 3}"), "{(1, -2), (3, 0)}");
  EXPECT_EQ(written("(f32[], (s32[2], pred[]))", "(1, ({2, 3}, true))"), "( 1, ( {2, 3}, true ) )");
  EXPECT_EQ(written("f32[0]", "{}"), "{}");
  EXPECT_EQ(written("f32[2,0]", "{{}, {}}"), "{ {}, {} }");
  EXPECT_EQ(written("f32[0,2]", "{}"), "{}");
  EXPECT_EQ(written("f32[2,0]", "{}"), "m:1:45: expected '{', found '}'");
  EXPECT_EQ(written("f32[9]", "{...}"), "{...}");
  EXPECT_EQ(written("(f32[9], s32[])", "({...}, 3)"), "( {...}, 3 )");
  EXPECT_EQ(written("u64[]", "18446744073709551615"), "18446744073709551615");
  EXPECT_EQ(written("s64[]", "-9223372036854775808"), "-9223372036854775808");
  EXPECT_EQ(written("s4[2]", "{-8, 7}"), "{-8, 7}");
  EXPECT_EQ(written("f32[3]", "{inf, -inf, -0.0}"), "{inf, -inf, -0.0}");
  EXPECT_EQ(written("f32[4]", "{nan, -nan, nan(0x1), -nan(0x7fffff)}"),
            "{nan, -nan, nan(0x1), -nan(0x7fffff)}");
}

TEST(LiteralText, Refusals) {
  EXPECT_EQ(written("f32[2]", "{1}"), "m:1:44: expected ',', found '}'");
  EXPECT_EQ(written("f32[2]", "{1, 2, 3}"), "m:1:47: expected '}' after 2 elements, found ','");
  EXPECT_EQ(written("f32[2]", "1"), "m:1:42: expected '{', found '1'");
  EXPECT_EQ(written("u8[]", "256"), "m:1:40: expected a number in the range of u8");
  EXPECT_EQ(written("s8[]", "-129"), "m:1:40: expected a number in the range of s8");
  EXPECT_EQ(written("s4[]", "8"), "m:1:40: expected a number in the range of s4");
  EXPECT_EQ(written("u32[]", "-1"), "m:1:41: expected a number in the range of u32");
  EXPECT_EQ(written("s32[]", "1.5"), "m:1:42: expected ')', found '.5'");
  EXPECT_EQ(written("f32[]", "1e39"), "m:1:41: expected a number in the range of f32");
  EXPECT_EQ(written("f16[]", "70000"), "m:1:41: expected a number in the range of f16");
  EXPECT_EQ(written("f32[]", "nan(0x800000)"), "m:1:41: expected a number in the range of f32");
  EXPECT_EQ(written("f32[]", "x"), "m:1:41: expected a number, found 'x'");
  EXPECT_EQ(written("pred[]", "2"), "m:1:42: expected true, false, 1 or 0");
  EXPECT_EQ(written("token[]", "1"), "m:1:43: expected a constant of an array or a tuple");
  EXPECT_EQ(written("f32[?]", "{1}"), "m:1:42: expected a constant of known size");
}

TEST(LiteralText, DigitsMayOutweighTheExponent) {
  const std::string ones(400, '1'), zeros(400, '0');
  EXPECT_EQ(written("f64[]", ones + "e-390"), "1111111111.1111112");
  EXPECT_EQ(written("f64[]", "0." + zeros + "1e+380"), "1e-21");
  EXPECT_EQ(written("f64[]", "0." + zeros + "1"), "0");
  EXPECT_EQ(written("f64[]", "-0." + zeros + "1e+10"), "-0.0");
  EXPECT_EQ(written("f64[]", "-1e-400"), "-0.0");
  EXPECT_EQ(written("f64[]", "1e-9999999999999999999999"), "0");
  const std::string larges[] = {ones, ones + "e-10", "0.01e+400", "1e+9999999999999999999999"};
  for (const std::string& large : larges) {
    EXPECT_EQ(written("f64[]", large), "m:1:41: expected a number in the range of f64") << large;
  }
}

TEST(LiteralText, ManyDigitsAreReadInOnePass) {
  const std::string ones(10'000'000, '1');
  EXPECT_EQ(written("f64[]", ones + "e-9999990"), "1111111111.1111112");
  EXPECT_EQ(written("f64[]", ones + "e-10"), "m:1:41: expected a number in the range of f64");
}

// Every code of every type of one and two bytes survives being written and read.
TEST(FloatText, EveryCodeReadsBackToItsBits) {
  for (int t = 0; t < kElementTypeCount; ++t) {
    const auto type = static_cast<ElementType>(t);
    if (!is_floating(type) || size_of(type) > 2) continue;
    const int codes = type == ElementType::f4e2m1fn ? 16 : 1 << (8 * size_of(type));
    for (int code = 0; code < codes; ++code) {
      std::byte bits[8] = {};
      std::memcpy(bits, &code, 2);
      const std::string text = write_float_text(type, bits, 0);
      std::byte again[8] = {};
      size_t length = 0;
      ASSERT_EQ(read_float_text(type, text, again, 0, length), FloatText::ok) << name(type) << text;
      ASSERT_EQ(length, text.size());
      ASSERT_EQ(std::memcmp(bits, again, size_of(type)), 0)
          << name(type) << " " << code << " " << text;
    }
  }
}

TEST(FloatText, SampledF32AndF64ReadBackToTheirBits) {
  uint64_t state = 0x9E3779B97F4A7C15;
  for (int i = 0; i < 20000; ++i) {
    state = state * 6364136223846793005 + 1442695040888963407;
    const uint64_t bits = state ^ (state >> 29);
    for (ElementType type : {ElementType::f32, ElementType::f64}) {
      std::byte data[8];
      std::memcpy(data, &bits, 8);
      const std::string text = write_float_text(type, data, 0);
      std::byte again[8] = {};
      size_t length = 0;
      ASSERT_EQ(read_float_text(type, text, again, 0, length), FloatText::ok) << text;
      ASSERT_EQ(std::memcmp(data, again, size_of(type)), 0) << text;
    }
  }
}

TEST(Minifloat, ValuesOfEachFormat) {
  EXPECT_EQ(minifloat_to_double(ElementType::f8e4m3fn, 0x7e), 448);
  EXPECT_TRUE(std::isnan(minifloat_to_double(ElementType::f8e4m3fn, 0x7f)));
  EXPECT_EQ(minifloat_to_double(ElementType::f8e5m2, 0x7b), 57344);
  EXPECT_TRUE(std::isinf(minifloat_to_double(ElementType::f8e5m2, 0x7c)));
  EXPECT_EQ(minifloat_to_double(ElementType::f8e4m3, 0x77), 240);
  EXPECT_EQ(minifloat_to_double(ElementType::f8e3m4, 0x6f), 15.5);
  EXPECT_EQ(minifloat_to_double(ElementType::f8e4m3fnuz, 0x7f), 240);
  EXPECT_EQ(minifloat_to_double(ElementType::f8e4m3b11fnuz, 0x7f), 30);
  EXPECT_EQ(minifloat_to_double(ElementType::f8e5m2fnuz, 0x7f), 57344);
  EXPECT_TRUE(std::isnan(minifloat_to_double(ElementType::f8e5m2fnuz, 0x80)));
  EXPECT_EQ(minifloat_to_double(ElementType::f4e2m1fn, 7), 6);
  EXPECT_EQ(minifloat_to_double(ElementType::f8e8m0fnu, 127), 1);
}

TEST(Minifloat, RoundsToNearestEven) {
  EXPECT_EQ(double_to_minifloat(ElementType::f8e4m3fn, 1.0625), 0x38);  // halfway from 1: to even
  EXPECT_EQ(double_to_minifloat(ElementType::f8e4m3fn, 1.1875), 0x3a);
  EXPECT_EQ(double_to_minifloat(ElementType::f8e4m3fn, 464), 0x7e);  // halfway past the largest
  EXPECT_EQ(double_to_minifloat(ElementType::f8e4m3fn, 465), 0x7f);
  EXPECT_EQ(double_to_minifloat(ElementType::f8e5m2, 61440), 0x7c);
  EXPECT_EQ(double_to_minifloat(ElementType::f4e2m1fn, 100), 7);
  EXPECT_EQ(double_to_minifloat(ElementType::f8e5m2fnuz, -1e-30), 0);
}

TEST(Literal, CopiesShareUntilWritten) {
  Literal a = Literal::scalar(ElementType::f32, 1);
  Literal b = a;
  EXPECT_FALSE(a.is_unshared());
  b.set(0, 2);
  EXPECT_EQ(a.get(0), 1);
  EXPECT_EQ(b.get(0), 2);
  EXPECT_TRUE(a.is_unshared());
}

TEST(Literal, SplatsAndSizes) {
  const float twos[] = {2, 2, 2};
  auto splat = Literal::array<float>(Shape(ElementType::f32, {3}), twos);
  ASSERT_TRUE(splat);
  EXPECT_TRUE(splat->is_splat());
  splat->set(1, 3);
  EXPECT_FALSE(splat->is_splat());
  EXPECT_EQ(Literal::array<float>(Shape(ElementType::f32, {4}), twos).status().message(),
            "12 bytes given for a value of f32[4]");
  auto meter = std::make_shared<MemoryMeter>(MemoryMeter{0, 100});
  {
    auto held = Literal::uninitialized(Shape(ElementType::f32, {20}), meter);
    ASSERT_TRUE(held);
    EXPECT_EQ(meter->used, 80);
    EXPECT_EQ(Literal::uninitialized(Shape(ElementType::f32, {6}), meter).status().message(),
              "f32[6] would exceed the limit of 100 bytes");
  }
  EXPECT_EQ(meter->used, 0);
}

}  // namespace
}  // namespace heddle::hlo
