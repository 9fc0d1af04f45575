#include "rewrite/canonical.h"

#include <algorithm>
#include <set>
#include <variant>
#include <vector>

#include "hlo/unread_fields.h"
#include "rewrite/bitcast.h"
#include "rewrite/conditionals.h"
#include "rewrite/kept_scores.h"
#include "rewrite/masked_exponentials.h"
#include "rewrite/merged_dots.h"
#include "rewrite/numbering.h"
#include "rewrite/outer_product.h"
#include "rewrite/parted_softmaxes.h"
#include "rewrite/sink_column.h"
#include "rewrite/sums.h"
#include "rewrite/sums_of_weights.h"

namespace heddle::rewrite {

using hlo::Computation;
using hlo::Instruction;
using hlo::Opcode;

namespace {

// A callee is copied for each of its calls, a loop's body for each loop; programs that would grow
// past this keep theirs.
constexpr int kMaxInstructions = 1 << 20;

void inline_call(Instruction* call) {
  Computation* into = call->computation();
  const Computation* callee = call->to_apply();
  std::vector<Instruction*> copies(callee->instruction_count());  // by position
  for (const Instruction* x : callee->dependency_order()) {
    Instruction*& copy = copies[x->position()];
    if (x->is(Opcode::parameter)) {
      copy = call->operand(static_cast<int>(x->parameter_number()));
      continue;
    }
    std::vector<Instruction*> operands;
    for (const Instruction* operand : x->operands())
      operands.push_back(copies[operand->position()]);
    std::vector<hlo::Attribute> attributes = x->attributes();
    for (hlo::Attribute& attribute : attributes)
      if (auto* before = std::get_if<std::vector<Instruction*>>(&attribute.value))
        for (Instruction*& predecessor : *before) predecessor = copies[predecessor->position()];
    if (x->is(Opcode::constant)) {
      copy = into->add_constant(*x->literal(), x->name());
      copy->set_shape(x->shape());
    } else if (x->is(Opcode::unknown)) {
      copy = into->add_unknown(x->opcode_name(), x->shape(), operands, attributes, x->name());
    } else {
      copy = into->add(x->opcode(), x->shape(), operands, attributes, x->name());
    }
    copy->set_wire(x->wire());
  }
  call->replace_all_uses_with(copies[callee->root()->position()]);
}

/// Calls that say nothing of their own: no sharding, no ordering, no composite's name, no thread
/// or device to run on.
bool is_plain_call(const Instruction* x) {
  return x->is(Opcode::call) && x->to_apply() && x->to_apply()->trailing().empty() &&
         x->control_predecessors().empty() && hlo::unread_fields(x->wire()).empty() &&
         std::all_of(x->attributes().begin(), x->attributes().end(), [](const hlo::Attribute& a) {
           return a.name == "to_apply" || a.name == "metadata";
         });
}

void inline_calls(hlo::Module& module) {
  int count = module.instruction_count();
  for (Computation* computation : module.callees_first())
    for (Instruction* x : computation->instructions())
      if (is_plain_call(x) && count < kMaxInstructions) {
        const int before = computation->instruction_count();
        inline_call(x);
        count += computation->instruction_count() - before;
      }
}

/// Loops and conditionals that call the same computations, as those of a function that was inlined
/// where it is called do, each get their own: a state that is changed is one loop's alone.
void copy_shared_bodies(hlo::Module& module) {
  int count = module.instruction_count();
  std::set<const Computation*> reached;
  std::vector<Computation*> work{module.entry()};
  const auto own = [&](Computation*& called) {
    if (!reached.insert(called).second) {
      if (count >= kMaxInstructions) return;
      called = module.clone(called);
      count += called->instruction_count();
      reached.insert(called);
    }
    work.push_back(called);  // what a copy calls in its turn is another's by now
  };
  while (!work.empty()) {
    const Computation* computation = work.back();
    work.pop_back();
    for (Instruction* x : computation->instructions()) {
      if (!x->is(Opcode::while_) && !x->is(Opcode::conditional)) {
        for (Computation* called : x->called_computations())
          if (reached.insert(called).second) work.push_back(called);
        continue;
      }
      for (hlo::Attribute attribute : std::vector<hlo::Attribute>(x->attributes())) {
        if (auto* one = std::get_if<Computation*>(&attribute.value))
          own(*one);
        else if (auto* all = std::get_if<std::vector<Computation*>>(&attribute.value))
          std::for_each(all->begin(), all->end(), own);
        else
          continue;
        x->set(attribute.name, std::move(attribute.value));
      }
    }
  }
}

/// get-tuple-element(tuple(...)) is the element.
void take_tuples_apart(Computation* computation) {
  for (Instruction* x : computation->instructions())
    if (x->is(Opcode::get_tuple_element) && x->operand(0)->is(Opcode::tuple))
      x->replace_all_uses_with(x->operand(0)->operand(static_cast<int>(x->tuple_index())));
}

void merge_equal(Computation* computation, Numbering& numbering) {
  const std::vector<const Instruction*> first = numbering.number(computation);
  const std::vector<Instruction*> own = computation->instructions();
  for (Instruction* x : own)
    if (const Instruction* equal = first[x->position()]; equal != x)
      x->replace_all_uses_with(own[equal->position()]);
}

}  // namespace

Status canonicalise(hlo::Module& module) {
  inline_calls(module);
  for (Computation* computation : module.computations()) {
    take_tuples_apart(computation);
    take_roundings_to_own_type_away(*computation);
  }
  module.remove_dead();  // a call that was inlined reads a stack, or calls a branch, too
  copy_shared_bodies(module);
  const Callers callers(module);
  for (Computation* computation : module.computations())
    HEDDLE_TRY(take_conditionals_apart(*computation, callers));
  take_barriers_of_scores_away(module);
  Numbering numbering;
  for (Computation* computation : module.callees_first()) {
    computation->sort();
    HEDDLE_TRY(write_bitcasts_as_reshapes(*computation));
    HEDDLE_TRY(take_sums_of_one_away(*computation));
    HEDDLE_TRY(take_merged_dots_apart(*computation));
    HEDDLE_TRY(take_parted_softmaxes_apart(*computation));
    HEDDLE_TRY(take_sums_of_weights_apart(*computation));
    HEDDLE_TRY(write_outer_products_as_multiplications(*computation));
    computation->sort();
    merge_equal(computation, numbering);
    HEDDLE_TRY(write_masks_into_exponentials(*computation));
    HEDDLE_TRY(add_sums_of_gradients(*computation));
    HEDDLE_TRY(write_sums_by_sums(*computation));
    take_sink_columns_apart(*computation);
  }
  module.remove_dead();
  // Once for all that goes over them in order from here on.
  for (Computation* computation : module.computations()) computation->sort();
  return module.verify();
}

}  // namespace heddle::rewrite
