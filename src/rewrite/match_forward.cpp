#include <algorithm>

#include "rewrite/match.h"

namespace heddle::rewrite {

using hlo::Instruction;

namespace {

struct Values {
  Element v;
  std::optional<Element> keep;
};

/// Reads V and what dropout keeps out of sum_keys exp(z) * keep * V, perhaps masked a second time;
/// nothing if the sum is not that.
std::optional<Values> values_of(Algebra& algebra, const Softmax& softmax, AtomId sum) {
  const auto renaming = name_keys(algebra, softmax, softmax.score.keys, sum);
  if (!renaming) return std::nullopt;
  std::optional<Element> v, keep;
  const std::vector<AtomId>& of_mask = softmax.score.mask.indicators;
  for (const Power& p : Product(algebra.at(sum).product)) {
    const AtomId id = algebra.rename(p.atom, *renaming);
    const Atom atom = algebra.at(id);
    if (atom.kind == AtomKind::weight ||
        std::find(of_mask.begin(), of_mask.end(), id) != of_mask.end())
      continue;
    if (atom.kind == AtomKind::element && p.exponent == 1 && !v) {
      v = atom.element;
    } else if (atom.kind == AtomKind::indicator && !keep) {
      keep = atom.element;
    } else {
      return std::nullopt;
    }
  }
  if (!v) return std::nullopt;
  return Values{*v, keep};
}

/// sum_keys P * keep * V, the weights masked by `again`.
Poly output(Algebra& algebra, const Softmax& softmax, const Values& values, const Poly& again) {
  Poly product = algebra.multiply(softmax.weight, again);
  if (values.keep) product = algebra.multiply(product, algebra.indicator(*values.keep));
  product = algebra.multiply(product, algebra.element(values.v));
  return algebra.multiply(algebra.sum(softmax.score.keys, product),
                          algebra.function(hlo::Opcode::divide, softmax.total));
}

}  // namespace

void free_bound(Elements& elements, const std::vector<Var>& bound,
                const std::vector<int64_t>& sizes, Element& a, Element& b,
                std::vector<Var>* names) {
  std::vector<Var> fresh;
  for (int64_t size : sizes) fresh.push_back(elements.fresh(size));
  for (Element* element : {&a, &b})
    for (Index& index : element->at)
      for (Var& v : index)
        if (const auto found = std::find(bound.begin(), bound.end(), v); found != bound.end())
          v = fresh[found - bound.begin()];
  if (names) *names = fresh;
}

Result<Match> match_forward(Algebra& algebra, Elements& elements, Region& region,
                            const Softmax& softmax) {
  const Poly normaliser = algebra.function(hlo::Opcode::divide, softmax.total);
  const Poly cells = visible_cells(algebra, softmax.score.mask);
  std::string reason = "no product of these weights with values was found";
  for (const Member* member : region.members(region.home())) {
    if (member->kind != Kind::derived) continue;
    const Instruction* x = member->place.x;
    const Poly value = region.value(member->place);
    if (value.empty()) continue;
    for (const Power& p : value[0].factors) {
      if (p.exponent != 1 || algebra.at(p.atom).kind != AtomKind::sum) continue;
      const auto values = values_of(algebra, softmax, p.atom);
      if (!values) continue;
      auto factor = Algebra::ratio(value, output(algebra, softmax, *values, Algebra::constant(1)));
      const bool masked_again = !factor;
      if (masked_again) factor = Algebra::ratio(value, output(algebra, softmax, *values, cells));
      if (!factor) {
        if (value.size() == 1 &&
            !Algebra::ratio(value, algebra.multiply({{1, {{p.atom, 1}}}}, normaliser)))
          reason = fmt::format("the weights summed in %{} are not normalised by their own sum",
                               x->name());
        continue;
      }
      Match match;
      match.home = region.home();
      match.anchor = region.anchor();
      match.score = softmax.score;
      free_bound(elements, softmax.score.depth, algebra.at(softmax.score.dot).sizes, match.score.q,
                 match.score.k, &match.score.depth);
      match.v = values->v;
      match.sink = softmax.sink;
      match.fully_masked_rows_are_zero = masked_again;
      if (values->keep) match.dropout = Dropout{*values->keep, *factor};
      match.outputs.push_back({Role::o, member->place, values->keep ? 1 : *factor});
      return match;
    }
  }
  return Status(Code::graph_not_supported, reason);
}

}  // namespace heddle::rewrite
