// The ways in which programs write attention (print_forms.py), each small and with a different size
// along every axis.
#include <algorithm>
#include <functional>
#include <set>
#include <string_view>

#include "rewrite/programs.h"
#include "support/part.h"

namespace heddle::testing {
namespace {

struct Expected {
  const char* name;
  int forwards, backwards;
};

class Form : public ::testing::TestWithParam<Expected> {
 protected:
  void SetUp() override {
    if (!part().has(std::hash<std::string_view>{}(GetParam().name)))
      GTEST_SKIP() << "of another part";
  }
};

TEST_P(Form, IsFusedAndKeepsItsMeaning) {
  const Expected& expected = GetParam();
  const Rewritten programs = rewritten(program_text(std::string("forms/") + expected.name));
  EXPECT_EQ(programs.forwards(), expected.forwards) << programs.reasons();
  EXPECT_EQ(programs.backwards(), expected.backwards) << programs.reasons();
  if (expected.forwards + expected.backwards == 0) {
    EXPECT_TRUE(hlo::equal(*programs.original, *programs.fused));
  } else {
    EXPECT_TRUE(same_meaning(programs, 1e-7, 1, draws_of(expected.name)));  // constants are f32
  }
}

TEST_P(Form, IsDoneOnce) {
  const Rewritten once = rewritten(program_text(std::string("forms/") + GetParam().name));
  const Rewritten twice = rewritten(hlo::write_text(*once.fused));
  EXPECT_EQ(twice.report.fusions.size(), 0u);
}

/// What `x` is made of, through the states of loops and the branches of conditionals.
std::set<const hlo::Instruction*> makers_of(const hlo::Module& module,
                                            std::vector<const hlo::Instruction*> work) {
  using hlo::Opcode;
  std::set<const hlo::Instruction*> makers;
  const auto element = [&](const hlo::Instruction* tuple, int64_t i) {
    work.push_back(tuple->is(Opcode::tuple) ? tuple->operand(static_cast<int>(i)) : tuple);
  };
  while (!work.empty()) {
    const hlo::Instruction* x = work.back();
    work.pop_back();
    if (!makers.insert(x).second) continue;
    const hlo::Instruction* from = x->is(Opcode::get_tuple_element) ? x->operand(0) : nullptr;
    const hlo::Instruction* loop = from && from->is(Opcode::while_) ? from : nullptr;
    if (from && from->is(Opcode::parameter)) {
      for (const hlo::Instruction* caller : module.callers(from->computation()))
        if (caller->is(Opcode::while_)) loop = caller;
    }
    if (loop) {
      element(loop->body()->root(), x->tuple_index());
      element(loop->operand(0), x->tuple_index());
    } else {
      work.insert(work.end(), x->operands().begin(), x->operands().end());
      if (x->is(Opcode::conditional))
        for (const hlo::Computation* branch : x->called_computations())
          work.push_back(branch->root());
    }
  }
  return makers;
}

// Of rows x keys nothing is left that no result is made of.
TEST_P(Form, LeavesNothingOfRowsAndKeys) {
  const Rewritten programs = rewritten(program_text(std::string("forms/") + GetParam().name));
  const auto needed = makers_of(*programs.fused, {programs.fused->entry()->root()});
  for (const rewrite::Fusion& fusion : programs.report.fusions)
    for (const hlo::Computation* computation : programs.fused->computations())
      for (const hlo::Instruction* x : computation->instructions()) {
        if (!x->shape().is_array()) continue;
        std::vector<int64_t> dims = x->shape().dims();
        const auto rows = std::find(dims.begin(), dims.end(), fusion.q_len);
        if (rows == dims.end()) continue;
        dims.erase(rows);
        const bool has_keys = std::find(dims.begin(), dims.end(), fusion.kv_len) != dims.end();
        EXPECT_TRUE(!has_keys || needed.contains(x)) << x->name();
      }
}

TEST(Rotation, IsPartOfTheCall) {
  for (const char* name : {"forms/rope",
                           "forms/rope_grad",
                           "forms/rope_by_positions_of_entries",
                           "forms/rope_by_positions_of_entries_grad",
                           "forms/rope_of_keys_by_entries",
                           "forms/rope_of_keys_by_entries_grad",
                           "forms/rope_by_narrow_tables",
                           "forms/rope_by_narrow_tables_grad",
                           "forms/rope_by_slices",
                           "forms/rope_by_slices_grad",
                           "forms/rope_stacked",
                           "forms/rope_stacked_grad",
                           "forms/rope_of_exchanged_halves",
                           "forms/rope_of_exchanged_halves_grad",
                           "forms/rope_by_constants",
                           "forms/rope_by_constants_grad",
                           "forms/rope_of_neighbours",
                           "forms/rope_of_neighbours_grad",
                           "forms/rope_of_pairs",
                           "forms/rope_of_pairs_grad",
                           "forms/rope_of_exchanged_neighbours",
                           "forms/rope_of_exchanged_neighbours_grad",
                           "forms/rope_of_last_columns",
                           "forms/rope_of_last_columns_grad",
                           "forms/rope_of_first_neighbours",
                           "forms/rope_of_first_neighbours_grad",
                           "gpt_f32",
                           "gpt_bf16",
                           "gpt_checkpoint_f32",
                           "gpt_checkpoint_bf16"}) {
    const Rewritten programs = rewritten(program_text(name));
    ASSERT_FALSE(programs.report.fusions.empty()) << name;
    for (const rewrite::Fusion& fusion : programs.report.fusions) {
      EXPECT_NE(fusion.score.find("RoPE"), std::string::npos) << name << ": " << fusion.graph;
      EXPECT_EQ(fusion.score.find("outside"), std::string::npos) << name << ": " << fusion.score;
      // Of a backward the gradients of queries and keys are turned back, too.
      size_t turned_back = 0, at = 0;
      for (; (at = fusion.graph.find("rotate back", at)) != std::string::npos; ++at) ++turned_back;
      EXPECT_EQ(turned_back, fusion.kind == "attention_backward" ? 2u : 0u) << name;
    }
    // The rotations' halves are joined nowhere any more.
    for (const hlo::Computation* computation : programs.fused->computations())
      for (const hlo::Instruction* x : computation->instructions())
        EXPECT_FALSE(x->is(hlo::Opcode::concatenate) && x->shape().rank() == 4) << x->name();
  }
}

// What no call turns stays in the program, and the report says why.
TEST(Rotation, OutsideHasAReason) {
  for (const auto& [name, reason] : std::vector<std::pair<std::string, std::string>>{
           {"rope_of_first_halves", "halves of the first 4 of 8 columns turn"},
           {"rope_of_two_angles", "the two columns of a pair are not known to turn by one angle"}})
    for (const char* pass : {"", "_grad"}) {
      const Rewritten programs = rewritten(program_text("forms/" + name + pass));
      ASSERT_FALSE(programs.report.fusions.empty()) << name;
      for (const rewrite::Fusion& fusion : programs.report.fusions)
        for (const char* whose : {"(Q: ", "(K: "})
          EXPECT_NE(fusion.score.find("RoPE outside of the call " + (whose + reason)),
                    std::string::npos)
              << name << ": " << fusion.score;
    }
}

// A scan that keeps what its gradient needs keeps O and the statistics for it, and nothing of rows
// x keys any more: one forward call, in the forward loop.
TEST(Loops, KeepOutputsAndStatistics) {
  for (const char* name : {"forms/scan", "forms/scan_dropped_out", "forms/scan_reversed"}) {
    const Rewritten programs = rewritten(program_text(name));
    EXPECT_EQ(programs.forwards(), 1) << programs.reasons();
    int statistics = 0, outputs = 0;
    for (const hlo::Instruction* x : programs.fused->entry()->instructions())
      if (x->is(hlo::Opcode::while_))
        for (const hlo::Shape& state : x->shape().elements()) {
          const std::vector<int64_t> dims = state.dims();
          statistics += dims == std::vector<int64_t>{3, 2, 6, 10};
          outputs += dims == std::vector<int64_t>{3, 2, 10, 6, 8} ||
                     dims == std::vector<int64_t>{3, 2, 10, 48};
          EXPECT_NE(dims, (std::vector<int64_t>{3, 2, 6, 10, 10})) << name;
        }
    EXPECT_EQ(statistics, 4) << name;  // written by one loop, read by the other
    // As many as the program had: its own O is read.
    EXPECT_EQ(outputs, 14) << name;
  }
}

// State whose elements are named one by one elsewhere can neither grow nor shrink.
TEST(Loops, WithShardedStateAreLeftAlone) {
  std::string text = program_text("forms/scan");
  for (size_t i = text.find(" while("); i != std::string::npos; i = text.find(" while(", i + 60))
    text.insert(text.find('\n', i), ", sharding={replicated}");
  const Rewritten programs = rewritten(text);
  EXPECT_EQ(programs.report.fusions.size(), 0u);
  EXPECT_TRUE(hlo::equal(*programs.original, *programs.fused));
}

// JAX's own bits: the call is given the key, and the mask is nowhere.
TEST(Dropout, IsDrawnByTheCall) {
  for (const char* name :
       {"grad_dropout_kv4", "grad_dropout_kv4.optimized", "forms/dropped_out",
        "forms/dropped_out_grad", "forms/dropped_by_fold_in", "forms/dropped_by_fold_in_grad",
        "forms/dropped_for_all_heads", "forms/dropped_for_all_heads_grad",
        "forms/dropped_transposed", "forms/dropped_transposed_grad",
        "forms/dropped_with_scaled_queries", "forms/dropped_with_scaled_queries_grad",
        "forms/mean_of_output_dropped_out", "forms/mean_of_output_dropped_out.simplified",
        "forms/mean_of_output_dropped_out_alone",
        "forms/mean_of_output_dropped_out_alone.simplified", "forms/scan_dropped_out",
        "forms/scan_dropped_out_checkpoint"}) {
    const Rewritten programs = rewritten(program_text(name));
    ASSERT_FALSE(programs.report.fusions.empty()) << name;
    for (const rewrite::Fusion& fusion : programs.report.fusions)
      EXPECT_EQ(fusion.dropout.find("threefry"), 0u) << name << ": " << fusion.dropout;
    for (const hlo::Computation* computation : programs.fused->computations())
      for (const hlo::Instruction* x : computation->instructions())
        EXPECT_FALSE(x->shape().is_array() && x->shape().rank() >= 4 &&
                     !hlo::is_floating(x->shape().type()))
            << name << ": " << x->name();
  }
}

// The bits of rng-bit-generator are what the backend makes of them: it draws the mask.
TEST(Dropout, OfTheBackendsBitsIsAnOperand) {
  for (const char* name : {"dropped_by_generator", "dropped_by_generator_grad",
                           "scan_dropped_by_generator_checkpoint"}) {
    const Rewritten programs = rewritten(program_text(std::string("forms/") + name));
    ASSERT_FALSE(programs.report.fusions.empty()) << name;
    for (const rewrite::Fusion& fusion : programs.report.fusions)
      EXPECT_EQ(fusion.dropout.find("mask"), 0u) << name << ": " << fusion.dropout;
  }
}

// Almost JAX's bits: the program's own mask stays, as an operand.
TEST(Dropout, OfOtherBitsIsAnOperand) {
  const std::string text = program_text("forms/dropped_out_grad");
  for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{
           {"constant({13, 15, 26, 6})", "constant({13, 15, 26, 7})"},
           {"constant({17, 29, 16, 24})", "constant({29, 17, 16, 24})"},
           {"constant(466688986)", "constant(466688987)"},
           {"u64[] constant(840)", "u64[] constant(841)"},
           {"s32[] constant(5)", "s32[] constant(4)"},
           {"u32[] constant(9)", "u32[] constant(10)"},
           {"f32[] constant(1)", "f32[] constant(0.5)"}}) {
    const Rewritten programs = rewritten(replaced(text, from, to));
    for (const rewrite::Fusion& fusion : programs.report.fusions)
      EXPECT_TRUE(fusion.dropout.find("threefry") != 0 || from.starts_with("u64"))
          << from << ": " << fusion.dropout;
    EXPECT_TRUE(same_meaning(programs, 1e-7)) << from;
  }
}

// Slopes times distances are computed in the call: no operand, and no array at all, has rows and
// keys. A term whose gradient is wanted is an operand.
TEST(Added, TermsOfIndicesAreComputed) {
  for (const auto& [name, bias] : std::vector<std::pair<std::string, std::string>>{
           {"alibi", "of indices"},
           {"alibi_grad", "of indices"},
           {"alibi_of_constants", "of indices"},
           {"alibi_of_constants_grad", "of indices"},
           {"alibi_and_bias", "[2, 6, 10, 14], of indices"},
           {"alibi_and_bias_grad", "[2, 6, 10, 14], of indices"},
           {"alibi_trained", "of indices"},
           {"alibi_trained_grad", "[1, 6, 10, 14]"},
           {"bias_per_head", "[1, 6, 10, 14]"}}) {
    const Rewritten programs = rewritten(program_text("forms/" + name));
    ASSERT_FALSE(programs.report.fusions.empty()) << name;
    for (const rewrite::Fusion& fusion : programs.report.fusions)
      EXPECT_EQ(fusion.bias, bias) << name;
    if (bias != "of indices") continue;
    for (const hlo::Computation* computation : programs.fused->computations())
      for (const hlo::Instruction* x : computation->instructions()) {
        const std::vector<int64_t> dims = x->shape().dims();
        EXPECT_FALSE(std::count(dims.begin(), dims.end(), 10) > 0 &&
                     std::count(dims.begin(), dims.end(), 14) > 0)
            << name << ": " << x->name();
      }
  }
}

// What is no sum, product or bound of indices stays an operand.
TEST(Added, OtherTermsAreOperands) {
  const std::string text = program_text("forms/alibi");
  for (const char* to : {"s32[10,14]{1,0} remainder(", "s32[10,14]{1,0} xor("}) {
    const Rewritten programs = rewritten(replaced(text, "s32[10,14]{1,0} subtract(", to));
    ASSERT_EQ(programs.forwards(), 1) << programs.reasons();
    EXPECT_EQ(programs.report.fusions[0].bias, "[1, 6, 10, 14]") << to;
  }
}

// Sinks, however they are written, are the call's; their column is nowhere.
TEST(Sinks, ArePartOfTheCall) {
  for (const auto& [name, sink] :
       std::vector<std::pair<std::string, std::string>>{{"sink_column", "per head"},
                                                        {"sink_column_grad", "per head"},
                                                        {"sink_column_in_groups", "per head"},
                                                        {"sink_column_in_groups_grad", "per head"},
                                                        {"sink_by_hand_grad", "per head"},
                                                        {"sink_and_dropout_grad", "per head"},
                                                        {"scan_with_sinks", "per head"},
                                                        {"scan_with_sinks_checkpoint", "per head"},
                                                        {"sink_of_one", "0"},
                                                        {"sink_of_one_grad", "0"},
                                                        {"sink_padded_grad", "0"},
                                                        {"heads_first", "none"}}) {
    const Rewritten programs = rewritten(program_text("forms/" + name));
    ASSERT_FALSE(programs.report.fusions.empty()) << name;
    for (const rewrite::Fusion& fusion : programs.report.fusions) {
      EXPECT_EQ(fusion.sink, sink) << name;
      EXPECT_EQ(fusion.graph.find("\"sink\"") == std::string::npos, sink == "none") << name;
      const bool wants_gradient = fusion.kind == "attention_backward" && sink == "per head";
      EXPECT_EQ(fusion.graph.find("\"d_sink\"") == std::string::npos, !wants_gradient) << name;
    }
    // Keys are 14, or 10 in the scans.
    const auto has_column = [](const hlo::Shape& shape) {
      return shape.is_array() && shape.rank() > 3 &&
             (shape.dims().back() == 15 || shape.dims().back() == 11);
    };
    for (const hlo::Computation* computation : programs.fused->computations())
      for (const hlo::Instruction* x : computation->instructions()) {
        EXPECT_FALSE(has_column(x->shape())) << name << ": " << x->name();
        for (const hlo::Shape& part : x->shape().elements())
          EXPECT_FALSE(has_column(part)) << name << ": " << x->name();
      }
  }
}

// A dropped column that is a key's, kept weights of the column, another sum: each its own reason.
TEST(Sinks, OfOtherKindsAreLeftAlone) {
  for (const auto& [name, reason] : std::vector<std::pair<std::string, std::string>>{
           {"sink_of_each_row", "differs between rows or batch entries"},
           {"sink_returned", "needed elsewhere too"}}) {
    const Rewritten programs = rewritten(program_text("forms/" + name));
    EXPECT_NE(programs.reasons().find(reason), std::string::npos) << programs.reasons();
  }
  for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{
           {"slice={[0:2], [0:6], [0:10], [0:14]}", "slice={[0:2], [0:6], [0:10], [1:15]}"},
           {"padding=0_0x0_0x0_0x0_1", "padding=0_0x0_0x0_0x1_0"}}) {
    const Rewritten programs =
        rewritten(replaced(program_text("forms/sink_column_grad"), from, to));
    EXPECT_TRUE(same_meaning(programs, 1e-7)) << from;
    EXPECT_EQ(programs.backwards(), 0) << from;
  }
}

