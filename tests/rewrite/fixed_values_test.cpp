// What the text of a program alone decides, cell by cell and in pieces, beside the interpreter:
// random arithmetic on row and key indices in every type.
#include <random>

#include "hlo/interpreter/evaluate.h"
#include "rewrite/cells.h"
#include "rewrite/piecewise.h"
#include "rewrite/programs.h"

namespace heddle::testing {
namespace {

constexpr int kRows = 11, kKeys = 13;

class RandomIndices {
 public:
  explicit RandomIndices(uint64_t seed) : random_(seed) {}

  std::string module() {
    text_ = "HloModule indices\n\nENTRY main {\n";
    type_ = one_of({"s32", "s32", "u32", "s64", "u64", "s8", "u8", "s16", "f32", "bf16"});
    std::vector<std::string> numbers{index(0), index(1), index(0), index(1)}, truths;
    const int steps = 3 + pick(9);
    for (int i = 0; i < steps; ++i) step(numbers, truths);
    truths.push_back(
        add("pred", "compare(" + numbers.back() + ", " + any(numbers) +
                        "), direction=" + one_of({"EQ", "NE", "LT", "LE", "GT", "GE"})));
    const std::string root = pick(8) == 0
                                 ? vector("pred", {"0", "1"})
                                 : add("pred", one_of({"and(", "or(", "xor("}) + truths.back() +
                                                   ", " + any(truths) + ")");
    return text_ + "  ROOT root = " + shape("pred") + " copy(" + root + ")\n}\n";
  }

 private:
  int pick(int count) { return static_cast<int>(random_() % count); }
  std::string one_of(const std::vector<std::string>& all) { return all[pick(all.size())]; }
  std::string any(const std::vector<std::string>& all) { return one_of(all); }

  static std::string shape(const std::string& type) {
    return fmt::format("{}[{},{}]", type, kRows, kKeys);
  }

  std::string add(const std::string& type, const std::string& operation) {
    const std::string name = fmt::format("x{}", count_++);
    text_ += "  " + name + " = " + shape(type) + " " + operation + "\n";
    return name;
  }

  std::string index(int dim) { return add(type_, fmt::format("iota(), iota_dimension={}", dim)); }

  std::string number() {
    const std::string name = fmt::format("c{}", count_++);
    std::vector<std::string> values{"0", "1", "2", "3", "5"};
    if (type_ == "s64" || type_ == "u64") {
      // The second is 2^53 + 1: of f64's numbers the first is the nearest.
      for (const char* value : {"9007199254740992", "9007199254740993", "4611686018427387904"})
        values.emplace_back(value);
    } else if (type_ == "s32" || type_ == "u32" || type_ == "f32") {
      for (const char* value : {"1000000", "2000000000"}) values.emplace_back(value);
    } else {
      for (const char* value : {"40", "100"}) values.emplace_back(value);
    }
    const std::string value = one_of(values);
    text_ += "  " + name + " = " + type_ + "[] constant(" + value + ")\n";
    return add(type_, "broadcast(" + name + "), dimensions={}");
  }

  /// Literals along one of the dimensions.
  std::string vector(const std::string& type, const std::vector<std::string>& values) {
    const int dim = pick(2), size = dim == 0 ? kRows : kKeys;
    std::string all = one_of(values);
    for (int i = 1; i < size; ++i) all += ", " + one_of(values);
    const std::string name = fmt::format("c{}", count_++);
    text_ += fmt::format("  {} = {}[{}] constant({{{}}})\n", name, type, size, all);
    return add(type, fmt::format("broadcast({}), dimensions={{{}}}", name, dim));
  }

  void step(std::vector<std::string>& numbers, std::vector<std::string>& truths) {
    const bool is_floating = type_ == "f32" || type_ == "bf16";
    const std::string a = any(numbers);
    const std::string b = pick(3) == 0 ? number() : any(numbers);
    switch (pick(12)) {
      case 10:
        numbers.push_back(vector(type_, {"0", "1", "2", "3"}));
        break;
      case 11:
        truths.push_back(vector("pred", {"0", "1"}));
        break;
      case 0:
      case 1:
        numbers.push_back(add(type_, one_of({"add(", "subtract("}) + a + ", " + b + ")"));
        break;
      case 2:
        numbers.push_back(add(type_, "multiply(" + a + ", " + number() + ")"));
        break;
      case 3:
        numbers.push_back(add(type_, one_of({"minimum(", "maximum("}) + a + ", " + b + ")"));
        break;
      case 4: {
        const bool is_signed = type_[0] != 'u';
        numbers.push_back(
            add(type_, (is_signed ? one_of({"negate(", "abs("}) : "negate(") + a + ")"));
        break;
      }
      case 5:
        truths.push_back(add("pred", "compare(" + a + ", " + b + "), direction=" +
                                         one_of({"EQ", "NE", "LT", "LE", "GT", "GE"})));
        break;
      case 6:
        if (!truths.empty())
          numbers.push_back(add(type_, "select(" + any(truths) + ", " + a + ", " + b + ")"));
        break;
      case 7:
        if (!is_floating)
          numbers.push_back(
              add(type_, one_of({"remainder(", "divide(", "and(", "xor(", "shift-left(",
                                 "shift-right-logical(", "shift-right-arithmetic("}) +
                             a + ", " + b + ")"));
        break;
      case 8:
        if (!truths.empty()) numbers.push_back(add(type_, "convert(" + any(truths) + ")"));
        break;
      default: {
        const std::string to = one_of({"s32", "u32", "s64", "u64", "s8", "u8", "f32", "bf16"});
        for (std::string& x : numbers) x = add(to, "convert(" + x + ")");
        type_ = to;
      }
    }
  }

