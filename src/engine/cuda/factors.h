// Products of numbers that lie on the device, made there before the kernels that read them.
#pragma once

#include <vector>

#include "engine/cuda/lowering.h"
#include "problem/operand.h"

namespace heddle::engine::cuda {

struct FactorsStep {
  /// to = number * the product of `of` / that of `by`. One of `of` may be passed by value.
  struct Product {
    problem::OperandId to = problem::kAbsent;
    double number = 1;
    std::vector<problem::OperandId> of, by;  ///< absent ones are 1
    bool is_magnitude = false;               ///< `to` is that of the product
  };
  std::vector<Product> products;
  std::vector<problem::OperandId> zeroed;  ///< f32 that begin as 0
  problem::OperandTypes types;
};

Result<Lowering> lower_factors(const FactorsStep& step, const Target& target);

}  // namespace heddle::engine::cuda
