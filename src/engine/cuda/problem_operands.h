// The operands of a problem, wherever its kind keeps them.
#pragma once

#include <variant>

#include "engine/engine.h"

namespace heddle::engine::cuda {

template <class Any>
auto& operands_of(Any& problem) {
  if constexpr (requires { problem.structure.forward; }) {
    return problem.structure.forward.operands;
  } else if constexpr (requires { problem.structure; }) {
    return problem.structure.operands;
  } else {
    return problem.operands;
  }
}

inline const std::vector<problem::OperandType>& operands_of(const Problem& problem) {
  return std::visit(
      [](const auto& one) -> const std::vector<problem::OperandType>& { return operands_of(one); },
      problem);
}

}  // namespace heddle::engine::cuda
