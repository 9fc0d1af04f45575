#include "rewrite/sums_of_weights.h"

#include <algorithm>
#include <set>
#include <vector>

#include "hlo/build.h"
#include "rewrite/element.h"
#include "rewrite/merged_dots.h"

namespace heddle::rewrite {

using hlo::Instruction;
using hlo::Opcode;

namespace {

constexpr size_t kMostBetween = 64;  // the sum and its softmaxes: factors, dropout, roundings
constexpr size_t kMostTerms = 8;
constexpr int kMostSteps = 32;  // between the sum and its product

using Softmaxes = std::set<const Instruction*>;

/// The softmaxes' exponentials that `x` is made of, value by value; none if that is not known.
Softmaxes softmaxes_in(const Instruction* x) {
  Softmaxes found;
  std::vector<const Instruction*> work{x};
  std::set<const Instruction*> seen{x};
  while (!work.empty()) {
    if (seen.size() > kMostBetween) return {};
    const Instruction* at = work.back();
    work.pop_back();
    if (is_softmax(at)) {
      found.insert(at);
      continue;
    }
    const bool passes_on = hlo::is_elementwise(at->opcode()) || at->is(Opcode::transpose) ||
                           at->is(Opcode::reshape) || at->is(Opcode::copy) || at->is(Opcode::slice);
    if (!passes_on) continue;
    for (const Instruction* operand : at->operands())
      if (hlo::is_floating(operand->shape().type()) && seen.insert(operand).second)
        work.push_back(operand);
  }
  return found;
}

bool have_none_in_common(const Softmaxes& a, const Softmaxes& b) {
  return std::none_of(a.begin(), a.end(), [&](const Instruction* x) { return b.contains(x); });
}

/// Whether a conversion rounds nothing: beside numbers that were rounded before they were added up,
/// what is left of a sum that is rounded after it may be far smaller.
bool widens(const Instruction* convert) {
  const hlo::ElementType from = convert->operand(0)->shape().type();
  const hlo::ElementType to = convert->shape().type();
  return is_wide_floating(from) && is_wide_floating(to) && hlo::bits_of(from) <= hlo::bits_of(to);
}

struct Term {
  Instruction* x;
  bool is_subtracted = false;
};

/// The operand in which a sum is one of `x`; -1 if there is none.
int linear_operand(const Instruction* x) {
  switch (x->opcode()) {
    case Opcode::negate:
    case Opcode::transpose:
    case Opcode::reshape:
    case Opcode::copy:
    case Opcode::slice:
    case Opcode::divide:
      return 0;
    case Opcode::convert:
      return widens(x) ? 0 : -1;
    case Opcode::multiply:
      return softmaxes_in(x->operand(0)).empty() ? 1 : 0;
    case Opcode::select:
      return is_number(x->operand(2), 0) ? 1 : -1;
    default:
      return -1;
  }
}

/// Whether nothing but products reads `x`, or what becomes of it by what multiplies, moves or drops
/// it: else the weights are computed anyway.
bool is_only_multiplied(const Instruction* x) {
  std::vector<const Instruction*> work{x};
  std::set<const Instruction*> seen{x};
  while (!work.empty()) {
    const Instruction* at = work.back();
    work.pop_back();
    if (at->is_root() || seen.size() > kMostBetween) return false;
    for (const Instruction* user : at->users()) {
      if (user->is(Opcode::dot)) continue;
      const bool adds = user->is(Opcode::add) || user->is(Opcode::subtract);
      if (!adds && linear_operand(user) < 0) return false;
      if (seen.insert(user).second) work.push_back(user);
    }
  }
  return true;
}

/// The terms of different softmaxes that `x` adds up, each with what multiplies, moves or drops
/// the sum; `x` itself if it is no such sum.
std::vector<Term> terms_of(Instruction* x, int steps = 0) {
  std::vector<Term> whole{{x}};
  if (steps > kMostSteps || !x->control_predecessors().empty()) return whole;
  if (x->is(Opcode::add) || x->is(Opcode::subtract)) {
    const Softmaxes a = softmaxes_in(x->operand(0)), b = softmaxes_in(x->operand(1));
    if (a.empty() || b.empty() || !have_none_in_common(a, b) || !is_only_multiplied(x))
      return whole;
    std::vector<Term> terms = terms_of(x->operand(0), steps + 1);
    for (Term term : terms_of(x->operand(1), steps + 1)) {
      term.is_subtracted = term.is_subtracted != x->is(Opcode::subtract);
      terms.push_back(term);
    }
    if (terms.size() > kMostTerms) return whole;
    return terms;
  }
  const int of = linear_operand(x);
  if (of < 0) return whole;
  std::vector<Term> terms = terms_of(x->operand(of), steps + 1);
  if (terms.size() < 2) return whole;
  for (Term& term : terms) {
    std::vector<Instruction*> operands(x->operands().begin(), x->operands().end());
    operands[of] = term.x;
    term.x = x->computation()->add(x->opcode(), x->shape().without_layout(), std::move(operands),
                                   x->attributes(), x->name());
  }
  return terms;
}

/// `dot` as the sum of its products with `terms` in the place of operand `side`, each as wide as a
/// sum is kept that is rounded once.
Result<Instruction*> sum_of_products(Instruction* dot, int side, const std::vector<Term>& terms) {
  const hlo::ElementType type = dot->shape().type();
  const bool is_half = is_wide_floating(type) && hlo::bits_of(type) < 32;
  const hlo::Shape shape =
      dot->shape().without_layout().with_type(is_half ? hlo::ElementType::f32 : type);
  Instruction* sum = nullptr;
  for (const Term& term : terms) {
    std::vector<Instruction*> operands(dot->operands().begin(), dot->operands().end());
    operands[side] = term.x;
    Instruction* product = dot->computation()->add(Opcode::dot, shape, std::move(operands),
                                                   dot->attributes(), dot->name());
    if (sum) {
      HEDDLE_ASSIGN(product, hlo::make_binary(term.is_subtracted ? Opcode::subtract : Opcode::add,
                                              sum, product));
    } else if (term.is_subtracted) {
      HEDDLE_ASSIGN(product, hlo::make_unary(Opcode::negate, product));
    }
    sum = product;
  }
  return hlo::make_convert(sum, type);
}

}  // namespace

Status take_sums_of_weights_apart(hlo::Computation& computation) {
  for (Instruction* x : computation.instructions()) {
    if (!x->is(Opcode::dot) || !x->control_predecessors().empty() ||
        !hlo::is_floating(x->shape().type()))
      continue;
    for (int side = 0; side < 2; ++side) {
      if (softmaxes_in(x->operand(side)).size() < 2) continue;
      const std::vector<Term> terms = terms_of(x->operand(side));
      if (terms.size() < 2) continue;
      HEDDLE_ASSIGN(Instruction * sum, sum_of_products(x, side, terms));
      x->replace_all_uses_with(sum);
      break;
    }
  }
  return {};
}

}  // namespace heddle::rewrite
