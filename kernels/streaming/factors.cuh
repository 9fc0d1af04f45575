// Products of numbers that lie on the device, for the kernels behind to read, and numbers that
// these raise from 0. One block, a thread for each.
#pragma once

#include "../ptx/types.cuh"
#include "arguments.h"

namespace heddle::streaming {

HEDDLE_DEVICE void make_factors(const FactorsArguments& args) {
  const int n = static_cast<int>(threadIdx.x);
  if (n < args.zeroed_count) *args.zeroed[n] = 0.0f;
  if (n >= args.product_count) return;
  const Product& product = args.products[n];
  float of = product.number * product.passed, by = 1.0f;
  for (int i = 0; i < product.of_count; ++i) of *= *product.of[i];
  for (int i = 0; i < product.by_count; ++i) by *= *product.by[i];
  *product.to = product.is_magnitude ? fabsf(of / by) : of / by;
}

}  // namespace heddle::streaming
