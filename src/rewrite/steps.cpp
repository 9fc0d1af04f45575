#include "rewrite/steps.h"

namespace heddle::rewrite {

Element operand_of(Elements& elements, const Element& e, int i) {
  const hlo::Instruction* y = e.x->operand(i);
  // Scalars stand beside arrays in select and clamp.
  return elements.resolve({e.frame, y, y->shape().is_scalar() ? std::vector<Index>{} : e.at});
}

Key key_of(const Element& element) {
  Key key{element.frame, element.x->id()};
  for (const Index& index : element.at) {
    key.push_back(INT64_MIN);
    key.insert(key.end(), index.begin(), index.end());
  }
  return key;
}

}  // namespace heddle::rewrite
