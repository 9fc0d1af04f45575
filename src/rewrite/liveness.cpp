#include "rewrite/liveness.h"

#include <algorithm>

#include "hlo/build.h"
#include "rewrite/separable.h"

namespace heddle::rewrite {

using hlo::Computation;
using hlo::Instruction;
using hlo::Opcode;

Liveness::Liveness(const hlo::Module& module, const Callers& callers, const BranchReads& reads,
                   const Replaced& replaced)
    : reads_(reads), replaced_(replaced), callers_(callers) {
  live_.reserve(module.instruction_count());
  for (const Computation* computation : module.computations())
    for (const Instruction* x : computation->instructions())
      if ((x->is(Opcode::while_) || x->is(Opcode::conditional)) && !is_separable(callers_, x))
        whole_.insert(x);
  need(module.entry()->root());
  need_effects(module.entry());
  run();
}

void Liveness::need(const Instruction* x) {
  if (live_.insert(x).second) work_.push_back(x);
}

void Liveness::need_effects(const Computation* computation) {
  for (const Instruction* x : computation->instructions())
    if (x->has_side_effect()) need(x);
}

void Liveness::need_state(const Instruction* loop, int64_t element) {
  if (!states_.insert({loop, element}).second) return;
  const int i = static_cast<int>(element);
  const Instruction* init = loop->operand(0);
  need(init->is(Opcode::tuple) ? init->operand(i) : init);
  const Instruction* next = loop->body()->root();
  need(next->is(Opcode::tuple) ? next->operand(i) : next);
  // The loop runs: its condition, and whatever happens in it.
  need(loop->condition()->root());
  for (const Computation* part : {loop->body(), loop->condition()}) need_effects(part);
  if (whole_.contains(loop)) need_all_state(loop);
}

void Liveness::need_result(const Instruction* conditional, int64_t element) {
  if (!states_.insert({conditional, element}).second) return;
  need_choice(conditional);
  if (reads_.is_for_branches({conditional, element})) return;
  for (const Computation* branch : conditional->branches()) need_given(branch, element);
}

void Liveness::need_given(const Computation* branch, int64_t element) {
  if (given_.insert({branch, element}).second)
    need(branch->root()->operand(static_cast<int>(element)));
}

void Liveness::need_choice(const Instruction* conditional) {
  need(conditional->operand(0));
  for (const Computation* branch : conditional->branches()) need_effects(branch);
}

void Liveness::need_all_results(const Instruction* conditional) {
  need_choice(conditional);
  for (size_t i = 0; i < conditional->shape().elements().size(); ++i)
    need_result(conditional, static_cast<int64_t>(i));
}

void Liveness::need_argument(const Instruction* parameter, int64_t element) {
  if (!states_.insert({parameter, element}).second) return;
  const Instruction* conditional = callers_.only(parameter->computation());
  const std::vector<Computation*> branches = conditional->branches();
  const auto branch = std::find(branches.begin(), branches.end(), parameter->computation());
  const Instruction* given = conditional->operand(static_cast<int>(branch - branches.begin()) + 1);
  need(given->operand(static_cast<int>(element)));
  if (const auto* result = reads_.read_by({parameter, element}))
    need_given(result->first->branches()[branch - branches.begin()], result->second);
}

const Instruction* Liveness::loop_of(const Instruction* x) const {
  const Instruction* caller = callers_.only(x->computation());
  return x->is(Opcode::parameter) && caller && caller->is(Opcode::while_) ? caller : nullptr;
}

bool Liveness::need_element(const Instruction* tuple, int64_t element) {
  if (tuple->is(Opcode::while_) && tuple->shape().is_tuple()) {
    need_state(tuple, element);
  } else if (tuple->is(Opcode::conditional) && !whole_.contains(tuple)) {
    need_result(tuple, element);
  } else if (const Instruction* loop = loop_of(tuple)) {
    need_state(loop, element);
  } else if (const Instruction* caller = callers_.only(tuple->computation());
             tuple->is(Opcode::parameter) && caller && caller->is(Opcode::conditional) &&
             !whole_.contains(caller)) {
    need_argument(tuple, element);
  } else {
    return false;
  }
  live_.insert(tuple);
  for (const Instruction* before : tuple->control_predecessors()) need(before);
  return true;
}

void Liveness::need_all_state(const Instruction* loop) {
  for (size_t i = 0; i < loop->shape().elements().size(); ++i)
    need_state(loop, static_cast<int64_t>(i));
}

void Liveness::run() {
  while (!work_.empty()) {
    const Instruction* x = work_.back();
    work_.pop_back();
    if (const auto by = replaced_.find(x); by != replaced_.end()) {
      for (const Instruction* operand : by->second) need(operand);
      continue;
    }
    for (const Instruction* before : x->control_predecessors()) need(before);
    if (x->is(Opcode::get_tuple_element)) {
      const Instruction* from = x->operand(0);
      if (need_element(from, x->tuple_index())) continue;
      if (from->is(Opcode::tuple)) {
        need(from->operand(static_cast<int>(x->tuple_index())));
        continue;
      }
    }
    if (x->is(Opcode::while_)) {
      need_all_state(x);
    } else if (x->is(Opcode::conditional) && !whole_.contains(x)) {
      need_all_results(x);
    } else if (const Instruction* loop = loop_of(x)) {
      need_all_state(loop);
    } else {
      for (const Instruction* operand : x->operands()) need(operand);
      for (const Computation* called : x->called_computations()) {
        need(called->root());
        need_effects(called);
      }
    }
  }
}

namespace {

hlo::Shape narrowed(const hlo::Shape& shape, const std::vector<int64_t>& kept) {
  std::vector<hlo::Shape> elements;
  for (int64_t i : kept) elements.push_back(shape.elements()[i]);
  return hlo::Shape::tuple(std::move(elements));
}

Instruction* narrowed_tuple(Computation* computation, Instruction* tuple,
                            const std::vector<int64_t>& kept) {
  std::vector<Instruction*> elements;
  for (int64_t i : kept) elements.push_back(tuple->operand(static_cast<int>(i)));
  return computation->add(Opcode::tuple, narrowed(tuple->shape(), kept), std::move(elements), {},
                          tuple->name());
}

void renumber(Instruction* tuple, const std::map<int64_t, int64_t>& numbers) {
  const std::vector<Instruction*> users(tuple->users().begin(), tuple->users().end());
  for (Instruction* user : users)
    if (const auto to = numbers.find(user->tuple_index()); to != numbers.end())
      user->set("index", to->second);
}

/// Tuples of the same elements, of which some stay.
struct Narrowing {
  std::vector<int64_t> kept;
  std::vector<Instruction*> seen;   // where they are taken apart
  std::vector<Computation*> roots;  // what makes them, and
  Instruction* user = nullptr;      // what is given one,
  int operand = 0;                  // as this operand
};

/// Notes that of `tuples` only what is live in `tuple`, one of them, stays.
void note(std::vector<Narrowing>& narrowings, Narrowing tuples, const Liveness& liveness,
          const Instruction* tuple) {
  const auto count = static_cast<int64_t>(tuple->shape().elements().size());
  for (int64_t i = 0; i < count; ++i)
    if (liveness.is_live(tuple, i)) tuples.kept.push_back(i);
  if (static_cast<int64_t>(tuples.kept.size()) < count) narrowings.push_back(std::move(tuples));
}

std::vector<Narrowing> narrowings_of(const hlo::Module& module, const Liveness& liveness) {
  std::vector<Narrowing> narrowings;
  for (Computation* computation : module.computations())
    for (Instruction* x : computation->instructions()) {
      const bool has_tuples = x->is(Opcode::while_) || x->is(Opcode::conditional);
      if (!has_tuples || !liveness.is_live(x) || !liveness.tells_apart(x)) continue;
      if (x->is(Opcode::while_)) {
        Computation* body = x->body();
        note(narrowings, {{}, {body->parameter(0), x->condition()->parameter(0), x}, {body}, x, 0},
             liveness, x);
        continue;
      }
      note(narrowings, {{}, {x}, x->branches()}, liveness, x);
      int given = 0;
      for (const Computation* branch : x->branches()) {
        Instruction* parameter = branch->parameter(0);
        note(narrowings, {{}, {parameter}, {}, x, ++given}, liveness, parameter);
      }
    }
  return narrowings;
}

/// The elements of what `branch` gives, 0 where `conditional` has a live result that it need not.
Result<std::vector<Instruction*>> given_by(Computation& branch, const Instruction* conditional,
                                           const Liveness& liveness) {
  const auto own = branch.root()->operands();
  std::vector<Instruction*> elements(own.begin(), own.end());
  for (size_t i = 0; i < elements.size(); ++i) {
    const auto element = static_cast<int64_t>(i);
    if (!liveness.is_live(conditional, element) || liveness.is_given(&branch, element)) continue;
    const hlo::Shape& shape = elements[i]->shape();
    HEDDLE_ASSIGN(elements[i], hlo::make_splat(branch, shape.type(), 0, shape.dims()));
  }
  return elements;
}

Status give_zeros(const hlo::Module& module, const Liveness& liveness) {
  for (const Computation* computation : module.computations())
    for (const Instruction* x : computation->instructions()) {
      if (!x->is(Opcode::conditional) || !liveness.is_live(x) || !liveness.tells_apart(x)) continue;
      for (Computation* branch : x->branches()) {
        HEDDLE_ASSIGN(std::vector<Instruction*> elements, given_by(*branch, x, liveness));
        const auto own = branch->root()->operands();
        if (std::equal(own.begin(), own.end(), elements.begin())) continue;
        HEDDLE_ASSIGN(Instruction * root, hlo::make_tuple(*branch, std::move(elements)));
        branch->set_root(root);
      }
    }
  return {};
}

void renumber(const Narrowing& narrowing) {
  std::map<int64_t, int64_t> numbers;
  for (size_t i = 0; i < narrowing.kept.size(); ++i)
    numbers[narrowing.kept[i]] = static_cast<int64_t>(i);
  const hlo::Shape shape = narrowed(narrowing.seen[0]->shape(), narrowing.kept);
  for (Instruction* tuple : narrowing.seen) {
    renumber(tuple, numbers);
    tuple->set_shape(shape);
  }
}

}  // namespace

Status remove_dead_state(hlo::Module& module, const BranchReads& reads) {
  const Callers callers(module);
  const Liveness liveness(module, callers, reads);
  module.remove_dead();
  HEDDLE_TRY(give_zeros(module, liveness));
  // What one loop hands on may be what keeps another's state, and the other way round: so first all
  // tuples become shorter, then what only their dead elements needed goes, then come the numbers.
  const std::vector<Narrowing> narrowings = narrowings_of(module, liveness);
  for (const Narrowing& narrowing : narrowings) {
    for (Computation* maker : narrowing.roots)
      maker->set_root(narrowed_tuple(maker, maker->root(), narrowing.kept));
    Instruction* user = narrowing.user;
    if (!user) continue;
    Instruction* given = user->operand(narrowing.operand);
    user->set_operand(narrowing.operand,
                      narrowed_tuple(user->computation(), given, narrowing.kept));
  }
  module.remove_dead();
  for (const Narrowing& narrowing : narrowings) renumber(narrowing);
  return {};
}

}  // namespace heddle::rewrite
