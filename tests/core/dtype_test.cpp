#include "core/dtype.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <vector>

namespace heddle {
namespace {

/// A float format described independently of the code under test: sign, exponent and mantissa
/// widths.
struct Format {
  DataType type;
  int exponent_bits, mantissa_bits;
  bool has_infinity;
  double largest, smallest;  // finite and positive; from the formats' definitions
};

const Format kFormats[] = {{DataType::bf16, 8, 7, true, std::ldexp(255, 120), std::ldexp(1, -133)},
                           {DataType::f16, 5, 10, true, 65504, std::ldexp(1, -24)},
                           {DataType::f8e4m3, 4, 3, false, 448, std::ldexp(1, -9)},
                           {DataType::f8e5m2, 5, 2, true, 57344, std::ldexp(1, -16)}};

double load_bits(DataType type, uint32_t bits) { return load(type, &bits, 0); }
uint32_t store_bits(DataType type, double value) {
  uint32_t bits = 0;
  store(type, &bits, 0, value);
  return bits;
}

class SmallFloats : public testing::TestWithParam<Format> {};
INSTANTIATE_TEST_SUITE_P(Formats, SmallFloats, testing::ValuesIn(kFormats),
                         [](const auto& info) { return std::string(name(info.param.type)); });

TEST_P(SmallFloats, EveryNumberSurvives) {
  const Format format = GetParam();
  const uint32_t patterns = 1u << (1 + format.exponent_bits + format.mantissa_bits);
  double largest = 0, smallest = INFINITY;
  for (uint32_t bits = 0; bits < patterns; ++bits) {
    const double value = load_bits(format.type, bits);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(load_bits(format.type, store_bits(format.type, value))));
      continue;
    }
    EXPECT_EQ(store_bits(format.type, value), bits);
    if (std::isinf(value)) continue;
    largest = std::max(largest, value);
    if (value > 0) smallest = std::min(smallest, value);
  }
  EXPECT_EQ(largest, format.largest);
  EXPECT_EQ(smallest, format.smallest);
}

TEST_P(SmallFloats, RoundsToNearestTiesToEven) {
  const Format format = GetParam();
  const uint32_t finite = store_bits(format.type, format.largest);
  for (uint32_t bits = 0; bits < finite; ++bits) {
    const double low = load_bits(format.type, bits), high = load_bits(format.type, bits + 1);
    const double middle = (low + high) / 2;  // exact: the formats are far narrower than a double
    EXPECT_EQ(store_bits(format.type, middle), bits % 2 == 0 ? bits : bits + 1);
    EXPECT_EQ(store_bits(format.type, std::nextafter(middle, -INFINITY)), bits);
    EXPECT_EQ(store_bits(format.type, std::nextafter(middle, INFINITY)), bits + 1);
    EXPECT_EQ(load_bits(format.type, store_bits(format.type, -middle)),
              -load_bits(format.type, store_bits(format.type, middle)));
  }
}

TEST_P(SmallFloats, OverflowsToInfinityOrNaN) {
  const Format format = GetParam();
  const uint32_t finite = store_bits(format.type, format.largest);
  const double step = format.largest - load_bits(format.type, finite - 1);
  const double beyond = load_bits(format.type, store_bits(format.type, format.largest + step));
  EXPECT_EQ(store_bits(format.type, format.largest + 0.49 * step), finite);
  EXPECT_TRUE(format.has_infinity ? std::isinf(beyond) : std::isnan(beyond));
  EXPECT_TRUE(std::isnan(load_bits(format.type, store_bits(format.type, NAN))));
  const double infinity = load_bits(format.type, store_bits(format.type, -INFINITY));
  EXPECT_TRUE(format.has_infinity ? infinity == -INFINITY : std::isnan(infinity));
  EXPECT_EQ(store_bits(format.type, format.smallest / 2), 0u);
  EXPECT_TRUE(std::signbit(load_bits(format.type, store_bits(format.type, -0.0))));
}

// The fast conversions agree with the general one on floats of every exponent.
TEST(FloatConversions, AgreeWithTheGeneralOne) {
  std::mt19937 random(1);
  for (uint64_t high = 0; high < 1u << 16; ++high) {
    for (uint32_t low :
         {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu, static_cast<uint32_t>(random() & 0xffff)}) {
      const float x = std::bit_cast<float>(static_cast<uint32_t>(high << 16) | low);
      const auto same = [&](DataType type, uint32_t fast) {
        const uint32_t general = store_bits(type, x);
        return fast == general ||
               (std::isnan(load_bits(type, fast)) && std::isnan(load_bits(type, general)));
      };
      ASSERT_TRUE(same(DataType::bf16, to_bfloat16(x).bits)) << x;
      ASSERT_TRUE(same(DataType::f16, to_float16(x).bits)) << x;
      ASSERT_TRUE(same(DataType::f8e4m3, float_to_f8e4m3(x))) << x;
      ASSERT_TRUE(same(DataType::f8e5m2, float_to_f8e5m2(x))) << x;
    }
  }
}

