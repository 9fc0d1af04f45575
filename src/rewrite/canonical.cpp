#include "rewrite/canonical.h"

#include <unordered_map>
#include <vector>

#include "rewrite/numbering.h"
#include "rewrite/sink_column.h"

namespace heddle::rewrite {

using hlo::Computation;
using hlo::Instruction;
using hlo::Opcode;

namespace {

// Inlining copies a callee for each of its calls; programs that would grow past this keep theirs.
constexpr int kMaxInstructions = 1 << 20;

void inline_call(Instruction* call) {
  Computation* into = call->computation();
  const Computation* callee = call->to_apply();
  std::unordered_map<const Instruction*, Instruction*> copies;
  for (const Instruction* x : callee->dependency_order()) {
    if (x->is(Opcode::parameter)) {
      copies[x] = call->operand(static_cast<int>(x->parameter_number()));
      continue;
    }
    std::vector<Instruction*> operands;
    for (const Instruction* operand : x->operands()) operands.push_back(copies.at(operand));
    std::vector<hlo::Attribute> attributes = x->attributes();
    for (hlo::Attribute& attribute : attributes)
      if (auto* before = std::get_if<std::vector<Instruction*>>(&attribute.value))
        for (Instruction*& predecessor : *before) predecessor = copies.at(predecessor);
    Instruction* copy;
    if (x->is(Opcode::constant)) {
      copy = into->add_constant(*x->literal(), x->name());
      copy->set_shape(x->shape());
    } else if (x->is(Opcode::unknown)) {
      copy = into->add_unknown(x->opcode_name(), x->shape(), operands, attributes, x->name());
    } else {
      copy = into->add(x->opcode(), x->shape(), operands, attributes, x->name());
    }
    copy->set_wire(x->wire());
    copies[x] = copy;
  }
  call->replace_all_uses_with(copies.at(callee->root()));
}

/// Calls that say nothing of their own: no sharding, no ordering, no composite's name.
bool is_plain_call(const Instruction* x) {
  return x->is(Opcode::call) && x->to_apply() && !x->has("sharding") && !x->has("is_composite") &&
         x->control_predecessors().empty();
}

bool inline_calls(hlo::Module& module) {
  bool changed = false;
  for (Computation* computation : module.callees_first())
    for (Instruction* x : computation->instructions())
      if (is_plain_call(x) && module.instruction_count() < kMaxInstructions) {
        inline_call(x);
        changed = true;
      }
  return changed;
}

/// get-tuple-element(tuple(...)) is the element.
void take_tuples_apart(Computation* computation) {
  for (Instruction* x : computation->instructions())
    if (x->is(Opcode::get_tuple_element) && x->operand(0)->is(Opcode::tuple))
      x->replace_all_uses_with(x->operand(0)->operand(static_cast<int>(x->tuple_index())));
}

void merge_equal(Computation* computation) {
  std::unordered_map<const Instruction*, Instruction*> own;
  for (Instruction* x : computation->instructions()) own[x] = x;
  for (const auto& [x, first] : number_values(computation))
    if (x != first) own.at(x)->replace_all_uses_with(own.at(first));
}

}  // namespace

Status canonicalise(hlo::Module& module) {
  inline_calls(module);
  for (Computation* computation : module.computations()) {
    take_tuples_apart(computation);
    merge_equal(computation);
    take_sink_columns_apart(*computation);
  }
  module.remove_dead();
  return module.verify();
}

}  // namespace heddle::rewrite
