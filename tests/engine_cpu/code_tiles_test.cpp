// Few rows over keys and values that are codes: every code, and rows of Q and weights that are no
// usual ones, at every level. Random programs over codes: random_attention_test.cpp.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "engine/cpu/engine.h"
#include "engine_cpu/levels.h"
#include "engine_cpu/problems.h"
#include "support/program.h"

namespace heddle::testing {
namespace {

/// `rows` heads over one of keys and values, a row each.
class FewRows {
 public:
  FewRows(DataType codes, int64_t rows, int64_t keys, int32_t columns)
      : q(static_cast<size_t>(rows * columns)),
        k(static_cast<size_t>(keys * columns)),
        v(k),
        o(q.size()),
        stats(static_cast<size_t>(rows)),
        codes_(codes),
        keys_(keys),
        columns_(columns) {
    problem_ = causal_attention(DataType::f32, 1, rows, 1, 1, columns);
    problem::AttentionStructure& s = problem_.structure;
    s.bounds.clear();
    problem_.sizes.bound_constants.clear();
    problem_.sizes.kv_length = keys;
    problem_.sizes.scale = 1;
    const auto scale = static_cast<problem::OperandId>(s.operands.size());
    s.operands.push_back({DataType::f32});
    problem_.sizes.layouts.push_back(dense({1, 1, 1, 1}));
    for (problem::OperandId id : {s.k, s.v}) {
      s.type(id).dtype = codes;
      s.type(id).scales = {problem::Scales::Per::tensor, scale};
      problem_.sizes.layout(id) = dense({1, 1, keys, columns / s.type(id).columns_of_element()});
    }
  }

  void execute(engine::cpu::Isa isa) {
    const ForcedLevel level(isa);
    const auto plan = engine::cpu_engine().plan(problem_);
    ASSERT_TRUE(plan.is_ok()) << plan.status().message();
    std::vector<uint8_t> k_codes = encoded(k), v_codes = encoded(v);
    float scale = 1;
    std::fill(o.begin(), o.end(), -7.0f);
    void* buffers[] = {q.data(), k_codes.data(), v_codes.data(), o.data(), stats.data(), &scale};
    Block workspace((*plan)->workspace_bytes());
    const Status status = (*plan)->execute(buffers, workspace.data(), nullptr);
    ASSERT_TRUE(status.is_ok()) << status.message();
  }

  /// O of row r in f64, and its log-sum-exp.
  std::vector<double> expected(size_t r, double& log_sum_exp) const {
    std::vector<double> score(static_cast<size_t>(keys_)), sum(columns());
    double most = -std::numeric_limits<double>::infinity(), weight = 0;
    for (size_t j = 0; j < score.size(); ++j) {
      for (size_t d = 0; d < columns(); ++d)
        score[j] += static_cast<double>(q[r * columns() + d]) * k[j * columns() + d];
      most = std::max(most, score[j]);
    }
    for (size_t j = 0; j < score.size(); ++j) {
      const double p = std::exp(score[j] - most);
      weight += p;
      for (size_t d = 0; d < columns(); ++d) sum[d] += p * v[j * columns() + d];
    }
    for (double& x : sum) x /= weight;
    log_sum_exp = most + std::log(weight);
    return sum;
  }

  size_t columns() const { return static_cast<size_t>(columns_); }

  std::vector<float> q, k, v, o, stats;  ///< k and v: numbers that codes stand for

 private:
  std::vector<uint8_t> encoded(const std::vector<float>& numbers) const {
    std::vector<uint8_t> codes(numbers.size());
    for (size_t n = 0; n < numbers.size(); ++n) {
      if (codes_ == DataType::f8e4m3) {
        codes[n] = float_to_f8e4m3(numbers[n]);
      } else if (codes_ == DataType::i8) {
        codes[n] = static_cast<uint8_t>(static_cast<int8_t>(numbers[n]));
      } else {
        const auto four = static_cast<uint8_t>(numbers[n] + 8);
        codes[n / 2] = static_cast<uint8_t>(n % 2 == 0 ? four : codes[n / 2] | four << 4);
      }
    }
    return codes;
  }

