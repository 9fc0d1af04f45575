// What a program multiplies its weights by after the softmax, as a mask of heads does. A number of
// each row or head goes over to O and dO, one of each key to V and dV, where it is a thousandth of
// the work and no rows x keys are needed for it. So does a predicate of rows without which they are
// 0.
#pragma once

#include <optional>
#include <vector>

#include "rewrite/softmax.h"

namespace heddle::rewrite {

struct WeightFactor {
  Element place;  // a predicate stands for 1 where it holds, else for 0, whatever it multiplies
  bool divides = false;
  friend bool operator==(const WeightFactor&, const WeightFactor&) = default;
};

struct WeightFactors {
  std::vector<WeightFactor> of_rows, of_keys;

  size_t size() const { return of_rows.size() + of_keys.size(); }
  /// Those of rows first.
  const WeightFactor& operator[](size_t i) const {
    return i < of_rows.size() ? of_rows[i] : of_keys[i - of_rows.size()];
  }
};

/// `product` as such factors: elements that vary along axes of the scores alone, `scores`, of which
/// `keys` are the softmax's; nothing if another is among them.
std::optional<WeightFactors> weight_factors(const Algebra& algebra, const Product& product,
                                            const Index& scores, const std::vector<Var>& keys);

/// The powers of elements in `product`.
Product elements_of(const Algebra& algebra, const Product& product);

/// The indicators in `product` that are of rows, and neither of a mask of the scores nor made of
/// them.
Product row_indicators_of(const Algebra& algebra, Region& region, const Score& score,
                          const Product& product);

}  // namespace heddle::rewrite