  std::mt19937_64 random_;
  std::string text_, type_;
  int count_ = 0;
};

/// How many modules were read in each way.
struct Read {
  int cells = 0, pieces = 0;
};

/// What is read of the truth that `text` computes is what the interpreter makes of it.
void expect_as_interpreted(const std::string& text, Read& read) {
  const auto module = parsed(text);
  ASSERT_TRUE(module) << text;
  const auto expected = hlo::evaluate(*module, {});
  ASSERT_TRUE(expected.is_ok()) << expected.status().message() << text;
  rewrite::Elements elements(*module);
  const rewrite::Element root = elements.fresh(0, module->entry()->root());
  const auto steps = rewrite::fixed_steps_of(elements, root);
  ASSERT_TRUE(steps) << text;
  const rewrite::Index &rows = root.at[0], &keys = root.at[1];
  std::vector<rewrite::Extent> extents;
  for (rewrite::Var v : rewrite::flat(root.at)) extents.push_back({v, 0, elements.size(v)});
  if (const auto values = rewrite::Cells(elements).evaluate(*steps, extents)) {
    ++read.cells;
    const auto all = rewrite::spread(*values, {kRows, kKeys});
    ASSERT_TRUE(all);
    for (int64_t i = 0; i < kRows * kKeys; ++i)
      ASSERT_EQ(all->get(i), expected->get(i)) << "at " << i << "\n" << text;
  }
  const auto pieces = rewrite::pieces_of(elements, *steps, rows, keys);
  if (!pieces) return;
  ++read.pieces;
  for (int64_t i = 0; i < kRows; ++i)
    for (int64_t j = 0; j < kKeys; ++j) {
      int found = 0;
      for (const rewrite::Piece& piece : *pieces) {
        const auto within = [](const rewrite::Span& span, int64_t x) {
          return x >= span.first && x <= span.last;
        };
        if (!within(piece.zone.row, i) || !within(piece.zone.key, j) ||
            !within(piece.zone.ahead, i - j))
          continue;
        ++found;
        const rewrite::Linear2& v = piece.value;
        ASSERT_TRUE(v.is_constant()) << "of a truth\n" << text;
        ASSERT_EQ(static_cast<double>(v.row * i + v.key * j + v.constant),
                  expected->get(i * kKeys + j))
            << "at " << i << ", " << j << "\n"
            << text;
      }
      ASSERT_EQ(found, 1) << "at " << i << ", " << j << "\n" << text;
    }
}

TEST(FixedValues, AreWhatTheInterpreterComputes) {
  Read read;
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    SCOPED_TRACE(seed);
    expect_as_interpreted(RandomIndices(seed).module(), read);
    if (HasFatalFailure()) return;
  }
  // Both ways read enough to be judged.
  EXPECT_GT(read.cells, 2000);
  EXPECT_GT(read.pieces, 1000);
}

// 2^53 + 1, of which the nearest f64 is 2^53.
TEST(FixedValues, OfIntegersThatAnF64DoesNotHold) {
  Read read;
  for (const char* constant : {"constant(9007199254740993)", "constant(-9007199254740993)"})
    for (const char* other : {"constant(9007199254740992)", "constant(-9007199254740992)"})
      expect_as_interpreted(fmt::format(R"(HloModule far_indices

ENTRY main {{
  i = s64[11,13] iota(), iota_dimension=0
  j = s64[11,13] iota(), iota_dimension=1
  a = s64[] {}
  b = s64[] {}
  as = s64[11,13] broadcast(a), dimensions={{}}
  bs = s64[11,13] broadcast(b), dimensions={{}}
  row = s64[11,13] add(i, as)
  key = s64[11,13] add(j, bs)
  ROOT root = pred[11,13] compare(row, key), direction=GE
}}
)",
                                        constant, other),
                            read);
  EXPECT_EQ(read.cells, 4);
}

}  // namespace
}  // namespace heddle::testing
