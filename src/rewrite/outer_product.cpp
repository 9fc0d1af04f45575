#include "rewrite/outer_product.h"

#include <algorithm>
#include <numeric>
#include <string_view>

#include "hlo/build.h"

namespace heddle::rewrite {

using hlo::Instruction;
using hlo::Opcode;

namespace {

/// Whether it says nothing but what it multiplies; how precisely products are summed is all the
/// same where none are.
bool is_plain(const Instruction* x) {
  static constexpr std::string_view kPlain[] = {"lhs_batch_dims",    "lhs_contracting_dims",
                                                "rhs_batch_dims",    "rhs_contracting_dims",
                                                "operand_precision", "metadata"};
  return x->control_predecessors().empty() &&
         std::all_of(x->attributes().begin(), x->attributes().end(), [](const hlo::Attribute& a) {
           return std::find(std::begin(kPlain), std::end(kPlain), a.name) != std::end(kPlain);
         });
}

bool is_outer_product(const Instruction* x) {
  if (!x->is(Opcode::dot) || !x->lhs_contracting_dims().empty() || !is_plain(x)) return false;
  const hlo::Shape &a = x->operand(0)->shape(), &b = x->operand(1)->shape();
  return a.type() == x->shape().type() && b.type() == x->shape().type() &&
         std::max(a.element_count(), b.element_count()) == x->shape().element_count();
}

/// The dimensions of `dot` that those of its operand `side` become.
std::vector<int64_t> dimensions_of(const Instruction* dot, int side) {
  const auto batch = side == 0 ? dot->lhs_batch_dims() : dot->rhs_batch_dims();
  const int rank = dot->operand(side)->shape().rank();
  std::vector<int64_t> to(rank, -1);
  for (size_t i = 0; i < batch.size(); ++i) to[batch[i]] = static_cast<int64_t>(i);
  int64_t next = side == 0 ? static_cast<int64_t>(batch.size())
                           : dot->shape().rank() - rank + static_cast<int64_t>(batch.size());
  for (int64_t& dim : to)
    if (dim < 0) dim = next++;
  return to;
}

/// Operand `side` in the shape of `dot`.
Result<Instruction*> spread(Instruction* dot, int side) {
  const std::vector<int64_t> to = dimensions_of(dot, side);
  std::vector<int64_t> order(to.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return to[a] < to[b]; });
  Instruction* x = dot->operand(side);
  if (!std::is_sorted(order.begin(), order.end())) {
    HEDDLE_ASSIGN(x, hlo::make_transpose(x, order));
  }
  if (to.size() == dot->shape().dims().size()) return x;
  std::vector<int64_t> dimensions = to;
  std::sort(dimensions.begin(), dimensions.end());
  return hlo::make_broadcast(x, dot->shape().dims(), dimensions);
}

}  // namespace

Status write_outer_products_as_multiplications(hlo::Computation& computation) {
  for (Instruction* x : computation.instructions()) {
    if (!is_outer_product(x)) continue;
    HEDDLE_ASSIGN(Instruction * a, spread(x, 0));
    HEDDLE_ASSIGN(Instruction * b, spread(x, 1));
    HEDDLE_ASSIGN(Instruction * product, hlo::make_binary(Opcode::multiply, a, b));
    x->replace_all_uses_with(product);
  }
  return {};
}

}  // namespace heddle::rewrite
