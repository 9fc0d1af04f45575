// What calls are made of single forms, and of changes to their text.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "rewrite/programs.h"

namespace heddle::testing {
namespace {

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
                           "forms/rope_of_first_halves",
                           "forms/rope_of_first_halves_grad",
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
  for (const char* name : {"grad_dropout_kv4",
                           "grad_dropout_kv4.optimized",
                           "forms/dropped_out",
                           "forms/dropped_out_grad",
                           "forms/drawn_to_be_dropped",
                           "forms/drawn_to_be_dropped_grad",
                           "forms/dropped_by_fold_in",
                           "forms/dropped_by_fold_in_grad",
                           "forms/dropped_for_all_heads",
                           "forms/dropped_for_all_heads_grad",
                           "forms/dropped_transposed",
                           "forms/dropped_transposed_grad",
                           "forms/dropped_with_scaled_queries",
                           "forms/dropped_with_scaled_queries_grad",
                           "forms/dropped_in_bf16",
                           "forms/dropped_in_bf16_grad",
                           "forms/biases_and_dropout_grad",
                           "forms/mean_of_output_dropped_out",
                           "forms/mean_of_output_dropped_out.simplified",
                           "forms/mean_of_output_dropped_out_alone",
                           "forms/mean_of_output_dropped_out_alone.simplified",
                           "forms/scan_dropped_out",
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

// Numbers below a share are what a call keeps; where they are what a program drops, another mask of
// the same bits is drawn, which the call is given.
TEST(Dropout, OfWhatACallWouldKeepIsAnOperand) {
  const std::string drawn = program_text("forms/drawn_to_be_dropped_grad");
  for (const std::string& text : {program_text("forms/dropped_by_a_draw_of_the_rate"),
                                  program_text("forms/dropped_by_a_draw_of_the_rate_grad"),
                                  replaced(drawn, "direction=GE", "direction=LE"),
                                  replaced(drawn, "direction=GE", "direction=GT"),
                                  replaced(drawn, "direction=GE", "direction=LT")}) {
    const Rewritten programs = rewritten(text);
    ASSERT_EQ(programs.forwards(), 1) << programs.reasons();
    for (const rewrite::Fusion& fusion : programs.report.fusions)
      EXPECT_EQ(fusion.dropout.find("mask"), 0u) << fusion.dropout;
    EXPECT_TRUE(same_meaning(programs, 1e-7));
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
           {"sink_beside_values_of_its_own", "the weights and others beside them"},
           {"sink_beside_zeros_of_a_key", "the weights and others beside them"},
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
  for (const char* scale : {"1e+30", "-1e+30", "1e+27", "-inf"}) {
    const Rewritten programs = rewritten(replaced(text, "0.353553385", scale));
    EXPECT_TRUE(programs.report.fusions.empty()) << scale;
    EXPECT_NE(programs.reasons().find("can reach"), std::string::npos) << programs.reasons();
  }
}

// Nor below scores divided by 0, or times what data hold: of a row whose visible scores are lower,
// or -inf, hidden keys have all the weight.
TEST(Masks, WhoseFillNumbersOfDataReachWeighHiddenKeys) {
  const std::string forward = program_text("forms/scaled_by_a_parameter");
  const auto near = [](const std::string& text) { return replaced(text, "-1e+30", "-1e+09"); };
  const std::string divided = replaced(forward, "multiply(dot_general", "divide(dot_general");
  const std::string backward = program_text("forms/scaled_by_a_parameter_grad");
  for (const auto& [text, scale] : std::vector<std::pair<std::string, double>>{
           {near(forward), 1e10}, {divided, 0}, {divided, 1e-35}, {near(backward), 1e10}}) {
    const Rewritten programs = rewritten(text);
    ASSERT_FALSE(programs.report.fusions.empty()) << programs.reasons();
    // Q below 0, K above.
    const auto adjust = [&](std::vector<hlo::Literal>& arguments) {
      for (hlo::Literal& argument : arguments)
        for (int64_t i = 0; i < argument.element_count(); ++i) {
          const double size = std::abs(argument.get(i));
          argument.set(i, argument.element_count() == 1 ? scale
                          : &argument == &arguments[0]  ? -size
                          : &argument == &arguments[1]  ? size
                                                        : argument.get(i));
        }
    };
    EXPECT_TRUE(same_meaning(programs, 1e-7, 1, {hlo::Draw::ordinary}, adjust)) << scale;
  }
}

// A parameter is taken to be no infinity, or what would make one of scores, but its inverse may be.
TEST(Masks, AreBoundsWhereScoresAreTimesParameters) {
  const std::string text = program_text("forms/scaled_by_a_parameter");
  const std::string divided = replaced(text, "multiply(dot_general", "divide(dot_general");
  const auto is_bound = [](const Rewritten& programs) {
    return programs.report.fusions.at(0).graph.find("right_bound") != std::string::npos;
  };
  EXPECT_TRUE(is_bound(rewritten(text)));
  EXPECT_FALSE(is_bound(rewritten(divided)));
  EXPECT_TRUE(is_bound(rewritten(replaced(divided, "-1e+30", "-inf"))));
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

}  // namespace
}  // namespace heddle::testing
