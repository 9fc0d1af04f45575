#include "rewrite/separable.h"

#include <algorithm>
#include <vector>

namespace heddle::rewrite {

using hlo::Computation;
using hlo::Instruction;
using hlo::Opcode;

namespace {

bool is_taken_apart(const Instruction* tuple) {
  const auto users = tuple->users();
  return (!tuple->is_root() || tuple->is(Opcode::parameter)) &&
         std::all_of(users.begin(), users.end(),
                     [](const Instruction* user) { return user->is(Opcode::get_tuple_element); });
}

/// Whether `part` is called by one instruction alone, with one tuple.
bool takes_elements(const Callers& callers, const Computation* part) {
  return callers.only(part) && part->parameters().size() == 1 &&
         part->parameter(0)->shape().is_tuple() && is_taken_apart(part->parameter(0));
}

bool is_separable_loop(const Callers& callers, const Instruction* loop) {
  return takes_elements(callers, loop->body()) && takes_elements(callers, loop->condition()) &&
         loop->operand(0)->is(Opcode::tuple) && loop->body()->root()->is(Opcode::tuple);
}

bool is_separable_conditional(const Callers& callers, const Instruction* conditional) {
  const std::vector<Computation*> branches = conditional->branches();
  int given = 1;
  return std::all_of(branches.begin(), branches.end(), [&](const Computation* branch) {
    return takes_elements(callers, branch) && conditional->operand(given++)->is(Opcode::tuple) &&
           branch->root()->is(Opcode::tuple);
  });
}

}  // namespace

Callers::Callers(const hlo::Module& module) {
  for (const Computation* computation : module.computations())
    for (const Instruction* x : computation->instructions())
      for (const Computation* called : x->called_computations())
        if (const auto [known, added] = only_.try_emplace(called, x); !added)
          known->second = nullptr;
}

const Instruction* Callers::only(const Computation* computation) const {
  const auto known = only_.find(computation);
  return known == only_.end() ? nullptr : known->second;
}

bool is_separable(const Callers& callers, const Instruction* x) {
  // A sharding names the elements one by one.
  return is_taken_apart(x) && !x->has("sharding") &&
         (x->is(Opcode::while_) ? is_separable_loop(callers, x)
                                : is_separable_conditional(callers, x));
}

}  // namespace heddle::rewrite
