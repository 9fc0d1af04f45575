// Mistakes a rewriter could make, planted by hand: verify() must find each of them.
#include "tools/verify.h"

#include <gtest/gtest.h>

#include "hlo/read.h"

namespace heddle::tools {
namespace {

// Rotated queries under a causal mask and one of data.
const std::string kAttention = R"(
HloModule attention
larger { a = f32[] parameter(0) b = f32[] parameter(1) ROOT m = f32[] maximum(a, b) }
sum { a = f32[] parameter(0) b = f32[] parameter(1) ROOT s = f32[] add(a, b) }
ENTRY main {
  q = f32[2,3,8,4] parameter(0)
  k = f32[2,3,8,4] parameter(1)
  v = f32[2,3,8,4] parameter(2)
  position = s32[2,8] parameter(3)
  visible = s32[2,8] parameter(4)
  angle = f32[2,8] convert(position)
  table = f32[2,8] cosine(angle)
  tables = f32[2,3,8,4] broadcast(table), dimensions={0,2}
  turned = f32[2,3,8,4] multiply(q, tables)
  scores = f32[2,3,8,8] dot(turned, k), lhs_batch_dims={0,1}, lhs_contracting_dims={3}, rhs_batch_dims={0,1}, rhs_contracting_dims={3}
  scale = f32[] constant(0.5)
  scales = f32[2,3,8,8] broadcast(scale), dimensions={}
  scaled = f32[2,3,8,8] multiply(scores, scales)
  row = s32[8,8] iota(), iota_dimension=0
  key = s32[8,8] iota(), iota_dimension=1
  before = pred[8,8] compare(row, key), direction=GE
  causal = pred[2,3,8,8] broadcast(before), dimensions={2,3}
  zero = s32[] constant(0)
  zeros = s32[2,8] broadcast(zero), dimensions={}
  shown = pred[2,8] compare(visible, zeros), direction=NE
  all_shown = pred[2,3,8,8] broadcast(shown), dimensions={0,3}
  both = pred[2,3,8,8] and(causal, all_shown)
  fill = f32[] constant(-1e9)
  fills = f32[2,3,8,8] broadcast(fill), dimensions={}
  masked = f32[2,3,8,8] select(both, scaled, fills)
  least = f32[] constant(-inf)
  most = f32[2,3,8] reduce(masked, least), dimensions={3}, to_apply=larger
  mosts = f32[2,3,8,8] broadcast(most), dimensions={0,1,2}
  shifted = f32[2,3,8,8] subtract(masked, mosts)
  weights = f32[2,3,8,8] exponential(shifted)
  nothing = f32[] constant(0)
  total = f32[2,3,8] reduce(weights, nothing), dimensions={3}, to_apply=sum
  totals = f32[2,3,8,8] broadcast(total), dimensions={0,1,2}
  shares = f32[2,3,8,8] divide(weights, totals)
  o = f32[2,3,8,4] dot(shares, v), lhs_batch_dims={0,1}, lhs_contracting_dims={3}, rhs_batch_dims={0,1}, rhs_contracting_dims={2}
  ROOT result = f32[2,3,8,4] copy(o)
}
)";

std::string with(const std::string& from, const std::string& to,
                 const std::string& text = kAttention) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return std::string(text).replace(at, from.size(), to);
}

Result<Verification> verified(const std::string& original, const std::string& rewritten,
                              uint64_t seed = 0) {
  HEDDLE_ASSIGN(const auto before, hlo::read_text(original));
  HEDDLE_ASSIGN(const auto after, hlo::read_text(rewritten));
  return verify(*before, *after, seed);
}

/// What is wrong with `rewritten`; the same for each of some seeds.
std::string complaint(const std::string& rewritten, const std::string& original = kAttention) {
  std::string all;
  for (uint64_t seed = 0; seed < 5; ++seed) {
    const auto verification = verified(original, rewritten, seed);
    if (!verification) return verification.status().message();
    if (verification->ok()) return "";
    all = verification->complaint;
  }
  return all;
}

struct Mistake {
  const char *name, *from, *to;
};

class Mistakes : public ::testing::TestWithParam<Mistake> {};

TEST_P(Mistakes, AreFound) {
  EXPECT_NE(complaint(with(GetParam().from, GetParam().to)), "") << GetParam().to;
}

