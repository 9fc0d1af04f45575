#include <algorithm>

#include "hlo/computation.h"
#include "hlo/infer_rules.h"

namespace heddle::hlo {
namespace {

// Not copied: a call may pass many large tuples.
std::vector<const Shape*> operand_shapes(const Instruction& x) {
  std::vector<const Shape*> shapes;
  for (const Instruction* operand : x.operands()) shapes.push_back(&operand->shape());
  return shapes;
}

int tuple_depth(const Shape& shape) {
  int deepest = 0;
  for (const Shape& element : shape.elements()) deepest = std::max(deepest, tuple_depth(element));
  return shape.is_tuple() ? 1 + deepest : 0;
}

Result<Shape> infer_constant(const Instruction& x) {
  HEDDLE_TRY(expect_operands(x, 0));
  if (!x.literal() || !same_value_shape(x.literal()->shape(), x.shape())) {
    return misfit(x, "needs a literal of its shape {}", to_string_without_layout(x.shape()));
  }
  return x.shape().without_layout();
}

Result<Shape> infer_tuple(const Instruction& x) {
  int64_t parts = 1;
  std::vector<Shape> elements;
  for (const Instruction* operand : x.operands()) {
    parts += part_count(operand->shape());
    if (parts > kMaxTupleParts) {
      return misfit(x, "holds more than {} elements in all", kMaxTupleParts);
    }
    if (tuple_depth(operand->shape()) == kMaxTupleDepth) {
      return misfit(x, "nests tuples more than {} deep", kMaxTupleDepth);
    }
    elements.push_back(operand->shape().without_layout());
  }
  return Shape::tuple(std::move(elements));
}

Result<Shape> infer_get_tuple_element(const Instruction& x) {
  HEDDLE_TRY(expect_operands(x, 1));
  const Shape& tuple = x.operand(0)->shape();
  const int64_t index = x.tuple_index();
  if (!tuple.is_tuple() || index < 0 || index >= static_cast<int64_t>(tuple.elements().size())) {
    return misfit(x, "index {} is not an element of {}", index, to_string_without_layout(tuple));
  }
  return tuple.elements()[index].without_layout();
}

Result<Shape> infer_call(const Instruction& x, std::string_view attribute) {
  const Computation* callee = x.called(attribute);
  if (!callee) return misfit(x, "needs a {}", attribute);
  const Shape result = callee->root()->shape().without_layout();
  HEDDLE_TRY(expect_operands(x, static_cast<int>(callee->parameters().size())));
  HEDDLE_TRY(expect_callee(x, callee, fmt::format("a {}", attribute), operand_shapes(x), result));
  return result;
}

Result<Shape> infer_while(const Instruction& x) {
  HEDDLE_TRY(expect_operands(x, 1));
  const std::vector<const Shape*> state = operand_shapes(x);
  HEDDLE_TRY(
      expect_callee(x, x.condition(), "a condition", state, Shape::scalar(ElementType::pred)));
  HEDDLE_TRY(expect_callee(x, x.body(), "a body", state, *state[0]));
  return state[0]->without_layout();
}

Result<Shape> infer_conditional(const Instruction& x) {
  const std::vector<Computation*> branches = x.branches();
  if (branches.empty()) {
    return misfit(x, "needs branch_computations, or a true_computation and a false_computation");
  }
  HEDDLE_TRY(expect_operands(x, static_cast<int>(branches.size()) + 1));
  const Shape& chooser = x.operand(0)->shape();
  const bool by_pred = chooser.type() == ElementType::pred && branches.size() == 2;
  if (chooser.rank() != 0 || !(by_pred || chooser.type() == ElementType::s32)) {
    return misfit(x, "of {} branches is chosen by an s32 scalar (or a pred of two), not {}",
                  branches.size(), to_string_without_layout(chooser));
  }
  const Shape result = branches[0]->root()->shape().without_layout();
  for (size_t i = 0; i < branches.size(); ++i) {
    const Shape* const argument = &x.operand(static_cast<int>(i) + 1)->shape();
    HEDDLE_TRY(expect_callee(x, branches[i], "branches", {&argument, 1}, result));
  }
  return result;
}

Result<Shape> infer_rng_bit_generator(const Instruction& x) {
  HEDDLE_TRY(expect_operands(x, 1));
  HEDDLE_TRY(expect_array_operands(x));
  const Shape state = x.operand(0)->shape().without_layout();
  const Shape& own = x.shape();
  if (!own.is_tuple() || own.elements().size() != 2 ||
      !same_value_shape(own.elements()[0], state) || !is_integral(own.elements()[1].type())) {
    return misfit(x, "gives a tuple of its state {} and an array of integers, not {}",
                  to_string_without_layout(state), to_string_without_layout(own));
  }
  return own.without_layout();
}

Result<Shape> infer_dimension_size(const Instruction& x) {
  HEDDLE_TRY(expect_operands(x, x.is(Opcode::set_dimension_size) ? 2 : 1));
  HEDDLE_TRY(expect_array_operands(x));
  const auto dimensions = x.dimensions();
  if (dimensions.size() != 1 ||
      !are_distinct_dimensions(dimensions, x.operand(0)->shape().rank())) {
    return misfit(x, "needs one dimension of {}, not {}",
                  to_string_without_layout(x.operand(0)->shape()), list(dimensions));
  }
  return x.is(Opcode::set_dimension_size) ? x.shape().without_layout()
                                          : Shape::scalar(ElementType::s32);
}

}  // namespace

Result<Shape> infer_structure(const Instruction& x) {
  switch (x.opcode()) {
    case Opcode::parameter:
      HEDDLE_TRY(expect_operands(x, 0));
      return x.shape().without_layout();
    case Opcode::constant:
      return infer_constant(x);
    case Opcode::tuple:
      return infer_tuple(x);
    case Opcode::get_tuple_element:
      return infer_get_tuple_element(x);
    case Opcode::call:
      return infer_call(x, "to_apply");
    case Opcode::fusion:
      return infer_call(x, "calls");
    case Opcode::while_:
      return infer_while(x);
    case Opcode::conditional:
      return infer_conditional(x);
    case Opcode::opt_barrier:
      HEDDLE_TRY(expect_operands(x, 1));
      return x.operand(0)->shape().without_layout();
    case Opcode::add_dependency:
      HEDDLE_TRY(expect_operands(x, 2));
      return x.operand(0)->shape().without_layout();
    case Opcode::after_all:
      return Shape::token();
    case Opcode::bitcast:
      HEDDLE_TRY(expect_operands(x, 1));
      return x.shape().without_layout();
    case Opcode::partition_id:
    case Opcode::replica_id:
      HEDDLE_TRY(expect_operands(x, 0));
      return Shape::scalar(ElementType::u32);
    case Opcode::rng_bit_generator:
      return infer_rng_bit_generator(x);
    case Opcode::get_dimension_size:
    case Opcode::set_dimension_size:
      return infer_dimension_size(x);
    default:
      return x.shape().without_layout();
  }
}

}  // namespace heddle::hlo