// To a sink it matters what all scores are shifted by, which a fill of 1e30 would swallow.
TEST(Sinks, BesideShiftedScoresAreLeftAlone) {
  const std::string text = program_text("forms/sink_column");
  ASSERT_EQ(rewritten(text).forwards(), 1);
  const Rewritten shifted = rewritten(replaced(text, "multiply(dot_general", "add(dot_general"));
  EXPECT_EQ(shifted.forwards(), 0);
}

// A fill of -1e30 is far below scores, but not below scores times 1e30.
TEST(Masks, WhoseFillTheScaleReachesAreLeftAlone) {
  const std::string text = program_text("forms/scan");
  for (const char* scale : {"1e+30", "-1e+30", "1e+27"}) {
    const Rewritten programs = rewritten(replaced(text, "0.353553385", scale));
    EXPECT_TRUE(programs.report.fusions.empty()) << scale;
    EXPECT_NE(programs.reasons().find("can reach"), std::string::npos) << programs.reasons();
  }
}

// Rows that see no key, in programs whose fill gives all their keys the same weight.
TEST(Masks, OfDataMayHideWholeRows) {
  for (const char* name :
       {"mask_is_data", "mask_is_data_grad", "mask_is_data_twice", "mask_of_keys",
        "mask_of_keys_grad", "mask_of_either", "mask_of_either_grad", "mask_in_groups",
        "mask_in_groups_grad", "lengths_are_data", "lengths_are_data_grad", "lengths_of_both",
        "lengths_of_both_grad", "segments", "segments_grad", "scan_with_mask", "sink_and_mask",
        "sink_and_mask_grad"}) {
    const Rewritten programs = rewritten(program_text(std::string("forms/") + name));
    ASSERT_FALSE(programs.report.fusions.empty()) << name;
    // The first half of every mask shows nothing; the first lengths are 0, segments all different.
    const auto hide = [](std::vector<hlo::Literal>& arguments) {
      for (hlo::Literal& argument : arguments)
        if (argument.shape().type() == hlo::ElementType::pred) {
          for (int64_t i = 0; i < argument.element_count() / 2; ++i) argument.set(i, 0);
        } else if (argument.shape().type() == hlo::ElementType::s32) {
          for (int64_t i = 0; i < argument.element_count() / 2; ++i)
            argument.set(i, static_cast<double>(argument.element_count() == 20 ? 1 : 0));
        }
    };
    EXPECT_TRUE(same_meaning(programs, 1e-7, 5, {hlo::Draw::ordinary}, hide)) << name;
  }
}

