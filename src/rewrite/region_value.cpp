// The normal form of a region's elements.
#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "rewrite/arithmetic.h"
#include "rewrite/region.h"
#include "rewrite/score.h"
#include "rewrite/steps.h"

namespace heddle::rewrite {

using hlo::Instruction;
using hlo::Opcode;

namespace {

// Beyond these a value is no longer what attention is made of: it is one unknown.
constexpr size_t kMaxTerms = 64;
constexpr size_t kMaxFactors = 512;
constexpr int kMaxExponent = 64;
constexpr int kMaxNesting = 64;  // of functions of functions
// Sums inside of sums: each expands what it sums over with labels of its own.
constexpr int kMaxNested = 12;

bool is_too_large(const Poly& poly) {
  size_t factors = 0;
  for (const Monomial& m : poly) {
    factors += m.factors.size();
    for (const Power& p : m.factors)
      if (std::abs(p.exponent) > kMaxExponent) return true;
  }
  return poly.size() > kMaxTerms || factors > kMaxFactors;
}

/// The number that a value without elements and indicators is.
std::optional<double> constant_of(const std::optional<Poly>& value) {
  if (!value || value->size() > 1) return std::nullopt;
  if (value->empty()) return 0;
  return (*value)[0].factors.empty() ? std::optional((*value)[0].coefficient) : std::nullopt;
}

/// Whether a term says all that it is by its form: one element times a number, or a mask.
bool is_plain(const Algebra& algebra, const Poly& term) {
  const auto is_mask = [&](const Monomial& m) {
    return std::all_of(
               m.factors.begin(), m.factors.end(),
               [&](const Power& p) { return algebra.at(p.atom).kind == AtomKind::indicator; }) &&
           std::abs(m.coefficient) >= -kLargestFill;
  };
  if (Algebra::is_number(term) || std::all_of(term.begin(), term.end(), is_mask)) return true;
  return term.size() == 1 &&
         std::all_of(term[0].factors.begin(), term[0].factors.end(),
                     [&](const Power& p) { return algebra.at(p.atom).kind == AtomKind::element; });
}

/// Whether finite queries and keys make finite numbers of weights of these scores, but for those of
/// rows without keys. What scores are divided by may be 0.
bool are_finite(const Algebra& algebra, const Poly& scores) {
  return std::all_of(scores.begin(), scores.end(), [&](const Monomial& m) {
    return !may_be_infinite(algebra, m.factors) &&
           std::none_of(m.factors.begin(), m.factors.end(), [&](const Power& p) {
             const Atom& atom = algebra.at(p.atom);
             return p.exponent < 0 ||
                    (atom.kind == AtomKind::function && atom.function != Opcode::tanh);
           });
  });
}

/// Whether it is one product of finite queries and keys, times a number that makes it no larger.
bool is_product(const Algebra& algebra, const Poly& value) {
  return value.size() == 1 && std::abs(value[0].coefficient) <= 1 && value[0].factors.size() == 1 &&
         value[0].factors[0].exponent == 1 &&
         algebra.at(value[0].factors[0].atom).kind == AtomKind::sum &&
         !may_be_infinite(algebra, value[0].factors);
}

/// What a value is computed of: by arithmetic alone of positions, and what else but constants,
/// parameters and functions of these.
struct Leaves {
  bool positions = false, others = false;
};

Leaves leaves_of(Elements& elements, const Element& root) {
  const auto is_arithmetic = [](const Instruction* x) {
    return x->is(Opcode::convert) || x->is(Opcode::add) || x->is(Opcode::subtract) ||
           x->is(Opcode::multiply) || x->is(Opcode::divide) || x->is(Opcode::negate) ||
           x->is(Opcode::abs) || x->is(Opcode::minimum) || x->is(Opcode::maximum);
  };
  Leaves leaves;
  constexpr size_t kMost = 64;
  std::vector<std::pair<Element, bool>> work{{elements.resolve(root), true}};
  std::set<std::tuple<int, const Instruction*, bool>> seen;
  while (!work.empty()) {
    const auto [e, by_arithmetic] = std::move(work.back());
    work.pop_back();
    const Instruction* x = e.x;
    if (!seen.emplace(e.frame, x, by_arithmetic).second) continue;
    if (hlo::is_elementwise(x->opcode()) && seen.size() < kMost) {
      for (int i = 0; i < x->operand_count(); ++i)
        work.emplace_back(operand_of(elements, e, i), by_arithmetic && is_arithmetic(x));
    } else if (x->is(Opcode::iota)) {
      leaves.positions = leaves.positions || by_arithmetic;
    } else if (!x->is(Opcode::constant) && !x->is(Opcode::parameter)) {
      leaves.others = true;
    }
  }
  return leaves;
}

/// Whether arithmetic on positions is rounded to a narrower type, by a conversion or because it is
/// of one: distances in the hundreds become other numbers there, and are no terms that a call
/// computes. XLA rounds what is of a narrower type on a GPU; on a CPU it may not.
bool rounds_positions(Elements& elements, const Element& e) {
  const auto exact = [](const Instruction* x) { return largest_exact(x->shape().type()); };
  if (e.x->is(Opcode::convert))
    return exact(e.x->operand(0)) > exact(e.x) && leaves_of(elements, e).positions;
  if (exact(e.x) >= largest_exact(hlo::ElementType::f32)) return false;
  const Leaves leaves = leaves_of(elements, e);
  return leaves.positions && !leaves.others;
}

}  // namespace

const Poly* Region::known_value(const Element& place) {
  if (algebra_.exhausted()) return &(unknown_ = algebra_.element(place));
  Key key = key_of(place);
  if (const auto known = values_.find(key); known != values_.end()) return &known->second;
  std::optional<Poly> value = mask_values_.value(place);
  if (!value && (!find(place.frame, place.x) || !is_wide_floating(place.x->shape().type())))
    value = leaf(place);
  return value ? &values_.emplace(std::move(key), std::move(*value)).first->second : nullptr;
}

Poly Region::value(const Element& element) {
  const Element place = elements_.resolve(element);
  if (const Poly* known = known_value(place)) return *known;
  // Operands before what is made of them: the program may be deep, the stack is not.
  std::vector<Element> work{place};
  while (!work.empty()) {
    const Element at = work.back();
    const size_t before = work.size();
    if (!known_value(at)) {
      for (int i = 0; hlo::is_elementwise(at.x->opcode()) && i < at.x->operand_count(); ++i) {
        Element operand = operand_of(elements_, at, i);
        if (!known_value(operand)) work.push_back(std::move(operand));
      }
      if (work.size() > before) continue;
      Poly result = expand(at);
      if (is_too_large(result) || algebra_.nesting(result) > kMaxNesting)
        result = algebra_.element(at);
      values_.emplace(key_of(at), std::move(result));
    }
    work.pop_back();
  }
  return *known_value(place);
}

Poly Region::sum_of(const Poly& a, const Poly& b) {
  Poly sum = algebra_.cancel(algebra_.add(a, b));
  const bool holds_logarithm = std::any_of(sum.begin(), sum.end(), [&](const Monomial& m) {
    return std::any_of(m.factors.begin(), m.factors.end(), [&](const Power& p) {
      const Atom& atom = algebra_.at(p.atom);
      return atom.kind == AtomKind::function && atom.function == Opcode::log;
    });
  });
  rounds_logarithm_ = rounds_logarithm_ || (!is_of_keys(sum) && holds_logarithm && sum.size() > 1);
  // A mask may be added: of a row that it hides whole no weight is left, as without a fill.
  const auto adds_to = [&](const Poly& scores, const Poly& added) {
    return is_shifted(scores) && std::any_of(added.begin(), added.end(), [&](const Monomial& m) {
             return is_of_keys({m}) &&
                    std::any_of(m.factors.begin(), m.factors.end(), [&](const Power& p) {
                      return algebra_.at(p.atom).kind != AtomKind::indicator;
                    });
           });
  };
  adds_to_shifted_ = adds_to_shifted_ || adds_to(a, b) || adds_to(b, a);
  return sum;
}

bool Region::is_of_keys(const Poly& poly) const {
  const std::vector<Var> axes = algebra_.support(poly);
  return std::any_of(axes.begin(), axes.end(), [&](Var v) {
    return std::find(keys_.begin(), keys_.end(), v) != keys_.end();
  });
}

bool Region::is_shifted(const Poly& poly) const {
  return is_of_keys(poly) && std::any_of(poly.begin(), poly.end(), [&](const Monomial& m) {
           return !m.factors.empty() && !is_of_keys({m}) &&
                  std::all_of(m.factors.begin(), m.factors.end(), [&](const Power& p) {
                    const Atom& atom = algebra_.at(p.atom);
                    return atom.kind == AtomKind::element &&
                           find(atom.element.frame, atom.element.x) != nullptr;
                  });
         });
}

Poly Region::expand(const Element& e) {
  const Instruction* x = e.x;
  const auto operand = [&](int i) { return value(operand_of(elements_, e, i)); };
  switch (x->opcode()) {
    case Opcode::convert:
      return is_rounding(x) && !rounds_positions(elements_, e) ? operand(0) : algebra_.element(e);
    case Opcode::add:
      if (rounds_positions(elements_, e)) return algebra_.element(e);
      if (const auto sum = behind_guard(e)) return value(*sum);
      return sum_of(addend(e, 0), addend(e, 1));
    case Opcode::subtract:
      if (rounds_positions(elements_, e)) return algebra_.element(e);
      return sum_of(addend(e, 0), algebra_.scale(addend(e, 1), -1));
    case Opcode::negate:
      return algebra_.scale(operand(0), -1);
    case Opcode::multiply:
      if (rounds_positions(elements_, e)) return algebra_.element(e);
      return algebra_.multiply(factor(e, 0), factor(e, 1));
    case Opcode::divide:
      if (rounds_positions(elements_, e)) return algebra_.element(e);
      return algebra_.multiply(factor(e, 0), algebra_.function(Opcode::divide, operand(1)));
    case Opcode::select: {
      if (guards_numbers(e)) return operand(2);
      if (shows_all_weights(e)) return operand(1);
      const Poly p = operand(0);
      const Poly not_p = algebra_.add(Algebra::constant(1), algebra_.scale(p, -1));
      return algebra_.add(algebra_.multiply(p, operand(1)), algebra_.multiply(not_p, operand(2)));
    }
    case Opcode::maximum:
      // max(x, -inf): how a maximum over an empty axis is guarded.
      for (int i = 0; i < 2; ++i)
        if (const auto bound = constant_of(operand(i)); bound && *bound <= kMinusInfinity)
          return operand(1 - i);
      if (const auto sum = behind_guard(e)) return value(*sum);
      return algebra_.element(e);
    case Opcode::exponential:
      // Beside what is added to all scores of a row nothing of them may be left.
      return algebra_.exponential(operand(0), keys_of(e), [this](const Monomial& m) {
        return swallows_scores(algebra_, m) &&
               std::none_of(m.factors.begin(), m.factors.end(), [this](const Power& p) {
                 const Element& element = algebra_.at(p.atom).element;
                 return find(element.frame, element.x) != nullptr;
               });
      });
    case Opcode::abs: {
      const Poly x = operand(0);
      return algebra_.is_nonnegative(x) ? x : algebra_.element(e);
    }
    case Opcode::log:
    case Opcode::tanh:
    case Opcode::sqrt:
    case Opcode::rsqrt:
      return algebra_.function(x->opcode(), operand(0));
    case Opcode::dot:
    case Opcode::reduce: {
      if (nested_ >= kMaxNested || (x->is(Opcode::reduce) && !is_sum(elements_, e.frame, x)))
        return algebra_.element(e);
      ++nested_;
      Poly result = x->is(Opcode::dot) ? dot(e) : reduce(e);
      --nested_;
      return result;
    }
    default:
      return algebra_.element(e);
  }
}

bool Region::guards_numbers(const Element& select) {
  const Element predicate = operand_of(elements_, select, 0);
  if (!predicate.x->is(Opcode::compare)) return false;
  const Element x = operand_of(elements_, predicate, 0), y = operand_of(elements_, predicate, 1);
  const bool asks_for_no_number = predicate.x->direction() == "NE" && key_of(x) == key_of(y) &&
                                  constant_of(value(operand_of(elements_, select, 1))) == 0.0;
  const auto bound = elements_.splat(y.frame, y.x);
  const bool asks_for_infinity = predicate.x->direction() == "EQ" && bound && std::isinf(*bound);
  if (!(asks_for_no_number || asks_for_infinity) || !find(x.frame, x.x)) return false;
  if (!is_made_of_weights(x)) return is_product(algebra_, value(x));
  const Poly weights = value(anchor_), of = value(x);
  return of.size() == 1 && holds_fills() &&
         std::any_of(of[0].factors.begin(), of[0].factors.end(), [&](Power p) {
           const Atom& atom = algebra_.at(p.atom);
           const bool is_own = weights.size() == 1 &&
                               std::find(weights[0].factors.begin(), weights[0].factors.end(), p) !=
                                   weights[0].factors.end();
           return atom.kind == AtomKind::weight && is_own &&
                  are_finite(algebra_, algebra_.at_poly(atom.argument));
         });
}

bool Region::shows_all_weights(const Element& select) {
  const Poly weights = value(operand_of(elements_, select, 1));
  if (weights.size() != 1 || elements_.splat(select.frame, select.x->operand(2)) != 0.0)
    return false;
  const Product& factors = weights[0].factors;
  const auto weight = std::find_if(factors.begin(), factors.end(), [&](const Power& p) {
    return algebra_.at(p.atom).kind == AtomKind::weight && p.exponent == 1;
  });
  if (weight == factors.end()) return false;
  const auto mask = mask_of(algebra_, algebra_.at(weight->atom).argument);
  if (!mask || !mask->hides_anything()) return false;
  const Poly cells = weighed_cells(algebra_, *mask);
  return algebra_.ratio(algebra_.multiply(cells, value(operand_of(elements_, select, 0))), cells) ==
         1.0;
}

bool Region::is_made_of_weights(const Element& element) const {
  std::vector<const Instruction*> work{element.x};
  std::set<const Instruction*> seen{element.x};
  while (!work.empty()) {
    const Instruction* x = work.back();
    work.pop_back();
    if (x == anchor_.x) return true;
    for (const Instruction* operand : x->operands())
      if (find(element.frame, operand) && seen.insert(operand).second) work.push_back(operand);
  }
  return false;
}

Poly Region::addend(const Element& sum, int i) {
  const Element at = operand_of(elements_, sum, i), other = operand_of(elements_, sum, 1 - i);
  Poly poly = value(at);
  if (terms_ == Terms::taken_apart || sum.frame != frame_) return poly;
  const auto term = scores_.find(elements_.representative(at.x));
  const auto scores = scores_.find(elements_.representative(other.x));
  const bool beside_scores = scores != scores_.end() && scores->second;
  const bool is_term = term == scores_.end() ? !find(at.frame, at.x) : !term->second;
  const bool says_all =
      terms_ == Terms::whole_with_fills ? Algebra::is_number(poly) : is_plain(algebra_, poly);
  return beside_scores && is_term && !says_all && !algebra_.is_fixed(at) ? algebra_.element(at)
                                                                         : poly;
}

std::optional<Index> Region::own_labels(int frame, const Instruction* operand, int64_t dim,
                                        const Index& taken) const {
  const Member* member = find(frame, operand);
  if (!member) return std::nullopt;
  const Index& labels = member->place.at[dim];
  const bool is_free = std::none_of(labels.begin(), labels.end(), [&](Var v) {
    return std::find(taken.begin(), taken.end(), v) != taken.end();
  });
  return is_free ? std::optional(labels) : std::nullopt;
}

Poly Region::dot(const Element& e) {
  const Instruction* x = e.x;
  const Instruction* sides[] = {x->operand(0), x->operand(1)};
  const std::span<const int64_t> batch[] = {x->lhs_batch_dims(), x->rhs_batch_dims()};
  const std::span<const int64_t> contracting[] = {x->lhs_contracting_dims(),
                                                  x->rhs_contracting_dims()};
  std::vector<Index> at[2], summed;
  Index taken = flat(e.at);
  for (size_t i = 0; i < contracting[0].size(); ++i) {
    auto own = own_labels(e.frame, sides[0], contracting[0][i], taken);
    if (!own) own = own_labels(e.frame, sides[1], contracting[1][i], taken);
    summed.push_back(own ? *own : elements_.fresh(sides[0], static_cast<int>(contracting[0][i])));
    taken.insert(taken.end(), summed.back().begin(), summed.back().end());
  }
  size_t next = batch[0].size();
  for (int side = 0; side < 2; ++side) {
    const int rank = sides[side]->shape().rank();
    at[side].resize(rank);
    std::vector<bool> placed(rank);
    for (size_t i = 0; i < batch[side].size(); ++i)
      at[side][batch[side][i]] = e.at[i], placed[batch[side][i]] = true;
    for (size_t i = 0; i < contracting[side].size(); ++i)
      at[side][contracting[side][i]] = summed[i], placed[contracting[side][i]] = true;
    for (int dim = 0; dim < rank; ++dim)
      if (!placed[dim]) at[side][dim] = e.at[next++];
  }
  const Poly product = algebra_.multiply(dot_operand({e.frame, sides[0], at[0]}),
                                         dot_operand({e.frame, sides[1], at[1]}));
  if (product.size() > kMaxTerms) return algebra_.element(e);
  return algebra_.sum(flat(summed), product);
}

Poly Region::reduce(const Element& e) {
  const Instruction* from = e.x->operand(0);
  std::vector<Index> at, summed;
  Index taken = flat(e.at);
  size_t next = 0;
  for (int dim = 0; dim < from->shape().rank(); ++dim) {
    const auto dims = e.x->dimensions();
    if (std::find(dims.begin(), dims.end(), dim) == dims.end()) {
      at.push_back(e.at[next++]);
    } else {
      const auto own = own_labels(e.frame, from, dim, taken);
      at.push_back(own ? *own : elements_.fresh(from, dim));
      summed.push_back(at.back());
      taken.insert(taken.end(), at.back().begin(), at.back().end());
    }
  }
  return algebra_.sum(flat(summed), summand({e.frame, from, std::move(at)}));
}

Poly Region::summand(const Element& element) {
  const auto product = product_behind(elements_, element);
  if (!product || find(product->frame, product->x)) return value(element);
  return algebra_.multiply(dot_operand(operand_of(elements_, *product, 0)),
                           dot_operand(operand_of(elements_, *product, 1)));
}

Poly Region::factor(const Element& product, int i) {
  // What multiplies vectors is read as a dot's operand is, so that both give the same gradients.
  const Element at = operand_of(elements_, product, i);
  return is_of_vectors(product) ? dot_operand(at) : value(at);
}

Poly Region::dot_operand(const Element& element) {
  const Element e = elements_.resolve(element);
  return find(e.frame, e.x) ? value(e) : stripped(e);
}

Poly Region::stripped(const Element& element) {
  // What only scales is taken off, and with it a rounding back to the type of what was scaled.
  double factor = 1;
  Element inner = elements_.resolve(element);
  std::optional<Element> rounded;  // what the rounding gives that is being looked through
  double outside = 1;              // the factor taken off before it
  const auto is_same_again = [&] {
    return factor != outside && inner.x->shape().type() == rounded->x->shape().type();
  };
  const auto number = [&](const Element& of) -> std::optional<double> {
    const auto c = constant_of(mask_values_.value(of));
    return c && *c != 0 && std::abs(*c) < -kMinusInfinity ? c : std::nullopt;
  };
  for (;;) {
    const Instruction* x = inner.x;
    const auto constant = [&](int i) { return number(operand_of(elements_, inner, i)); };
    // The gradient of a sum, which programs multiply by or leave out where it is 1.
    if (const auto c = number(inner)) return Algebra::constant(factor * *c);
    if (!is_wide_floating(x->shape().type())) break;
    int next = 0;
    if (x->is(Opcode::negate)) {
      factor = -factor;
    } else if (const auto c =
                   x->is(Opcode::multiply) || x->is(Opcode::divide) ? constant(1) : std::nullopt) {
      factor = x->is(Opcode::multiply) ? factor * *c : factor / *c;
    } else if (const auto c = x->is(Opcode::multiply) ? constant(0) : std::nullopt) {
      factor *= *c;
      next = 1;
    } else if (is_rounding(x) && (!rounded || is_same_again())) {
      rounded = inner;
      outside = factor;
    } else {
      break;
    }
    inner = operand_of(elements_, inner, next);
  }
  if (rounded && !is_same_again()) return algebra_.scale(leaf(*rounded), outside);
  return algebra_.scale(leaf(inner), factor);
}

Poly Region::leaf(const Element& element) {
  const auto before = kept_by_ ? elements_.computed_before(element, *kept_by_) : std::nullopt;
  return algebra_.element(before ? *before : element);
}

}  // namespace heddle::rewrite
