#include "hlo/infer.h"

#include <algorithm>
#include <array>

#include "hlo/computation.h"
#include "hlo/infer_rules.h"

namespace heddle::hlo {

Status expect_operands(const Instruction& x, int count) {
  if (x.operand_count() == count) return {};
  return misfit(x, "takes {} operand{}, not {}", count, count == 1 ? "" : "s", x.operand_count());
}

Status expect_array_operands(const Instruction& x) {
  for (const Instruction* operand : x.operands()) {
    if (!operand->shape().is_array()) {
      return misfit(x, "takes arrays, not {} of shape {}", operand->name(),
                    to_string_without_layout(operand->shape()));
    }
  }
  return {};
}

bool types_fit(ElementType a, ElementType b) {
  return a == b || (is_floating(a) && is_floating(b));
}

int64_t part_count(const Shape& shape) {
  int64_t count = 1;
  for (const Shape& element : shape.elements()) count += part_count(element);
  return count;
}

bool same_value_shape(const Shape& a, const Shape& b) {
  return a.type() == b.type() && a.dims() == b.dims() &&
         std::equal(a.elements().begin(), a.elements().end(), b.elements().begin(),
                    b.elements().end(), same_value_shape);
}

bool are_distinct_dimensions(std::span<const int64_t> dims, int rank) {
  for (size_t i = 0; i < dims.size(); ++i) {
    const auto before = dims.first(i);
    if (dims[i] < 0 || dims[i] >= rank ||
        std::find(before.begin(), before.end(), dims[i]) != before.end())
      return false;
  }
  return true;
}

std::string list(std::span<const int64_t> values) {
  return fmt::format("{{{}}}", fmt::join(values, ","));
}

Status expect_callee(const Instruction& x, const Computation* callee, std::string_view what,
                     std::span<const Shape* const> parameters, const Shape& result) {
  if (!callee) return misfit(x, "needs {}", what);
  if (callee->parameters().size() != parameters.size()) {
    return misfit(x, "needs {} with {} parameters, {} has {}", what, parameters.size(),
                  callee->name(), callee->parameters().size());
  }
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Shape& given = callee->parameters()[i]->shape();
    if (!same_value_shape(given, *parameters[i])) {
      return misfit(x, "passes {} as parameter {} of {}, which is {}",
                    to_string_without_layout(*parameters[i]), i, callee->name(),
                    to_string_without_layout(given));
    }
  }
  if (!same_value_shape(callee->root()->shape(), result)) {
    return misfit(x, "needs {} of result {}, {} gives {}", what, to_string_without_layout(result),
                  callee->name(), to_string_without_layout(callee->root()->shape()));
  }
  return {};
}

Status expect_reducer(const Instruction& x, const Shape& result) {
  const auto combines = [&](std::span<const Shape* const> parameters, const Shape& combined) {
    return expect_callee(x, x.to_apply(), "a to_apply", parameters, combined);
  };
  if (!result.is_tuple()) {
    const Shape scalar = Shape::scalar(result.type());
    return combines(std::array{&scalar, &scalar}, scalar);
  }
  std::vector<Shape> scalars;
  for (const Shape& element : result.elements()) scalars.push_back(Shape::scalar(element.type()));
  const size_t count = scalars.size();
  std::vector<const Shape*> parameters;
  for (size_t i = 0; i < 2 * count; ++i) parameters.push_back(&scalars[i % count]);
  return combines(parameters, Shape::tuple(scalars));
}

bool has_unknown_sizes(const Instruction& x) {
  if (x.is(Opcode::parameter) || x.is(Opcode::constant) || x.is(Opcode::unknown)) return false;
  return x.shape().is_unbounded() ||
         std::any_of(x.operands().begin(), x.operands().end(),
                     [](const Instruction* operand) { return operand->shape().is_unbounded(); });
}

Result<Shape> infer_shape(const Instruction& x) {
  if (has_unknown_sizes(x)) return x.shape().without_layout();
  switch (x.opcode()) {
    case Opcode::bitcast_convert:
    case Opcode::broadcast:
    case Opcode::concatenate:
    case Opcode::dynamic_slice:
    case Opcode::dynamic_update_slice:
    case Opcode::iota:
    case Opcode::pad:
    case Opcode::reshape:
    case Opcode::reverse:
    case Opcode::slice:
    case Opcode::transpose:
      return infer_movement(x);
    case Opcode::dot:
    case Opcode::reduce:
    case Opcode::reduce_window:
    case Opcode::sort:
    case Opcode::topk:
      return infer_contraction(x);
    case Opcode::gather:
    case Opcode::scatter:
      return infer_indexing(x);
    default:
      return is_elementwise(x.opcode()) || x.is(Opcode::map) ? infer_elementwise(x)
                                                             : infer_structure(x);
  }
}

}  // namespace heddle::hlo
