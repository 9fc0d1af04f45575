#include "hlo/computation.h"

#include <algorithm>

#include "hlo/module.h"
#include "hlo/stable_order.h"

namespace heddle::hlo {

bool Computation::is_entry() const { return module_->entry() == this; }

std::vector<Instruction*> Computation::instructions() const {
  std::vector<Instruction*> list;
  list.reserve(instructions_.size());
  for (const auto& instruction : instructions_) list.push_back(instruction.get());
  return list;
}

bool Computation::is_in_order() const {
  return std::all_of(instructions_.begin(), instructions_.end(), [&](const auto& x) {
    const auto stands_before = [&](const Instruction* y) {
      return y->computation() != this || y->position() < x->position();  // verify() refuses others'
    };
    const auto operands = x->operands(), predecessors = x->control_predecessors();
    return std::all_of(operands.begin(), operands.end(), stands_before) &&
           std::all_of(predecessors.begin(), predecessors.end(), stands_before);
  });
}

std::vector<Instruction*> Computation::dependency_order() const {
  if (is_in_order()) return instructions();  // as readers leave them and most rewrites keep them
  std::vector<Dependency> dependencies;
  for (const auto& x : instructions_) {
    for (const auto& before : {x->operands(), x->control_predecessors()}) {
      for (const Instruction* y : before) {
        if (y->computation() == this) dependencies.push_back({y->position(), x->position()});
      }
    }
  }
  std::vector<Instruction*> order;
  order.reserve(instructions_.size());
  for (int i : stable_order(instruction_count(), dependencies)) {
    order.push_back(instructions_[i].get());
  }
  return order;
}

void Computation::sort() {
  if (is_in_order()) return;
  const std::vector<Instruction*> order = dependency_order();
  if (order.size() != instructions_.size()) return;
  std::vector<std::unique_ptr<Instruction>> sorted(order.size());
  for (size_t i = 0; i < order.size(); ++i) {
    sorted[i] = std::move(instructions_[order[i]->position()]);
  }
  instructions_ = std::move(sorted);
  count_positions();
}

void Computation::append(std::unique_ptr<Instruction> instruction) {
  instruction->position_ = instruction_count();
  instructions_.push_back(std::move(instruction));
}

void Computation::count_positions() {
  for (size_t i = 0; i < instructions_.size(); ++i) {
    instructions_[i]->position_ = static_cast<int>(i);
  }
}

Instruction* Computation::find(std::string_view name) const {
  for (const auto& instruction : instructions_) {
    if (instruction->name() == name) return instruction.get();
  }
  return nullptr;
}

Instruction* Computation::insert(std::unique_ptr<Instruction> instruction, std::string_view name) {
  instruction->id_ = module_->next_id_++;
  instruction->computation_ = this;
  instruction->name_ = module_->unique_name(name.empty() ? instruction->opcode_name() : name);
  for (Instruction* operand : instruction->operands_) {
    // A new user can only be listed already if it is the last: no search through many users.
    std::vector<Instruction*>& users = operand->users_;
    if (users.empty() || users.back() != instruction.get()) users.push_back(instruction.get());
  }
  append(std::move(instruction));
  return instructions_.back().get();
}

Instruction* Computation::add(Opcode opcode, Shape shape, std::vector<Instruction*> operands,
                              std::vector<Attribute> attributes, std::string_view name) {
  std::unique_ptr<Instruction> instruction(new Instruction);
  instruction->opcode_ = opcode;
  instruction->shape_ = std::move(shape);
  instruction->operands_ = std::move(operands);
  instruction->attributes_ = std::move(attributes);
  return insert(std::move(instruction), name);
}

Instruction* Computation::add_unknown(std::string_view opcode, Shape shape,
                                      std::vector<Instruction*> operands,
                                      std::vector<Attribute> attributes, std::string_view name) {
  std::unique_ptr<Instruction> instruction(new Instruction);
  instruction->unknown_opcode_ = opcode;
  instruction->shape_ = std::move(shape);
  instruction->operands_ = std::move(operands);
  instruction->attributes_ = std::move(attributes);
  return insert(std::move(instruction), name);
}

Instruction* Computation::add_constant(Literal literal, std::string_view name) {
  Instruction* constant = add(Opcode::constant, literal.shape(), {}, {}, name);
  constant->set_literal(std::move(literal));
  return constant;
}

Instruction* Computation::add_parameter(Shape shape, std::string_view name) {
  Instruction* parameter = add(Opcode::parameter, std::move(shape), {}, {}, name);
  parameter->parameter_number_ = static_cast<int64_t>(parameters_.size());
  parameters_.push_back(parameter);
  return parameter;
}

Status Computation::remove_parameter(int number) {
  if (number < 0 || number >= static_cast<int>(parameters_.size())) {
    return error(Code::invalid_value, "{} has {} parameters, none numbered {}", name_,
                 parameters_.size(), number);
  }
  Instruction* parameter = parameters_[number];
  if (!parameter->users().empty() || parameter == root_) {
    return error(Code::invalid_value, "parameter {} of {} is still used", number, name_);
  }
  parameters_.erase(parameters_.begin() + number);
  for (size_t i = number; i < parameters_.size(); ++i) {
    parameters_[i]->parameter_number_ = static_cast<int64_t>(i);
  }
  instructions_.erase(instructions_.begin() + parameter->position());
  count_positions();
  return {};
}

Status Computation::remove(Instruction* instruction) {
  if (!instruction || instruction->computation() != this) {
    return error(Code::invalid_value, "the instruction to remove is not in {}", name_);
  }
  if (!instruction->users().empty() || instruction == root_ || instruction->is(Opcode::parameter)) {
    return error(Code::invalid_value, "{} cannot be removed: it is {}", instruction->name(),
                 instruction == root_                 ? "the root"
                 : instruction->is(Opcode::parameter) ? "a parameter"
                                                      : "still used");
  }
  for (const auto& other : instructions_) {
    const auto predecessors = other->control_predecessors();
    if (std::find(predecessors.begin(), predecessors.end(), instruction) != predecessors.end()) {
      return error(Code::invalid_value, "{} cannot be removed: {} must run after it",
                   instruction->name(), other->name());
    }
  }
  const std::vector<Instruction*> operands = instruction->operands_;
  instruction->operands_.clear();
  for (Instruction* operand : operands) operand->drop_user(instruction);
  instructions_.erase(instructions_.begin() + instruction->position());
  count_positions();
  return {};
}

int Computation::remove_dead() {
  std::vector<bool> live(instructions_.size());
  std::vector<const Instruction*> pending;
  const auto mark = [&](const Instruction* instruction) {
    if (live[instruction->position()]) return;
    live[instruction->position()] = true;
    pending.push_back(instruction);
  };
  if (root_) mark(root_);
  for (const auto& instruction : instructions_) {
    if (instruction->is(Opcode::parameter) || instruction->has_side_effect()) {
      mark(instruction.get());
    }
  }
  while (!pending.empty()) {
    const Instruction* instruction = pending.back();
    pending.pop_back();
    for (const Instruction* operand : instruction->operands()) mark(operand);
    for (const Instruction* predecessor : instruction->control_predecessors()) mark(predecessor);
  }
  if (std::find(live.begin(), live.end(), false) == live.end()) return 0;
  const auto is_dead = [&](const Instruction* instruction) {
    return !live[instruction->position()];
  };
  for (const auto& instruction : instructions_) std::erase_if(instruction->users_, is_dead);
  const auto removed = static_cast<int>(std::erase_if(
      instructions_, [&](const auto& instruction) { return is_dead(instruction.get()); }));
  count_positions();
  return removed;
}

}  // namespace heddle::hlo
