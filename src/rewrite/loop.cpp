#include "rewrite/loop.h"

#include <algorithm>

namespace heddle::rewrite {

using hlo::Instruction;
using hlo::Opcode;

namespace {

std::optional<int64_t> integer(const Instruction* x) {
  while (x->is(Opcode::copy) || (x->is(Opcode::reshape) && x->shape().element_count() == 1) ||
         x->is(Opcode::convert))
    x = x->operand(0);
  if (!x->is(Opcode::constant) || x->literal()->is_elided() || !x->shape().is_scalar() ||
      !hlo::is_integral(x->shape().type()))
    return std::nullopt;
  return x->literal()->get_integer(0);
}

bool is_state(const Instruction* x, const hlo::Computation* computation, int64_t index) {
  return x->is(Opcode::get_tuple_element) && x->tuple_index() == index &&
         computation->parameters().size() == 1 && x->operand(0) == computation->parameter(0);
}

/// An index as sign * induction + offset.
struct Affine {
  int64_t sign = 0, offset = 0;
};

std::optional<Affine> affine(const Instruction* x, const hlo::Computation* body,
                             int64_t induction) {
  if (const auto value = integer(x)) return Affine{0, *value};
  if (is_state(x, body, induction)) return Affine{1, 0};
  if (x->is(Opcode::convert) || x->is(Opcode::copy)) return affine(x->operand(0), body, induction);
  if (!x->is(Opcode::add) && !x->is(Opcode::subtract)) return std::nullopt;
  const auto a = affine(x->operand(0), body, induction);
  const auto b = affine(x->operand(1), body, induction);
  if (!a || !b) return std::nullopt;
  const int64_t s = x->is(Opcode::add) ? 1 : -1;
  return Affine{a->sign + s * b->sign, a->offset + s * b->offset};
}

}  // namespace

bool is_invariant(const hlo::Computation* body, int64_t index) {
  const Instruction* root = body->root();
  return root->is(Opcode::tuple) && index < root->operand_count() &&
         is_state(root->operand(static_cast<int>(index)), body, index);
}

const Instruction* initial(const Instruction* loop, int64_t index) {
  const Instruction* init = loop->operand(0);
  return init->is(Opcode::tuple) ? init->operand(static_cast<int>(index)) : nullptr;
}

std::optional<CountedLoop> counted(const Instruction* loop) {
  const hlo::Computation* condition = loop->condition();
  const Instruction* test = condition->root();
  if (!test->is(Opcode::compare) || test->direction() != "LT") return std::nullopt;
  const Instruction* variable = test->operand(0);
  const auto limit = integer(test->operand(1));
  if (!limit || !variable->is(Opcode::get_tuple_element)) return std::nullopt;
  const CountedLoop count{variable->tuple_index(), *limit};
  if (!is_state(variable, condition, count.induction)) return std::nullopt;
  const Instruction* start = initial(loop, count.induction);
  if (!start || integer(start) != 0) return std::nullopt;
  const Instruction* root = loop->body()->root();
  if (!root->is(Opcode::tuple)) return std::nullopt;
  const auto next =
      affine(root->operand(static_cast<int>(count.induction)), loop->body(), count.induction);
  if (!next || next->sign != 1 || next->offset != 1) return std::nullopt;
  return count;
}

bool touches_one_row(const Instruction* x, int first, const hlo::Shape& row) {
  const hlo::Shape& stack = x->operand(0)->shape();
  if (row.rank() != stack.rank() || row.rank() == 0 || row.dim(0) != 1) return false;
  for (int i = 1; i < row.rank(); ++i)
    if (row.dim(i) != stack.dim(i) || integer(x->operand(first + i)) != 0) return false;
  return true;
}

int direction(const Instruction* loop, const CountedLoop& count, const Instruction* index) {
  const auto place = affine(index, loop->body(), count.induction);
  if (!place) return 0;
  if (place->sign == 1 && place->offset == 0) return 1;
  if (place->sign == -1 && place->offset == count.trips - 1) return -1;
  return 0;
}

const Instruction* stack_write(const Instruction* loop, const CountedLoop& count, int64_t index) {
  const hlo::Computation* body = loop->body();
  const Instruction* root = body->root();
  if (!root->is(Opcode::tuple)) return nullptr;
  const Instruction* write = root->operand(static_cast<int>(index));
  if (!write->is(Opcode::dynamic_update_slice) || !is_state(write->operand(0), body, index) ||
      !touches_one_row(write, 2, write->operand(1)->shape()) ||
      direction(loop, count, write->operand(2)) == 0 || write->shape().dim(0) != count.trips)
    return nullptr;
  // Nothing else may see the stack while it is being filled.
  if (write->users().size() != 1 ||
      std::count(root->operands().begin(), root->operands().end(), write) != 1)
    return nullptr;
  for (const Instruction* x : body->parameter(0)->users()) {
    if (!x->is(Opcode::get_tuple_element)) return nullptr;
    if (!is_state(x, body, index)) continue;
    for (const Instruction* user : x->users())
      if (user != write) return nullptr;
  }
  return write;
}

bool is_separable(const Instruction* loop) {
  const auto only_elements = [](const Instruction* tuple) {
    for (const Instruction* user : tuple->users())
      if (!user->is(Opcode::get_tuple_element)) return false;
    return !tuple->is_root() || tuple->is(Opcode::parameter);
  };
  for (const hlo::Computation* part : {loop->body(), loop->condition()})
    if (loop->module()->callers(part).size() != 1 || part->parameters().size() != 1 ||
        !only_elements(part->parameter(0)))
      return false;
  // A sharding names the elements one by one.
  return loop->operand(0)->is(Opcode::tuple) && loop->body()->root()->is(Opcode::tuple) &&
         only_elements(loop) && !loop->has("sharding");
}

}  // namespace heddle::rewrite
