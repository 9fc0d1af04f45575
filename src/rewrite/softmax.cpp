#include "rewrite/softmax.h"

#include <algorithm>
#include <cmath>
#include <set>

namespace heddle::rewrite {

namespace {

Status check_mask(const Algebra& algebra, Region& region, const Mask& mask) {
  for (AtomId id : mask.indicators)
    if (region.depends_on_scores(algebra.at(id).element))
      return error(
          Code::graph_not_supported,
          "the mask (%{}) is made of the scores themselves, so they would be computed anyway",
          algebra.at(id).element.x->name());
  return {};
}

}  // namespace

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
  softmax.probability =
      algebra.multiply(softmax.weight, algebra.function(hlo::Opcode::divide, softmax.total));
  HEDDLE_ASSIGN(softmax.score, score_of(algebra, softmax.z, region.keys()));
  softmax.score.is_shifted = value[0].factors.size() > 1;
  HEDDLE_TRY(check_mask(algebra, region, softmax.score.mask));
  return softmax;
}

Result<Softmax> softmax_by_number(Algebra& algebra, Region& region) {
  const auto difference = region.less_number();
  if (!difference || region.keys().empty())
    return error(Code::graph_not_supported, "no number of each row is taken off the scores");
  Softmax softmax;
  softmax.number = difference->number;
  softmax.z = algebra.intern(region.value(difference->scores));
  softmax.weight = softmax.probability = region.value(region.anchor());
  softmax.total = Algebra::constant(1);
  HEDDLE_ASSIGN(softmax.score, score_of(algebra, softmax.z, region.keys()));
  HEDDLE_TRY(check_mask(algebra, region, softmax.score.mask));
  return softmax;
}

namespace {

/// The sink, if `sum` is a multiple of the weights' sum `total` and of one term more.
std::optional<std::pair<Sink, Poly>> sink_in(Algebra& algebra, const Poly& sum, AtomId total) {
  if (sum.size() != 2) return std::nullopt;
  for (size_t i = 0; i < 2; ++i) {
    // What both are multiplied by is what stands beside the total.
    const auto beside = algebra.reciprocal({sum[i]});
    if (!beside) continue;
    const Poly one = algebra.multiply({{1, {{total, 1}}}}, *beside);
    const Poly term =
        algebra.multiply(algebra.multiply({sum[1 - i]}, *beside), {{1, {{total, 1}}}});
    if (one.size() != 1 || term.size() != 1) continue;
    const bool has_total = std::any_of(sum[i].factors.begin(), sum[i].factors.end(),
                                       [&](const Power& p) { return p.atom == total; });
    const Monomial& m = term[0];
    if (!has_total || !(m.coefficient > 0) || !std::isfinite(m.coefficient)) continue;
    if (m.factors.empty()) return std::pair(Sink{std::nullopt, std::log(m.coefficient)}, term);
    if (m.factors.size() != 1 || m.factors[0].exponent != 1 || std::abs(m.coefficient - 1) > 1e-6)
      continue;
    const Atom exponential = algebra.at(m.factors[0].atom);
    if (exponential.kind != AtomKind::function || exponential.function != hlo::Opcode::exponential)
      continue;
    const Poly& logit = algebra.at_poly(exponential.argument);
    if (logit.size() != 1 || logit[0].coefficient != 1 || logit[0].factors.size() != 1 ||
        logit[0].factors[0].exponent != 1)
      continue;
    const Atom& atom = algebra.at(logit[0].factors[0].atom);
    if (atom.kind == AtomKind::element) return std::pair(Sink{atom.element, 0}, term);
  }
  return std::nullopt;
}

}  // namespace

