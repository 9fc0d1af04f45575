#include "rewrite/softmax.h"

#include <algorithm>

namespace heddle::rewrite {

Result<Softmax> softmax_of(Algebra& algebra, Region& region) {
  if (region.keys().empty())
    return error(Code::graph_not_supported, "nothing sums this exponential over an axis");
  const Poly value = region.value(region.anchor());
  std::optional<AtomId> weight;
  if (value.size() == 1)
    for (const Power& p : value[0].factors)
      if (algebra.at(p.atom).kind == AtomKind::weight && p.exponent == 1) weight = p.atom;
  if (!weight)
    return error(Code::graph_not_supported,
                 "the exponential's argument does not vary along the axis it is summed over");
  Softmax softmax;
  softmax.z = algebra.at(*weight).argument;
  softmax.weight = algebra.weight(softmax.z);
  softmax.total = algebra.sum(region.keys(), softmax.weight);
  softmax.probability = algebra.multiply(softmax.weight, *Algebra::reciprocal(softmax.total));
  HEDDLE_ASSIGN(softmax.score, score_of(algebra, softmax.z, region.keys()));
  for (AtomId id : softmax.score.mask.indicators)
    if (region.depends_on_scores(algebra.at(id).element))
      return error(
          Code::graph_not_supported,
          "the mask (%{}) is made of the scores themselves, so they would be computed anyway",
          algebra.at(id).element.x->name());
  return softmax;
}

std::optional<Algebra::Renaming> name_keys(Algebra& algebra, const Softmax& softmax,
                                           const std::vector<Var>& keys, AtomId id) {
  const Atom sum = algebra.at(id);
  if (sum.kind != AtomKind::sum || sum.bound.size() != keys.size()) return std::nullopt;
  const auto weight = std::find_if(sum.product.begin(), sum.product.end(), [&](const Power& p) {
    return algebra.at(p.atom).kind == AtomKind::weight && p.exponent == 1;
  });
  if (weight == sum.product.end()) return std::nullopt;
  std::vector<Var> order = keys;
  std::sort(order.begin(), order.end());
  do {
    Algebra::Renaming renaming;
    for (size_t i = 0; i < order.size(); ++i) renaming[sum.bound[i]] = order[i];
    if (algebra.at(algebra.rename(weight->atom, renaming)).argument == softmax.z) return renaming;
  } while (order.size() <= 5 && std::next_permutation(order.begin(), order.end()));
  return std::nullopt;
}

}  // namespace heddle::rewrite