// Bounds made of indices are read from how they are made, not cell by cell.
TEST(Masks, OfMillionsOfRowsAreReadAtOnce) {
  for (const auto& [name, mask] : std::vector<std::pair<std::string, std::string>>{
           {"window", "band, window 2, right bound 4"},
           {"window_by_one_comparison", "band, window 2, right bound 2"},
           {"causal_of_entries", "causal"},
           {"nested_selects", "band, window 3, right bound 4"},
           {"clamped_indices", "band, window 4, right bound 1"},
           {"additive_mask_grad", "causal"},
           {"causal_by_cumsum", "causal"}}) {
    std::string text = program_text("forms/" + name);
    for (const char* window : {"size=10 pad=9_0", "size=14 pad=13_0"})
      if (text.find(window) != std::string::npos)
        text = replaced(text, window, "size=1000000 pad=999999_0");
    const Rewritten programs =
        rewritten(resized(text, {{"9", "999999"}, {"10", "1000000"}, {"14", "1000000"}}));
    ASSERT_FALSE(programs.report.fusions.empty()) << name << ": " << programs.reasons();
    for (const rewrite::Fusion& fusion : programs.report.fusions)
      EXPECT_EQ(fusion.mask, mask) << name;
  }
}

// What is no band of rows and keys is an operand, though the text alone decides it.
TEST(Masks, OfTheTextThatAreNoBandArePredicates) {
  for (const char* name : {"fixed_lengths_of_entries", "fixed_pattern_of_heads", "prefix",
                           "window_and_first_keys", "prefix_grad"}) {
    const Rewritten programs = rewritten(program_text(std::string("forms/") + name));
    ASSERT_FALSE(programs.report.fusions.empty()) << name << ": " << programs.reasons();
    for (const rewrite::Fusion& fusion : programs.report.fusions)
      EXPECT_EQ(fusion.mask, "predicate") << name;
  }
}

