#include "rewrite/kept_scores.h"

#include <algorithm>
#include <optional>
#include <set>
#include <vector>

#include "rewrite/loop.h"

namespace heddle::rewrite {

using hlo::Computation;
using hlo::Instruction;
using hlo::Opcode;

namespace {

/// The bits of a floating type's exponent and mantissa.
std::optional<std::pair<int64_t, int64_t>> precision_of(hlo::ElementType type) {
  switch (type) {
    case hlo::ElementType::f64:
      return std::pair(11, 52);
    case hlo::ElementType::f32:
      return std::pair(8, 23);
    case hlo::ElementType::bf16:
      return std::pair(8, 7);
    case hlo::ElementType::f16:
      return std::pair(5, 10);
    default:
      return std::nullopt;
  }
}

/// Whether `x` is made of its operands element by element, or is one of them in another order.
bool passes_elements_on(const Instruction* x) {
  return hlo::is_elementwise(x->opcode()) || x->is(Opcode::reshape) || x->is(Opcode::transpose) ||
         x->is(Opcode::broadcast) || x->is(Opcode::copy);
}

bool is_as_large(const Instruction* x, const Instruction* as) {
  return x->shape().is_array() && x->shape().element_count() == as->shape().element_count();
}

/// Whether something of the values `seen` on the way from `x` to what they go into, element by
/// element, is what `is_sought` says.
template <class Sought>
bool goes_into(const Instruction* x, Sought is_sought) {
  std::vector<const Instruction*> work{x};
  std::set<const Instruction*> seen{x};
  while (!work.empty()) {
    const Instruction* from = work.back();
    work.pop_back();
    for (const Instruction* user : from->users()) {
      if (is_sought(user)) return true;
      if (passes_elements_on(user) && is_as_large(user, x) && seen.insert(user).second)
        work.push_back(user);
    }
  }
  return false;
}

bool is_weight(const Instruction* x) {
  return x->is(Opcode::exponential) &&
         goes_into(x, [](const Instruction* user) { return user->is(Opcode::reduce); });
}

/// What another loop wrote into the stack that `read` takes a row of; null if that is not in sight.
const Instruction* written(const hlo::Module& module, const Instruction* read) {
  const Instruction* stack = read->operand(0);
  const auto callers = module.callers(read->computation());
  if (!stack->is(Opcode::get_tuple_element) || !stack->operand(0)->is(Opcode::parameter) ||
      callers.size() != 1 || !callers[0]->is(Opcode::while_))
    return nullptr;
  const Instruction* start = initial(callers[0], stack->tuple_index());
  if (!start || !start->is(Opcode::get_tuple_element) || !start->operand(0)->is(Opcode::while_))
    return nullptr;
  const Instruction* loop = start->operand(0);
  const auto count = counted(loop);
  const Instruction* write = count ? stack_write(loop, *count, start->tuple_index()) : nullptr;
  return write ? write->operand(1) : nullptr;
}

/// Whether `x` is made of weights, element by element, here or where a loop stacked it.
bool is_made_of_weights(const hlo::Module& module, const Instruction* x) {
  std::vector<const Instruction*> work{x};
  std::set<const Instruction*> seen{x};
  while (!work.empty()) {
    const Instruction* from = work.back();
    work.pop_back();
    if (is_weight(from)) return true;
    std::vector<const Instruction*> sources;
    if (passes_elements_on(from)) {
      sources.assign(from->operands().begin(), from->operands().end());
    } else if (from->is(Opcode::dynamic_slice)) {
      if (const Instruction* source = written(module, from)) sources.push_back(source);
    }
    for (const Instruction* source : sources)
      if (is_as_large(source, x) && seen.insert(source).second) work.push_back(source);
  }
  return false;
}

bool holds_scores(const hlo::Module& module, const Instruction* barrier) {
  const Instruction* kept = barrier->operand(0);
  return std::any_of(kept->operands().begin(), kept->operands().end(),
                     [&](const Instruction* x) {
                       return x->shape().is_array() && hlo::is_floating(x->shape().type()) &&
                              is_made_of_weights(module, x);
                     }) ||
         std::any_of(barrier->users().begin(), barrier->users().end(), [](const Instruction* x) {
           return x->shape().is_array() && hlo::is_floating(x->shape().type()) &&
                  goes_into(x, is_weight);
         });
}

}  // namespace

void take_roundings_to_own_type_away(Computation& computation) {
  for (Instruction* x : computation.instructions()) {
    if (!x->is(Opcode::reduce_precision) || !x->control_predecessors().empty()) continue;
    const auto own = precision_of(x->shape().type());
    if (own && x->integer("exponent_bits") == own->first &&
        x->integer("mantissa_bits") == own->second)
      x->replace_all_uses_with(x->operand(0));
  }
}

void take_barriers_of_scores_away(const hlo::Module& module) {
  for (const Computation* computation : module.computations())
    for (Instruction* x : computation->instructions())
      if (x->is(Opcode::opt_barrier) && x->operand(0)->is(Opcode::tuple) &&
          x->control_predecessors().empty() && holds_scores(module, x))
        for (Instruction* kept : std::vector<Instruction*>(x->users().begin(), x->users().end()))
          if (kept->is(Opcode::get_tuple_element))
            kept->replace_all_uses_with(
                x->operand(0)->operand(static_cast<int>(kept->tuple_index())));
}

}  // namespace heddle::rewrite
