// One step behind a view: what only renames the place of an element.
#pragma once

#include <utility>

#include "rewrite/element.h"

namespace heddle::rewrite {

/// Puts `element` behind a transpose, a broadcast, a reshape or a copy, if it is one of them.
/// `regroup(at, dims)` shares out the digits of a place to other dims, or gives nothing.
template <class Regroup>
bool step_behind_view(Element& element, const Regroup& regroup) {
  using hlo::Opcode;
  const hlo::Instruction* x = element.x;
  std::vector<Index> at;
  switch (x->opcode()) {
    case Opcode::transpose:
      at.resize(element.at.size());
      for (size_t i = 0; i < at.size(); ++i) at[x->dimensions()[i]] = element.at[i];
      break;
    case Opcode::broadcast:
      for (const int64_t dim : x->dimensions()) at.push_back(element.at[dim]);
      break;
    case Opcode::reshape: {
      auto regrouped = regroup(element.at, x->operand(0)->shape().dims());
      if (!regrouped) return false;
      at = std::move(*regrouped);
      break;
    }
    case Opcode::copy:
      at = std::move(element.at);
      break;
    default:
      return false;
  }
  element = {element.frame, x->operand(0), std::move(at)};
  return true;
}

}  // namespace heddle::rewrite
