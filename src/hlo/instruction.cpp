#include "hlo/instruction.h"

#include <algorithm>
#include <unordered_set>

#include "hlo/computation.h"
#include "hlo/module.h"
#include "hlo/quoting.h"

namespace heddle::hlo {

std::string_view Instruction::opcode_name() const {
  return opcode_ == Opcode::unknown ? std::string_view(unknown_opcode_) : hlo::name(opcode_);
}

Module* Instruction::module() const { return computation_->module(); }
bool Instruction::is_root() const { return computation_->root() == this; }

bool Instruction::uses(const Instruction* operand) const {
  return std::find(operands_.begin(), operands_.end(), operand) != operands_.end();
}

void Instruction::drop_user(Instruction* user) {
  if (!user->uses(this))
    users_.erase(std::remove(users_.begin(), users_.end(), user), users_.end());
}

void Instruction::set_operand(int i, Instruction* operand) {
  Instruction* old = operands_[i];
  if (old == operand) return;
  // Operands are fewer than users, of a constant above all.
  if (!uses(operand)) operand->users_.push_back(this);
  operands_[i] = operand;
  old->drop_user(this);
}

void Instruction::replace_all_uses_with(Instruction* other) {
  if (other == this) return;
  for (Instruction* user : users_) {
    // `other` may itself be computed from this instruction; its own use stays.
    if (user == other) continue;
    if (!user->uses(other)) other->users_.push_back(user);
    std::replace(user->operands_.begin(), user->operands_.end(), this, other);
  }
  std::erase_if(users_, [&](const Instruction* user) { return user != other; });
  if (is_root()) computation_->set_root(other);
}

const AttributeValue* Instruction::find(std::string_view name) const {
  for (const Attribute& attribute : attributes_) {
    if (attribute.name == name) return &attribute.value;
  }
  return nullptr;
}

void Instruction::set(std::string_view name, AttributeValue value) {
  for (Attribute& attribute : attributes_) {
    if (attribute.name == name) {
      attribute.value = std::move(value);
      return;
    }
  }
  attributes_.push_back({std::string(name), std::move(value)});
}

void Instruction::erase(std::string_view name) {
  std::erase_if(attributes_, [&](const Attribute& attribute) { return attribute.name == name; });
}

std::span<const int64_t> Instruction::integers(std::string_view name) const {
  const auto* values = get<std::vector<int64_t>>(name);
  return values ? std::span<const int64_t>(*values) : std::span<const int64_t>();
}

std::optional<int64_t> Instruction::integer(std::string_view name) const {
  const auto* value = get<int64_t>(name);
  return value ? std::optional<int64_t>(*value) : std::nullopt;
}

bool Instruction::boolean(std::string_view name, bool otherwise) const {
  const auto* value = get<bool>(name);
  return value ? *value : otherwise;
}

std::string_view Instruction::text(std::string_view name) const {
  const AttributeValue* value = find(name);
  if (!value) return {};
  if (const auto* verbatim = std::get_if<Verbatim>(value)) return verbatim->text;
  if (const auto* string = std::get_if<std::string>(value)) return *string;
  return {};
}

std::span<const SliceDimension> Instruction::slice() const {
  const auto* value = get<std::vector<SliceDimension>>("slice");
  return value ? std::span<const SliceDimension>(*value) : std::span<const SliceDimension>();
}

std::span<const PaddingDimension> Instruction::padding() const {
  const auto* value = get<std::vector<PaddingDimension>>("padding");
  return value ? std::span<const PaddingDimension>(*value) : std::span<const PaddingDimension>();
}

std::span<const WindowDimension> Instruction::window() const {
  const auto* value = get<std::vector<WindowDimension>>("window");
  return value ? std::span<const WindowDimension>(*value) : std::span<const WindowDimension>();
}

std::string Instruction::backend_config() const {
  const std::string_view value = text("backend_config");
  if (value.starts_with('"')) return unquote(value).value_or(std::string(value));
  return std::string(value);
}

Computation* Instruction::called(std::string_view attribute) const {
  Computation* const* value = get<Computation*>(attribute);
  return value ? *value : nullptr;
}

std::vector<Computation*> Instruction::called_computations() const {
  std::vector<Computation*> called;
  for (const Attribute& attribute : attributes_) {
    if (const auto* one = std::get_if<Computation*>(&attribute.value)) {
      called.push_back(*one);
    } else if (const auto* many = std::get_if<std::vector<Computation*>>(&attribute.value)) {
      called.insert(called.end(), many->begin(), many->end());
    }
  }
  return called;
}

std::vector<Computation*> Instruction::branches() const {
  if (const auto* many = get<std::vector<Computation*>>("branch_computations")) return *many;
  Computation *on_true = called("true_computation"), *on_false = called("false_computation");
  if (!on_true || !on_false) return {};
  return {on_true, on_false};
}

std::span<Instruction* const> Instruction::control_predecessors() const {
  const auto* value = get<std::vector<Instruction*>>("control-predecessors");
  return value ? std::span<Instruction* const>(*value) : std::span<Instruction* const>();
}

bool Instruction::has_side_effect() const {
  const auto by_itself = [](const Instruction& instruction) {
    return hlo::has_side_effect(instruction.opcode()) ||
           (instruction.is(Opcode::custom_call) &&
            instruction.boolean("custom_call_has_side_effect"));
  };
  if (by_itself(*this)) return true;
  std::vector<Computation*> pending = called_computations();
  if (pending.empty()) return false;
  std::unordered_set<const Computation*> seen;
  while (!pending.empty()) {
    const Computation* computation = pending.back();
    pending.pop_back();
    if (!seen.insert(computation).second) continue;
    for (const Instruction* instruction : computation->instructions()) {
      if (by_itself(*instruction)) return true;
      for (Computation* callee : instruction->called_computations()) pending.push_back(callee);
    }
  }
  return false;
}

}  // namespace heddle::hlo
