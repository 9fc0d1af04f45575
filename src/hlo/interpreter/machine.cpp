#include "hlo/interpreter/machine.h"

#include <fmt/format.h>

#include <algorithm>

#include "hlo/infer_rules.h"

namespace heddle::hlo {
namespace {

constexpr int kMaxCallDepth = 128;  // bounds the C++ stack

// The computation's instructions with every get-tuple-element right behind its tuple. A tuple's
// elements then stop being shared early, and updates of loop state can happen in place.
std::vector<const Instruction*> elements_early(const Computation& computation) {
  std::vector<const Instruction*> order;
  for (const Instruction* first : computation.dependency_order()) {
    if (first->is(Opcode::get_tuple_element)) continue;
    std::vector<const Instruction*> pending = {first};
    while (!pending.empty()) {
      const Instruction* x = pending.back();
      pending.pop_back();
      order.push_back(x);
      for (const Instruction* user : x->users()) {
        if (user->is(Opcode::get_tuple_element)) pending.push_back(user);
      }
    }
  }
  return order;
}

// The elements of a value and what its arrays and tuples cost in themselves.
int64_t work_of(const Shape& shape) {
  int64_t work = Machine::kElementsPerValue + (shape.is_array() ? shape.element_count() : 0);
  for (const Shape& element : shape.elements()) {
    work = std::min(work + work_of(element), kMaxElements);
  }
  return work;
}

bool is_sharding_annotation(std::string_view target) {
  return target == "Sharding" || target == "SPMDFullToShardShape" ||
         target == "SPMDShardToFullShape";
}

}  // namespace

Status refuse(const Instruction& x, std::string_view why) {
  return error(Code::graph_not_supported, "cannot evaluate {}: {} {}", x.name(), x.opcode_name(),
               why);
}

Machine::Machine(const EvaluateOptions& options, FloatStorage storage)
    : options_(options), storage_(storage), meter_(std::make_shared<MemoryMeter>()) {
  meter_->limit = options.max_bytes;
}

Result<Literal> Machine::allocate(const Shape& shape) {
  if (shape.is_tuple()) {
    std::vector<Literal> elements;
    for (const Shape& element : shape.elements()) {
      HEDDLE_ASSIGN(Literal value, allocate(element));
      elements.push_back(std::move(value));
    }
    return Literal::tuple(std::move(elements));
  }
  return Literal::uninitialized(Shape(storage_type(shape.type()), shape.dims()), meter_);
}

Result<Literal> Machine::reuse_or_allocate(const Instruction& x, const Shape& like,
                                           Operands& operands) {
  const ElementType type = storage_type(x.shape().type());
  for (Literal& operand : operands) {
    if (operand.is_unshared() && operand.shape().type() == type &&
        operand.shape().dims() == like.dims()) {
      return std::move(operand);
    }
  }
  return allocate(Shape(type, like.dims()));
}

Status Machine::spend(const Instruction& x, int64_t elements) {
  steps_ += 1 + elements / 4096;
  if (steps_ <= options_.max_steps) return {};
  return error(Code::invalid_value, "{}: the limit of {} steps is exceeded", x.name(),
               options_.max_steps);
}

Result<const Machine::Plan*> Machine::plan_of(const Computation& computation) {
  const auto found = plans_.find(&computation);
  if (found != plans_.end()) return &found->second;
  for (const Instruction* x : computation.dependency_order()) {
    if (x->shape().is_unbounded()) return refuse(*x, "has a shape of dynamic size");
  }
  Plan plan;
  plan.order = elements_early(computation);
  plan.last_use.assign(plan.order.size(), -1);
  for (size_t i = 0; i < plan.order.size(); ++i) plan.position[plan.order[i]] = static_cast<int>(i);
  for (size_t i = 0; i < plan.order.size(); ++i) {
    for (const Instruction* operand : plan.order[i]->operands()) {
      plan.last_use[plan.position[operand]] = static_cast<int>(i);
    }
  }
  plan.last_use[plan.position[computation.root()]] = static_cast<int>(plan.order.size());
  return &plans_.emplace(&computation, std::move(plan)).first->second;
}

Result<Literal> Machine::run(const Computation& computation, Operands arguments) {
  if (depth_ == kMaxCallDepth) {
    return error(Code::graph_not_supported,
                 "cannot evaluate {}: calls are nested more than {} deep", computation.name(),
                 kMaxCallDepth);
  }
  HEDDLE_ASSIGN(const Plan* const found, plan_of(computation));
  const Plan& plan = *found;
  ++depth_;
  std::vector<Literal> values(plan.order.size(), Literal::tuple({}));
  for (size_t i = 0; i < plan.order.size(); ++i) {
    const Instruction& x = *plan.order[i];
    if (x.is(Opcode::parameter)) {
      values[i] = std::move(arguments[x.parameter_number()]);
      if (plan.last_use[i] < 0) values[i] = Literal::tuple({});
      continue;
    }
    Operands operands;
    operands.reserve(x.operand_count());
    for (int j = 0; j < x.operand_count(); ++j) {
      const int at = plan.position.at(x.operand(j));
      const auto rest = x.operands().subspan(j + 1);
      const bool last = plan.last_use[at] == static_cast<int>(i) &&
                        std::find(rest.begin(), rest.end(), x.operand(j)) == rest.end();
      if (last) {
        operands.push_back(std::move(values[at]));
        values[at] = Literal::tuple({});
      } else {
        operands.push_back(values[at]);
      }
    }
    Result<Literal> value = evaluate(x, std::move(operands));
    if (!value.is_ok()) {
      --depth_;
      return value;
    }
    if (plan.last_use[i] >= 0) values[i] = std::move(value).value();
  }
  --depth_;
  return std::move(values[plan.position.at(computation.root())]);
}

Result<Literal> Machine::constant(const Instruction& x) {
  if (x.literal()->is_elided()) {
    return refuse(x, "was elided from the text ({...}), its value is unknown");
  }
  return to_storage(*x.literal(), storage_, meter_);
}

Result<Literal> Machine::evaluate(const Instruction& x, Operands operands) {
  if (x.shape().is_dynamic()) return refuse(x, "has a shape of dynamic size");
  HEDDLE_TRY(spend(x, work_of(x.shape()) + kElementsPerValue * x.operand_count()));
  switch (x.opcode()) {
    case Opcode::call:
    case Opcode::conditional:
    case Opcode::custom_call:
    case Opcode::fusion:
    case Opcode::while_:
      return evaluate_calls(x, std::move(operands));
    case Opcode::map:
      return evaluate_map(*this, x, std::move(operands));
    case Opcode::reduce:
      return evaluate_reduce(*this, x, std::move(operands));
    case Opcode::reduce_window:
      return evaluate_reduce_window(*this, x, std::move(operands));
    case Opcode::scatter:
      return evaluate_scatter(*this, x, std::move(operands));
    case Opcode::sort:
      return evaluate_sort(*this, x, std::move(operands));
    default:
      return evaluate_alone(x, std::move(operands));
  }
}

Result<Literal> Machine::evaluate_alone(const Instruction& x, Operands operands) {
  switch (x.opcode()) {
    case Opcode::constant:
      return constant(x);
    case Opcode::tuple:
      return Literal::tuple(std::move(operands));
    case Opcode::get_tuple_element: {
      Literal element = operands[0].elements()[x.tuple_index()];
      return element;
    }
    case Opcode::copy:  // whose result may be of another floating type
      return x.shape().is_array() ? evaluate_convert(*this, x, std::move(operands))
                                  : std::move(operands[0]);
    case Opcode::add_dependency:
    case Opcode::opt_barrier:
      return std::move(operands[0]);
    case Opcode::after_all:
      return Literal::tuple({});
    case Opcode::partition_id:
    case Opcode::replica_id:
      return Literal::scalar_integer(ElementType::u32, 0);  // one device
    case Opcode::get_dimension_size:
      return Literal::scalar_integer(
          ElementType::s32, x.operand(0)->shape().dim(static_cast<int>(x.dimensions()[0])));
    case Opcode::compare:
      return evaluate_compare(*this, x, std::move(operands));
    case Opcode::select:
      return evaluate_select(*this, x, std::move(operands));
    case Opcode::clamp:
      return evaluate_clamp(*this, x, std::move(operands));
    case Opcode::convert:
      return evaluate_convert(*this, x, std::move(operands));
    case Opcode::bitcast_convert:
      return evaluate_bitcast_convert(*this, x, std::move(operands));
    case Opcode::bitcast:
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
      return evaluate_movement(*this, x, std::move(operands));
    case Opcode::dot:
      return evaluate_dot(*this, x, std::move(operands));
    case Opcode::convolution:
      return evaluate_convolution(*this, x, std::move(operands));
    case Opcode::gather:
      return evaluate_gather(*this, x, std::move(operands));
    case Opcode::topk:
      return evaluate_topk(*this, x, std::move(operands));
    case Opcode::rng_bit_generator:
      return evaluate_random_bits(*this, x, std::move(operands));
    default:
      if (is_elementwise_unary(x.opcode())) return evaluate_unary(*this, x, std::move(operands));
      if (is_elementwise_binary(x.opcode())) return evaluate_binary(*this, x, std::move(operands));
      return refuse(x, "is not an operation the interpreter knows");
  }
}

Result<Literal> Machine::evaluate_calls(const Instruction& x, Operands operands) {
  switch (x.opcode()) {
    case Opcode::call:
      return run(*x.to_apply(), std::move(operands));
    case Opcode::fusion:
      return run(*x.called("calls"), std::move(operands));
    case Opcode::while_:
      return evaluate_while(x, std::move(operands[0]));
    case Opcode::conditional:
      return evaluate_conditional(x, std::move(operands));
    default:
      return evaluate_custom_call(x, std::move(operands));
  }
}

Result<Literal> Machine::evaluate_while(const Instruction& x, Literal state) {
  for (int64_t iteration = 0;; ++iteration) {
    HEDDLE_ASSIGN(const Literal goes_on, run(*x.condition(), {state}));
    if (goes_on.get_integer(0) == 0) return state;
    if (iteration == options_.max_iterations) {
      return error(Code::invalid_value, "{}: the limit of {} iterations is exceeded", x.name(),
                   options_.max_iterations);
    }
    Operands arguments;
    arguments.push_back(std::move(state));
    HEDDLE_ASSIGN(state, run(*x.body(), std::move(arguments)));
  }
}

Result<Literal> Machine::evaluate_conditional(const Instruction& x, Operands operands) {
  const Literal& chooser = operands[0];
  const auto count = static_cast<int64_t>(operands.size()) - 1;
  int64_t branch = chooser.get_integer(0);
  if (chooser.shape().type() == ElementType::pred) {
    branch = branch != 0 ? 0 : 1;
  } else if (branch < 0 || branch >= count) {
    branch = count - 1;  // XLA's rule for an index out of range
  }
  const Computation* callee = x.branches()[branch];
  Operands arguments;
  arguments.push_back(std::move(operands[branch + 1]));
  operands.clear();
  return run(*callee, std::move(arguments));
}

Result<Literal> Machine::evaluate_custom_call(const Instruction& x, Operands operands) {
  const std::string_view target = x.custom_call_target();
  for (const auto& [name, handler] : options_.custom_calls) {
    if (name != target) continue;
    HEDDLE_ASSIGN(Literal value, handler(x, operands));
    HEDDLE_ASSIGN(Literal stored, to_storage(std::move(value), storage_));
    const auto fits = [&](const Literal& part, const Shape& shape, auto&& self) -> bool {
      if (shape.is_tuple() != part.shape().is_tuple()) return false;
      if (!shape.is_tuple()) {
        return part.shape().type() == storage_type(shape.type()) &&
               part.shape().dims() == shape.dims() && !part.is_elided();
      }
      if (part.elements().size() != shape.elements().size()) return false;
      for (size_t i = 0; i < shape.elements().size(); ++i) {
        if (!self(part.elements()[i], shape.elements()[i], self)) return false;
      }
      return true;
    };
    if (!fits(stored, x.shape(), fits)) {
      return error(Code::invalid_value, "{}: the handler of {} gave {} instead of {}", x.name(),
                   target, to_string_without_layout(stored.shape()),
                   to_string_without_layout(x.shape()));
    }
    return stored;
  }
  if (is_sharding_annotation(target) && operands.size() == 1 &&
      same_value_shape(x.operand(0)->shape(), x.shape())) {
    return std::move(operands[0]);
  }
  return refuse(x, fmt::format("to {} has no handler", target));
}

Literal scalar_at(const Literal& array, int64_t index) {
  Literal scalar = Literal::scalar(array.shape().type(), 0);
  const int64_t size = size_of(array.shape().type());
  std::copy(array.data() + index * size, array.data() + (index + 1) * size, scalar.mutable_data());
  return scalar;
}

}  // namespace heddle::hlo
