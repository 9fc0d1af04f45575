// The grammar of HLO text, rule by rule, and the sentence for each way to break it.
#include "hlo/read.h"

#include <gtest/gtest.h>

#include "hlo/write.h"

namespace heddle::hlo {
namespace {

// The sentence for a text that does not read; empty if it does.
std::string refusal(const std::string& text) {
  auto module = read_text(text, "m.hlo");
  return module ? "" : module.status().message();
}

std::string refused_entry(const std::string& instructions) {
  return refusal("HloModule m\nENTRY e {\n" + instructions + "\n}\n");
}

std::unique_ptr<Module> read(const std::string& text) {
  auto module = read_text(text, "m.hlo");
  EXPECT_TRUE(module) << module.status().message();
  return module ? std::move(module).value() : nullptr;
}

TEST(Header, AttributesWrapLinesAndStayVerbatim) {
  const auto module = read(
      "HloModule m, is_scheduled=true,\n  input_output_alias={ {0}: (0, {}, may-alias) },"
      " frontend_attributes={a=\"}\"}\n\nENTRY e { ROOT p = f32[] parameter(0) }");
  EXPECT_EQ(module->header_text("input_output_alias"), "{ {0}: (0, {}, may-alias) }");
  EXPECT_EQ(module->header_text("frontend_attributes"), "{a=\"}\"}");
  EXPECT_EQ(module->header_text("absent"), "");
}

TEST(Header, Refusals) {
  EXPECT_EQ(refusal(""), "m.hlo:1:1: expected 'HloModule', found the end of the text");
  for (const char* mlir : {"module @jit_f {", "#loc = loc(unknown)\nmodule @jit_f {"})
    EXPECT_EQ(refusal(mlir),
              "m.hlo:1:1: expected HLO text, and this is MLIR, as StableHLO is printed; "
              "jax.jit(f).lower(...).as_text(\"hlo\") prints HLO");
  EXPECT_EQ(refusal("HloModules m"), "m.hlo:1:1: expected 'HloModule', found 'HloModules'");
  EXPECT_EQ(refusal("HloModule m, a=1, a=2"), "m.hlo:1:19: expected header attribute a only once");
  EXPECT_EQ(refusal("HloModule m, a={[}"), "m.hlo:1:18: expected ']', found '}'");
  EXPECT_EQ(refusal("HloModule m, a={1"),
            "m.hlo:1:16: expected a closing '}' for the bracket here");
  EXPECT_EQ(refusal("HloModule m, a=\"x"),
            "m.hlo:1:16: expected a closing '\"' for the string that begins here");
  EXPECT_EQ(refusal("HloModule m"),
            "m.hlo:1:12: expected a computation, found the end of the text");
}

TEST(Tables, AreKeptAsTheyAre) {
  const std::string text =
      "HloModule m\n\nFileNames\n1 \"model.py\"\n\nStackFrames\n1 {file_location_id=1}\n\n\n"
      "%e (p: f32[]) -> f32[] {\n  ROOT %p = f32[] parameter(0)\n}\n\n";
  const auto module = read(text);
  EXPECT_EQ(module->tables(), "FileNames\n1 \"model.py\"\n\nStackFrames\n1 {file_location_id=1}");
}

TEST(Computation, LastOneIsTheEntryWithoutENTRY) {
  const auto module =
      read("HloModule m f { ROOT p = f32[] parameter(0) } g { ROOT p = f32[] parameter(0) }");
  EXPECT_EQ(module->entry()->name(), "g");
}

TEST(Computation, LastInstructionIsTheRootWithoutROOT) {
  const auto module = read("HloModule m e { p = f32[] parameter(0) q = f32[] negate(p) }");
  EXPECT_EQ(module->entry()->root()->name(), "q");
}

TEST(Computation, KeepsItsExecutionThread) {
  const auto module =
      read("HloModule m\nENTRY e { ROOT p = f32[] parameter(0) }, execution_thread=\"host\"");
  EXPECT_EQ(module->entry()->trailing(), ", execution_thread=\"host\"");
}

TEST(Computation, Refusals) {
  EXPECT_EQ(refusal("HloModule m e { }"), "m.hlo:1:17: expected an instruction or '}', found '}'");
  EXPECT_EQ(
      refusal("HloModule m ENTRY e { p = f32[] parameter(0) } ENTRY f { p = f32[] parameter(0) }"),
      "m.hlo:1:54: expected one ENTRY, e is it");
  EXPECT_EQ(refusal("HloModule m f { p = f32[] parameter(0) } f { p = f32[] parameter(0) }"),
            "m.hlo:1:42: expected a new name, f is defined above");
  EXPECT_EQ(refusal("HloModule m e { ROOT p = f32[] parameter(0) ROOT q = f32[] negate(p) }"),
            "m.hlo:1:50: expected one ROOT, p is it");
  EXPECT_EQ(
      refusal("HloModule m e (x: f32[2]) -> f32[] { p = f32[] parameter(0) }"),
      "m.hlo:1:15: expected the signature of e to give the shapes of its parameters and its root");
  EXPECT_EQ(refusal("HloModule m e { p = f32[] parameter(7) }"),
            "m.hlo:1:13: expected parameters 0 to 0 in e, found number 7");
  EXPECT_EQ(refused_entry("p = f32[] parameter(0) q = f32[] parameter(0)"),
            "m.hlo:3:24: expected parameter 0 only once");
  EXPECT_EQ(refused_entry("p = f32[] parameter(-1)"),
            "m.hlo:3:21: expected a parameter's number, 0 or more");
}

// Nothing can be called before it is complete, so recursion has no way in.
TEST(Computation, CannotCallItselfOrWhatComesLater) {
  EXPECT_EQ(refusal("HloModule m f { p = f32[] parameter(0) ROOT c = f32[] call(p), to_apply=f }"),
            "m.hlo:1:73: expected a computation defined above, there is no f");
  EXPECT_EQ(refusal("HloModule m f { p = f32[] parameter(0) ROOT c = f32[] call(p), to_apply=g } "
                    "g { p = f32[] parameter(0) ROOT c = f32[] call(p), to_apply=f }"),
            "m.hlo:1:73: expected a computation defined above, there is no g");
}

TEST(Comments, StandAnywhere) {
  read(
      "// a\nHloModule /*b*/ m\nENTRY e { // c\n /* d\n */ ROOT p /*e*/ = f32[/*f*/2] parameter(0) "
      "}");
  EXPECT_EQ(refusal("HloModule m /* "),
            "m.hlo:1:16: expected a computation, found the end of the text");
}

TEST(Shape, Forms) {
  for (const char* text : {"f32[]", "f32[2,3]{1,0}", "f32[2,3]{0,1:T(8,128)S(1)}", "bf16[<=5,?]",
                           "token[]", "opaque[]", "(f32[], (s32[2]{0}, pred[]))", "()", "c64[1]{0}",
                           "f8e4m3fn[4]{0}", "s4[4]{0:E(4)}"}) {
    auto shape = read_shape(text);
    ASSERT_TRUE(shape) << shape.status().message();
    EXPECT_EQ(to_string(*shape), text);
  }
}

TEST(Shape, Refusals) {
  const auto refused = [](std::string_view text) { return read_shape(text).status().message(); };
  EXPECT_EQ(refused("f33[2]"), "shape:1:1: expected a shape, found 'f33'");
  EXPECT_EQ(refused("f32[-1]"), "shape:1:5: expected a dimension of 0 or more");
  EXPECT_EQ(refused("f32[2"), "shape:1:6: expected ']', found the end of the text");
  EXPECT_EQ(refused("f32[99999999999999999999]"),
            "shape:1:5: expected a dimension, found one beyond 64 bits");
  EXPECT_EQ(refused("f32[4294967296,4294967296]"),
            "shape:1:1: expected a shape of at most 2^48 elements");
  EXPECT_EQ(refused("f32[0,9223372036854775807,2]"),
            "shape:1:1: expected a shape of at most 2^48 elements");
  EXPECT_EQ(refused("f32[2,3]{1,1}"), "shape:1:10: expected a layout that orders 2 dimensions");
  EXPECT_EQ(refused("f32[2,3]{0}"), "shape:1:10: expected a layout that orders 2 dimensions");
  EXPECT_EQ(refused("token[2]"), "shape:1:1: expected token[] without dimensions");
  EXPECT_EQ(refused(std::string(100, '(')), "shape:1:65: expected tuples nested less than 64 deep");
}

TEST(Instruction, OperandsMayRepeatShapesAndNest) {
  const auto module = read(
      "HloModule m e { p = f32[2]{0} parameter(0) "
      "ROOT r = f32[2]{0} add(f32[2]{0} %p, multiply(p, f32[2] negate(p))) }");
  EXPECT_EQ(module->instruction_count(), 4);
  EXPECT_EQ(module->entry()->root()->operand(1)->opcode(), Opcode::multiply);
  EXPECT_EQ(module->entry()->root()->operand(1)->name(), "multiply.anon");
}

TEST(Instruction, ShapesThatFollowMayBeLeftOut) {
  const auto module = read(
      "HloModule m e { p = f32[2,3] parameter(0) t = transpose(p), dimensions={1,0} "
      "u = tuple(t, p) ROOT g = get-tuple-element(u), index=0 }");
  EXPECT_EQ(to_string(module->entry()->root()->shape()), "f32[3,2]{1,0}");
  const auto scalar = read("HloModule m e { p = f32[] parameter(0) ROOT s = add(p, p) }");
  EXPECT_EQ(scalar->entry()->root()->shape(), scalar->entry()->parameter(0)->shape());
  EXPECT_EQ(refused_entry("p = f32[2] parameter(0) q = reshape(p)"),
            "m.hlo:3:29: expected a shape before reshape");
}

TEST(Instruction, UnknownOperationsKeepEverything) {
  const std::string line =
      "%r = f32[2]{0} frobnicate(%p), dimensions=whatever, how={a=[1,(2)], b=\"}\"}, index=x";
  const auto module = read("HloModule m\n%e { %p = f32[2]{0} parameter(0)\n ROOT " + line + " }");
  EXPECT_EQ(to_string(*module->entry()->root()), line);
  EXPECT_EQ(module->entry()->root()->opcode(), Opcode::unknown);
  EXPECT_EQ(module->entry()->root()->opcode_name(), "frobnicate");
}

TEST(Instruction, Refusals) {
  EXPECT_EQ(refused_entry("p = f32[] parameter(0) p = f32[] negate(p)"),
            "m.hlo:3:24: expected a new name, p is defined above");
  EXPECT_EQ(refused_entry("p = f32[] negate(q)"),
            "m.hlo:3:18: expected an instruction defined above in e, there is no q");
  EXPECT_EQ(refused_entry("p = f32[] negate(p)"),
            "m.hlo:3:18: expected an instruction defined above in e, there is no p");
  EXPECT_EQ(refused_entry("p = f32[2] parameter(0) q = f32[2] negate(f32[3] p)"),
            "m.hlo:3:43: expected shape f32[2] of p, found f32[3]");
  EXPECT_EQ(refused_entry("p = f32[2] parameter(0) q = f32[3] negate(p)"),
            "m.hlo:3:25: expected shape f32[2] of q, found f32[3]");
  EXPECT_EQ(refused_entry("p = f32[] parameter(0) q = f32[] negate(p), a=1, a=2"),
            "m.hlo:3:50: expected attribute a only once");
  EXPECT_EQ(refused_entry("p = f32[] parameter(0) q = f32[] negate(p,)"),
            "m.hlo:3:43: expected an operand, found ')'");
  std::string nested = "p";
  for (int i = 0; i < 70; ++i) nested = "negate(" + nested + ")";
  EXPECT_EQ(refused_entry("p = f32[] parameter(0) q = f32[] " + nested),
            "m.hlo:3:489: expected operands nested less than 64 deep");
}

// Every attribute that later code indexes with is checked against the shapes.
TEST(Instruction, ShapesAndAttributesMustFit) {
  const std::string p = "p = f32[2,3] parameter(0) s = f32[] parameter(1) ";
  const std::string at = "m.hlo:3:50: q: ";
  EXPECT_EQ(refused_entry(p + "q = f32[2] add(p, s)"),
            at + "add takes operands of one shape, not f32[2,3] and f32[]");
  EXPECT_EQ(refused_entry(p + "q = f32[2,3] add(p)"), at + "add takes 2 operands, not 1");
  EXPECT_EQ(refused_entry(p + "q = f32[3,2] transpose(p), dimensions={1,2}"),
            at + "transpose of f32[2,3] needs a permutation of its 2 dimensions, not {1,2}");
  EXPECT_EQ(
      refused_entry(p + "q = f32[2,3] broadcast(s), dimensions={0}"),
      at + "broadcast of f32[] to f32[2,3] needs 0 distinct dimensions of the result, not {0}");
  EXPECT_EQ(refused_entry(p + "q = f32[7] reshape(p)"),
            at + "reshape keeps the number of elements, f32[2,3] and f32[7] have different ones");
  EXPECT_EQ(refused_entry(p + "q = f32[2,3] slice(p), slice={[0:2], [0:4]}"),
            at + "slice range [0:4:1] does not lie in dimension 1 of f32[2,3]");
  EXPECT_EQ(refused_entry(p + "q = f32[2,9] pad(p, s), padding=0_0x9223372036854775807_1"),
            at + "pad by 9223372036854775807_1_0 leaves no size for dimension 1 of f32[2,3]");
  EXPECT_EQ(refused_entry(p + "q = f32[] get-tuple-element(p), index=0"),
            at + "get-tuple-element index 0 is not an element of f32[2,3]");
  EXPECT_EQ(refused_entry(
                p + "q = f32[2,2] dot(p, p), lhs_contracting_dims={1}, rhs_contracting_dims={0}"),
            at + "dot pairs dimensions of f32[2,3] and f32[2,3] of different sizes");
  EXPECT_EQ(refused_entry(p + "q = s32[3] iota(), iota_dimension=1"),
            at + "iota needs an iota_dimension of s32[3], not 1");
  EXPECT_EQ(refused_entry(p + "q = pred[2,3] compare(p, p), direction=XX"),
            at + "compare needs a direction among EQ, NE, GE, GT, LE, LT, not 'XX'");
  EXPECT_EQ(refused_entry(p + "q = f32[2] reduce(p, s), dimensions={1}"),
            at + "reduce needs a to_apply");
  EXPECT_EQ(refused_entry(p + "q = f32[2] sort(p), dimensions={5}"),
            at + "sort needs one dimension of f32[2,3], not {5}");
}

TEST(Attributes, TypedValues) {
  const auto module = read(
      "HloModule m\n"
      "f { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] add(a, b) }\n"
      "ENTRY e { p = f32[8,8] parameter(0) z = f32[] constant(0)\n"
      " w = f32[8,8] reduce-window(p, z), window={size=1x8 stride=1x1 pad=0_0x7_0 "
      "rhs_reversal=0x1},"
      " to_apply=f\n"
      " s = f32[2,8] slice(w), slice={[1:4:2], [0:8]}, metadata={op_name=\"a, b}\"}\n"
      " ROOT c = f32[2,8] custom-call(s), custom_call_target=\"a\\\"b\\n\\101\","
      " operand_layout_constraints={f32[2,8]{0,1}}, api_version=API_VERSION_TYPED_FFI,"
      " backend_config={x = \"}\"}, control-predecessors={w, p} }");
  const Computation& entry = *module->entry();
  EXPECT_EQ(entry.find("w")->window()[1].pad_low, 7);
  EXPECT_TRUE(entry.find("w")->window()[1].reversed);
  EXPECT_EQ(entry.find("w")->to_apply()->name(), "f");
  EXPECT_EQ(entry.find("s")->slice()[0].stride, 2);
  EXPECT_EQ(entry.find("s")->text("metadata"), "{op_name=\"a, b}\"}");
  EXPECT_EQ(entry.root()->custom_call_target(), "a\"b\nA");
  EXPECT_EQ(entry.root()->backend_config(), "{x = \"}\"}");
  EXPECT_EQ(entry.root()->control_predecessors().size(), 2u);
  auto again = read_text(write_text(*module));
  ASSERT_TRUE(again) << again.status().message();
  std::string difference;
  EXPECT_TRUE(equal(*module, **again, &difference)) << difference;
}

TEST(Attributes, Refusals) {
  const std::string p = "p = f32[2] parameter(0) ";
  EXPECT_EQ(refused_entry(p + "q = f32[2] reverse(p), dimensions=0"),
            "m.hlo:3:59: expected '{', found '0'");
  EXPECT_EQ(refused_entry(p + "q = f32[2] negate(p), control-predecessors={r}"),
            "m.hlo:3:69: expected an instruction defined above in e, there is no r");
  EXPECT_EQ(refused_entry(p + "q = f32[2] negate(p), indices_are_sorted=maybe"),
            "m.hlo:3:66: expected true or false, found 'maybe'");
  EXPECT_EQ(refused_entry(p + "q = f32[2] negate(p), window={size=2 stride=1x1}"),
            "m.hlo:3:62: expected stride to have 1 dimensions like the others");
  EXPECT_EQ(refused_entry(p + "q = f32[2] negate(p), padding=1"),
            "m.hlo:3:55: expected low_high or low_high_interior");
}

// tuple(x, x) of tuple(x, x) of ...: 2^64 parts in a page of text.
TEST(Hostile, TuplesThatDouble) {
  std::string text = "t0 = f32[] parameter(0)\n";
  for (int i = 1; i < 64; ++i) {
    const std::string before = "t" + std::to_string(i - 1);
    text += "t" + std::to_string(i) + " = tuple(" + before + ", " + before + ")\n";
  }
  EXPECT_EQ(refused_entry(text), "m.hlo:19:1: t16: tuple holds more than 65536 elements in all");
}

// What is inferred could be written, but not read back, if it were nested deeper or of a higher
// rank than text may be.
TEST(Hostile, TuplesThatNest) {
  std::string text = "t0 = f32[] parameter(0)\n";
  for (int i = 1; i <= 65; ++i) {
    text += "t" + std::to_string(i) + " = tuple(t" + std::to_string(i - 1) + ")\n";
  }
  EXPECT_EQ(refused_entry(text), "m.hlo:68:1: t65: tuple nests tuples more than 64 deep");
}

TEST(Hostile, GatherOfTooManyDimensions) {
  std::string ones = "1";
  std::string dims = "0";
  for (int i = 1; i < 40; ++i) {
    ones += ",1";
    dims += "," + std::to_string(i);
  }
  EXPECT_EQ(refused_entry("p = f32[" + ones + "] parameter(0) i = s32[" + ones +
                          ",0] parameter(1)\ng = gather(p, i), offset_dims={" + dims +
                          "}, collapsed_slice_dims={}, start_index_map={}, index_vector_dim=40, "
                          "slice_sizes={" +
                          ones + "}"),
            "m.hlo:4:1: g: gather gives more than 64 dimensions");
}

// Passing a large tuple many times copies none of it.
TEST(Hostile, CallWithManyLargeTuples) {
  const auto repeated = [](const std::string& name, int count) {
    std::string list = name;
    for (int i = 1; i < count; ++i) list += "," + name;
    return list;
  };
  std::string callee = "c {";
  for (int i = 0; i < 400; ++i) {
    callee += " p" + std::to_string(i) + " = f32[] parameter(" + std::to_string(i) + ")";
  }
  const auto module =
      read_text("HloModule m\n" + callee + " }\nENTRY e { p = f32[] parameter(0) " + "t = tuple(" +
                repeated("p", 256) + ") u = tuple(" + repeated("t", 250) +
                ") ROOT r = f32[] call(" + repeated("u", 400) + "), to_apply=c }");
  ASSERT_FALSE(module);
  EXPECT_EQ(module.status().code(), Code::malformed_input);
}

// Arrays of 64 dimensions each, which no text spells out.
TEST(Hostile, InferredShapesThatOutgrowTheirText) {
  std::string ones = "1";
  for (int i = 1; i < 64; ++i) ones += ",1";
  std::string text = "t0 = f32[" + ones + "] parameter(0)\n";
  for (int i = 1; i < 16; ++i) {
    const std::string before = "t" + std::to_string(i - 1);
    text += "t" + std::to_string(i) + " = tuple(" + before + ", " + before + ")\n";
  }
  EXPECT_EQ(refused_entry(text), "m.hlo:15:7: expected a shape: too many were left to be inferred");
}

// The rows of an array without elements are spelled, so that writing it takes what reading took.
TEST(Hostile, RowsOfAnEmptyConstantWithoutTheirText) {
  EXPECT_EQ(refused_entry("c = f32[1000000000000,0] constant({})"),
            "m.hlo:3:36: expected '{', found '}'");
}

// No rule holds an operation on unknown sizes to anything, so that none may pass for one that is.
TEST(UnknownSizes, MakeAnOperationUnknown) {
  for (const std::string line :
       {"c = pred[?]{0} compare(p), direction=EQ", "c = s32[?]{0} iota(), iota_dimension=7",
        "c = s32[?]{0} while(p)", "c = s32[?]{0} get-tuple-element(p), index=1"}) {
    const auto module = read("HloModule m e { p = s32[2]{0} parameter(0) " + line + " }");
    EXPECT_EQ(module->entry()->root()->opcode(), Opcode::unknown);
    EXPECT_EQ(to_string(*module->entry()->root()), line);
  }
  EXPECT_EQ(refused_entry("p = s32[?] parameter(0)\nc = tuple(p)"),
            "m.hlo:4:5: expected a shape before tuple of an unknown size");
}

TEST(Hostile, ConstantLargerThanItsText) {
  EXPECT_EQ(
      refused_entry("c = f32[1000000000000] constant({1, 2})"),
      "m.hlo:3:33: expected 1000000000000 elements for f32[1000000000000], the text ends before");
}

}  // namespace
}  // namespace heddle::hlo