// Where 0 meets infinity nothing is masked: the program's own NaN are what the call reads.
TEST(Masks, OfNaNAreNone) {
  const Rewritten programs = rewritten(program_text("forms/mask_times_infinity"));
  ASSERT_EQ(programs.forwards(), 1) << programs.reasons();
  EXPECT_EQ(programs.report.fusions[0].mask, "none");
  EXPECT_EQ(programs.report.fusions[0].bias, "[1, 1, 10, 14]");
}

// However long the arithmetic on an index is.
TEST(Masks, OfThousandsOfStepsAreRead) {
  const std::string text = program_text("forms/window");
  const size_t end = text.find(" = s32[10]{0} iota()");
  ASSERT_NE(end, std::string::npos);
  const size_t begin = text.rfind(' ', end - 1) + 1;
  const std::string name = text.substr(begin, end - begin);
  const size_t next = text.find('\n', end) + 1;
  std::string steps =
      "  nothing = s32[] constant(0)\n  nothings = s32[10]{0} broadcast(nothing), "
      "dimensions={}\n";
  constexpr int kSteps = 8000;
  for (int i = 0; i < kSteps; ++i)
    steps += fmt::format("  {} = s32[10]{{0}} add({}, nothings)\n",
                         i + 1 == kSteps ? name : fmt::format("step{}", i),
                         i == 0 ? "first" : fmt::format("step{}", i - 1));
  const Rewritten programs = rewritten(text.substr(0, begin) + "first" +
                                       text.substr(end, next - end) + steps + text.substr(next));
  ASSERT_EQ(programs.forwards(), 1) << programs.reasons();
  EXPECT_EQ(programs.report.fusions[0].mask, "causal (bottom right), window 6");
}

