#include "hlo/interpreter/evaluate.h"

#include <new>

#include "hlo/infer_rules.h"
#include "hlo/interpreter/machine.h"

namespace heddle::hlo {
namespace {

// An argument may come in its parameter's type or, in f64 mode, have its floats in f64 already.
bool fits(const Literal& argument, const Shape& shape, FloatStorage storage) {
  if (argument.is_elided() || argument.shape().is_tuple() != shape.is_tuple()) return false;
  if (!shape.is_tuple()) {
    const ElementType type = argument.shape().type();
    return (type == shape.type() || type == storage_type(shape.type(), storage)) &&
           argument.shape().dims() == shape.dims();
  }
  if (argument.elements().size() != shape.elements().size()) return false;
  for (size_t i = 0; i < shape.elements().size(); ++i) {
    if (!fits(argument.elements()[i], shape.elements()[i], storage)) return false;
  }
  return true;
}

Result<Literal> checked_evaluate(const Computation& computation, std::span<const Literal> arguments,
                                 const EvaluateOptions& options) {
  // Edited modules arrive here too, and the operations trust their shapes.
  HEDDLE_TRY(computation.module()->verify());
  const FloatStorage storage =
      options.precision == Precision::f64 ? FloatStorage::f64 : FloatStorage::own;
  if (arguments.size() != computation.parameters().size()) {
    return error(Code::invalid_value, "{} takes {} arguments, {} are given", computation.name(),
                 computation.parameters().size(), arguments.size());
  }
  Operands values;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const Shape& shape = computation.parameters()[i]->shape();
    if (!fits(arguments[i], shape, storage)) {
      return error(Code::invalid_value, "argument {} of {} is {}, not {}", i, computation.name(),
                   to_string_without_layout(shape), to_string_without_layout(arguments[i].shape()));
    }
    HEDDLE_ASSIGN(Literal value, to_storage(arguments[i], storage));
    values.push_back(std::move(value));
  }
  Machine machine(options, storage);
  return machine.run(computation, std::move(values));
}

}  // namespace

Result<Literal> evaluate(const Module& module, std::span<const Literal> arguments,
                         const EvaluateOptions& options) {
  return evaluate(*module.entry(), arguments, options);
}

Result<Literal> evaluate(const Computation& computation, std::span<const Literal> arguments,
                         const EvaluateOptions& options) {
  try {
    return checked_evaluate(computation, arguments, options);
  } catch (const std::bad_alloc&) {
    return error(Code::out_of_memory, "no memory to evaluate {}", computation.name());
  }
}

}  // namespace heddle::hlo
