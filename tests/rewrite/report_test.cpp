// What the report says of what is left alone, and what it says nothing of.
#include "rewrite/report.h"

#include "rewrite/programs.h"

namespace heddle::testing {
namespace {

TEST(Report, ALossIsNoRefusal) {
  const Rewritten programs = rewritten(program_text("gpt_checkpoint_f32"));
  EXPECT_TRUE(programs.report.refusals.empty()) << programs.reasons();
  EXPECT_TRUE(programs.report.has_softmax);
  EXPECT_EQ(programs.report.without_values, 1);
  EXPECT_EQ(programs.forwards() + programs.backwards(), 3);
}

TEST(Report, ASoftmaxThatIsReturnedIsOne) {
  const Rewritten programs = rewritten(program_text("forms/probabilities_returned"));
  EXPECT_EQ(programs.report.refusals.size(), 1u);
  EXPECT_EQ(programs.report.without_values, 0);
}

// The second conditional's branches read what those of the first kept only if both are chosen
// alike.
TEST(Report, NamesWeightsThatLeaveABranch) {
  std::string text = program_text("forms/causal_or_full_grad");
  EXPECT_EQ(rewritten(text).backwards(), 2);
  const std::string chosen = "conditional(convert_element_type.1, cond.30";
  const std::string other = "  other = s32[] bitcast-convert(arguments_3_.1)\n  cond.32 = ";
  text = replaced(replaced(text, "  cond.32 = ", other), chosen, "conditional(other, cond.30");
  const Rewritten programs = rewritten(text);
  EXPECT_EQ(programs.forwards() + programs.backwards(), 0) << programs.reasons();
  EXPECT_NE(
      programs.reasons().find("the branch of a conditional gives these weights to a backward"),
      std::string::npos)
      << programs.reasons();
}

// By one comparison, but of numbers that are rounded differently.
TEST(Report, TellsRoundingsOfWhatChoosesABranchApart) {
  const auto fused = [](const char* bits) {
    std::string text = program_text("forms/causal_or_full_grad");
    const auto rounded = [](const std::string& name, const std::string& of) {
      return "  " + name +
             " = f32[] reduce-precision(arguments_3_.1), exponent_bits=8, mantissa_bits=" + of +
             "\n";
    };
    text = replaced(text, "  gt.1 = pred[] compare(arguments_3_.1",
                    rounded("rough", "7") + "  gt.1 = pred[] compare(rough");
    const std::string other = rounded("rounded", bits) +
                              "  above = pred[] compare(rounded, constant.41), direction=GT\n" +
                              "  other = s32[] convert(above)\n  cond.32 = ";
    text = replaced(replaced(text, "  cond.32 = ", other),
                    "conditional(convert_element_type.1, cond.30", "conditional(other, cond.30");
    const Rewritten programs = rewritten(text);
    return programs.forwards() + programs.backwards();
  };
  EXPECT_EQ(fused("7"), 4);
  EXPECT_EQ(fused("10"), 0);
}

// Of exponentials, and of weights that a mask multiplies first, whose sum looks like an output.
TEST(Report, NamesSumsOfWeightsAndANumber) {
  for (const char* name :
       {"forms/masked_and_renormalised_grad", "forms/epsilon_beside_the_sum_grad"}) {
    const Rewritten programs = rewritten(program_text(name));
    EXPECT_EQ(programs.forwards() + programs.backwards(), 0) << name;
    EXPECT_NE(programs.reasons().find("their sum and a number more"), std::string::npos)
        << name << ": " << programs.reasons();
  }
}

TEST(Report, SaysWhyAGuardOfTheSumIsLeft) {
  for (const auto& [name, why] : std::vector<std::pair<std::string, std::string>>{
           {"sum_no_less_than_two", "it may change sums of 1 and more"},
           {"sum_of_unshifted_exponentials_guarded", "not known to add up to 1 or more"},
           {"sum_of_shown_exponentials_guarded", "not known to add up to 1 or more"},
           {"sum_guarded_by_another", "it may change sums of 1 and more"}})
    for (const char* pass : {"", "_grad"}) {
      const std::string reasons = rewritten(program_text("forms/" + name + pass)).reasons();
      EXPECT_NE(reasons.find("which keeps their sum from being small: "), std::string::npos)
          << name << pass << ": " << reasons;
      EXPECT_NE(reasons.find(why), std::string::npos) << name << pass << ": " << reasons;
    }
  EXPECT_NE(rewritten(program_text("forms/ones_of_rows_without_sum"))
                .reasons()
                .find("rows that see no key are not 0 in %transpose"),
            std::string::npos);
}

// Not the softmax's own sum, which reads the weights first.
TEST(Report, NamesWhatNeedsTheWeights) {
  std::string text = program_text("forms/probabilities_returned");
  const auto reason = [&] {
    const Rewritten programs = rewritten(text);
    return programs.report.refusals.empty() ? "" : programs.report.refusals[0].reason;
  };
  EXPECT_NE(reason().find("needed elsewhere too (%div.7), so"), std::string::npos) << reason();
  const size_t weights = text.find("  div.7 =");
  ASSERT_NE(weights, std::string::npos);
  text.insert(text.find('\n', weights),
              R"(, metadata={op_name="jit(f)/div" source_file="model.py" source_line=14})");
  EXPECT_NE(reason().find("(%div.7, model.py:14), so"), std::string::npos) << reason();
}

TEST(Report, NamesWhatElseReadsTheWeightsOfAGradient) {
  const Rewritten programs = rewritten(program_text("forms/scan_keeping_weights"));
  EXPECT_NE(programs.reasons().find("but of %eq.8 too: something else reads the weights"),
            std::string::npos)
      << programs.reasons();
}

TEST(Report, NamesThePartOfTheWeightsThatIsMultiplied) {
  const Rewritten programs = rewritten(program_text("forms/values_of_parts_of_the_keys"));
  EXPECT_NE(programs.reasons().find("values are multiplied by parts of the weights (%slice"),
            std::string::npos)
      << programs.reasons();
}

// Each further number takes a call that computes the scores again.
TEST(Report, CountsTheNumbersThatHaveGradients) {
  const Rewritten programs = rewritten(program_text("forms/trained_by_five_numbers_grad"));
  ASSERT_EQ(programs.report.refusals.size(), 1u);
  EXPECT_NE(programs.reasons().find("the scores have gradients by 5 numbers (by %arguments_"),
            std::string::npos)
      << programs.reasons();
}

// Beside no forward, too: what holds a product is no loss.
TEST(Report, NamesAGradientThatIsLeftAlone) {
  for (const char* name :
       {"sum_of_output_clipped_backwards", "sum_of_output_clipped_backwards.simplified"}) {
    const Rewritten programs = rewritten(program_text(std::string("forms/") + name));
    EXPECT_EQ(programs.report.refusals.size(), 1u) << name;
    EXPECT_EQ(programs.report.without_values, 0) << name;
    EXPECT_NE(programs.reasons().find("is not that of one dO and V"), std::string::npos)
        << programs.reasons();
  }
}

TEST(Report, SaysThatNumbersAreRepeatedWithinAHead) {
  const std::string reasons =
      rewritten(program_text("forms/keys_repeated_within_a_head")).reasons();
  EXPECT_NE(reasons.find("the keys repeat their numbers along a part of head_dim"),
            std::string::npos)
      << reasons;
}

TEST(Report, SaysWhetherThereIsASoftmax) {
  const Rewritten programs = rewritten(
      "HloModule m\nENTRY e {\n  x = f32[4,4] parameter(0)\n  y = f32[4,4] exponential(x)\n"
      "  ROOT z = f32[4,4] dot(y, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n}\n");
  EXPECT_FALSE(programs.report.has_softmax);
  EXPECT_TRUE(programs.report.refusals.empty());
}

TEST(Report, ARefusalNamesItsLine) {
  std::string text = program_text("forms/probabilities_returned");
  const size_t exponential = text.find("exponential(");
  ASSERT_NE(exponential, std::string::npos);
  text.insert(text.find('\n', exponential),
              R"(, metadata={op_name="jit(f)/exp" source_file="model.py" source_line=12})");
  const Rewritten programs = rewritten(text);
  ASSERT_EQ(programs.report.refusals.size(), 1u);
  EXPECT_EQ(programs.report.refusals[0].source.file, "model.py");
  EXPECT_EQ(programs.report.refusals[0].source.line, 12);
  const std::string json = rewrite::to_json(programs.report);
  EXPECT_NE(json.find(R"("source": "model.py:12")"), std::string::npos) << json;
  EXPECT_NE(json.find(R"("operation": "jit(f)/exp")"), std::string::npos) << json;
}

}  // namespace
}  // namespace heddle::testing