  DataType codes_;
  int64_t keys_;
  int32_t columns_;
  problem::AttentionProblem problem_;
};

constexpr DataType kCodes[] = {DataType::i8, DataType::u8, DataType::f8e4m3};

std::string words(engine::cpu::Isa isa, DataType codes) {
  return std::string(engine::cpu::name(isa)) + ", codes of " + std::string(name(codes));
}

/// All numbers of a kind of codes but NaN.
std::vector<float> numbers_of(DataType codes) {
  std::vector<float> numbers;
  const bool is_i8 = codes == DataType::i8;
  if (codes != DataType::f8e4m3) {
    for (int n = is_i8 ? -128 : -8; n < (is_i8 ? 128 : 8); ++n)
      numbers.push_back(static_cast<float>(n));
    return numbers;
  }
  for (int n = 0; n < 256; ++n)
    if (n % 128 != 127) numbers.push_back(f8e4m3_to_float(static_cast<uint8_t>(n)));
  return numbers;
}

/// One key: a row's O is V and its log-sum-exp the score, of which a row of Q with a single 1
/// leaves one column.
TEST(CodeTiles, EveryCodeIsItsNumber) {
  for (DataType codes : kCodes) {
    const std::vector<float> numbers = numbers_of(codes);
    for (engine::cpu::Isa isa : available_levels()) {
      SCOPED_TRACE(words(isa, codes));
      for (size_t first = 0; first < numbers.size(); first += 8) {
        FewRows all(codes, 6, 1, static_cast<int32_t>(std::min<size_t>(8, numbers.size() - first)));
        for (size_t d = 0; d < all.columns(); ++d) all.k[d] = all.v[d] = numbers[first + d];
        for (size_t r = 0; r < 6; ++r) all.q[r * all.columns() + r] = 1;
        all.execute(isa);
        for (size_t r = 0; r < 6; ++r) {
          ASSERT_EQ(all.stats[r], all.k[r]);
          for (size_t d = 0; d < all.columns(); ++d)
            ASSERT_EQ(all.o[r * all.columns() + d], all.v[d]) << "column " << d;
        }
      }
    }
  }
}

/// Keys and values of all numbers, in turn.
void fill_with_codes(FewRows& attention, DataType codes) {
  const std::vector<float> numbers = numbers_of(codes);
  for (size_t n = 0; n < attention.k.size(); ++n) {
    attention.k[n] = numbers[n * 7 % numbers.size()];
    attention.v[n] = numbers[(n * 11 + n / attention.columns()) % numbers.size()];
  }
}

/// Scores of about 1, made of columns of Q of very different sizes.
TEST(CodeTiles, RowsOfQueriesOfAllSizes) {
  for (DataType codes : kCodes) {
    for (engine::cpu::Isa isa : available_levels()) {
      SCOPED_TRACE(words(isa, codes));
      FewRows attention(codes, 7, 300, 72);
      fill_with_codes(attention, codes);
      for (size_t n = 0; n < attention.q.size(); ++n)
        attention.q[n] = std::ldexp(n % 3 == 0 ? -1.25f : 1.5f, -9 - static_cast<int>(n % 23));
      attention.execute(isa);
      for (size_t r = 0; r < 7; ++r) {
        double log_sum_exp = 0;
        const std::vector<double> o = attention.expected(r, log_sum_exp);
        ASSERT_NEAR(attention.stats[r], log_sum_exp, 4e-6);
        for (size_t d = 0; d < o.size(); ++d)
          ASSERT_NEAR(attention.o[r * o.size() + d], o[d], 2e-6 * attention.v.size() / 100)
              << "row " << r << ", column " << d;
      }
    }
  }
}

/// The first `sinks` keys have all the weight but a millionth, and values of 0.
TEST(CodeTiles, SmallWeightsBesideSinksKeepTheirDigits) {
  for (DataType codes : kCodes) {
    for (engine::cpu::Isa isa : available_levels()) {
      for (size_t sinks : {1, 3}) {
        SCOPED_TRACE(words(isa, codes) + ", sinks " + std::to_string(sinks));
        FewRows attention(codes, 5, 400, 64);
        for (size_t n = 0; n < attention.k.size(); ++n) {
          const bool is_sink = n < sinks * attention.columns();
          attention.k[n] = is_sink ? 4 : static_cast<float>(n % 3) / (codes == kCodes[2] ? 4 : 1);
          attention.v[n] = is_sink ? 0 : static_cast<float>(1 + n % 5);
        }
        for (float& x : attention.q) x = 0.09f;
        attention.execute(isa);
        for (size_t r = 0; r < 5; ++r) {
          double log_sum_exp = 0;
          const std::vector<double> o = attention.expected(r, log_sum_exp);
          for (size_t d = 0; d < o.size(); ++d) {
            ASSERT_LT(o[d], 1e-3);
            ASSERT_NEAR(attention.o[r * o.size() + d] / o[d], 1, 1e-5) << "column " << d;
          }
        }
      }
    }
  }
}

/// Infinite, far too large and far too small numbers are what they are in f32.
TEST(CodeTiles, RowsOfQueriesThatAreNotTakenApart) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (DataType codes : kCodes) {
    for (engine::cpu::Isa isa : available_levels()) {
      SCOPED_TRACE(words(isa, codes));
      for (float x : {std::nanf(""), infinity, 0x1p110f, 0x1p-110f}) {
        FewRows attention(codes, 4, 20, 64);
        fill_with_codes(attention, codes);
        for (size_t n = 0; n < attention.q.size(); ++n)
          attention.q[n] = n % 2 == 0 ? 0.01f : -0.01f;
        // Keys of 1 in that column: the score is the number itself, or the others' beside it.
        attention.q[64] = x;
        for (size_t j = 0; j < 20; ++j) attention.k[j * 64] = 1;
        attention.execute(isa);
        for (size_t r = 0; r < 4; ++r) {
          if (r == 1 && x != 0x1p-110f) {
            if (x == 0x1p110f) {
              ASSERT_EQ(attention.stats[r], x);
            } else {
              ASSERT_TRUE(std::isnan(attention.o[r * 64]));
            }
            continue;
          }
          double log_sum_exp = 0;
          const std::vector<double> o = attention.expected(r, log_sum_exp);
          ASSERT_NEAR(attention.stats[r], log_sum_exp, 1e-4);
          for (size_t d = 0; d < o.size(); ++d)
            ASSERT_NEAR(attention.o[r * 64 + d], o[d], 1e-3) << "row " << r;
        }
      }
    }
  }
}

TEST(CodeTiles, ANanAmongCodesStaysWhereItIs) {
  for (engine::cpu::Isa isa : available_levels()) {
    SCOPED_TRACE(engine::cpu::name(isa));
    FewRows attention(DataType::f8e4m3, 4, 40, 64);
    for (float& x : attention.v) x = 1;
    attention.v[5 * 64 + 3] = std::nanf("");
    attention.execute(isa);
    for (size_t n = 0; n < attention.o.size(); ++n)
      ASSERT_EQ(std::isnan(attention.o[n]), n % 64 == 3) << n;
    attention.v[5 * 64 + 3] = 1;
    attention.k[5 * 64 + 3] = std::nanf("");
    attention.execute(isa);
    for (float x : attention.o) ASSERT_TRUE(std::isnan(x));
  }
}

}  // namespace
}  // namespace heddle::testing
