#include "rewrite/weight_factors.h"

#include <algorithm>
#include <cstdlib>

namespace heddle::rewrite {

namespace {

// A power is a factor for each of its exponent; programs write squares at most.
constexpr int kMaxExponent = 2;

}  // namespace

std::optional<WeightFactors> weight_factors(const Algebra& algebra, const Product& product,
                                            const Index& scores, const std::vector<Var>& keys) {
  WeightFactors factors;
  for (const Power& p : product) {
    const Atom& atom = algebra.at(p.atom);
    if (atom.kind != AtomKind::element || std::abs(p.exponent) > kMaxExponent) return std::nullopt;
    const Index labels = flat(atom.element.at);
    if (std::any_of(labels.begin(), labels.end(), [&](Var v) {
          return std::find(scores.begin(), scores.end(), v) == scores.end();
        }))
      return std::nullopt;
    auto& to = varies(atom.element, keys) ? factors.of_keys : factors.of_rows;
    to.insert(to.end(), std::abs(p.exponent), WeightFactor{atom.element, p.exponent < 0});
  }
  return factors;
}

Product elements_of(const Algebra& algebra, const Product& product) {
  Product elements;
  std::copy_if(product.begin(), product.end(), std::back_inserter(elements),
               [&](const Power& p) { return algebra.at(p.atom).kind == AtomKind::element; });
  return elements;
}

}  // namespace heddle::rewrite
