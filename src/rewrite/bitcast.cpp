#include "rewrite/bitcast.h"

#include <algorithm>
#include <vector>

#include "hlo/build.h"

namespace heddle::rewrite {

using hlo::Instruction;
using hlo::Opcode;

namespace {

using Order = std::vector<int64_t>;

Result<Instruction*> transposed(Instruction* x, const Order& order) {
  if (std::is_sorted(order.begin(), order.end())) return x;
  return hlo::make_transpose(x, order);
}

}  // namespace

Status write_bitcasts_as_reshapes(hlo::Computation& computation) {
  for (Instruction* x : computation.instructions()) {
    if (!x->is(Opcode::bitcast) || !x->control_predecessors().empty()) continue;
    const hlo::Shape &from = x->operand(0)->shape(), &to = x->shape();
    if (!from.is_array() || !to.is_array() || from.type() != to.type() || from.is_dynamic() ||
        to.is_dynamic() || from.element_count() != to.element_count())
      continue;
    const auto given = hlo::major_to_minor(from), wanted = hlo::major_to_minor(to);
    if (!given || !wanted) continue;
    std::vector<int64_t> dims;
    Order back(wanted->size());
    for (const int64_t dim : *wanted) {
      back[dim] = static_cast<int64_t>(dims.size());
      dims.push_back(to.dim(static_cast<int>(dim)));
    }
    HEDDLE_ASSIGN(Instruction * view, transposed(x->operand(0), *given));
    HEDDLE_ASSIGN(view, hlo::make_reshape(view, dims));
    HEDDLE_ASSIGN(view, transposed(view, back));
    x->replace_all_uses_with(view);
  }
  return {};
}

}  // namespace heddle::rewrite
