#include "hlo/computation.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

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

std::vector<Instruction*> Computation::dependency_order() const {
  std::unordered_map<const Instruction*, int> position;
  position.reserve(instructions_.size());
  for (size_t i = 0; i < instructions_.size(); ++i) {
    position.emplace(instructions_[i].get(), static_cast<int>(i));
  }
  std::vector<Instruction*> order;
  order.reserve(instructions_.size());
  // As readers leave them and most rewrites keep them.
  const auto is_in_order = [&] {
    const auto comes_later = [&](const Instruction* x, int than) {
      const auto found = position.find(x);
      return found != position.end() && found->second >= than;
    };
    for (size_t i = 0; i < instructions_.size(); ++i) {
      const auto later = [&](const Instruction* x) { return comes_later(x, static_cast<int>(i)); };
      const auto& x = *instructions_[i];
      if (std::any_of(x.operands().begin(), x.operands().end(), later) ||
          std::any_of(x.control_predecessors().begin(), x.control_predecessors().end(), later))
        return false;
    }
    return true;
  };
  if (is_in_order()) {
    for (const auto& instruction : instructions_) order.push_back(instruction.get());
    return order;
  }
  std::vector<std::vector<int>> dependencies(instructions_.size());
  for (size_t i = 0; i < instructions_.size(); ++i) {
    for (const Instruction* operand : instructions_[i]->operands()) {
      if (auto found = position.find(operand); found != position.end()) {
        dependencies[i].push_back(found->second);
      }
    }
    for (const Instruction* predecessor : instructions_[i]->control_predecessors()) {
      if (auto found = position.find(predecessor); found != position.end()) {
        dependencies[i].push_back(found->second);
      }
    }
  }
  for (int i : stable_order(dependencies)) order.push_back(instructions_[i].get());
  return order;
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
  instructions_.push_back(std::move(instruction));
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
  constant->literal_ = std::move(literal);
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
  std::erase_if(instructions_, [&](const auto& owned) { return owned.get() == parameter; });
  return {};
}

Status Computation::remove(Instruction* instruction) {
  const auto found = std::find_if(instructions_.begin(), instructions_.end(),
                                  [&](const auto& owned) { return owned.get() == instruction; });
  if (found == instructions_.end()) {
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
  instructions_.erase(found);
  return {};
}

int Computation::remove_dead() {
  std::unordered_set<const Instruction*> live;
  live.reserve(instructions_.size());
  std::vector<const Instruction*> pending;
  const auto mark = [&](const Instruction* instruction) {
    if (live.insert(instruction).second) pending.push_back(instruction);
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
  for (const auto& instruction : instructions_) {
    if (live.count(instruction.get())) continue;
    const std::vector<Instruction*> operands = std::move(instruction->operands_);
    instruction->operands_.clear();
    for (Instruction* operand : operands) operand->drop_user(instruction.get());
  }
  return static_cast<int>(std::erase_if(
      instructions_, [&](const auto& instruction) { return !live.count(instruction.get()); }));
}

}  // namespace heddle::hlo
