#include "rewrite/labelled.h"

#include <algorithm>

#include "hlo/build.h"

namespace heddle::rewrite {

using hlo::Instruction;

std::vector<int64_t> sizes(const Elements& elements, const Index& labels) {
  std::vector<int64_t> result;
  for (Var v : labels) result.push_back(elements.size(v));
  return result;
}

Result<Instruction*> reordered(const Elements& elements, const Labelled& array, const Index& to) {
  std::vector<int64_t> permutation, where;
  for (size_t i = 0; i < to.size(); ++i) {
    const auto at = std::find(array.labels.begin(), array.labels.end(), to[i]);
    if (at == array.labels.end()) continue;
    permutation.push_back(at - array.labels.begin());
    where.push_back(static_cast<int64_t>(i));
  }
  Instruction* x = array.x;
  if (x->shape().dims() != sizes(elements, array.labels)) {
    HEDDLE_ASSIGN(x, hlo::make_reshape(x, sizes(elements, array.labels)));
  }
  if (!std::is_sorted(permutation.begin(), permutation.end())) {
    HEDDLE_ASSIGN(x, hlo::make_transpose(x, permutation));
  }
  if (where.size() != to.size()) {
    HEDDLE_ASSIGN(x, hlo::make_broadcast(x, sizes(elements, to), where));
  }
  return x;
}

Result<Labelled> reduced(const Elements& elements, const Labelled& array, const Index& over,
                         hlo::Opcode by) {
  HEDDLE_ASSIGN(Instruction * x, reordered(elements, array, array.labels));
  Labelled result;
  hlo::Dimensions dims;
  for (size_t i = 0; i < array.labels.size(); ++i)
    if (std::find(over.begin(), over.end(), array.labels[i]) == over.end()) {
      result.labels.push_back(array.labels[i]);
    } else {
      dims.push_back(static_cast<int64_t>(i));
    }
  result.x = x;
  if (dims.empty()) return result;
  const hlo::ElementType type = x->shape().type();
  Instruction* init = hlo::make_constant(*x->computation(), hlo::Literal::scalar(type, 0));
  HEDDLE_ASSIGN(result.x,
                hlo::make_reduce(x, init, dims, hlo::make_reducer(*x->module(), by, type)));
  return result;
}

}  // namespace heddle::rewrite
