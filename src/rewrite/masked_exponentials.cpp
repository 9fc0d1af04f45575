#include "rewrite/masked_exponentials.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "hlo/build.h"
#include "rewrite/element.h"

namespace heddle::rewrite {

using hlo::Instruction;
using hlo::Opcode;

namespace {

constexpr int kMaxDepth = 16;

/// Whether each number of `x` is 0 or 1.
bool is_of_bits(const Instruction* x, int depth = 0) {
  if (depth > kMaxDepth) return false;
  const auto of = [&](int i) { return is_of_bits(x->operand(i), depth + 1); };
  switch (x->opcode()) {
    case Opcode::constant: {
      const hlo::Literal* literal = x->literal();
      if (!literal || literal->is_elided()) return false;
      for (int64_t i = 0; i < literal->element_count(); ++i)
        if (literal->get(i) != 0 && literal->get(i) != 1) return false;
      return true;
    }
    case Opcode::convert:
      return x->operand(0)->shape().type() == hlo::ElementType::pred || of(0);
    case Opcode::broadcast:
    case Opcode::reshape:
    case Opcode::transpose:
    case Opcode::slice:
    case Opcode::copy:
      return of(0);
    case Opcode::multiply:
    case Opcode::maximum:
    case Opcode::minimum:
      return of(0) && of(1);
    case Opcode::subtract:
      return is_number(x->operand(0), 1) && of(1);
    case Opcode::select:
      return of(1) && of(2);
    default:
      return false;
  }
}

/// What says where something is 0: numbers of bits that multiply it, or the predicate of a select.
Instruction* mask_of(Instruction* user, const Instruction* of) {
  if (user->is(Opcode::select) && user->operand(1) == of && is_number(user->operand(2), 0))
    return user->operand(0);
  if (!user->is(Opcode::multiply)) return nullptr;
  for (int i : {0, 1})
    if (user->operand(i) == of && is_of_bits(user->operand(1 - i))) return user->operand(1 - i);
  return nullptr;
}

/// Whether `x` is 0 wherever `mask` is.
bool is_masked_by(Instruction* x, const Instruction* mask) {
  return (x->is(Opcode::select) || x->is(Opcode::multiply)) &&
         std::any_of(x->operands().begin(), x->operands().end(),
                     [&](const Instruction* operand) { return mask_of(x, operand) == mask; });
}

bool is_summed(const Instruction* x) {
  return std::any_of(x->users().begin(), x->users().end(), [](const Instruction* user) {
    return user->is(Opcode::reduce) || (user->is(Opcode::convert) && is_summed(user));
  });
}

/// The mask without which nothing uses `exponential`, and which it is summed with; null if there is
/// none.
Instruction* only_mask(Instruction* exponential) {
  Instruction* mask = nullptr;
  for (Instruction* user : exponential->users())
    if (Instruction* by = mask_of(user, exponential); by && is_summed(user)) mask = by;
  if (!mask || exponential->is_root()) return nullptr;
  for (Instruction* user : exponential->users()) {
    if (mask_of(user, exponential) == mask) continue;
    if (!user->is(Opcode::multiply)) return nullptr;
    Instruction* other = user->operand(user->operand(0) == exponential ? 1 : 0);
    if (!is_masked_by(other, mask)) return nullptr;
  }
  return mask;
}

/// `mask` as a predicate.
Result<Instruction*> shown_by(Instruction* mask) {
  if (mask->shape().type() == hlo::ElementType::pred) return mask;
  HEDDLE_ASSIGN(Instruction * zero, hlo::make_splat(*mask->computation(), mask->shape().type(), 0,
                                                    mask->shape().dims()));
  return hlo::make_compare(mask, zero, "NE");
}

/// `x` where `shown`, elsewhere `instead`.
Result<Instruction*> or_else(Instruction* shown, Instruction* x, double instead) {
  HEDDLE_ASSIGN(Instruction * other,
                hlo::make_splat(*x->computation(), x->shape().type(), instead, x->shape().dims()));
  return hlo::make_select(shown, x, other);
}

/// `scores`, -inf where they are not `shown`; what is taken off them, a row's number, still is.
Result<Instruction*> hidden(Instruction* scores, Instruction* shown) {
  if (scores->is(Opcode::subtract) && scores->operand(1)->is(Opcode::broadcast)) {
    HEDDLE_ASSIGN(Instruction * inner, hidden(scores->operand(0), shown));
    return hlo::make_binary(Opcode::subtract, inner, scores->operand(1));
  }
  return or_else(shown, scores, -std::numeric_limits<double>::infinity());
}

/// `exponential` with the mask in its scores.
Result<Instruction*> masked(const Instruction* exponential, Instruction* mask) {
  HEDDLE_ASSIGN(Instruction * shown, shown_by(mask));
  HEDDLE_ASSIGN(Instruction * scores, hidden(exponential->operand(0), shown));
  HEDDLE_ASSIGN(Instruction * weights,
                hlo::make_unary(Opcode::exponential, scores, exponential->name()));
  // What is taken off a row that sees no key may be -inf too: where the program chooses its zeros
  // they are zeros, whether it is fused or left alone. A product with an infinity was none before.
  return shown == mask ? or_else(shown, weights, 0) : Result<Instruction*>(weights);
}

}  // namespace

Status write_masks_into_exponentials(hlo::Computation& computation) {
  for (Instruction* x : computation.instructions()) {
    if (!x->is(Opcode::exponential) || !is_wide_floating(x->shape().type()) ||
        !x->control_predecessors().empty())
      continue;
    Instruction* mask = only_mask(x);
    if (!mask || mask->shape().dims() != x->shape().dims()) continue;
    const std::vector<Instruction*> users(x->users().begin(), x->users().end());
    HEDDLE_ASSIGN(Instruction * weights, masked(x, mask));
    for (Instruction* user : users)
      if (mask_of(user, x) == mask) user->replace_all_uses_with(weights);
    x->replace_all_uses_with(weights);
  }
  return {};
}

}  // namespace heddle::rewrite