INSTANTIATE_TEST_SUITE_P(
    Planted, Mistakes,
    ::testing::Values(
        Mistake{"scale", "constant(0.5)", "constant(0.5001)"},
        Mistake{"causal_off_by_one", "direction=GE", "direction=GT"},
        Mistake{"causal_dropped", "direction=GE", "direction=NE"},
        Mistake{"mask_turned", "direction=NE", "direction=EQ"},
        Mistake{"mask_of_entry_0", "all_shown = pred[2,3,8,8] broadcast(shown), dimensions={0,3}",
                "first = pred[1,8] slice(shown), slice={[0:1], [0:8]} flat = pred[8] "
                "reshape(first) all_shown = pred[2,3,8,8] broadcast(flat), dimensions={3}"},
        Mistake{"mask_along_rows", "broadcast(shown), dimensions={0,3}",
                "broadcast(shown), dimensions={0,2}"},
        Mistake{"table_of_entry_0", "tables = f32[2,3,8,4] broadcast(table), dimensions={0,2}",
                "first = f32[1,8] slice(table), slice={[0:1], [0:8]} flat = f32[8] "
                "reshape(first) tables = f32[2,3,8,4] broadcast(flat), dimensions={2}"},
        Mistake{"heads_swapped", "scores = f32[2,3,8,8] dot(turned, k)",
                "other = f32[2,3,8,4] reverse(k), dimensions={1} "
                "scores = f32[2,3,8,8] dot(turned, other)"},
        Mistake{"fill", "constant(-1e9)", "constant(-30)"},
        Mistake{"fill_of_infinity", "constant(-1e9)", "constant(-inf)"},
        Mistake{"row_of_o_zeroed", "ROOT result = f32[2,3,8,4] copy(o)",
                "no = f32[1,1,1,4] broadcast(nothing), dimensions={} one = s32[] constant(1) "
                "ROOT result = f32[2,3,8,4] dynamic-update-slice(o, no, one, one, one, zero)"},
        Mistake{"entry_of_o_of_the_other", "result = f32[2,3,8,4] copy(o)",
                "result = f32[2,3,8,4] reverse(o), dimensions={0}"}),
    [](const auto& info) { return std::string(info.param.name); });

/// Queries scaled before the product, which rounds elsewhere.
const std::string kScaledQueries =
    with("dot(turned, k)", "dot(small, k)",
         with("scores = f32",
              "half = f32[] constant(0.5) halves = f32[2,3,8,4] broadcast(half), "
              "dimensions={} small = f32[2,3,8,4] multiply(turned, halves)\n scores = f32",
              with("constant(0.5)", "constant(1)")));

TEST(Verify, AcceptsOtherRoundings) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const auto verification = verified(kAttention, kScaledQueries, seed);
    ASSERT_TRUE(verification) << verification.status().message();
    EXPECT_EQ(verification->complaint, "") << seed;
    EXPECT_EQ(verification->trials.size(), 4U);
    for (const Trial& trial : verification->trials)
      EXPECT_EQ(trial.outputs[0].compared, trial.outputs[0].elements) << trial.inputs;
  }
}

// (1 - mask) * -1e9, added: of a row hidden whole f32 holds no scores beside it, f64 does.
const std::string kAdded = with("masked = f32[2,3,8,8] select(both, scaled, fills)",
                                "ones = f32[2,3,8,8] broadcast(unit), dimensions={} "
                                "numbers = f32[2,3,8,8] convert(all_shown) "
                                "hidden = f32[2,3,8,8] subtract(ones, numbers) "
                                "added = f32[2,3,8,8] multiply(hidden, fills) "
                                "masked = f32[2,3,8,8] add(scaled, added)",
                                with("fill = ", "unit = f32[] constant(1) fill = "));

TEST(Verify, AsksForTheProgramsOwnMeaningWhereF64HasAnother) {
  EXPECT_EQ(complaint(kAdded, kAdded), "");
  // 0 for rows hidden whole is far from the mean of V, which the program gives; f64 is too.
  const std::string zeroed =
      with("ROOT result = f32[2,3,8,4] copy(o)",
           "half = f32[] constant(-5e8) limits = f32[2,3,8] broadcast(half), dimensions={} "
           "seen = pred[2,3,8] compare(most, limits), direction=GT "
           "seens = pred[2,3,8,4] broadcast(seen), dimensions={0,1,2} "
           "nothings = f32[2,3,8,4] broadcast(nothing), dimensions={} "
           "ROOT result = f32[2,3,8,4] select(seens, o, nothings)",
           kAdded);
  const std::string found = complaint(zeroed, kAdded);
  EXPECT_NE(found.find("on hidden inputs: row ["), std::string::npos) << found;
}

const std::string kFilledWithInfinity = with("constant(-1e9)", "constant(-inf)");

