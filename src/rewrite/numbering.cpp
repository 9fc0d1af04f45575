#include "rewrite/numbering.h"

#include <string>

namespace heddle::rewrite {

using hlo::Computation;
using hlo::Instruction;
using hlo::Opcode;

namespace {

/// What an attribute says, for comparing instructions of one module; nothing for one that cannot be
/// compared. Annotations that change no value are left out.
bool append_attribute(const hlo::Attribute& attribute, std::string& key) {
  if (attribute.name == "metadata" || attribute.name == "frontend_attributes") return true;
  key += attribute.name;
  key += '=';
  if (const auto* text = std::get_if<hlo::Verbatim>(&attribute.value)) {
    key += text->text;
  } else if (const auto* number = std::get_if<int64_t>(&attribute.value)) {
    key += std::to_string(*number);
  } else if (const auto* numbers = std::get_if<std::vector<int64_t>>(&attribute.value)) {
    for (int64_t n : *numbers) key += std::to_string(n) + ',';
  } else if (const auto* slice = std::get_if<std::vector<hlo::SliceDimension>>(&attribute.value)) {
    for (const auto& s : *slice) key += fmt::format("{}:{}:{},", s.start, s.limit, s.stride);
  } else if (const auto* callee = std::get_if<Computation*>(&attribute.value)) {
    const Instruction* root = (*callee)->root();
    if (root->operand_count() != 2 || !root->operand(0)->is(Opcode::parameter) ||
        !root->operand(1)->is(Opcode::parameter) || root->operand(0) == root->operand(1))
      return false;
    key += root->opcode_name();  // a reducer that combines its two parameters
    key += hlo::to_string_without_layout(root->shape());
  } else {
    return false;
  }
  key += ';';
  return true;
}

}  // namespace

std::unordered_map<const Instruction*, const Instruction*> number_values(
    const Computation* computation) {
  std::unordered_map<const Instruction*, const Instruction*> representative;
  std::unordered_map<std::string, const Instruction*> first;
  for (const Instruction* x : computation->dependency_order()) {
    const Instruction*& chosen = representative[x];
    chosen = x;
    if (x->is(Opcode::parameter) || x->is(Opcode::opt_barrier) || x->is(Opcode::while_) ||
        x->is(Opcode::custom_call) || x->is(Opcode::unknown) || x->has_side_effect() ||
        x->is(Opcode::rng) || x->is(Opcode::rng_bit_generator))
      continue;
    std::string key =
        fmt::format("{} {}(", x->opcode_name(), hlo::to_string_without_layout(x->shape()));
    for (const Instruction* operand : x->operands())
      key += std::to_string(representative.at(operand)->id()) + ',';
    bool comparable = true;
    for (const hlo::Attribute& attribute : x->attributes())
      comparable = comparable && append_attribute(attribute, key);
    if (const hlo::Literal* literal = x->literal()) {
      comparable = comparable && !literal->is_elided() && literal->byte_count() <= 64 &&
                   literal->data() != nullptr;
      if (comparable)
        key.append(reinterpret_cast<const char*>(literal->data()), literal->byte_count());
    }
    if (comparable) chosen = first.try_emplace(key, x).first->second;
  }
  return representative;
}

}  // namespace heddle::rewrite
