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
    const bool is_of_rows = atom.kind == AtomKind::indicator && !varies(atom.element, keys);
    if ((atom.kind != AtomKind::element && !is_of_rows) || std::abs(p.exponent) > kMaxExponent)
      return std::nullopt;
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

Product row_indicators_of(const Algebra& algebra, Region& region, const Score& score,
                          const Product& product) {
  Product found;
  const auto& of_mask = score.mask.indicators;
  std::copy_if(product.begin(), product.end(), std::back_inserter(found), [&](const Power& p) {
    const Atom& atom = algebra.at(p.atom);
    return atom.kind == AtomKind::indicator && !varies(atom.element, score.keys) &&
           std::find(of_mask.begin(), of_mask.end(), p.atom) == of_mask.end() &&
           !region.depends_on_scores(atom.element);
  });
  return found;
}

}  // namespace heddle::rewrite
