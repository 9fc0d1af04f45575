#include "rewrite/liveness.h"

#include <algorithm>

#include "rewrite/loop.h"

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
        if (!is_separable(x)) whole_.insert(x);
      }
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

/// A loop and the elements of its state that stay.
struct Narrowing {
  Instruction* loop = nullptr;
  std::vector<int64_t> kept;
};

void renumber(const Narrowing& narrowing) {
  std::map<int64_t, int64_t> numbers;
  for (size_t i = 0; i < narrowing.kept.size(); ++i)
    numbers[narrowing.kept[i]] = static_cast<int64_t>(i);
  Instruction* loop = narrowing.loop;
  const hlo::Shape shape = narrowed(loop->shape(), narrowing.kept);
  for (Instruction* state : {loop->body()->parameter(0), loop->condition()->parameter(0), loop}) {
    renumber(state, numbers);
    state->set_shape(shape);
  }
}

}  // namespace

int remove_dead_state(hlo::Module& module) {
  int removed = 0;
  const Liveness liveness(module);
  module.remove_dead();
  // What one loop hands on may be what keeps another's state, and the other way round: so first all
  // tuples become shorter, then what only their dead elements needed goes, then come the numbers.
  std::vector<Narrowing> narrowings;
  for (Computation* computation : module.computations())
    for (Instruction* loop : computation->instructions()) {
      if (!loop->is(Opcode::while_) || !is_separable(loop)) continue;
      const auto count = static_cast<int64_t>(loop->shape().elements().size());
      Narrowing narrowing{loop, {}};
      for (int64_t i = 0; i < count; ++i)
        if (liveness.is_live(loop, i)) narrowing.kept.push_back(i);
      const auto kept = static_cast<int64_t>(narrowing.kept.size());
      if (kept == count || kept == 0) continue;
      removed += static_cast<int>(count - kept);
      narrowings.push_back(std::move(narrowing));
    }
  for (const auto& [loop, kept] : narrowings) {
    loop->body()->set_root(narrowed_tuple(loop->body(), loop->body()->root(), kept));
    loop->set_operand(0, narrowed_tuple(loop->computation(), loop->operand(0), kept));
  }
  module.remove_dead();
  for (const Narrowing& narrowing : narrowings) renumber(narrowing);
  return removed;
}

}  // namespace heddle::rewrite