std::optional<Softmax> with_sink(Algebra& algebra, Region& region, const Softmax& softmax) {
  // A number left out of the scores is all the same to the keys, but not to a sink.
  if (softmax.score.mask.shift != 0 || softmax.total.size() != 1 ||
      softmax.total[0].factors.size() != 1)
    return std::nullopt;
  const int frame = region.anchor().frame;
  for (const Member* member : region.members(frame)) {
    if (member->kind != Kind::derived || !member->place.x->is(hlo::Opcode::add)) continue;
    const auto sink =
        sink_in(algebra, region.value(member->place), softmax.total[0].factors[0].atom);
    if (!sink) continue;
    Softmax result = softmax;
    result.sink = sink->first;
    result.total = algebra.add(softmax.total, sink->second);
    const Poly inverse = algebra.function(hlo::Opcode::divide, result.total);
    result.probability = algebra.multiply(softmax.weight, inverse);
    result.sink_probability = algebra.multiply(sink->second, inverse);
    return result;
  }
  return std::nullopt;
}

namespace {

/// The elements of which the products in `atom` are made.
std::vector<Element> elements_in(const Algebra& algebra, AtomId atom) {
  std::vector<Element> elements;
  std::vector<AtomId> work{atom};
  std::set<AtomId> seen;
  while (!work.empty()) {
    const AtomId id = work.back();
    work.pop_back();
    if (!seen.insert(id).second) continue;
    const Atom& at = algebra.at(id);
    if (at.kind == AtomKind::element) elements.push_back(at.element);
    for (const Power& p : at.product) work.push_back(p.atom);
    if (at.kind != AtomKind::function && at.kind != AtomKind::weight) continue;
    for (const Monomial& m : algebra.at_poly(at.argument))
      for (const Power& p : m.factors) work.push_back(p.atom);
  }
  return elements;
}

/// What makes of `bound` in `read` the `axes` that stand in their places in `whole`; nothing if
/// they are not all there, or `read` is of another value.
std::optional<Renaming> renaming_by(const Element& whole, const Element& read,
                                    const std::vector<Var>& bound, const std::vector<Var>& axes) {
  if (read.frame != whole.frame || read.x != whole.x) return std::nullopt;
  const auto contains = [](const std::vector<Var>& in, Var v) {
    return std::find(in.begin(), in.end(), v) != in.end();
  };
  const Index from = flat(read.at), to = flat(whole.at);
  Renaming renaming;
  std::set<Var> named;
  for (size_t i = 0; i < from.size(); ++i)
    if (contains(axes, to[i]) && contains(bound, from[i])) named.insert(renaming[from[i]] = to[i]);
  const bool is_whole = renaming.size() == axes.size() && named.size() == axes.size();
  return is_whole ? std::optional(renaming) : std::nullopt;
}

/// How the bound variables of a sum that holds the softmax's weight are named by `axes` of
/// `whole`, the queries or keys.
std::optional<Renaming> name_axes(Algebra& algebra, const Softmax& softmax, const Element& whole,
                                  const std::vector<Var>& axes, AtomId id) {
  const Atom sum = algebra.at(id);
  if (sum.kind != AtomKind::sum || sum.bound.size() != axes.size()) return std::nullopt;
  const auto weight = std::find_if(sum.product.begin(), sum.product.end(), [&](const Power& p) {
    return algebra.at(p.atom).kind == AtomKind::weight && p.exponent == 1;
  });
  if (weight == sum.product.end()) return std::nullopt;
  // Both weights read the same part of the product: their digits stand at the same places there.
  for (const Element& read : elements_in(algebra, weight->atom)) {
    auto renaming = renaming_by(whole, read, sum.bound, axes);
    if (renaming && algebra.at(algebra.rename(weight->atom, *renaming)).argument == softmax.z)
      return renaming;
  }
  return std::nullopt;
}

}  // namespace

std::optional<Renaming> name_keys(Algebra& algebra, const Softmax& softmax,
                                  const std::vector<Var>& keys, AtomId id) {
  return name_axes(algebra, softmax, softmax.score.k, keys, id);
}

std::optional<Renaming> name_rows(Algebra& algebra, const Softmax& softmax,
                                  const std::vector<Var>& rows, AtomId id) {
  return name_axes(algebra, softmax, softmax.score.q, rows, id);
}

}  // namespace heddle::rewrite
