#include <algorithm>

#include "rewrite/match.h"

namespace heddle::rewrite {

using hlo::Instruction;

namespace {

struct Values {
  Element v;
  std::optional<Keep> keep;
  Product of_keys;  // numbers of each key beside V
};

/// The axes of `elements` that scores lack.
Index columns_among(const Algebra& algebra, const Product& elements, const Index& scores) {
  Index columns;
  for (const Power& p : elements)
    for (Var v : flat(algebra.at(p.atom).element.at))
      if (std::find(scores.begin(), scores.end(), v) == scores.end()) columns.push_back(v);
  return columns;
}

/// Reads V and what dropout keeps out of sum_keys exp(z) * keep * V, perhaps masked a second time
/// and times numbers of each key; nothing if the sum is not that.
std::optional<Values> values_of(Algebra& algebra, const Softmax& softmax, const Index& axes,
                                AtomId sum) {
  const auto renaming = name_keys(algebra, softmax, softmax.score.keys, sum);
  if (!renaming) return std::nullopt;
  std::optional<Keep> keep;
  Product elements;
  const std::vector<AtomId>& of_mask = softmax.score.mask.indicators;
  for (const Power& p : Product(algebra.at(sum).product)) {
    const AtomId id = algebra.rename(p.atom, *renaming);
    const Atom atom = algebra.at(id);
    if (atom.kind == AtomKind::weight ||
        std::find(of_mask.begin(), of_mask.end(), id) != of_mask.end())
      continue;
    if (atom.kind == AtomKind::element) {
      elements.push_back({id, p.exponent});
    } else if (atom.kind == AtomKind::indicator && !keep) {
      keep = Keep{atom.element};
    } else {
      return std::nullopt;
    }
  }
  // Of several V is the one that has columns.
  const Index columns = columns_among(algebra, elements, axes);
  const auto is_v = [&](const Power& p) {
    return elements.size() == 1 || varies(algebra.at(p.atom).element, columns);
  };
  const auto v = std::find_if(elements.begin(), elements.end(), is_v);
  if (v == elements.end() || v->exponent != 1) return std::nullopt;
  Values values{algebra.at(v->atom).element, keep, {}};
  elements.erase(v);
  std::sort(elements.begin(), elements.end());
  values.of_keys = std::move(elements);
  return values;
}

/// sum_keys P * keep * V, the weights masked by `again`.
Poly output(Algebra& algebra, const Softmax& softmax, const Values& values, const Poly& again) {
  Poly product = algebra.multiply(softmax.weight, again);
  if (values.keep) product = algebra.multiply(product, kept(algebra, *values.keep));
  product = algebra.multiply(product, algebra.element(values.v));
  product = algebra.multiply(product, {{1, values.of_keys}});
  return algebra.multiply(algebra.sum(softmax.score.keys, product),
                          algebra.function(hlo::Opcode::divide, softmax.total));
}

/// The predicate beside one of the sums of `value`, as of weights that are taken away where it
/// holds.
std::optional<Element> predicate_beside(Algebra& algebra, const Softmax& softmax, const Index& axes,
                                        const Poly& value) {
  for (const Monomial& m : value)
    for (const Power& p : m.factors) {
      if (p.exponent != 1 || algebra.at(p.atom).kind != AtomKind::sum) continue;
      const auto values = values_of(algebra, softmax, axes, p.atom);
      if (values && values->keep) return values->keep->predicate;
    }
  return std::nullopt;
}

/// How a value is `factor` times the weights that are kept times values.
struct Reading {
  std::optional<Keep> keep;
  bool masked_again = false;
  double factor = 1;
};

/// That of `value`, of which `values` are read of one sum; nothing if it is no multiple of it.
std::optional<Reading> reading_of(Algebra& algebra, const Softmax& softmax, const Index& axes,
                                  const Poly& value, Values values, const Poly& of_rows) {
  std::vector<std::optional<Keep>> keeps{values.keep};
  // All weights less those that dropout takes away are several terms.
  if (value.size() > 1)
    if (const auto dropped = predicate_beside(algebra, softmax, axes, value))
      keeps.push_back(Keep{*dropped, true});
  const Poly everywhere = Algebra::constant(1);
  const Poly cells = visible_cells(algebra, softmax.score.mask);
  for (const auto& keep : keeps)
    for (const bool again : {false, true}) {
      values.keep = keep;
      const Poly of_values = output(algebra, softmax, values, again ? cells : everywhere);
      if (const auto factor = algebra.ratio(value, algebra.multiply(of_values, of_rows)))
        return Reading{keep, again, *factor};
    }
  return std::nullopt;
}

/// `output`, or what shows it in rows that see a key alone, where nothing else reads it: of the
/// others it is 0 already.
Element shown(Algebra& algebra, Elements& elements, Region& region, Element output) {
  for (;;) {
    const std::vector<const Instruction*> users = elements.users(output.x);
    if (output.x->is_root() || users.size() != 1 || !users[0]->is(hlo::Opcode::select))
      return output;
    Element next{output.frame, users[0], output.at};
    if (!region.find(next.frame, next.x) ||
        algebra.ratio(region.value(next), region.value(output)) != 1.0 ||
        !region.holds_without_keys(next))
      return output;
    output = std::move(next);
  }
}

}  // namespace

Poly kept(Algebra& algebra, const Keep& keep) {
  const Poly holds = algebra.indicator(keep.predicate);
  return keep.is_negated ? algebra.add(Algebra::constant(1), algebra.scale(holds, -1)) : holds;
}

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

namespace {

/// A match of `region` with the values `v` and nothing else.
Match match_of(Elements& elements, const Algebra& algebra, const Region& region,
               const Softmax& softmax, const Element& v) {
  Match match;
  match.home = region.home();
  match.anchor = region.anchor();
  match.score = softmax.score;
  free_bound(elements, softmax.score.depth, algebra.at(softmax.score.dot).sizes, match.score.q,
             match.score.k, &match.score.depth);
  match.v = v;
  return match;
}

/// The exponentials times values, of which the row's maximum and the sum of its exponentials say
/// what part of a larger softmax they are. What is taken off the scores may be larger than the
/// maximum: then the sum is that much smaller, and what it is a factor of. Fails with a
/// reason if the program has these in another form.
Result<Match> match_part(Algebra& algebra, Elements& elements, Region& region,
                         const Softmax& softmax) {
  const auto taken_off = region.taken_off();
  if (!taken_off)
    return error(Code::graph_not_supported,
                 "nothing is taken off their scores that is known to be the largest of each row, "
                 "alone or among others");
  const int home = region.home();
  // A number of all scores, of which a call is not told, is in the maximum, too.
  if (softmax.sink || softmax.score.mask.shift != 0 || region.anchor().frame != home ||
      taken_off->number.frame != home || taken_off->maximum.frame != home)
    return error(Code::graph_not_supported, "their maximum is not that of a call's scores");
  const Poly factor = algebra.exponential(algebra.scale(region.value(taken_off->number), -1), {},
                                          [](const Monomial&) { return false; });
  const auto is_times_taken_off = [&](const Poly& value, const Poly& of) {
    return algebra.ratio(value, algebra.multiply(of, factor)) == 1.0;
  };
  // Nor is it told of numbers of a row, which then stand beside the maximum here.
  if (!is_times_taken_off(region.value(region.anchor()), softmax.weight))
    return error(Code::graph_not_supported,
                 "all scores of a row have a number besides, which a call is not told");
  const std::vector<const Member*> members = region.members(home);
  const auto sum = std::find_if(members.begin(), members.end(), [&](const Member* member) {
    return member->kind == Kind::derived && is_sum(elements, home, member->place.x) &&
           is_times_taken_off(region.value(member->place), softmax.total);
  });
  if (sum == members.end())
    return error(Code::graph_not_supported, "nothing adds up these exponentials as they are");
  for (const Member* member : members) {
    if (member->kind != Kind::derived || !is_contraction(elements, home, member->place.x)) continue;
    const Poly value = region.value(member->place);
    if (value.size() != 1) continue;
    for (const Power& p : value[0].factors) {
      if (p.exponent != 1 || algebra.at(p.atom).kind != AtomKind::sum) continue;
      const auto values = values_of(algebra, softmax, flat(region.anchor().at), p.atom);
      // Values made of the row's maximum could not be there before the call that gives it.
      const bool is_plain = values && !values->keep && values->of_keys.empty() &&
                            !region.depends_on_scores(values->v);
      if (!is_plain ||
          !is_times_taken_off(
              value, algebra.sum(softmax.score.keys,
                                 algebra.multiply(softmax.weight, algebra.element(values->v)))))
        continue;
      Match match = match_of(elements, algebra, region, softmax, values->v);
      match.factors.of_rows = {{(*sum)->place, false}};
      match.outputs = {{Role::o, member->place},
                       {Role::max, taken_off->maximum},
                       {Role::sum_exp, (*sum)->place}};
      if (!(taken_off->number == taken_off->maximum)) match.taken_off = taken_off->number;
      return match;
    }
  }
  return error(Code::graph_not_supported, "they are not multiplied by values as they are");
}

}  // namespace

Result<Match> match_forward(Algebra& algebra, Elements& elements, Region& region,
                            const Softmax& softmax) {
  const Poly normaliser = algebra.function(hlo::Opcode::divide, softmax.total);
  const Index axes = flat(region.anchor().at);
  std::string reason = "no product of these weights with values was found";
  bool is_normalised = true;  // as far as the reason goes
  for (const Member* member : region.members(region.home())) {
    if (member->kind != Kind::derived) continue;
    const Instruction* x = member->place.x;
    const Poly value = region.value(member->place);
    if (value.empty()) continue;
    for (const Power& p : value[0].factors) {
      if (p.exponent != 1 || algebra.at(p.atom).kind != AtomKind::sum) continue;
      const auto values = values_of(algebra, softmax, axes, p.atom);
      if (!values) continue;
      const Poly of_rows = algebra.multiply(
          {{1, elements_of(algebra, value[0].factors)}},
          {{1, row_indicators_of(algebra, region, softmax.score, value[0].factors)}});
      Product beside = of_rows[0].factors;
      beside.insert(beside.end(), values->of_keys.begin(), values->of_keys.end());
      const auto factors = weight_factors(algebra, beside, axes, softmax.score.keys);
      if (!factors) continue;
      const auto read = reading_of(algebra, softmax, axes, value, *values, of_rows);
      if (!read) {
        if (value.size() == 1 &&
            !algebra.ratio(
                value,
                algebra.multiply(algebra.multiply({{1, {{p.atom, 1}}}}, normaliser), of_rows))) {
          is_normalised = false;
          reason = fmt::format("the weights summed in %{} are not normalised by their own sum",
                               x->name());
        }
        continue;
      }
      if (!region.holds_without_keys(member->place)) {
        is_normalised = true;
        reason = fmt::format("rows that see no key are not 0 in %{}", x->name());
        continue;
      }
      Match match = match_of(elements, algebra, region, softmax, values->v);
      match.factors = *factors;
      match.sink = softmax.sink;
      match.fully_masked_rows_are_zero = read->masked_again;
      if (read->keep) match.dropout = Dropout{*read->keep, read->factor};
      match.outputs.push_back({Role::o, shown(algebra, elements, region, member->place),
                               read->keep ? 1 : read->factor});
      return match;
    }
  }
  auto part = match_part(algebra, elements, region, softmax);
  if (part) return part;
  if (!is_normalised) reason += ", and no part of a softmax: " + part.status().message();
  return Status(Code::graph_not_supported, reason);
}

}  // namespace heddle::rewrite
