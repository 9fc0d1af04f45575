#include "rewrite/loop.h"

#include <algorithm>
#include <vector>

namespace heddle::rewrite {

using hlo::Instruction;
using hlo::Opcode;

namespace {

/// Whether numbers of an integral type can have this value.
bool holds(hlo::ElementType type, int64_t value) {
  if (!hlo::is_integral(type)) return false;
  const auto bits = static_cast<int>(hlo::bits_of(type));
  if (hlo::is_unsigned_integral(type)) return value >= 0 && (bits == 64 || value >> bits == 0);
  return bits == 64 || (value >> (bits - 1) == 0 || value >> (bits - 1) == -1);
}

std::optional<int64_t> integer(const Instruction* x) {
  std::vector<hlo::ElementType> converted;
  while (x->is(Opcode::copy) || (x->is(Opcode::reshape) && x->shape().element_count() == 1) ||
         x->is(Opcode::convert)) {
    converted.push_back(x->shape().type());
    x = x->operand(0);
  }
  if (!x->is(Opcode::constant) || x->literal()->is_elided() || !x->shape().is_scalar() ||
      !hlo::is_integral(x->shape().type()))
    return std::nullopt;
  const int64_t value = x->literal()->get_integer(0);
  // A u64 beyond int64 reads as negative.
  if (!holds(x->shape().type(), value)) return std::nullopt;
  for (hlo::ElementType type : converted)
    if (!holds(type, value)) return std::nullopt;
  return value;
}

bool is_state(const Instruction* x, const hlo::Computation* computation, int64_t index) {
  return x->is(Opcode::get_tuple_element) && x->tuple_index() == index &&
         computation->parameters().size() == 1 && x->operand(0) == computation->parameter(0);
}

/// An index as sign * induction + offset.
struct Affine {
  int64_t sign = 0, offset = 0;
};

// Operations of an index; loops' are one or two.
constexpr int kMaxLevels = 8;

/// Nothing also if a number on the way does not fit its type in one of `trips` iterations.
std::optional<Affine> affine(const Instruction* x, const hlo::Computation* body,
                             const CountedLoop& count, int levels = kMaxLevels) {
  if (const auto value = integer(x)) return Affine{0, *value};
  if (is_state(x, body, count.induction)) return Affine{1, 0};
  if (levels == 0) return std::nullopt;
  std::optional<Affine> result;
  if (x->is(Opcode::convert) || x->is(Opcode::copy)) {
    result = affine(x->operand(0), body, count, levels - 1);
  } else if (x->is(Opcode::add) || x->is(Opcode::subtract)) {
    const auto a = affine(x->operand(0), body, count, levels - 1);
    const auto b = a ? affine(x->operand(1), body, count, levels - 1) : std::nullopt;
    const int64_t s = x->is(Opcode::add) ? 1 : -1;
    int64_t offset = 0;
    if (a && b &&
        !(s > 0 ? __builtin_add_overflow(a->offset, b->offset, &offset)
                : __builtin_sub_overflow(a->offset, b->offset, &offset)))
      result = Affine{a->sign + s * b->sign, offset};
  }
  if (!result) return std::nullopt;
  int64_t last = 0;
  if (__builtin_mul_overflow(result->sign, std::max<int64_t>(count.trips - 1, 0), &last) ||
      __builtin_add_overflow(last, result->offset, &last))
    return std::nullopt;
  return holds(x->shape().type(), result->offset) && holds(x->shape().type(), last) ? result
                                                                                    : std::nullopt;
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
  const auto next = affine(root->operand(static_cast<int>(count.induction)), loop->body(), count);
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
  const auto place = affine(index, loop->body(), count);
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

}  // namespace heddle::rewrite