// Thousands of operations between product and softmax are read, or left alone, one by one.
TEST(Scores, OfThousandsOfStepsAreRead) {
  const std::string text = program_text("forms/window_grad");
  const size_t begin = text.find("  dot_general");
  const size_t equals = text.find(" = f32[2,6,10,14]{3,2,1,0} dot(", begin);
  ASSERT_NE(equals, std::string::npos);
  const std::string name = text.substr(begin + 2, equals - begin - 2);
  const size_t next = text.find('\n', equals) + 1;
  for (const auto& [operation, count] :
       std::vector<std::pair<std::string, int>>{{"negate", 1}, {"tanh", 0}}) {
    std::string steps;
    constexpr int kSteps = 8000;
    for (int i = 0; i < kSteps; ++i)
      steps += fmt::format("  {} = f32[2,6,10,14]{{3,2,1,0}} {}({})\n",
                           i + 1 == kSteps ? name : fmt::format("step{}", i), operation,
                           i == 0 ? "first" : fmt::format("step{}", i - 1));
    const Rewritten programs =
        rewritten(text.substr(0, begin) + "  first" + text.substr(equals, next - equals) + steps +
                  text.substr(next));
    EXPECT_EQ(programs.forwards(), count) << operation << ": " << programs.reasons();
  }
}

