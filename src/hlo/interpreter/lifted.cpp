// Computations of scalars applied to whole arrays: one pass over the array for each of their
// instructions instead of one walk through the computation for each element.
#include <algorithm>

#include "hlo/interpreter/machine.h"
#include "hlo/interpreter/strided.h"

namespace heddle::hlo {

Opcode monoid_of(const Computation& computation) {
  const Instruction& root = *computation.root();
  if (computation.instruction_count() != 3 || root.operand_count() != 2 ||
      !root.operand(0)->is(Opcode::parameter) || !root.operand(1)->is(Opcode::parameter) ||
      root.operand(0) == root.operand(1) || !is_commutative(root.opcode())) {
    return Opcode::unknown;
  }
  return root.opcode();
}

Result<Operands> Machine::run_on_elements(const Instruction& x, const Computation& computation,
                                          Operands arguments, int64_t count) {
  if (storage_ == FloatStorage::own && !reducers_) {
    reducers_ = std::make_unique<Machine>(options_, FloatStorage::wide);
    reducers_->meter_ = meter_;
  }
  Machine& machine = storage_ == FloatStorage::own ? *reducers_ : *this;
  for (Literal& argument : arguments) {
    HEDDLE_ASSIGN(argument, to_storage(std::move(argument), machine.storage_, meter_));
  }
  machine.steps_ = steps_;  // one count, whichever machine does the work
  HEDDLE_ASSIGN(Literal result, machine.run_lifted(x, computation, std::move(arguments), count));
  steps_ = machine.steps_;
  if (result.shape().is_tuple()) return result.take_elements();
  Operands results;
  results.push_back(std::move(result));
  return results;
}

Result<Literal> Machine::run_lifted(const Instruction& caller, const Computation& computation,
                                    Operands arguments, int64_t count) {
  if (depth_ == 128) return refuse(caller, "nests computations more than 128 deep");
  HEDDLE_ASSIGN(const Plan* const found, plan_of(computation));
  const Plan& plan = *found;
  ++depth_;
  std::vector<Literal> values(plan.order.size(), Literal::tuple({}));
  const auto value_of = [&](size_t i) -> Result<Literal> {
    const Instruction& x = *plan.order[i];
    HEDDLE_TRY(spend(x, count));
    Operands operands;
    for (const Instruction* operand : x.operands()) {
      operands.push_back(values[plan.position.at(operand)]);
    }
    switch (x.opcode()) {
      case Opcode::parameter:
        return arguments[x.parameter_number()];
      case Opcode::constant: {
        HEDDLE_ASSIGN(const Literal value, constant(x));
        if (!value.shape().is_scalar()) break;
        HEDDLE_ASSIGN(Literal spread, allocate(Shape(value.shape().type(), {count})));
        fill(size_of(value.shape().type()), value.data(), spread.mutable_data(), count);
        return spread;
      }
      case Opcode::call:
        return run_lifted(caller, *x.to_apply(), std::move(operands), count);
      case Opcode::broadcast:
      case Opcode::reshape:
        if (x.shape().rank() != 0) break;
        return std::move(operands[0]);
      case Opcode::bitcast_convert:
        if (x.shape().rank() != 0 || x.operand(0)->shape().rank() != 0) break;
        return evaluate_alone(x, std::move(operands));
      case Opcode::tuple:
      case Opcode::get_tuple_element:
        return evaluate_alone(x, std::move(operands));
      default:
        if (!is_elementwise(x.opcode()) || x.shape().rank() != 0) break;
        return evaluate_alone(x, std::move(operands));
    }
    return refuse(x, fmt::format("is not known within {}, which {} applies to elements",
                                 computation.name(), caller.name()));
  };
  for (size_t i = 0; i < plan.order.size(); ++i) {
    Result<Literal> value = value_of(i);
    if (!value.is_ok()) {
      --depth_;
      return value;
    }
    values[i] = std::move(value).value();
  }
  --depth_;
  return std::move(values[plan.position.at(computation.root())]);
}

Result<Literal> evaluate_map(Machine& machine, const Instruction& x, Operands operands) {
  const int64_t count = x.shape().element_count();
  for (Literal& operand : operands) {
    operand.reinterpret_shape(Shape(operand.shape().type(), {count}));
  }
  HEDDLE_ASSIGN(Operands results,
                machine.run_on_elements(x, *x.to_apply(), std::move(operands), count));
  HEDDLE_ASSIGN(Literal out,
                convert_to(results[0], machine.storage_type(x.shape().type()), machine.meter()));
  out.reinterpret_shape(Shape(out.shape().type(), x.shape().dims()));
  return out;
}

}  // namespace heddle::hlo
