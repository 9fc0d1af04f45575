#include "hlo/computation.h"
#include "hlo/infer_rules.h"

namespace heddle::hlo {
namespace {

Status expect_same_dims(const Instruction& x) {
  for (const Instruction* operand : x.operands()) {
    if (operand->shape().dims() != x.operand(0)->shape().dims()) {
      return misfit(x, "takes operands of one shape, not {} and {}",
                    to_string_without_layout(x.operand(0)->shape()),
                    to_string_without_layout(operand->shape()));
    }
  }
  return {};
}

Status expect_same_types(const Instruction& x, int first) {
  for (int i = first; i < x.operand_count(); ++i) {
    if (!types_fit(x.operand(i)->shape().type(), x.operand(first)->shape().type())) {
      return misfit(x, "takes operands of one element type, not {} and {}",
                    name(x.operand(first)->shape().type()), name(x.operand(i)->shape().type()));
    }
  }
  return {};
}

// A bound of clamp, or select's predicate, may be a scalar beside an array.
Status expect_scalar_or_dims(const Instruction& x, int operand, const Shape& array) {
  const Shape& shape = x.operand(operand)->shape();
  if (shape.rank() == 0 || shape.dims() == array.dims()) return {};
  return misfit(x, "takes operand {} of shape [] or that of {}, not {}", operand,
                to_string_without_layout(array), to_string_without_layout(shape));
}

Shape of_type(const Shape& shape, ElementType type) { return Shape(type, shape.dims()); }

// The element type of the instruction where mixed precision leaves it a choice.
ElementType chosen_type(const Instruction& x, ElementType type) {
  return types_fit(x.shape().type(), type) ? x.shape().type() : type;
}

Result<Shape> infer_unary(const Instruction& x) {
  HEDDLE_TRY(expect_operands(x, 1));
  const Shape& operand = x.operand(0)->shape();
  if (x.is(Opcode::copy) && !operand.is_array()) return operand.without_layout();
  HEDDLE_TRY(expect_array_operands(x));
  switch (x.opcode()) {
    case Opcode::is_finite:
      return of_type(operand, ElementType::pred);
    case Opcode::abs:
    case Opcode::real:
    case Opcode::imag:
      if (operand.type() == ElementType::c64) return of_type(operand, ElementType::f32);
      if (operand.type() == ElementType::c128) return of_type(operand, ElementType::f64);
      break;
    case Opcode::reduce_precision:
      if (x.integer("exponent_bits").value_or(0) < 1 ||
          x.integer("mantissa_bits").value_or(-1) < 0) {
        return misfit(x, "needs exponent_bits of at least 1 and mantissa_bits of at least 0");
      }
      break;
    default:
      break;
  }
  return of_type(operand, chosen_type(x, operand.type()));
}

Result<Shape> infer_binary(const Instruction& x) {
  HEDDLE_TRY(expect_operands(x, 2));
  HEDDLE_TRY(expect_array_operands(x));
  HEDDLE_TRY(expect_same_dims(x));
  HEDDLE_TRY(expect_same_types(x, 0));
  const Shape& operand = x.operand(0)->shape();
  if (x.is(Opcode::complex)) {
    if (operand.type() == ElementType::f32) return of_type(operand, ElementType::c64);
    if (operand.type() == ElementType::f64) return of_type(operand, ElementType::c128);
    return misfit(x, "takes f32 or f64 parts, not {}", name(operand.type()));
  }
  return of_type(operand, chosen_type(x, operand.type()));
}

Result<Shape> infer_compare(const Instruction& x) {
  HEDDLE_TRY(expect_operands(x, 2));
  HEDDLE_TRY(expect_array_operands(x));
  HEDDLE_TRY(expect_same_dims(x));
  HEDDLE_TRY(expect_same_types(x, 0));
  const std::string_view direction = x.direction();
  for (std::string_view known : {"EQ", "NE", "GE", "GT", "LE", "LT"}) {
    if (direction == known) return of_type(x.operand(0)->shape(), ElementType::pred);
  }
  return misfit(x, "needs a direction among EQ, NE, GE, GT, LE, LT, not '{}'", direction);
}

Result<Shape> infer_select(const Instruction& x) {
  HEDDLE_TRY(expect_operands(x, 3));
  HEDDLE_TRY(expect_array_operands(x));
  const Shape& on_true = x.operand(1)->shape();
  const Shape& on_false = x.operand(2)->shape();
  if (x.operand(0)->shape().type() != ElementType::pred) {
    return misfit(x, "takes a pred to choose by, not {}", name(x.operand(0)->shape().type()));
  }
  if (on_true.dims() != on_false.dims() || !types_fit(on_true.type(), on_false.type())) {
    return misfit(x, "chooses between operands of one shape, not {} and {}",
                  to_string_without_layout(on_true), to_string_without_layout(on_false));
  }
  HEDDLE_TRY(expect_scalar_or_dims(x, 0, on_true));
  return of_type(on_true, chosen_type(x, on_true.type()));
}

Result<Shape> infer_clamp(const Instruction& x) {
  HEDDLE_TRY(expect_operands(x, 3));
  HEDDLE_TRY(expect_array_operands(x));
  HEDDLE_TRY(expect_same_types(x, 0));
  const Shape& value = x.operand(1)->shape();
  HEDDLE_TRY(expect_scalar_or_dims(x, 0, value));
  HEDDLE_TRY(expect_scalar_or_dims(x, 2, value));
  return of_type(value, chosen_type(x, value.type()));
}

Result<Shape> infer_map(const Instruction& x) {
  if (x.operand_count() == 0) return misfit(x, "takes at least one operand");
  HEDDLE_TRY(expect_array_operands(x));
  HEDDLE_TRY(expect_same_dims(x));
  if (!x.shape().is_array()) return misfit(x, "gives an array");
  std::vector<Shape> scalars;
  for (const Instruction* operand : x.operands()) {
    scalars.push_back(Shape::scalar(operand->shape().type()));
  }
  std::vector<const Shape*> parameters;
  for (const Shape& scalar : scalars) parameters.push_back(&scalar);
  HEDDLE_TRY(
      expect_callee(x, x.to_apply(), "a to_apply", parameters, Shape::scalar(x.shape().type())));
  return of_type(x.operand(0)->shape(), x.shape().type());
}

}  // namespace

Result<Shape> infer_elementwise(const Instruction& x) {
  if (is_elementwise_unary(x.opcode())) return infer_unary(x);
  if (is_elementwise_binary(x.opcode())) return infer_binary(x);
  switch (x.opcode()) {
    case Opcode::compare:
      return infer_compare(x);
    case Opcode::select:
      return infer_select(x);
    case Opcode::clamp:
      return infer_clamp(x);
    case Opcode::map:
      return infer_map(x);
    default:  // convert
      HEDDLE_TRY(expect_operands(x, 1));
      HEDDLE_TRY(expect_array_operands(x));
      if (!x.shape().is_array()) return misfit(x, "gives an array");
      return of_type(x.operand(0)->shape(), x.shape().type());
  }
}

}  // namespace heddle::hlo
