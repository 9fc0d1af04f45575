#include <algorithm>
#include <unordered_set>
#include <utility>
#include <vector>

#include "hlo/infer.h"
#include "hlo/infer_rules.h"
#include "hlo/module.h"

namespace heddle::hlo {
namespace {

bool has_sane_sizes(const Shape& shape) {
  return std::all_of(shape.elements().begin(), shape.elements().end(), has_sane_sizes) &&
         has_sane_size(shape.dims());
}

Status verify_users(const Computation& computation) {
  const std::vector<Instruction*> all = computation.instructions();
  // By operands: who uses the instruction at each position, in order.
  std::vector<int> first(all.size() + 1);
  const auto each_use = [&](auto say) {
    std::vector<int> seen(all.size(), -1);  // by which user last
    for (const Instruction* x : all) {
      for (const Instruction* operand : x->operands()) {
        if (std::exchange(seen[operand->position()], x->position()) != x->position()) {
          say(operand->position(), x);
        }
      }
    }
  };
  each_use([&](int operand, const Instruction*) { ++first[operand + 1]; });
  for (size_t i = 0; i < all.size(); ++i) first[i + 1] += first[i];
  std::vector<const Instruction*> uses(first.back());
  std::vector<int> next(first.begin(), first.end());
  each_use([&](int operand, const Instruction* user) { uses[next[operand]++] = user; });
  // And by what each of them lists.
  const auto before = [](const Instruction* a, const Instruction* b) {
    return a->position() < b->position();
  };
  std::vector<const Instruction*> listed;
  for (const Instruction* x : all) {
    listed.assign(x->users().begin(), x->users().end());
    std::sort(listed.begin(), listed.end(), before);
    const auto twice = std::adjacent_find(listed.begin(), listed.end());
    if (twice != listed.end()) return misfit(*x, "lists its user {} twice", (*twice)->name());
    if (!std::equal(listed.begin(), listed.end(), uses.begin() + first[x->position()],
                    uses.begin() + first[x->position() + 1])) {
      return error(Code::invalid_value,
                   "{}: operands and users of its instructions are out of step",
                   computation.name());
    }
  }
  return {};
}

Status verify_links(const Computation& computation,
                    const std::unordered_set<const Computation*>& known) {
  std::unordered_set<std::string_view> names;
  names.reserve(computation.instruction_count());
  const auto is_own = [&](const Instruction* x) { return x->computation() == &computation; };
  if (!computation.root() || !is_own(computation.root())) {
    return error(Code::invalid_value, "{} has no root", computation.name());
  }
  int64_t parameter_count = 0;
  for (const Instruction* x : computation.instructions()) {
    if (!names.insert(x->name()).second) {
      return error(Code::invalid_value, "{}: two instructions are called {}", computation.name(),
                   x->name());
    }
    for (const Instruction* operand : x->operands()) {
      if (!is_own(operand)) return misfit(*x, "has an operand outside of its computation");
    }
    for (const Instruction* predecessor : x->control_predecessors()) {
      if (!is_own(predecessor)) {
        return misfit(*x, "has a control predecessor outside of its computation");
      }
    }
    for (const Computation* callee : x->called_computations()) {
      if (!callee || !known.count(callee))
        return misfit(*x, "calls a computation outside of its module");
    }
    if (x->is(Opcode::parameter)) {
      ++parameter_count;
      const int64_t number = x->parameter_number();
      const auto& parameters = computation.parameters();
      if (number < 0 || number >= static_cast<int64_t>(parameters.size()) ||
          parameters[number] != x) {
        return misfit(*x, "number {} is not one of {}'s, 0 to {}", number, computation.name(),
                      static_cast<int64_t>(parameters.size()) - 1);
      }
    }
  }
  HEDDLE_TRY(verify_users(computation));
  if (parameter_count != static_cast<int64_t>(computation.parameters().size())) {
    return error(Code::invalid_value, "{} does not have one parameter for each number below {}",
                 computation.name(), computation.parameters().size());
  }
  if (static_cast<int>(computation.dependency_order().size()) != computation.instruction_count()) {
    return error(Code::invalid_value, "{} has instructions that depend on themselves",
                 computation.name());
  }
  return {};
}

}  // namespace

Status Module::verify() const {
  std::unordered_set<const Computation*> known;
  for (const auto& computation : computations_) known.insert(computation.get());
  if (!entry_ || !known.count(entry_)) {
    return error(Code::invalid_value, "module {} has no entry computation", name_);
  }
  for (const auto& computation : computations_) HEDDLE_TRY(verify_links(*computation, known));
  if (callees_first().size() != computations_.size()) {
    return error(Code::invalid_value, "module {} has computations that call themselves", name_);
  }
  for (const auto& computation : computations_) {
    for (const auto& instruction : computation->instructions_) {
      const Instruction& x = *instruction;
      if (!has_sane_sizes(x.shape())) {
        return misfit(x, "has a shape of more than 2^48 elements or of negative size");
      }
      HEDDLE_ASSIGN(const Shape inferred, infer_shape(x));
      if (!same_value_shape(inferred, x.shape())) {
        return misfit(x, "gives {}, not {}", to_string_without_layout(inferred),
                      to_string_without_layout(x.shape()));
      }
    }
  }
  return {};
}

}  // namespace heddle::hlo