TEST(Verify, NamesTheOneException) {
  // Rows that see no key are NaN; those of a call are 0.
  const std::string zeroed = with("ROOT result = f32[2,3,8,4] copy(o)",
                                  "same = pred[2,3,8,4] compare(o, o), direction=EQ "
                                  "nothings = f32[2,3,8,4] broadcast(nothing), dimensions={} "
                                  "ROOT result = f32[2,3,8,4] select(same, o, nothings)",
                                  kFilledWithInfinity);
  const auto verification = verified(kFilledWithInfinity, zeroed);
  ASSERT_TRUE(verification) << verification.status().message();
  EXPECT_EQ(verification->complaint, "");
  int64_t filled = 0;
  for (const Trial& trial : verification->trials) {
    const hlo::OutputJudgement& output = trial.outputs[0];
    EXPECT_EQ(output.compared + output.filled, output.elements) << trial.inputs;
    filled += output.filled;
  }
  EXPECT_GT(filled, 0);
  // The other way round it is a mistake.
  EXPECT_NE(complaint(kFilledWithInfinity, zeroed), "");
}

TEST(Verify, RefusesWhatCouldNotBeCompared) {
  const std::string nothing_finite =
      with("ROOT result = f32[2,3,8,4] copy(o)",
           "bad = f32[] constant(nan) bads = f32[2,3,8,4] broadcast(bad), dimensions={} "
           "ROOT result = f32[2,3,8,4] add(o, bads)");
  EXPECT_EQ(
      complaint(nothing_finite, nothing_finite),
      "output 0 (f32[2,3,8,4]) could not be compared: on no inputs does the original give a finite "
      "number");
}

// The original's own error is 1, where f32 holds no x beside the sum: that allows no other 1.
TEST(Verify, AllowsNoErrorOfOne) {
  const std::string original =
      "HloModule m ENTRY e { x = f32[64] parameter(0) c = f32[] constant(1e6) "
      "s = f32[] multiply(c, c) b = f32[64] broadcast(s), dimensions={} a = f32[64] add(x, b) "
      "ROOT d = f32[64] subtract(a, b) }";
  EXPECT_EQ(complaint(original, original), "");
  EXPECT_NE(complaint(with("ROOT d = f32[64] subtract(a, b)",
                           "r = f32[64] subtract(a, b) ROOT d = f32[64] subtract(r, x)", original),
                      original),
            "");
}

// Beside 256, bf16 holds x to 2: nothing is left of it, and f64 is asked.
TEST(Verify, AsksF64WhereRoundingLeavesNothing) {
  const std::string original =
      "HloModule m ENTRY e { x = bf16[8,64] parameter(0) c = bf16[] constant(256) "
      "b = bf16[8,64] broadcast(c), dimensions={} a = bf16[8,64] add(x, b) "
      "ROOT d = bf16[8,64] subtract(a, b) }";
  const std::string root = "ROOT d = bf16[8,64] subtract(a, b)";
  EXPECT_EQ(complaint(with(root, "ROOT d = bf16[8,64] copy(x)", original), original), "");
  EXPECT_NE(complaint(with(root, "ROOT d = bf16[8,64] subtract(b, b)", original), original), "");
  EXPECT_NE(complaint(with(root, "ROOT d = bf16[8,64] subtract(b, a)", original), original), "");
}

// Numbers that bf16 holds are rounded without an error, by luck: nearby ones are not.
TEST(Verify, TakesTheOriginalsErrorFromMoreThanOneEvaluation) {
  const std::string original =
      "HloModule m ENTRY e { x = f32[32,64] parameter(0) h = bf16[32,64] convert(x) "
      "ROOT o = f32[32,64] convert(h) }";
  std::vector<float> numbers;
  for (int i = 0; i < 32 * 64; ++i) numbers.push_back(static_cast<float>(129 + 2 * (i % 63)) / 256);
  GivenInput input{0, {DataType::f32, {32, 64}, {}}};
  const auto* bytes = reinterpret_cast<const std::byte*>(numbers.data());
  input.array.data.assign(bytes, bytes + numbers.size() * sizeof(float));
  // Three times the number, rounded to `narrow`, and a third of that.
  const auto complaint_of = [&](const std::string& narrow) {
    const std::string rounded =
        "three = f32[] constant(3) threes = f32[32,64] broadcast(three), dimensions={} "
        "larger = f32[32,64] multiply(x, threes) h = " +
        narrow +
        "[32,64] convert(larger) w = f32[32,64] convert(h) ROOT o = f32[32,64] divide(w, threes)";
    const auto before = hlo::read_text(original);
    const auto after = hlo::read_text(
        with("h = bf16[32,64] convert(x) ROOT o = f32[32,64] convert(h)", rounded, original));
    if (!before || !after) return std::string("it is no module");
    const auto verification = verify(**before, **after, 0, {input});
    return verification ? verification->complaint : verification.status().message();
  };
  EXPECT_EQ(complaint_of("bf16"), "");
  // Narrower than the program has it: four times as far, in every evaluation.
  EXPECT_NE(complaint_of("f8e4m3fn").find("from its value in f64 as a whole"), std::string::npos);
}

}  // namespace
}  // namespace heddle::tools
