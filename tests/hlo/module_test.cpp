// Editing modules, and building into them.
#include "hlo/module.h"

#include <gtest/gtest.h>

#include "hlo/build.h"
#include "hlo/read.h"
#include "hlo/write.h"

namespace heddle::hlo {
namespace {

std::unique_ptr<Module> read(const std::string& text) {
  auto module = read_text(text);
  EXPECT_TRUE(module) << module.status().message();
  return module ? std::move(module).value() : nullptr;
}

std::unique_ptr<Module> small_module() {
  return read(
      "HloModule m\nENTRY e {\n  p = f32[2,3]{1,0} parameter(0)\n  n = f32[2,3]{1,0} negate(p)\n"
      "  a = f32[2,3]{1,0} add(n, n)\n  ROOT r = f32[2,3]{1,0} multiply(a, p)\n}\n");
}

TEST(Users, AreListedOnceInOrder) {
  const auto module = small_module();
  const Computation& entry = *module->entry();
  ASSERT_EQ(entry.find("n")->users().size(), 1u);
  ASSERT_EQ(entry.find("p")->users().size(), 2u);
  EXPECT_EQ(entry.find("p")->users()[0]->name(), "n");
  EXPECT_EQ(entry.find("p")->users()[1]->name(), "r");
}

TEST(Edit, ReplaceAllUsesMovesUsersAndRoot) {
  const auto module = small_module();
  Computation& entry = *module->entry();
  auto exponential = make_unary(Opcode::exponential, entry.find("p"));
  ASSERT_TRUE(exponential) << exponential.status().message();
  entry.find("a")->replace_all_uses_with(*exponential);
  EXPECT_TRUE(entry.find("a")->users().empty());
  EXPECT_EQ(module->remove_dead(), 2);
  EXPECT_EQ(module->verify().message(), "");
  // The new instruction stands before its user although it was added behind it.
  EXPECT_EQ(write_text(*module),
            "HloModule m\n\nENTRY e {\n  p = f32[2,3]{1,0} parameter(0)\n"
            "  exponential = f32[2,3]{1,0} exponential(p)\n"
            "  ROOT r = f32[2,3]{1,0} multiply(exponential, p)\n}\n\n");
  Instruction* root = entry.root();
  root->replace_all_uses_with(entry.find("p"));
  EXPECT_EQ(entry.root()->name(), "p");
}

TEST(Edit, AReplacementThatUsesTheReplacedKeepsItsOperand) {
  const auto module = small_module();
  Computation& entry = *module->entry();
  auto wrapped = make_unary(Opcode::tanh, entry.find("n"));
  ASSERT_TRUE(wrapped);
  entry.find("n")->replace_all_uses_with(*wrapped);
  EXPECT_EQ((*wrapped)->operand(0)->name(), "n");
  EXPECT_EQ(entry.find("a")->operand(0), *wrapped);
  EXPECT_EQ(module->verify().message(), "");
}

TEST(Edit, RemoveRefusesWhatIsNeeded) {
  const auto module = small_module();
  Computation& entry = *module->entry();
  EXPECT_EQ(entry.remove(entry.find("n")).message(), "n cannot be removed: it is still used");
  EXPECT_EQ(entry.remove(entry.find("r")).message(), "r cannot be removed: it is the root");
  EXPECT_EQ(entry.remove_parameter(0).message(), "parameter 0 of e is still used");
  EXPECT_EQ(entry.remove_parameter(3).message(), "e has 1 parameters, none numbered 3");
}

TEST(Edit, SideEffectsAndControlPredecessorsStay) {
  const auto module = read(
      "HloModule m ENTRY e { p = f32[] parameter(0) a = f32[] negate(p) b = f32[] exponential(p) "
      "c = f32[] custom-call(p), custom_call_target=\"log\", custom_call_has_side_effect=true, "
      "control-predecessors={a} ROOT r = f32[] tanh(p) }");
  EXPECT_EQ(module->remove_dead(), 1);
  EXPECT_EQ(module->entry()->find("b"), nullptr);
  EXPECT_EQ(module->entry()->remove(module->entry()->find("a")).message(),
            "a cannot be removed: c must run after it");
}

TEST(Edit, ParametersAreRenumbered) {
  const auto module = read(
      "HloModule m ENTRY e { p = f32[] parameter(0) q = s32[] parameter(1) ROOT r = s32[] "
      "negate(q) }");
  ASSERT_TRUE(module->entry()->remove_parameter(0).is_ok());
  EXPECT_EQ(module->entry()->find("q")->parameter_number(), 0);
  EXPECT_EQ(module->entry()->add_parameter(Shape::scalar(ElementType::f32), "p")->name(), "p.1");
  EXPECT_EQ(module->verify().message(), "");
}

TEST(Names, AreMadeUniqueByNumber) {
  Module module("m");
  EXPECT_EQ(module.unique_name("add"), "add");
  EXPECT_EQ(module.unique_name("add"), "add.1");
  EXPECT_EQ(module.unique_name("add.1"), "add.2");
  EXPECT_EQ(module.unique_name("f32"), "_f32");
  EXPECT_EQ(module.unique_name("3 x"), "_3_x");
}

TEST(Clone, CopiesAComputationWithFreshNames) {
  const auto module = small_module();
  Computation* copy = module->clone(module->entry(), "twin");
  EXPECT_EQ(copy->name(), "twin");
  EXPECT_EQ(copy->instruction_count(), 4);
  EXPECT_EQ(copy->root()->name(), "r.1");
  EXPECT_EQ(copy->root()->operand(1), copy->parameter(0));
  EXPECT_EQ(module->verify().message(), "");
  EXPECT_EQ(module->remove_dead_computations(), 1);
}

TEST(Equal, NamesTheFirstDifference) {
  const auto a = small_module();
  const auto b = small_module();
  std::string difference;
  EXPECT_TRUE(equal(*a, *b, &difference));
  b->entry()->find("a")->set("metadata", Verbatim{"{x}"});
  EXPECT_FALSE(equal(*a, *b, &difference));
  EXPECT_EQ(difference,
            "e: a = f32[2,3]{1,0} add(n, n) | a = f32[2,3]{1,0} add(n, n), metadata={x}");
}

TEST(Verify, SeesBrokenEdits) {
  const auto module = small_module();
  Computation& entry = *module->entry();
  entry.find("a")->set_shape(Shape(ElementType::f32, {7}));
  EXPECT_EQ(module->verify().message(), "a: add gives f32[2,3], not f32[7]");
  entry.find("a")->set_shape(Shape(ElementType::f32, {2, 3}));
  entry.find("n")->set_operand(0, entry.find("a"));
  EXPECT_EQ(module->verify().message(), "e has instructions that depend on themselves");
}

TEST(Build, InfersShapes) {
  const auto module = small_module();
  Computation& entry = *module->entry();
  Instruction* p = entry.parameter(0);
  const auto shape_of = [](Result<Instruction*> built) {
    return built ? to_string((*built)->shape()) : built.status().message();
  };
  EXPECT_EQ(shape_of(make_transpose(p, {1, 0})), "f32[3,2]{1,0}");
  EXPECT_EQ(shape_of(make_reshape(p, {6})), "f32[6]{0}");
  EXPECT_EQ(shape_of(make_broadcast(p, {2, 5, 3}, {0, 2})), "f32[2,5,3]{2,1,0}");
  EXPECT_EQ(shape_of(make_convert(p, ElementType::bf16)), "bf16[2,3]{1,0}");
  EXPECT_EQ(shape_of(make_compare(p, p, "GE")), "pred[2,3]{1,0}");
  EXPECT_EQ(shape_of(make_slice(p, {{0, 2, 1}, {1, 3, 1}})), "f32[2,2]{1,0}");
  EXPECT_EQ(shape_of(make_concatenate({p, p}, 1)), "f32[2,6]{1,0}");
  EXPECT_EQ(shape_of(make_dot(p, p, {{}, {1}, {}, {1}}, ElementType::f32)), "f32[2,2]{1,0}");
  EXPECT_EQ(shape_of(make_tuple(entry, {p, p})), "(f32[2,3]{1,0}, f32[2,3]{1,0})");
  EXPECT_EQ(shape_of(make_iota(entry, Shape(ElementType::s32, {4}), 0)), "s32[4]{0}");
  EXPECT_EQ(shape_of(make_splat(entry, ElementType::f32, 0.5, {4, 4})), "f32[4,4]{1,0}");
  Computation* add = make_reducer(*module, Opcode::add, ElementType::f32);
  Instruction* zero = make_constant(entry, Literal::scalar(ElementType::f32, 0));
  EXPECT_EQ(shape_of(make_reduce(p, zero, {1}, add)), "f32[2]{0}");
  EXPECT_EQ(shape_of(make_pad(p, zero, {{1, 0, 0}, {0, 0, 1}})), "f32[3,5]{1,0}");
  EXPECT_EQ(shape_of(make_call(entry, {zero, zero}, add)), "f32[]");
  EXPECT_EQ(module->verify().message(), "");
}

TEST(Build, RefusesAndLeavesNothingBehind) {
  const auto module = small_module();
  Instruction* p = module->entry()->parameter(0);
  const int before = module->instruction_count();
  EXPECT_EQ(make_transpose(p, {0, 0}).status().message(),
            "transpose: transpose of f32[2,3] needs a permutation of its 2 dimensions, not {0,0}");
  EXPECT_EQ(make_reshape(p, {-6}).status().message(),
            "reshape to {-6} needs sizes of 0 or more, at most 2^48 elements");
  EXPECT_EQ(make_unary(Opcode::add, p).status().message(),
            "add is no elementwise operation of one operand");
  EXPECT_EQ(module->instruction_count(), before);
}

TEST(Build, CustomCallIsWhatXlaExpects) {
  const auto module = small_module();
  Computation& entry = *module->entry();
  CustomCall call;
  call.target = "heddle";
  call.shape = Shape::tuple({Shape(ElementType::bf16, {2, 3}), Shape(ElementType::u8, {16})});
  call.backend_config = "{graph = \"{}\"}";
  auto built = make_custom_call(entry, {entry.parameter(0)}, call, "fused");
  ASSERT_TRUE(built) << built.status().message();
  EXPECT_EQ(to_string(**built),
            "fused = (bf16[2,3]{1,0}, u8[16]{0}) custom-call(p), custom_call_target=\"heddle\", "
            "operand_layout_constraints={f32[2,3]{1,0}}, api_version=API_VERSION_TYPED_FFI, "
            "backend_config={graph = \"{}\"}");
  call.operand_layouts = {Shape(ElementType::f32, {3, 2})};
  EXPECT_EQ(make_custom_call(entry, {entry.parameter(0)}, call).status().message(),
            "custom-call heddle: operand_layouts must repeat the operands' shapes");
}

}  // namespace
}  // namespace heddle::hlo
