#include "rewrite/score.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <set>

#include "rewrite/reach.h"

namespace heddle::rewrite {

namespace {

constexpr double kLargestFillOfOnes = -1e4;  // times what the scores are multiplied by
// Beside 1e4 an f32 is off by 1e-3 at most.
constexpr double kSwallowing = 1e4;

bool depends(const std::vector<Var>& support, const std::vector<Var>& on) {
  return std::any_of(support.begin(), support.end(),
                     [&](Var v) { return std::find(on.begin(), on.end(), v) != on.end(); });
}

/// `z` with indicators replaced by their values, its constant apart.
struct Assigned {
  Poly rest;
  double constant = 0;
};

Assigned assign(const Algebra& algebra, const Poly& z, const std::vector<AtomId>& indicators,
                size_t bits) {
  Assigned result;
  Poly constants;
  for (const Monomial& m : z) {
    Monomial left{m.coefficient, {}};
    bool vanishes = false;
    for (const Power& p : m.factors) {
      const auto i = std::find(indicators.begin(), indicators.end(), p.atom) - indicators.begin();
      if (static_cast<size_t>(i) == indicators.size()) {
        left.factors.push_back(p);
      } else if (!(bits >> i & 1)) {
        vanishes = true;
      }
    }
    if (vanishes) continue;
    Poly& sum = left.factors.empty() ? constants : result.rest;
    sum = algebra.add(sum, {left});
  }
  result.constant = Algebra::number(constants);
  return result;
}

/// By ascending number.
std::vector<AtomId> indicators_in(const Algebra& algebra, const Poly& poly) {
  std::set<AtomId> found;
  for (const Monomial& m : poly)
    for (const Power& p : m.factors)
      if (algebra.at(p.atom).kind == AtomKind::indicator) found.insert(p.atom);
  return {found.begin(), found.end()};
}

bool is_product(const Algebra& algebra, const Monomial& m) {
  return std::any_of(m.factors.begin(), m.factors.end(), [&](const Power& p) {
    const AtomKind kind = algebra.at(p.atom).kind;
    return kind == AtomKind::sum || kind == AtomKind::function;
  });
}

/// Whether `m` is the product of queries and keys with numbers of tensors as factors.
bool is_scaled(const Algebra& algebra, const Monomial& m) {
  return is_product(algebra, m) && std::any_of(m.factors.begin(), m.factors.end(), [&](Power p) {
           return algebra.at(p.atom).kind == AtomKind::element;
         });
}

/// How large a term can be, infinity if that is not known: a divisor may be 0.
double reach_of(const Algebra& algebra, const Monomial& m) {
  const auto& of_element = is_scaled(algebra, m) ? algebra.reach_of_factor : algebra.reach;
  double reach = std::abs(m.coefficient);
  for (const Power& p : m.factors) {
    const Atom& atom = algebra.at(p.atom);
    if (atom.kind == AtomKind::sum && p.exponent == 1)
      reach *= kReachOfProducts;
    else if (atom.kind == AtomKind::element && p.exponent > 0 && of_element)
      reach *= std::pow(of_element(atom.element), p.exponent);
    else
      return -kMinusInfinity;
  }
  return reach;
}

/// Whether `m` is the product of queries and keys one of which the program may divide by 0.
bool may_overflow(const Algebra& algebra, const Monomial& m) {
  return std::any_of(m.factors.begin(), m.factors.end(), [&](const Power& p) {
    return algebra.at(p.atom).kind == AtomKind::sum &&
           may_be_infinite(algebra, algebra.at(p.atom).product);
  });
}

/// Whether the terms of `scores` that data may make anything, by themselves or as factors of the
/// product of queries and keys, could together be as low as `fill`.
bool may_reach(const Algebra& algebra, const Poly& scores, double fill) {
  double reach = 0;
  for (const Monomial& m : scores) {
    if (may_overflow(algebra, m)) return true;
    if (is_free(algebra, m) || is_scaled(algebra, m)) reach += reach_of(algebra, m);
  }
  return reach != 0 && !(reach < -fill / 4);  // a NaN is no bound
}

/// Whether `shift`, added to all scores, is there for terms of data to take away.
bool is_taken_away(const Algebra& algebra, const Poly& scores, double shift) {
  return std::abs(shift) >= kCancelling &&
         std::any_of(scores.begin(), scores.end(), [&](const Monomial& m) {
           return is_free(algebra, m) && std::abs(m.coefficient) >= std::abs(shift) / 4;
         });
}

/// What `m` is for scores whose product of queries and keys has no factor and is not scaled.
Monomial unscaled(const Monomial& m, const Monomial* product) {
  if (!product) return m;
  Monomial result{m.coefficient / product->coefficient, {}};
  std::set_difference(m.factors.begin(), m.factors.end(), product->factors.begin(),
                      product->factors.end(), std::back_inserter(result.factors));
  return result;
}

/// Whether terms of `scores` are what the program multiplied a sum by, as (a - b) * fill is: each
/// of them may be far larger than they are together.
bool may_cancel(const Algebra& algebra, const Poly& scores) {
  const Monomial* product = nullptr;
  std::vector<const Monomial*> terms;
  for (const Monomial& m : scores) {
    if (is_product(algebra, m))
      product = &m;
    else if (!m.factors.empty())
      terms.push_back(&m);
  }
  for (const Monomial* a : terms)
    for (const Monomial* b : terms) {
      if (a == b || !is_free(algebra, *b)) continue;
      const Monomial x = unscaled(*a, product), y = unscaled(*b, product);
      if (algebra.holds_multiple(y, x)) return true;
      if (!is_free(algebra, *a)) continue;
      Product common;
      std::set_intersection(x.factors.begin(), x.factors.end(), y.factors.begin(), y.factors.end(),
                            std::back_inserter(common));
      const double size = std::min(std::abs(x.coefficient), std::abs(y.coefficient));
      if (!common.empty() || size >= kCancelling) return true;
    }
  return false;
}

/// Of scores to which one of two numbers is added, the lower number, which scores may reach;
/// nothing of all others.
std::optional<double> added_fill(const Algebra& algebra, const std::vector<Assigned>& values) {
  double low = values[0].constant, high = low;
  for (const Assigned& value : values) {
    if (value.rest.empty() || !(algebra.ratio(values[0].rest, value.rest) == 1.0)) return {};
    low = std::min(low, value.constant);
    high = std::max(high, value.constant);
  }
  const bool are_two = std::all_of(values.begin(), values.end(), [&](const Assigned& value) {
    return value.constant == low || value.constant == high;
  });
  return are_two && low < high && low > kLargestFill ? std::optional(low) : std::nullopt;
}

/// Whether `visible` has a term that little of the scores is left beside, and `hidden` has not: a
/// fill that what multiplies all scores multiplied too, for one, taken off those of the whole row.
bool is_lifted(const Algebra& algebra, const Poly& visible, const Poly& hidden) {
  return std::any_of(visible.begin(), visible.end(), [&](const Monomial& m) {
    return m.coefficient >= kSwallowing && is_free(algebra, m) &&
           std::none_of(hidden.begin(), hidden.end(), [&](const Monomial& other) {
             return other.factors == m.factors && other.coefficient == m.coefficient;
           });
  });
}

/// How `hidden`, what an invisible score has besides a constant, comes from the visible score.
Hiding hiding_of(Algebra& algebra, const Poly& visible, const Poly& hidden) {
  if (hidden.empty()) return Hiding::replaces;
  if (algebra.ratio(visible, hidden) == 1.0) return Hiding::adds;
  const Poly lost = algebra.add(visible, algebra.scale(hidden, -1));
  const bool only_product = lost.size() == 1 && is_product(algebra, lost[0]);
  return only_product ? Hiding::replaces_product : Hiding::mixes;
}

/// Takes those indicators away that make no score visible: of hidden scores alone, whatever is
/// added to their fill.
void leave_what_decides(Mask& mask) {
  for (size_t i = mask.indicators.size(); i-- > 0;) {
    const auto where = [&](const std::vector<bool>& of, bool holds) {
      std::vector<bool> half;
      for (size_t bits = 0; bits < of.size(); ++bits)
        if ((bits >> i & 1) == holds) half.push_back(of[bits]);
      return half;
    };
    if (where(mask.visible, false) != where(mask.visible, true)) continue;
    mask.indicators.erase(mask.indicators.begin() + static_cast<std::ptrdiff_t>(i));
    std::vector<bool> fails = where(mask.never_weighs, false),
                      both = where(mask.never_weighs, true);
    for (size_t bits = 0; bits < both.size(); ++bits) both[bits] = both[bits] && fails[bits];
    mask.visible = where(mask.visible, true);
    mask.never_weighs = std::move(both);
  }
}

/// Whether the text alone says that `element` is far above a mask's fill.
bool is_bounded(const Algebra& algebra, const Element& element) {
  const hlo::Literal* literal = element.x->literal();
  if (!literal) return algebra.is_fixed && algebra.is_fixed(element);
  if (literal->is_elided()) return false;
  for (int64_t i = 0; i < literal->element_count(); ++i)
    if (!(std::abs(literal->get(i)) < -kLargestFill / 2)) return false;
  return true;
}

}  // namespace

bool is_free(const Algebra& algebra, const Monomial& m) {
  std::vector<Var> of_data, of_text;
  bool has_data = false;  // perhaps of one number, which varies along no axis
  for (const Power& p : m.factors) {
    const Atom& atom = algebra.at(p.atom);
    if (atom.kind == AtomKind::indicator) return m.coefficient <= kLargestFill;
    if (atom.kind != AtomKind::element) return false;
    const bool is_text = is_bounded(algebra, atom.element);
    has_data = has_data || !is_text;
    auto& of = is_text ? of_text : of_data;
    of.insert(of.end(), algebra.support(p.atom).begin(), algebra.support(p.atom).end());
  }
  return has_data && (of_text.empty() || depends(of_data, of_text));
}

bool may_be_infinite(const Algebra& algebra, const Product& product) {
  return std::any_of(product.begin(), product.end(), [&](const Power& p) {
    const Atom& atom = algebra.at(p.atom);
    if (atom.kind == AtomKind::sum) return may_be_infinite(algebra, atom.product);
    return atom.kind == AtomKind::element && algebra.may_be_infinite &&
           algebra.may_be_infinite(atom.element);
  });
}

bool swallows_scores(const Algebra& algebra, const Monomial& m) {
  const bool is_number = std::all_of(m.factors.begin(), m.factors.end(), [&](const Power& p) {
    return algebra.at(p.atom).kind == AtomKind::indicator;
  });
  return is_number ? std::abs(m.coefficient) >= kSwallowing : is_free(algebra, m);
}

bool Mask::hides_anything() const {
  return std::find(visible.begin(), visible.end(), false) != visible.end();
}

bool holds_fills(const Algebra& algebra, const Poly& scores, double largest) {
  const std::vector<AtomId> indicators = indicators_in(algebra, scores);
  if (indicators.size() > kMaxIndicators) return false;
  for (size_t bits = 0; bits < size_t{1} << indicators.size(); ++bits) {
    const Assigned value = assign(algebra, scores, indicators, bits);
    const double size = std::abs(as_written(value.constant));
    // Beside a score there is room for as much again.
    if (value.constant > kMinusInfinity && size > (value.rest.empty() ? largest : largest / 2))
      return false;
  }
  return true;
}

std::vector<Poly> beside_fills(const Algebra& algebra, const Poly& scores) {
  std::vector<Poly> all;
  const std::vector<AtomId> indicators = indicators_in(algebra, scores);
  if (indicators.size() > kMaxIndicators) return all;
  for (size_t bits = 0; bits < size_t{1} << indicators.size(); ++bits) {
    Assigned value = assign(algebra, scores, indicators, bits);
    if (value.constant <= kLargestFill && value.constant > kMinusInfinity && !value.rest.empty())
      all.push_back(std::move(value.rest));
  }
  return all;
}

std::string weighed_by_fills(const Algebra& algebra, const Mask& mask) {
  return fmt::format(
      "the mask (%{}) hides scores by several fills, by which a row that sees no key weighs its "
      "keys; one fill where any of its predicates hides would weigh them alike",
      algebra.at(mask.indicators[0]).element.x->name());
}

Result<Mask> mask_of(Algebra& algebra, PolyId id) {
  const Poly z = algebra.at_poly(id);
  Mask mask;
  mask.indicators = indicators_in(algebra, z);
  if (mask.indicators.size() > kMaxIndicators)
    return error(Code::graph_not_supported, "the mask combines {} predicates; at most {} are read",
                 mask.indicators.size(), kMaxIndicators);
  const size_t assignments = size_t{1} << mask.indicators.size();
  std::optional<Poly> visible;
  std::optional<double> fill;
  std::vector<Poly> hidden;
  std::vector<Assigned> values;
  for (size_t bits = 0; bits < assignments; ++bits)
    values.push_back(assign(algebra, z, mask.indicators, bits));
  const double lowest = std::max(kLargestFill, added_fill(algebra, values).value_or(kLargestFill));
  for (const Assigned& value : values) {
    const bool is_visible = value.constant > lowest && !value.rest.empty();
    mask.visible.push_back(is_visible);
    mask.never_weighs.push_back(value.constant <= kMinusInfinity);
    if (is_visible) {
      if (visible &&
          (!(algebra.ratio(*visible, value.rest) == 1.0) || value.constant != mask.shift))
        return error(Code::graph_not_supported,
                     "the score is not the same wherever the mask lets it through (a select or "
                     "an added constant within reach of the scores is no mask)");
      if (!visible) {
        visible = value.rest;
        mask.shift = value.constant;
      }
    } else {
      mask.fill = std::max(mask.fill, value.constant);
      if (!fill) fill = value.constant;
      if (*fill != value.constant) mask.hiding = Hiding::mixes;
      hidden.push_back(value.rest);
    }
  }
  if (!visible) return error(Code::graph_not_supported, "the mask lets no score through");
  mask.visible_score = *visible;
  if (std::abs(mask.shift) >= kSwallowing || is_taken_away(algebra, *visible, mask.shift))
    return error(Code::graph_not_supported,
                 "{} is added to the scores, beside which little of them is left", mask.shift);
  if (may_cancel(algebra, *visible))
    return error(
        Code::graph_not_supported,
        "what is added to the scores is a sum of numbers far larger than it may be, beside "
        "which little of the scores is left");
  if (mask.fill > kMinusInfinity) mask.fill -= mask.shift;
  mask.scores_reach_fill = mask.fill > kLargestFill;
  for (const Monomial& m : *visible)
    if (!mask.scores_reach_fill && mask.fill > kLargestFillOfOnes * std::abs(m.coefficient))
      return error(Code::graph_not_supported,
                   "masked scores are filled with {}, which scores of numbers times {} can reach",
                   as_written(mask.fill), m.coefficient);
  for (size_t i = 0; i < hidden.size(); ++i) {
    if (is_lifted(algebra, *visible, hidden[i]))
      return error(Code::graph_not_supported,
                   "numbers are added to the visible scores alone, beside which little of these is "
                   "left");
    const Hiding hiding = hiding_of(algebra, *visible, hidden[i]);
    mask.hiding =
        mask.hiding == Hiding::mixes || (i > 0 && mask.hiding != hiding) ? Hiding::mixes : hiding;
  }
  leave_what_decides(mask);
  for (AtomId id : mask.indicators)
    mask.is_fixed =
        mask.is_fixed && (!algebra.is_fixed || algebra.is_fixed(algebra.at(id).element));
  mask.has_free_terms = std::any_of(visible->begin(), visible->end(),
                                    [&](const Monomial& m) { return is_free(algebra, m); });
  mask.terms_reach_fill = may_reach(algebra, *visible, mask.fill);
  return mask;
}

namespace {

/// 1 for the assignments of `indicators` that `table` says, else 0.
Poly cells_of(Algebra& algebra, const std::vector<AtomId>& indicators,
              const std::vector<bool>& table) {
  Poly sum;
  for (size_t bits = 0; bits < table.size(); ++bits) {
    if (!table[bits]) continue;
    Poly product = Algebra::constant(1);
    for (size_t i = 0; i < indicators.size(); ++i) {
      const Poly holds = {{1, {{indicators[i], 1}}}};
      product = algebra.multiply(
          product,
          bits >> i & 1 ? holds : algebra.add(Algebra::constant(1), algebra.scale(holds, -1)));
    }
    sum = algebra.add(sum, product);
  }
  return sum;
}

}  // namespace

Poly visible_cells(Algebra& algebra, const Mask& mask) {
  return cells_of(algebra, mask.indicators, mask.visible);
}

Poly weighed_cells(Algebra& algebra, const Mask& mask) {
  std::vector<bool> weigh = mask.never_weighs;
  weigh.flip();
  return mask.may_mask_whole_rows() ? cells_of(algebra, mask.indicators, weigh)
                                    : visible_cells(algebra, mask);
}

Poly visibility(Algebra& algebra, const Mask& mask) {
  return mask.may_mask_whole_rows() ? visible_cells(algebra, mask) : Algebra::constant(1);
}

Algebra::Implied implied(const Mask& mask) {
  Algebra::Implied result;
  if (mask.may_mask_whole_rows()) return result;
  for (size_t i = 0; i < mask.indicators.size(); ++i) {
    bool can_hold = false, can_fail = false;
    for (size_t bits = 0; bits < mask.visible.size(); ++bits)
      if (mask.visible[bits]) (bits >> i & 1 ? can_hold : can_fail) = true;
    if (can_hold != can_fail) result.emplace_back(mask.indicators[i], can_hold);
  }
  return result;
}

std::optional<Contraction> contraction(const Algebra& algebra, AtomId id,
                                       const std::vector<Var>& keys) {
  const Atom& atom = algebra.at(id);
  if (atom.kind != AtomKind::sum || atom.product.size() > 2) return std::nullopt;
  std::vector<AtomId> elements;
  for (const Power& p : atom.product) {
    if (algebra.at(p.atom).kind != AtomKind::element || p.exponent < 1) return std::nullopt;
    elements.insert(elements.end(), static_cast<size_t>(p.exponent), p.atom);
  }
  if (elements.size() != 2) return std::nullopt;
  if (depends(algebra.support(elements[0]), keys)) std::swap(elements[0], elements[1]);
  if (depends(algebra.support(elements[0]), keys) || !depends(algebra.support(elements[1]), keys))
    return std::nullopt;
  return Contraction{algebra.at(elements[0]).element, algebra.at(elements[1]).element, atom.bound,
                     atom.sizes};
}

std::optional<Element> summed_element(const Algebra& algebra, AtomId id,
                                      const std::vector<Var>& keys) {
  const Atom& atom = algebra.at(id);
  if (atom.kind != AtomKind::sum || atom.product.size() != 1 || atom.product[0].exponent != 1)
    return std::nullopt;
  const Atom& summed = algebra.at(atom.product[0].atom);
  if (summed.kind != AtomKind::element || !varies(summed.element, keys)) return std::nullopt;
  return summed.element;
}

namespace {

std::vector<Score::Bias> biases_of(const Algebra& algebra, const Score& score) {
  std::vector<AtomId> order;
  std::map<AtomId, bool> is_term;
  const auto meet = [&](AtomId atom, bool alone) {
    const auto [met, is_new] = is_term.try_emplace(atom, alone);
    if (is_new) order.push_back(atom);
    met->second = is_new && alone;
  };
  for (const Monomial& m : score.added)
    for (const Power& p : m.factors)
      meet(p.atom, m.coefficient == 1 && m.factors.size() == 1 && p.exponent == 1);
  for (const Power& p : score.factors) meet(p.atom, false);
  if (score.soft_cap)
    for (const Monomial& m : score.soft_cap->added)
      for (const Power& p : m.factors) meet(p.atom, false);
  std::vector<Score::Bias> biases;
  for (AtomId atom : order) biases.push_back({algebra.at(atom).element, is_term[atom]});
  const auto axes = [](const Score::Bias& b) { return b.is_term ? flat(b.element.at).size() : 0; };
  std::stable_sort(biases.begin(), biases.end(), [&](const Score::Bias& a, const Score::Bias& b) {
    return std::pair(a.is_term, axes(a)) > std::pair(b.is_term, axes(b));
  });
  return biases;
}

}  // namespace

namespace {

// Scores are made of a product by a few operations.
constexpr size_t kMaxMakers = 64;

/// Why scores without a product of queries and keys have none, where one is in sight behind them.
std::string without_product(const Algebra& algebra, const Poly& scores,
                            const std::vector<Var>& keys) {
  using hlo::Opcode;
  for (const Monomial& m : scores)
    for (const Power& p : m.factors) {
      const Atom& atom = algebra.at(p.atom);
      if (atom.kind != AtomKind::element || !varies(atom.element, keys)) continue;
      const hlo::Instruction* made = atom.element.x;
      if (made->is(Opcode::dot))
        return fmt::format(
            "one product of queries and keys (%{}) serves several rows of scores, which only "
            "what is added to it, or hides some, tells apart",
            made->name());
      std::vector<const hlo::Instruction*> makers{made};
      for (size_t i = 0; i < makers.size() && makers.size() < kMaxMakers; ++i) {
        if (makers[i]->is(Opcode::dot))
          return fmt::format(
              "the product of queries and keys (%{}) goes into the scores by %{} "
              "({}), which is no function of scores that calls compute",
              makers[i]->name(), made->name(), hlo::name(made->opcode()));
        const bool passes_on = hlo::is_elementwise(makers[i]->opcode()) ||
                               makers[i]->is(Opcode::reshape) || makers[i]->is(Opcode::transpose) ||
                               makers[i]->is(Opcode::broadcast) || makers[i]->is(Opcode::copy);
        if (passes_on)
          makers.insert(makers.end(), makers[i]->operands().begin(), makers[i]->operands().end());
      }
    }
  return "the scores hold no product of queries and keys";
}

}  // namespace

Result<Score> score_of(Algebra& algebra, PolyId z, const std::vector<Var>& keys) {
  Score score;
  score.z = z;
  score.keys = keys;
  HEDDLE_ASSIGN(score.mask, mask_of(algebra, z));
  bool found = false;
  const auto take_dot = [&](AtomId atom) {
    const auto dot = contraction(algebra, atom, keys);
    if (!dot || found) return false;
    found = true;
    score.dot = atom;
    score.q = dot->row;
    score.k = dot->key;
    score.depth = dot->bound;
    return true;
  };
  const auto are_elements = [&](const Product& factors) {
    return std::all_of(factors.begin(), factors.end(), [&](const Power& p) {
      return algebra.at(p.atom).kind == AtomKind::element;
    });
  };
  const auto divides = [](const Power& p) { return p.exponent < 0; };
  for (const Monomial& m : score.mask.visible_score) {
    const Atom* only = m.factors.size() == 1 && m.factors[0].exponent == 1
                           ? &algebra.at(m.factors[0].atom)
                           : nullptr;
    Product beside = m.factors;
    const size_t sums = std::erase_if(beside, [&](const Power& p) {
      return algebra.at(p.atom).kind == AtomKind::sum && p.exponent == 1;
    });
    if (sums == 1 && are_elements(beside)) {
      const Power dot = *std::find_if(m.factors.begin(), m.factors.end(), [&](const Power& p) {
        return algebra.at(p.atom).kind == AtomKind::sum;
      });
      if (!take_dot(dot.atom))
        return error(Code::graph_not_supported,
                     "the scores are not one product of queries and keys over head_dim");
      score.scale = m.coefficient;
      score.factors = beside;
    } else if (only && only->kind == AtomKind::function && only->function == hlo::Opcode::tanh) {
      score.soft_cap = SoftCap{m.coefficient, 0, {}};
      for (const Monomial& inner : Poly(algebra.at_poly(only->argument))) {
        const Power* alone = inner.factors.size() == 1 && inner.factors[0].exponent == 1
                                 ? &inner.factors[0]
                                 : nullptr;
        if (alone && take_dot(alone->atom))
          score.soft_cap->inner = inner.coefficient;
        else if (!inner.factors.empty() && are_elements(inner.factors) &&
                 std::none_of(inner.factors.begin(), inner.factors.end(), divides))
          score.soft_cap->added.push_back(inner);
        else
          return error(Code::graph_not_supported,
                       "the soft cap's tanh is not of one product of queries and keys, nor of "
                       "biases beside it");
      }
      if (score.soft_cap->inner == 0)
        return error(Code::graph_not_supported,
                     "the soft cap's tanh is not of a product of queries and keys");
    } else if (!m.factors.empty() && are_elements(m.factors) &&
               (std::none_of(m.factors.begin(), m.factors.end(), divides) ||
                std::abs(m.coefficient) < kSwallowing)) {
      score.added.push_back(m);
    } else {
      return error(Code::graph_not_supported,
                   "the scores hold a term that is neither a product of queries and keys, a soft "
                   "cap of one, nor a bias");
    }
  }
  if (!found)
    return error(Code::graph_not_supported, "{}",
                 without_product(algebra, score.mask.visible_score, keys));
  score.biases = biases_of(algebra, score);
  if (!score.biases.empty()) score.bias = score.biases[0];
  return score;
}

namespace {

/// The derivative of `factors` by `element`.
Poly derivative_of(Algebra& algebra, const Product& factors, const Element& element) {
  Poly rest;
  for (const Power& p : factors) {
    if (!(algebra.at(p.atom).element == element)) continue;
    rest = Algebra::constant(p.exponent);
    for (Power other : factors) {
      if (other.atom == p.atom) --other.exponent;
      if (other.exponent != 0) rest = algebra.multiply(rest, {{1, {other}}});
    }
  }
  return rest;
}

/// That of a capped score by what the cap is of.
Poly derivative_of_cap(Algebra& algebra, const Score& score) {
  const Poly dot = {{score.soft_cap->inner, {{score.dot, 1}}}};
  const Poly t = algebra.function(hlo::Opcode::tanh, algebra.add(dot, score.soft_cap->added));
  const Poly slope = algebra.add(Algebra::constant(1), algebra.scale(algebra.multiply(t, t), -1));
  return algebra.scale(slope, score.soft_cap->cap);
}

}  // namespace

Slope derivative_by(Algebra& algebra, const Score& score, const Score::Bias& bias) {
  Slope slope;
  slope.of_product = algebra.multiply({{score.scale, {{score.dot, 1}}}},
                                      derivative_of(algebra, score.factors, bias.element));
  const auto by_terms = [&](const Poly& terms) {
    Poly sum;
    for (const Monomial& m : terms)
      sum = algebra.add(
          sum, algebra.scale(derivative_of(algebra, m.factors, bias.element), m.coefficient));
    return sum;
  };
  if (score.soft_cap)
    slope.of_product = algebra.add(
        slope.of_product,
        algebra.multiply(derivative_of_cap(algebra, score), by_terms(score.soft_cap->added)));
  slope.of_added = by_terms(score.added);
  return slope;
}

Poly derivative(Algebra& algebra, const Score& score) {
  if (!score.soft_cap) return {{score.scale, score.factors}};
  return algebra.scale(derivative_of_cap(algebra, score), score.soft_cap->inner);
}

}  // namespace heddle::rewrite
