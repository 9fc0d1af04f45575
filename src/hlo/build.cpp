#include "hlo/build.h"

#include "hlo/infer.h"
#include "hlo/infer_rules.h"
#include "hlo/module.h"

namespace heddle::hlo {
namespace {

// Adds an instruction of shape `shape` (often only its element type matters yet), infers what it
// really gives, and takes the instruction back if it does not fit.
Result<Instruction*> build(Computation& computation, Opcode opcode, Shape shape,
                           std::vector<Instruction*> operands, std::vector<Attribute> attributes,
                           std::string_view name) {
  for (const Instruction* operand : operands) {
    if (operand->computation() != &computation) {
      return error(Code::invalid_value, "{}: operand {} belongs to {}, not to {}",
                   hlo::name(opcode), operand->name(), operand->computation()->name(),
                   computation.name());
    }
  }
  Instruction* x =
      computation.add(opcode, std::move(shape), std::move(operands), std::move(attributes), name);
  Result<Shape> inferred = infer_shape(*x);
  if (!inferred.is_ok()) {
    HEDDLE_TRY(computation.remove(x));
    return inferred.status();
  }
  Shape result = std::move(inferred).value();
  // Layouts the caller gave stay.
  if (x->shape().layout() && same_value_shape(result, x->shape())) {
    result = x->shape();
  } else {
    result.set_default_layout();
  }
  x->set_shape(std::move(result));
  return x;
}

Attribute dimensions_attribute(Dimensions dimensions) {
  return {"dimensions", std::move(dimensions)};
}

}  // namespace

Result<Instruction*> make_transpose(Instruction* x, Dimensions permutation, std::string_view name) {
  return build(*x->computation(), Opcode::transpose, x->shape().without_layout(), {x},
               {dimensions_attribute(std::move(permutation))}, name);
}

Result<Instruction*> make_reshape(Instruction* x, Dimensions dims, std::string_view name) {
  if (!checked_element_count(dims)) {
    return error(Code::invalid_value,
                 "reshape to {} needs sizes of 0 or more, at most 2^48 elements", list(dims));
  }
  return build(*x->computation(), Opcode::reshape, Shape(x->shape().type(), std::move(dims)), {x},
               {}, name);
}

Result<Instruction*> make_broadcast(Instruction* x, Dimensions dims, Dimensions dimensions,
                                    std::string_view name) {
  if (!checked_element_count(dims)) {
    return error(Code::invalid_value,
                 "broadcast to {} needs sizes of 0 or more, at most 2^48 elements", list(dims));
  }
  return build(*x->computation(), Opcode::broadcast, Shape(x->shape().type(), std::move(dims)), {x},
               {dimensions_attribute(std::move(dimensions))}, name);
}

Result<Instruction*> make_convert(Instruction* x, ElementType type, std::string_view name) {
  return build(*x->computation(), Opcode::convert, Shape::scalar(type), {x}, {}, name);
}

Result<Instruction*> make_bitcast_convert(Instruction* x, ElementType type, std::string_view name) {
  return build(*x->computation(), Opcode::bitcast_convert, Shape::scalar(type), {x}, {}, name);
}

Result<Instruction*> make_unary(Opcode opcode, Instruction* x, std::string_view name) {
  if (!is_elementwise_unary(opcode)) {
    return error(Code::invalid_value, "{} is no elementwise operation of one operand",
                 hlo::name(opcode));
  }
  return build(*x->computation(), opcode, x->shape().without_layout(), {x}, {}, name);
}

Result<Instruction*> make_binary(Opcode opcode, Instruction* a, Instruction* b,
                                 std::string_view name) {
  if (!is_elementwise_binary(opcode)) {
    return error(Code::invalid_value, "{} is no elementwise operation of two operands",
                 hlo::name(opcode));
  }
  return build(*a->computation(), opcode, a->shape().without_layout(), {a, b}, {}, name);
}

Result<Instruction*> make_compare(Instruction* a, Instruction* b, std::string_view direction,
                                  std::string_view name) {
  return build(*a->computation(), Opcode::compare, Shape::scalar(ElementType::pred), {a, b},
               {{"direction", Verbatim{std::string(direction)}}}, name);
}

Result<Instruction*> make_select(Instruction* predicate, Instruction* on_true,
                                 Instruction* on_false, std::string_view name) {
  return build(*predicate->computation(), Opcode::select, on_true->shape().without_layout(),
               {predicate, on_true, on_false}, {}, name);
}

Result<Instruction*> make_slice(Instruction* x, std::vector<SliceDimension> slice,
                                std::string_view name) {
  return build(*x->computation(), Opcode::slice, x->shape().without_layout(), {x},
               {{"slice", std::move(slice)}}, name);
}

Result<Instruction*> make_pad(Instruction* x, Instruction* value,
                              std::vector<PaddingDimension> padding, std::string_view name) {
  return build(*x->computation(), Opcode::pad, x->shape().without_layout(), {x, value},
               {{"padding", std::move(padding)}}, name);
}

Result<Instruction*> make_concatenate(std::vector<Instruction*> operands, int64_t dimension,
                                      std::string_view name) {
  if (operands.empty()) return error(Code::invalid_value, "concatenate takes at least one operand");
  Computation& computation = *operands[0]->computation();
  const Shape shape = operands[0]->shape().without_layout();
  return build(computation, Opcode::concatenate, shape, std::move(operands),
               {dimensions_attribute({dimension})}, name);
}

Result<Instruction*> make_dynamic_slice(Instruction* x, std::vector<Instruction*> starts,
                                        Dimensions sizes, std::string_view name) {
  starts.insert(starts.begin(), x);
  return build(*x->computation(), Opcode::dynamic_slice, x->shape().without_layout(),
               std::move(starts), {{"dynamic_slice_sizes", std::move(sizes)}}, name);
}

Result<Instruction*> make_dynamic_update_slice(Instruction* x, Instruction* update,
                                               std::vector<Instruction*> starts,
                                               std::string_view name) {
  starts.insert(starts.begin(), {x, update});
  return build(*x->computation(), Opcode::dynamic_update_slice, x->shape().without_layout(),
               std::move(starts), {}, name);
}

Result<Instruction*> make_dot(Instruction* lhs, Instruction* rhs, DotDimensions dims,
                              ElementType type, std::string_view name) {
  std::vector<Attribute> attributes;
  if (!dims.lhs_batch.empty()) attributes.push_back({"lhs_batch_dims", std::move(dims.lhs_batch)});
  attributes.push_back({"lhs_contracting_dims", std::move(dims.lhs_contracting)});
  if (!dims.rhs_batch.empty()) attributes.push_back({"rhs_batch_dims", std::move(dims.rhs_batch)});
  attributes.push_back({"rhs_contracting_dims", std::move(dims.rhs_contracting)});
  return build(*lhs->computation(), Opcode::dot, Shape::scalar(type), {lhs, rhs},
               std::move(attributes), name);
}

Result<Instruction*> make_reduce(Instruction* x, Instruction* init, Dimensions dimensions,
                                 Computation* reducer, std::string_view name) {
  return build(*x->computation(), Opcode::reduce, x->shape().without_layout(), {x, init},
               {dimensions_attribute(std::move(dimensions)), {"to_apply", reducer}}, name);
}

Result<Instruction*> make_tuple(Computation& computation, std::vector<Instruction*> elements,
                                std::string_view name) {
  return build(computation, Opcode::tuple, Shape::tuple({}), std::move(elements), {}, name);
}

Result<Instruction*> make_get_tuple_element(Instruction* tuple, int64_t index,
                                            std::string_view name) {
  return build(*tuple->computation(), Opcode::get_tuple_element, Shape(), {tuple},
               {{"index", index}}, name);
}

Result<Instruction*> make_iota(Computation& computation, Shape shape, int64_t dimension,
                               std::string_view name) {
  return build(computation, Opcode::iota, std::move(shape), {}, {{"iota_dimension", dimension}},
               name);
}

Instruction* make_constant(Computation& computation, Literal literal, std::string_view name) {
  Instruction* constant = computation.add_constant(std::move(literal), name);
  Shape shape = constant->shape();
  shape.set_default_layout();
  constant->set_shape(std::move(shape));
  return constant;
}

Result<Instruction*> make_splat(Computation& computation, ElementType type, double value,
                                Dimensions dims, std::string_view name) {
  if (!checked_element_count(dims)) {
    return error(Code::invalid_value,
                 "a splat of {} needs sizes of 0 or more, at most 2^48 elements", list(dims));
  }
  Instruction* scalar = make_constant(computation, Literal::scalar(type, value));
  if (dims.empty()) return scalar;
  return make_broadcast(scalar, std::move(dims), {}, name);
}

Result<Instruction*> make_call(Computation& computation, std::vector<Instruction*> operands,
                               Computation* callee, std::string_view name) {
  return build(computation, Opcode::call, Shape(), std::move(operands), {{"to_apply", callee}},
               name);
}

Result<Instruction*> make_custom_call(Computation& computation, std::vector<Instruction*> operands,
                                      CustomCall call, std::string_view name) {
  std::vector<Shape> layouts = std::move(call.operand_layouts);
  if (layouts.empty()) {
    for (const Instruction* operand : operands) {
      layouts.push_back(operand->shape());
      layouts.back().set_default_layout();
    }
  }
  bool fits = layouts.size() == operands.size();
  for (size_t i = 0; fits && i < operands.size(); ++i) {
    fits = same_value_shape(layouts[i], operands[i]->shape());
  }
  if (!fits) {
    return error(Code::invalid_value,
                 "custom-call {}: operand_layouts must repeat the operands' shapes", call.target);
  }
  Shape shape = std::move(call.shape);
  const auto complete = [](Shape& part, auto&& self) -> void {
    for (Shape& element : part.elements()) self(element, self);
    if (part.is_array() && !part.layout()) part.set_default_layout();
  };
  complete(shape, complete);
  std::vector<Attribute> attributes;
  attributes.push_back({"custom_call_target", std::move(call.target)});
  attributes.push_back({"operand_layout_constraints", std::move(layouts)});
  if (call.has_side_effect) attributes.push_back({"custom_call_has_side_effect", true});
  if (call.typed_ffi) attributes.push_back({"api_version", Verbatim{"API_VERSION_TYPED_FFI"}});
  if (!call.backend_config.empty()) {
    attributes.push_back({"backend_config", Verbatim{std::move(call.backend_config)}});
  }
  HEDDLE_ASSIGN(Instruction * built, build(computation, Opcode::custom_call, shape,
                                           std::move(operands), std::move(attributes), name));
  built->set_shape(std::move(shape));
  return built;
}

Computation* make_reducer(Module& module, Opcode opcode, ElementType type) {
  Computation* reducer = module.add_computation(fmt::format("{}_{}", name(opcode), name(type)));
  const Shape scalar = Shape::scalar(type);
  Instruction* a = reducer->add_parameter(scalar, "a");
  Instruction* b = reducer->add_parameter(scalar, "b");
  reducer->set_root(reducer->add(opcode, scalar, {a, b}));
  return reducer;
}

}  // namespace heddle::hlo
