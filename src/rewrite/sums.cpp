#include "rewrite/sums.h"

#include <algorithm>
#include <vector>

#include "hlo/build.h"
#include "rewrite/element.h"

namespace heddle::rewrite {

using hlo::Instruction;
using hlo::Opcode;

namespace {

// A gradient is summed in two or three ways.
constexpr size_t kMaxSums = 8;

bool adds(const hlo::Computation* reducer) {
  const Instruction* root = reducer->root();
  return root->is(Opcode::add) && root->operand(0)->is(Opcode::parameter) &&
         root->operand(1)->is(Opcode::parameter) && root->operand(0) != root->operand(1);
}

/// Whether `x` adds up from 0, and says nothing else.
bool is_plain_sum(const Instruction* x) {
  if (!x->is(Opcode::reduce) || x->operand_count() != 2 || !adds(x->to_apply())) return false;
  const hlo::Literal* from = x->operand(1)->literal();
  return from && !from->is_elided() && from->element_count() == 1 && from->get(0) == 0 &&
         x->control_predecessors().empty();
}

std::vector<int64_t> axes_of(const Instruction* sum) {
  std::vector<int64_t> axes(sum->dimensions().begin(), sum->dimensions().end());
  std::sort(axes.begin(), axes.end());
  return axes;
}

bool is_over_less(const Instruction* sum, const Instruction* than) {
  const std::vector<int64_t> few = axes_of(sum), many = axes_of(than);
  return few.size() < many.size() &&
         std::includes(many.begin(), many.end(), few.begin(), few.end());
}

/// Whether `x` is what a dot gives, in another order or type.
bool is_product(const Instruction* x) {
  while (x->is(Opcode::convert) || x->is(Opcode::transpose) || x->is(Opcode::reshape) ||
         x->is(Opcode::copy))
    x = x->operand(0);
  return x->is(Opcode::dot);
}

/// The axes of `sum`'s value over which the value of `part`, a sum of the same, is yet to be
/// summed.
hlo::Dimensions axes_left(const Instruction* sum, const Instruction* part) {
  const std::vector<int64_t> done = axes_of(part);
  hlo::Dimensions left;
  for (int64_t axis : axes_of(sum)) {
    const auto at = std::lower_bound(done.begin(), done.end(), axis);
    if (at == done.end() || *at != axis) left.push_back(axis - (at - done.begin()));
  }
  return left;
}

// One a layer; also a bound for what adds itself to itself again and again.
constexpr size_t kMaxGradients = 256;

/// Whether `x` is weights, or exponentials on their way to be some, times something.
bool is_weighed(const Instruction* x) {
  if (!x->is(Opcode::multiply)) return false;
  return std::any_of(x->operands().begin(), x->operands().end(), [](const Instruction* factor) {
    if (factor->is(Opcode::divide)) factor = factor->operand(0);
    return factor->is(Opcode::exponential);
  });
}

/// What `x`, additions of gradients of scores that nothing else reads, adds up; nothing if it is
/// anything else.
std::vector<Instruction*> gradients_in(Instruction* x) {
  std::vector<Instruction*> found, work{x};
  while (!work.empty()) {
    if (found.size() + work.size() > kMaxGradients) return {};
    Instruction* y = work.back();
    work.pop_back();
    if (y->is(Opcode::add) && y->users().size() == 1 && y->control_predecessors().empty()) {
      work.push_back(y->operand(1));
      work.push_back(y->operand(0));
    } else if (is_weighed(y)) {
      found.push_back(y);
    } else {
      return {};
    }
  }
  return found;
}

}  // namespace

Status add_sums_of_gradients(hlo::Computation& computation) {
  for (Instruction* x : computation.instructions()) {
    if (!is_plain_sum(x) || !is_wide_floating(x->shape().type())) continue;
    const std::vector<Instruction*> gradients = gradients_in(x->operand(0));
    if (gradients.size() < 2) continue;
    Instruction* total = nullptr;
    for (Instruction* gradient : gradients) {
      const hlo::Dimensions axes(x->dimensions().begin(), x->dimensions().end());
      HEDDLE_ASSIGN(Instruction * sum,
                    hlo::make_reduce(gradient, x->operand(1), axes, x->to_apply()));
      if (total) {
        HEDDLE_ASSIGN(total, hlo::make_binary(Opcode::add, total, sum));
      } else {
        total = sum;
      }
    }
    x->replace_all_uses_with(total);
  }
  return {};
}

Status take_sums_of_one_away(hlo::Computation& computation) {
  for (Instruction* x : computation.instructions()) {
    if (!is_plain_sum(x) || x->operand(0)->shape().element_count() != x->shape().element_count())
      continue;
    HEDDLE_ASSIGN(Instruction * numbers, hlo::make_reshape(x->operand(0), x->shape().dims()));
    x->replace_all_uses_with(numbers);
  }
  return {};
}

Status write_sums_by_sums(hlo::Computation& computation) {
  for (Instruction* x : computation.instructions()) {
    if (!x->shape().is_array() || !hlo::is_floating(x->shape().type()) || !is_product(x)) continue;
    std::vector<Instruction*> sums;
    for (Instruction* user : x->users())
      if (is_plain_sum(user) && user->operand(0) == x) sums.push_back(user);
    if (sums.size() < 2 || sums.size() > kMaxSums) continue;
    // Those over most axes first: of which they are made may then be made of others.
    std::stable_sort(sums.begin(), sums.end(), [](const Instruction* a, const Instruction* b) {
      return a->dimensions().size() > b->dimensions().size();
    });
    for (size_t i = 0; i < sums.size(); ++i) {
      const auto part =
          std::find_if(sums.begin() + static_cast<ptrdiff_t>(i) + 1, sums.end(),
                       [&](const Instruction* y) { return is_over_less(y, sums[i]); });
      if (part == sums.end()) continue;
      HEDDLE_ASSIGN(Instruction * sum,
                    hlo::make_reduce(*part, sums[i]->operand(1), axes_left(sums[i], *part),
                                     sums[i]->to_apply()));
      sums[i]->replace_all_uses_with(sum);
    }
  }
  return {};
}

}  // namespace heddle::rewrite
