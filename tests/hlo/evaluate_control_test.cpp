// Calls, loops, branches, custom calls, limits and refusals.
#include <gtest/gtest.h>

#include "evaluated.h"
#include "hlo/interpreter/random_arguments.h"

namespace heddle::hlo {
namespace {

const std::string kLoop =
    "below { s = (s32[], f32[2]) parameter(0) i = s32[] get-tuple-element(s), index=0 "
    "n = s32[] constant(5) ROOT c = pred[] compare(i, n), direction=LT }\n"
    "body { s = (s32[], f32[2]) parameter(0) i = s32[] get-tuple-element(s), index=0 "
    "x = f32[2] get-tuple-element(s), index=1 one = s32[] constant(1) j = s32[] add(i, one) "
    "y = f32[2] add(x, x) ROOT t = (s32[], f32[2]) tuple(j, y) }\n";
const std::string kRunLoop =
    "z = s32[] constant(0) x = f32[2] constant({1, 3}) s = (s32[], f32[2]) tuple(z, x) "
    "ROOT w = (s32[], f32[2]) while(s), condition=below, body=body";

TEST(While, RunsUntilItsConditionFails) { EXPECT_EQ(value(kRunLoop, kLoop), "( 5, {32, 96} )"); }

TEST(While, StopsAtTheIterationLimit) {
  EvaluateOptions options;
  options.max_iterations = 4;
  EXPECT_EQ(value_of("HloModule m\n" + kLoop + "ENTRY e {" + kRunLoop + "}", options),
            "w: the limit of 4 iterations is exceeded");
}

TEST(Limits, StepsAndBytes) {
  EvaluateOptions options;
  options.max_steps = 10;
  EXPECT_EQ(value_of("HloModule m\n" + kLoop + "ENTRY e {" + kRunLoop + "}", options),
            "j: the limit of 10 steps is exceeded");
  options = {};
  options.max_bytes = 1000;
  EXPECT_EQ(
      value_of("HloModule m ENTRY e { ROOT i = f32[1024] iota(), iota_dimension=0 }", options),
      "f32[1024] would exceed the limit of 1000 bytes");
}

// Freed values do not count: a long chain of small steps stays within a small limit.
TEST(Limits, CountOnlyWhatIsAlive) {
  std::string chain = "x0 = f32[64] iota(), iota_dimension=0\n";
  for (int i = 1; i < 50; ++i) {
    chain += "x" + std::to_string(i) + " = f32[64] negate(x" + std::to_string(i - 1) + ")\n";
  }
  EvaluateOptions options;
  options.max_bytes = 4 * 64 * 4;
  EXPECT_EQ(
      value_of("HloModule m ENTRY e { " + chain + " ROOT r = f32[1] slice(x49), slice={[3:4]} }",
               options),
      "{-3}");
}

TEST(Conditional, ByPredicateAndByIndex) {
  const std::string branches =
      "t { x = s32[] parameter(0) ROOT r = s32[] negate(x) }\n"
      "f { x = s32[] parameter(0) ROOT r = s32[] add(x, x) }\n";
  EXPECT_EQ(value("p = pred[] constant(true) a = s32[] constant(5) b = s32[] constant(7) "
                  "ROOT r = s32[] conditional(p, a, b), true_computation=t, false_computation=f",
                  branches),
            "-5");
  EXPECT_EQ(value("i = s32[] constant(-3) a = s32[] constant(5) b = s32[] constant(7) "
                  "ROOT r = s32[] conditional(i, a, b), branch_computations={t, f}",
                  branches),
            "14");
}

TEST(Call, PassesItsOperands) {
  EXPECT_EQ(
      value("a = f32[] constant(1) b = f32[] constant(2) ROOT r = f32[] call(a, b), to_apply=sum",
            kAdd),
      "3");
}

TEST(CustomCall, RunsThroughItsHandler) {
  EvaluateOptions options;
  options.custom_calls.emplace_back(
      "twice", [](const Instruction&, std::span<const Literal> operands) -> Result<Literal> {
        return Literal::scalar(operands[0].shape().type(), 2 * operands[0].get(0));
      });
  const std::string text =
      "HloModule m ENTRY e { a = f32[] constant(21) "
      "ROOT r = f32[] custom-call(a), custom_call_target=\"twice\" }";
  EXPECT_EQ(value_of(text, options), "42");
  EXPECT_EQ(value_of(text), "cannot evaluate r: custom-call to twice has no handler");
  options.custom_calls[0].second = [](const Instruction&,
                                      std::span<const Literal>) -> Result<Literal> {
    return Literal::scalar(ElementType::s32, 1);
  };
  EXPECT_EQ(value_of(text, options), "r: the handler of twice gave s32[] instead of f32[]");
}

TEST(CustomCall, ShardingAnnotationsGiveTheirOperand) {
  EXPECT_EQ(value("a = f32[] constant(3) ROOT r = f32[] custom-call(a), "
                  "custom_call_target=\"Sharding\", sharding={replicated}"),
            "3");
}

TEST(Refusals, NameTheOperation) {
  EXPECT_EQ(
      value("x = f32[2] constant({1, 2}) ROOT r = c64[2] fft(x), fft_type=RFFT, fft_length={2}"),
      "cannot evaluate r: fft is not an operation the interpreter knows");
  EXPECT_EQ(value("x = f32[2] constant({1, 2}) ROOT r = f32[2] frobnicate(x), how={a, b}"),
            "cannot evaluate r: frobnicate is not an operation the interpreter knows");
  EXPECT_EQ(value("ROOT x = f32[100] constant({...})"),
            "cannot evaluate x: constant was elided from the text ({...}), its value is unknown");
  EXPECT_EQ(value("x = c64[] constant((1, 2)) ROOT r = c64[] negate(x)"),
            "cannot evaluate r: negate of c64 is not known");
}

TEST(Arguments, MustFitTheParameters) {
  auto module = read_text("HloModule m ENTRY e { ROOT p = f32[2] parameter(0) }");
  ASSERT_TRUE(module) << module.status().message();
  EXPECT_EQ(evaluate(**module, {}).status().message(), "e takes 1 arguments, 0 are given");
  const Literal scalar = Literal::scalar(ElementType::f32, 1);
  EXPECT_EQ(evaluate(**module, {&scalar, 1}).status().message(),
            "argument 0 of e is f32[2], not f32[]");
}

TEST(RandomArguments, FollowIndicesAndWeights) {
  auto module = read_text(
      "HloModule m\n"
      "take { t = f32[3,4] parameter(0) i = s32[5,1] parameter(1) "
      "ROOT g = f32[5,4] gather(t, i), offset_dims={1}, collapsed_slice_dims={0}, "
      "start_index_map={0}, index_vector_dim=1, slice_sizes={1,4} }\n"
      "ENTRY e { t = f32[3,4] parameter(0) i = s32[5] parameter(1) w = f32[4,100] parameter(2) "
      "c = s32[5,1] reshape(i) g = f32[5,4] call(t, c), to_apply=take "
      "ROOT d = f32[5,100] dot(g, w), lhs_contracting_dims={1}, rhs_contracting_dims={0} }");
  ASSERT_TRUE(module) << module.status().message();
  auto arguments = random_arguments(**module, 7);
  ASSERT_TRUE(arguments) << arguments.status().message();
  for (int i = 0; i < 5; ++i) EXPECT_LT((*arguments)[1].get_integer(i), 3);
  double squares = 0;
  for (int i = 0; i < 400; ++i) squares += (*arguments)[2].get(i) * (*arguments)[2].get(i);
  EXPECT_NEAR(squares / 400, 0.25, 0.06);  // weights contracted over 4: variance 1/4
  auto again = random_arguments(**module, 7);
  ASSERT_TRUE(again);
  EXPECT_TRUE((*again)[0] == (*arguments)[0]);
  auto other = random_arguments(**module, 8);
  ASSERT_TRUE(other);
  EXPECT_FALSE((*other)[0] == (*arguments)[0]);
}

// Calls of dynamic shapes are not checked when they are read.
TEST(RandomArguments, OfALoopWhoseConditionTakesNothing) {
  const auto module = read_text(
      "HloModule m\n"
      "b { s = f32[2] parameter(0) ROOT n = f32[2] negate(s) }\n"
      "c { ROOT k = pred[] constant(false) }\n"
      "ENTRY e { p = f32[2] parameter(0) ROOT w = f32[?] while(p), condition=c, body=b }");
  ASSERT_TRUE(module) << module.status().message();
  EXPECT_TRUE(random_arguments(**module, 1));
}

// Nothing about an instruction of unknown sizes is checked when it is read: it is an unknown one.
TEST(RandomArguments, LookAtNothingOfUnknownSize) {
  for (const std::string uses :
       {"d = s32[?] iota() g = f32[4] gather(d, i), start_index_map={99}",
        "g = f32[?] gather(i), start_index_map={99}", "c = pred[?] compare(i), direction=EQ",
        "j = s32[?] iota() c = pred[4] compare(i, j), direction=EQ",
        "b = s32[?] broadcast() c = pred[4] compare(i, b), direction=EQ",
        "u = s32[?] iota() j = s32[4] iota(u) c = pred[4] compare(i, j), direction=EQ",
        "w = s32[?] while(i)", "c = s32[?] call(i)",
        "d = f32[?] dot(i, i), lhs_contracting_dims={99}, rhs_contracting_dims={99}",
        "u = s32[?] iota() d = s32[1] dynamic-slice(u, i, i, i), dynamic_slice_sizes={1}"}) {
    const auto module = read_text("HloModule m ENTRY e { i = s32[4] parameter(0) " + uses + " }");
    ASSERT_TRUE(module) << module.status().message();
    EXPECT_TRUE(random_arguments(**module, 1)) << uses;
  }
}

TEST(Refusals, UnknownSizesBeforeAnythingOfThemIsRead) {
  EXPECT_EQ(value("ROOT g = f32[?] get-tuple-element(), index=0"),
            "cannot evaluate g: get-tuple-element has a shape of dynamic size");
  EXPECT_EQ(value("x = f32[2] constant({1, 2}) z = f32[] constant(0) "
                  "ROOT r = f32[] reduce(x, z), dimensions={0}, to_apply=c",
                  "c { a = f32[] parameter(0) b = f32[] parameter(1) t = (f32[?]) tuple(a) "
                  "g = f32[] get-tuple-element(t), index=7 ROOT s = f32[] add(g, b) }\n"),
            "cannot evaluate t: tuple has a shape of dynamic size");
}

TEST(Refusals, OperandsThatAreMissing) {
  EXPECT_EQ(value("ROOT b = f32[] bitcast()"), "test:3:6: b: bitcast takes 1 operand, not 0");
  EXPECT_EQ(value("ROOT p = f32[8] partition-id()"),
            "test:3:6: expected shape u32[] of p, found f32[8]");
}

// Computations that evaluate no instruction, calls that double within a reducer, values of many
// parts: all count towards the limit.
TEST(Limits, NoWorkIsFree) {
  EvaluateOptions options;
  options.max_steps = 100;
  const auto limited = [&](const std::string& computations, const std::string& instructions) {
    return value_of("HloModule m\n" + computations + "ENTRY e {" + instructions + "}", options);
  };
  EXPECT_EQ(limited("c { a = pred[] parameter(0) ROOT b = pred[] parameter(1) }\n",
                    "x = pred[] constant(true) y = pred[64] broadcast(x), dimensions={} "
                    "ROOT s = pred[64] sort(y), dimensions={0}, to_apply=c"),
            "s: the limit of 100 steps is exceeded");
  EXPECT_EQ(limited("c { a = f32[] parameter(0) ROOT b = f32[] parameter(1) }\n",
                    "o = f32[1] constant({0}) i = s32[200,1] iota(), iota_dimension=0 "
                    "z = s32[200,1] subtract(i, i) x = f32[] constant(1) "
                    "u = f32[200] broadcast(x), dimensions={} "
                    "ROOT s = f32[1] scatter(o, z, u), update_window_dims={}, "
                    "inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, "
                    "index_vector_dim=1, to_apply=c"),
            "s: the limit of 100 steps is exceeded");
  std::string doubling = "c0 { ROOT p = f32[] parameter(0) }\n";
  for (int i = 1; i < 40; ++i) {
    const std::string before = "to_apply=c" + std::to_string(i - 1);
    doubling += "c" + std::to_string(i) + " { p = f32[] parameter(0) a = f32[] call(p), " + before +
                " ROOT b = f32[] call(a), " + before + " }\n";
  }
  EXPECT_EQ(limited(doubling + "r { a = f32[] parameter(0) b = f32[] parameter(1) "
                               "c = f32[] call(a), to_apply=c39 ROOT d = f32[] add(b, c) }\n",
                    "x = f32[4] constant({1, 2, 3, 4}) z = f32[] constant(0) "
                    "ROOT q = f32[] reduce(x, z), dimensions={0}, to_apply=r"),
            "b: the limit of 100 steps is exceeded");
  std::string many = "x";
  for (int i = 1; i < 4000; ++i) many += ",x";
  EXPECT_EQ(limited("", "x = f32[] constant(1) ROOT t = tuple(" + many + ")"),
            "t: the limit of 100 steps is exceeded");
  EXPECT_EQ(limited("",
                    "x = u8[] constant(1) y = u8[100000] broadcast(x), dimensions={} "
                    "ROOT t = (u8[0], s32[0]) topk(y), k=0"),
            "t: the limit of 100 steps is exceeded");
}

// The elements of a tuple are shared like those of an array.
TEST(Limits, ATupleTakenManyTimesIsKeptOnce) {
  std::string many = "x";
  for (int i = 1; i < 5000; ++i) many += ",x";
  std::string tuples = "t";
  for (int i = 1; i < 5000; ++i) tuples += ",t";
  EXPECT_EQ(value("x = f32[] constant(1) t = tuple(" + many + ") a = token[] after-all(" + tuples +
                  ") ROOT g = f32[] get-tuple-element(t), index=4999"),
            "1");
}

}  // namespace
}  // namespace heddle::hlo