TEST(FloatConversions, WidenExactly) {
  for (uint32_t bits = 0; bits < 1u << 16; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const auto same = [](float fast, double general) {
      return fast == general || (std::isnan(fast) && std::isnan(general));
    };
    ASSERT_TRUE(same(to_float(bfloat16{half}), load_bits(DataType::bf16, bits)));
    ASSERT_TRUE(same(to_float(float16{half}), load_bits(DataType::f16, bits)));
    if (bits > 255) continue;
    ASSERT_TRUE(
        same(f8e4m3_to_float(static_cast<uint8_t>(bits)), load_bits(DataType::f8e4m3, bits)));
    ASSERT_TRUE(
        same(f8e5m2_to_float(static_cast<uint8_t>(bits)), load_bits(DataType::f8e5m2, bits)));
  }
}

TEST(FloatConversions, RoundOnceFromDouble) {
  // Just above the middle of 1 and its bf16 successor: via f32 this would be a tie and round down.
  const double above = 1 + std::ldexp(1, -8) + std::ldexp(1, -40);
  EXPECT_EQ(load_bits(DataType::bf16, store_bits(DataType::bf16, above)), 1 + std::ldexp(1, -7));
}

TEST(DataTypes, NamesAndSizes) {
  const DataType all[] = {DataType::f64,    DataType::f32,    DataType::bf16, DataType::f16,
                          DataType::f8e4m3, DataType::f8e5m2, DataType::i64,  DataType::i32,
                          DataType::i8,     DataType::u64,    DataType::u32,  DataType::u8,
                          DataType::boolean};
  const int64_t sizes[] = {8, 4, 2, 2, 1, 1, 8, 4, 1, 8, 4, 1, 1};
  for (size_t i = 0; i < std::size(all); ++i) {
    EXPECT_EQ(data_type_from_name(name(all[i])), all[i]);
    EXPECT_EQ(size_of(all[i]), sizes[i]);
    EXPECT_EQ(is_floating(all[i]), i < 6);
  }
  EXPECT_EQ(data_type_from_name("float"), std::nullopt);
}

TEST(DataTypes, IntegersLoadAndStoreByValue) {
  std::vector<int64_t> buffer(4);
  const auto through = [&](DataType type, double value) {
    store(type, buffer.data(), 2, value);
    return load(type, buffer.data(), 2);
  };
  EXPECT_EQ(through(DataType::i64, -5e15), -5e15);
  EXPECT_EQ(through(DataType::u64, 1e19), 1e19);
  EXPECT_EQ(through(DataType::i32, INT32_MIN), INT32_MIN);
  EXPECT_EQ(through(DataType::u32, UINT32_MAX), UINT32_MAX);
  EXPECT_EQ(through(DataType::i8, -128), -128);
  EXPECT_EQ(through(DataType::u8, 255), 255);
  EXPECT_EQ(through(DataType::boolean, 0.5), 1);
  EXPECT_EQ(through(DataType::f64, 0.1), 0.1);
  EXPECT_EQ(through(DataType::f32, 0.1), 0.1f);
}

TEST(DataTypes, IntegerStoresSaturate) {
  // A double beyond the type's range has no value in it; the nearest is stored, and 0 for NaN.
  std::vector<int64_t> buffer(1);
  const auto through = [&](DataType type, double value) {
    store(type, buffer.data(), 0, value);
    return load(type, buffer.data(), 0);
  };
  EXPECT_EQ(through(DataType::i8, 300), 127);
  EXPECT_EQ(through(DataType::i8, -300), -128);
  EXPECT_EQ(through(DataType::u8, -1), 0);
  EXPECT_EQ(through(DataType::i32, 1e30), INT32_MAX);
  EXPECT_EQ(through(DataType::u64, INFINITY), 18446744073709551616.0);  // the nearest double
  EXPECT_EQ(through(DataType::i64, -INFINITY), -9223372036854775808.0);
  EXPECT_EQ(through(DataType::i32, NAN), 0);
}

}  // namespace
}  // namespace heddle