// 2.7 as a whole number is 2.
TEST(Constants, AreConvertedAsTheProgramDoes) {
  const std::string text = replaced(program_text("forms/nested_selects"),
                                    "f32[] constant(0.353553385)", "f32[] convert(whole)");
  const size_t convert = text.find(" = f32[] convert(whole)");
  const size_t line = text.rfind('\n', convert) + 1;
  const Rewritten programs = rewritten(text.substr(0, line) +
                                       "  number = f32[] constant(2.7)\n"
                                       "  whole = s32[] convert(number)\n" +
                                       text.substr(line));
  ASSERT_EQ(programs.forwards(), 1) << programs.reasons();
  EXPECT_EQ(programs.report.fusions[0].scale, 2);
  EXPECT_TRUE(same_meaning(programs, 1e-7));
}

std::vector<Expected> fused() {
  std::vector<Expected> all;
  for (const char* name : {"additive_mask",
                           "alibi",
                           "alibi_and_bias",
                           "alibi_of_constants",
                           "alibi_trained",
                           "bias_full",
                           "bias_per_head",
                           "by_logarithm",
                           "causal_by_cumsum",
                           "dropped_by_fold_in",
                           "dropped_by_generator",
                           "dropped_for_all_heads",
                           "dropped_out",
                           "dropped_transposed",
                           "dropped_with_scaled_queries",
                           "flash_by_hand",
                           "gradient_through_maximum",
                           "grouped_by_einsum",
                           "grouped_by_repeat",
                           "grouped_by_tile",
                           "heads_first",
                           "lengths_and_causal",
                           "lengths_are_data",
                           "lengths_of_both",
                           "mask_in_groups",
                           "mask_is_data",
                           "mask_of_either",
                           "mask_of_keys",
                           "mask_is_data_twice",
                           "mask_is_data_twice_and_dropout",
                           "causal_or_shown_twice",
                           "odd_depths",
                           "odd_value_depth_and_mask",
                           "two_biases",
                           "scaled_with_bias",
                           "subtracted_bias",
                           "gated_bias",
                           "shifted_by_numbers",
                           "shifted_by_a_mask",
                           "by_content_and_position",
                           "by_content_and_position_masked_twice",
                           "fill_within_reach",
                           "fill_within_reach_by_data",
                           "weights_by_equal_heads",
                           "bias_and_mask_of_numbers",
                           "mask_of_numbers_subtracted",
                           "causal_of_entries",
                           "fixed_lengths_of_entries",
                           "fixed_pattern_of_heads",
                           "prefix",
                           "window_and_first_keys",
                           "bytes_that_wrap",
                           "words_that_wrap",
                           "doubled_until_they_wrap",
                           "rope_by_narrow_tables",
                           "rope_by_slices",
                           "rope_stacked",
                           "rope_of_exchanged_halves",
                           "rope_by_constants",
                           "rope_of_neighbours",
                           "rope_of_pairs",
                           "rope_of_exchanged_neighbours",
                           "rope_of_last_columns",
                           "rope_of_first_neighbours",
                           "rope_of_first_halves",
                           "rope_of_two_angles",
                           "masked_twice",
                           "nested_selects",
                           "no_batch",
                           "no_maximum",
                           "normalised_late",
                           "one_head",
                           "one_key_head",
                           "rope",
                           "scaled_by_a_parameter",
                           "scaled_by_head",
                           "scaled_by_head_with_bias",
                           "divided_by_a_parameter",
                           "divided_by_trained_numbers",
                           "scaled_by_a_square",
                           "scaled_and_biased_by_trained_numbers",
                           "biased_then_scaled",
                           "biased_then_divided",
                           "bias_trained_behind_a_gate",
                           "biased_then_scaled_by_trained_numbers",
                           "bias_trained_beside_a_larger_term",
                           "scaled_queries",
                           "scaled_twice",
                           "segments",
                           "sink_and_dropout",
                           "sink_and_mask",
                           "sink_by_hand",
                           "sink_column",
                           "sink_column_in_groups",
                           "sink_of_one",
                           "sink_padded",
                           "soft_capped",
                           "window",
                           "window_of_fewer_keys",
                           "masked_after_softmax",
                           "mask_of_softmax",
                           "causal_by_softmax",
                           "scan_of_branches",
                           "scan_of_branches_grad",
                           "clamped_indices",
                           "doubled_indices",
                           "halves_of_distances",
                           "mask_of_many",
                           "shifted_indices",
                           "truncated_mask",
                           "window_by_one_comparison",
                           "window_of_unsigned",
                           "rope_by_positions_of_entries",
                           "rope_of_keys_by_entries",
                           "rope_by_heads",
                           "shared_scores",
                           "with_bias_of_key_heads",
                           "bias_of_key_heads_in_bf16",
                           "padding_is_added",
                           "mask_is_data_and_dropout",
                           "one_row_by_dots",
                           "one_row_multiplied",
                           "one_row_multiplied_of_scaled_queries",
                           "one_row_multiplied_in_groups",
                           "rows_multiplied",
                           "keys_of_many_digits",
                           "one_row_multiplied_in_bf16"})
    all.push_back({name, 1, 0});
  for (const char* name : {"alibi_grad",
                           "alibi_and_bias_grad",
                           "alibi_of_constants_grad",
                           "alibi_trained_grad",
                           "additive_mask_grad",
                           "bias_full_grad",
                           "bias_per_head_grad",
                           "scaled_by_a_parameter_grad",
                           "scaled_by_head_grad",
                           "divided_by_a_parameter_grad",
                           "divided_by_trained_numbers_grad",
                           "scaled_by_a_square_grad",
                           "bias_trained_beside_a_larger_term_grad",
                           "by_logarithm_grad",
                           "dropped_by_fold_in_grad",
                           "dropped_by_generator_grad",
                           "dropped_for_all_heads_grad",
                           "dropped_out_grad",
                           "dropped_transposed_grad",
                           "dropped_with_scaled_queries_grad",
                           "flash_by_hand_grad",
                           "gradient_of_repeated_output",
                           "gradient_through_maximum_grad",
                           "grouped_by_einsum_grad",
                           "grouped_by_repeat_grad",
                           "grouped_by_tile_grad",
                           "heads_first_grad",
                           "mask_is_data_twice_and_dropout_grad",
                           "mask_is_data_twice_grad",
                           "causal_or_shown_twice_grad",
                           "odd_depths_grad",
                           "biased_then_scaled_grad",
                           "biased_then_divided_grad",
                           "bias_trained_behind_a_gate_grad",
                           "odd_value_depth_and_mask_grad",
                           "bias_and_mask_of_numbers_grad",
                           "mask_of_numbers_subtracted_grad",
                           "shifted_by_numbers_grad",
                           "shifted_by_a_mask_grad",
                           "by_content_and_position_grad",
                           "by_content_and_position_masked_twice_grad",
                           "fill_within_reach_grad",
                           "fill_within_reach_by_data_grad",
                           "weights_by_equal_heads_grad",
                           "causal_of_entries_grad",
                           "fixed_lengths_of_entries_grad",
                           "fixed_pattern_of_heads_grad",
                           "prefix_grad",
                           "window_and_first_keys_grad",
                           "rope_by_narrow_tables_grad",
                           "rope_by_slices_grad",
                           "rope_stacked_grad",
                           "rope_of_exchanged_halves_grad",
                           "rope_by_constants_grad",
                           "rope_of_neighbours_grad",
                           "rope_of_pairs_grad",
                           "rope_of_exchanged_neighbours_grad",
                           "rope_of_last_columns_grad",
                           "rope_of_first_neighbours_grad",
                           "rope_of_first_halves_grad",
                           "rope_of_two_angles_grad",
                           "masked_twice_grad",
                           "mask_of_softmax_grad",
                           "causal_by_softmax_grad",
                           "scan_everything_saveable",
                           "nested_selects_grad",
                           "no_batch_grad",
                           "no_maximum_grad",
                           "normalised_late_grad",
                           "one_head_grad",
                           "one_key_head_grad",
                           "rope_grad",
                           "scaled_queries_grad",
                           "scaled_twice_grad",
                           "sink_and_dropout_grad",
                           "sink_and_mask_grad",
                           "sink_by_hand_grad",
                           "sink_column_grad",
                           "sink_column_in_groups_grad",
                           "sink_of_one_grad",
                           "sink_padded_grad",
                           "soft_capped_grad",
                           "window_grad",
                           "window_of_fewer_keys_grad",
                           "rope_by_positions_of_entries_grad",
                           "rope_of_keys_by_entries_grad",
                           "rope_by_heads_grad",
                           "with_bias_of_key_heads_grad",
                           "bias_of_key_heads_in_bf16_grad",
                           "padding_is_added_grad",
                           "mask_is_data_and_dropout_grad",
                           "loss_of_output",
                           "loss_of_output_normalised_late",
                           "gradient_of_queries_only",
                           "keys_of_groups_summed_twice",
                           "clamped_indices_grad",
                           "doubled_indices_grad",
                           "halves_of_distances_grad",
                           "mask_of_many_grad",
                           "shifted_indices_grad",
                           "truncated_mask_grad",
                           "window_by_one_comparison_grad",
                           "window_of_unsigned_grad",
                           "one_row_multiplied_grad",
                           "one_row_multiplied_of_scaled_queries_grad",
                           "one_row_multiplied_in_groups_grad",
                           "rows_multiplied_grad",
                           "keys_of_many_digits_grad"})
    all.push_back({name, 1, 1});
  for (const char* name : {"sum_of_output",
                           "sum_of_output.simplified",
                           "sum_of_output_by_column",
                           "sum_of_output_by_column.simplified",
                           "sum_of_output_by_head",
                           "sum_of_output_by_head.simplified",
                           "sum_of_output_by_quarter",
                           "sum_of_output_by_quarter.simplified",
                           "sum_of_output_by_row",
                           "sum_of_output_by_row.simplified",
                           "sum_of_output_of_one_row",
                           "sum_of_output_of_one_row.simplified",
                           "sum_of_output_scaled_by_a_parameter",
                           "sum_of_output_scaled_by_a_parameter.simplified",
                           "sum_of_output_times_a_number",
                           "sum_of_output_times_a_number.simplified",
                           "sum_of_output_with_bias",
                           "sum_of_output_with_bias.simplified",
                           "mean_of_output_dropped_out",
                           "mean_of_output_dropped_out.simplified",
                           "mean_of_output_dropped_out_alone",
                           "mean_of_output_dropped_out_alone.simplified",
                           "mean_of_output_in_groups",
                           "mean_of_output_in_groups.simplified",
                           "mean_of_output_normalised_late",
                           "mean_of_output_normalised_late.simplified"})
    all.push_back({name, 1, 1});
  all.push_back({"dots_merged", 2, 0});
  all.push_back({"branches", 2, 0});
  all.push_back({"branches_grad", 2, 2});
  all.push_back({"layers_unrolled", 3, 3});
  all.push_back({"layers_everything_saveable", 2, 2});
  all.push_back({"layers_dots_saveable", 2, 2});
  all.push_back({"scan_dots_saveable", 2, 1});
  all.push_back({"bias_of_all_layers", 3, 0});
  all.push_back({"bias_of_all_layers_grad", 3, 3});
  for (const char* name :
       {"scan", "scan_dropped_out", "scan_of_scans", "scan_reversed", "scan_with_mask",
        "scan_with_sinks", "scan_with_widened_bias", "scan_with_widened_slopes"})
    all.push_back({name, 1, 1});
  all.push_back({"scan_dropped_out_checkpoint", 2, 1});
  all.push_back({"scan_checkpoint", 2, 1});
  all.push_back({"scan_dropped_by_generator_checkpoint", 2, 1});
  all.push_back({"scan_with_sinks_checkpoint", 2, 1});
  return all;
}

