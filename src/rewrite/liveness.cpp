#include "rewrite/liveness.h"

#include <algorithm>

namespace heddle::rewrite {

using hlo::Computation;
using hlo::Instruction;
using hlo::Opcode;

Liveness::Liveness(const hlo::Module& module, const Replaced& replaced)
    : module_(module), replaced_(replaced) {
  for (const Computation* computation : module.computations())
    for (const Instruction* x : computation->instructions())
      if (x->is(Opcode::while_)) {
        for (const Computation* part : {x->body(), x->condition()})
          if (module.callers(part).size() == 1) loops_[part] = x;
      }
  need(module.entry()->root());
  for (const Instruction* x : module.entry()->instructions())
    if (x->has_side_effect()) need(x);
  run();
}

void Liveness::need(const Instruction* x) {
  if (live_.insert(x).second) work_.push_back(x);
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
  for (const Computation* part : {loop->body(), loop->condition()})
    for (const Instruction* x : part->instructions())
      if (x->has_side_effect()) need(x);
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
      const auto loop = loops_.find(from->computation());
      if (from->is(Opcode::while_) && from->shape().is_tuple()) {
        need_state(from, x->tuple_index());
        live_.insert(from);
        continue;
      }
      if (from->is(Opcode::parameter) && loop != loops_.end()) {
        need_state(loop->second, x->tuple_index());
        live_.insert(from);
        continue;
      }
      if (from->is(Opcode::tuple)) {
        need(from->operand(static_cast<int>(x->tuple_index())));
        continue;
      }
    }
    if (x->is(Opcode::while_)) {
      need_all_state(x);
    } else if (const auto loop = loops_.find(x->computation());
               x->is(Opcode::parameter) && loop != loops_.end()) {
      need_all_state(loop->second);
    } else {
      for (const Instruction* operand : x->operands()) need(operand);
      for (const Computation* called : x->called_computations())
        for (const Instruction* inner : called->instructions()) need(inner);
    }
  }
}

namespace {

/// Whether the loop's state is made and taken apart element by element wherever it is seen.
bool is_separable(const hlo::Module& module, const Instruction* loop) {
  const auto only_elements = [](const Instruction* tuple) {
    for (const Instruction* user : tuple->users())
      if (!user->is(Opcode::get_tuple_element)) return false;
    return !tuple->is_root() || tuple->is(Opcode::parameter);
  };
  for (const Computation* part : {loop->body(), loop->condition()})
    if (module.callers(part).size() != 1 || part->parameters().size() != 1 ||
        !only_elements(part->parameter(0)))
      return false;
  return loop->operand(0)->is(Opcode::tuple) && loop->body()->root()->is(Opcode::tuple) &&
         only_elements(loop);
}

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

void keep_state(Instruction* loop, const std::vector<int64_t>& kept) {
  std::map<int64_t, int64_t> numbers;
  for (size_t i = 0; i < kept.size(); ++i) numbers[kept[i]] = static_cast<int64_t>(i);
  const hlo::Shape shape = narrowed(loop->shape(), kept);
  Computation* body = loop->body();
  Computation* condition = loop->condition();
  body->set_root(narrowed_tuple(body, body->root(), kept));
  body->remove_dead();
  condition->remove_dead();
  for (Computation* part : {body, condition}) {
    renumber(part->parameter(0), numbers);
    part->parameter(0)->set_shape(shape);
  }
  Computation* outside = loop->computation();
  loop->set_operand(0, narrowed_tuple(outside, loop->operand(0), kept));
  renumber(loop, numbers);
  loop->set_shape(shape);
}

}  // namespace

int remove_dead_state(hlo::Module& module) {
  int removed = 0;
  const Liveness liveness(module);
  module.remove_dead();
  for (Computation* computation : module.callees_first()) {
    // Later loops first: what an earlier one leaves may be only their dead state.
    const std::vector<Instruction*> order = computation->dependency_order();
    std::vector<Instruction*> loops;
    for (auto x = order.rbegin(); x != order.rend(); ++x)
      if ((*x)->is(Opcode::while_) && is_separable(module, *x)) loops.push_back(*x);
    for (Instruction* loop : loops) {
      const auto count = static_cast<int64_t>(loop->shape().elements().size());
      std::vector<int64_t> kept;
      for (int64_t i = 0; i < count; ++i)
        if (liveness.is_live(loop, i)) kept.push_back(i);
      const bool unread = std::all_of(
          loop->users().begin(), loop->users().end(),
          [&](const Instruction* user) { return liveness.is_live(loop, user->tuple_index()); });
      if (static_cast<int64_t>(kept.size()) == count || kept.empty() || !unread) continue;
      removed += static_cast<int>(count - static_cast<int64_t>(kept.size()));
      keep_state(loop, kept);
      computation->remove_dead();
    }
  }
  module.remove_dead();
  return removed;
}

}  // namespace heddle::rewrite
