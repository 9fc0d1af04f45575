#include "rewrite/merged_dots.h"

#include <algorithm>
#include <optional>
#include <unordered_set>
#include <vector>

namespace heddle::rewrite {

using hlo::Instruction;
using hlo::Opcode;

namespace {

// Between a product and its softmax there are scales, masks and biases.
constexpr size_t kMostBetween = 64;

bool passes_on(const Instruction* x) {
  return hlo::is_elementwise(x->opcode()) || x->is(Opcode::transpose) || x->is(Opcode::reshape) ||
         x->is(Opcode::copy);
}

/// Whether a softmax is among `x` and what `next` leads to from it, value by value of x's size.
template <class Next>
bool leads_to_softmax(const Instruction* x, Next next) {
  std::vector<const Instruction*> work{x};
  std::unordered_set<const Instruction*> seen{x};
  while (!work.empty() && seen.size() < kMostBetween) {
    const Instruction* at = work.back();
    work.pop_back();
    if (is_softmax(at)) return true;
    for (const Instruction* y : next(at))
      if (y->shape().is_array() && y->shape().element_count() == x->shape().element_count() &&
          (passes_on(y) || is_softmax(y)) && seen.insert(y).second)
        work.push_back(y);
  }
  return false;
}

bool is_scores(const Instruction* x) {
  return leads_to_softmax(x, [](const Instruction* at) { return at->users(); });
}

bool is_weights(const Instruction* x) {
  return leads_to_softmax(x, [](const Instruction* at) { return at->operands(); });
}

/// The part of `joined` that `slice` cuts from a result whose dimension `dim` the joined one
/// became; nothing if that is not exactly one.
Instruction* part_cut(const Instruction* slice, const Instruction* joined, int dim) {
  const Instruction* whole = slice->operand(0);
  for (int i = 0; i < whole->shape().rank(); ++i) {
    const hlo::SliceDimension& s = slice->slice()[i];
    if (s.stride != 1 || (i != dim && (s.start != 0 || s.limit != whole->shape().dim(i))))
      return nullptr;
  }
  const hlo::SliceDimension& cut = slice->slice()[dim];
  int64_t start = 0;
  for (Instruction* part : joined->operands()) {
    const int64_t limit = start + part->shape().dim(static_cast<int>(joined->dimensions()[0]));
    if (start == cut.start && limit == cut.limit) return part;
    start = limit;
  }
  return nullptr;
}

/// The dimension of `dot` that dimension `dim` of its operand `side` becomes; nothing if it is
/// summed or one of the batch.
std::optional<int> dimension_of(const Instruction* dot, int side, int64_t dim) {
  const auto free_before = [dot](int side, int64_t end) {
    const auto batch = side == 0 ? dot->lhs_batch_dims() : dot->rhs_batch_dims();
    const auto summed = side == 0 ? dot->lhs_contracting_dims() : dot->rhs_contracting_dims();
    int count = 0;
    for (int64_t i = 0; i < end; ++i)
      count += std::find(batch.begin(), batch.end(), i) == batch.end() &&
               std::find(summed.begin(), summed.end(), i) == summed.end();
    return count;
  };
  const int before = free_before(side, dim);
  if (free_before(side, dim + 1) == before) return std::nullopt;
  const int others = side == 0 ? 0 : free_before(0, dot->operand(0)->shape().rank());
  return static_cast<int>(dot->lhs_batch_dims().size()) + others + before;
}

struct Cut {
  Instruction* slice = nullptr;
  Instruction* part = nullptr;
};

/// The parts that operand `side` of `dot` is joined of, by what cuts them out of its result; none
/// unless its result is cut into them alone, and one of them is of a softmax.
std::vector<Cut> cuts_of(const Instruction* dot, int side) {
  const Instruction* joined = dot->operand(side);
  if (!joined->is(Opcode::concatenate) || dot->is_root()) return {};
  const auto dim = dimension_of(dot, side, joined->dimensions()[0]);
  if (!dim) return {};
  std::vector<Cut> cuts;
  bool is_of_softmax = false;
  for (Instruction* user : dot->users()) {
    Instruction* part = user->is(Opcode::slice) ? part_cut(user, joined, *dim) : nullptr;
    if (!part) return {};
    is_of_softmax = is_of_softmax || is_scores(user) || is_weights(part);
    cuts.push_back({user, part});
  }
  return is_of_softmax ? cuts : std::vector<Cut>{};
}

}  // namespace

bool is_softmax(const Instruction* x) {
  return x->is(Opcode::exponential) &&
         std::any_of(x->users().begin(), x->users().end(), [](const Instruction* user) {
           return user->is(Opcode::reduce) || user->is(Opcode::convert);
         });
}

Status take_merged_dots_apart(hlo::Computation& computation) {
  for (Instruction* x : computation.instructions()) {
    if (!x->is(Opcode::dot) || !x->control_predecessors().empty()) continue;
    for (int side = 0; side < 2; ++side)
      for (const Cut& cut : cuts_of(x, side)) {
        std::vector<Instruction*> operands{x->operand(0), x->operand(1)};
        operands[side] = cut.part;
        cut.slice->replace_all_uses_with(
            computation.add(Opcode::dot, cut.slice->shape().without_layout(), std::move(operands),
                            x->attributes(), x->name()));
      }
  }
  return {};
}

}  // namespace heddle::rewrite