std::vector<Expected> left_alone() {
  std::vector<Expected> all;
  for (const char* name : {"shared_scores_and_bias",
                           "shared_scores_and_padding",
                           "scaled_and_biased_by_trained_numbers_grad",
                           "biased_then_scaled_by_trained_numbers_grad",
                           "shared_scores_and_slopes",
                           "shared_scores_and_dropout",
                           "heads_share_scores_but_biases",
                           "probabilities_returned",
                           "keys_repeated_within_a_head",
                           "scan_keeping_weights",
                           "sum_of_output_clipped_backwards",
                           "sum_of_output_clipped_backwards.simplified",
                           "by_log_sum_exp_of_hidden_rows",
                           "not_normalised",
                           "normalised_over_queries",
                           "rows_without_keys",
                           "entries_without_keys",
                           "summed_where_others_are_shown",
                           "relu_of_scores",
                           "capped_after_mask",
                           "sink_of_each_row",
                           "sink_of_each_row_grad",
                           "sink_returned",
                           "sink_not_dropped",
                           "distances_in_thirds",
                           "mask_below_zero",
                           "positions_in_bfloat16",
                           "positions_rounded_to_bfloat16",
                           "scores_in_eight_bits",
                           "weights_in_eight_bits",
                           "scores_as_integers",
                           "scores_of_few_digits",
                           "weights_divided_by_a_mask",
                           "probabilities_divided_by_a_mask",
                           "one_row_multiplied_by_gated_keys",
                           "one_row_of_largest_products"})
    all.push_back({name, 0, 0});
  return all;
}

const auto kName = [](const auto& info) {
  std::string name = info.param.name;
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
};
INSTANTIATE_TEST_SUITE_P(Fused, Form, ::testing::ValuesIn(fused()), kName);
INSTANTIATE_TEST_SUITE_P(LeftAlone, Form, ::testing::ValuesIn(left_alone()), kName);

}  // namespace
}  // namespace heddle::testing
