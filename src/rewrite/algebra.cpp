#include "rewrite/algebra.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>
#include <set>
#include <utility>

namespace heddle::rewrite {

using hlo::Opcode;

namespace {

bool intersects(const std::vector<Var>& a, const std::vector<Var>& b) {
  return std::any_of(a.begin(), a.end(),
                     [&](Var v) { return std::find(b.begin(), b.end(), v) != b.end(); });
}

/// Each once.
std::vector<Var> ascending(std::vector<Var> vars) {
  std::sort(vars.begin(), vars.end());
  vars.erase(std::unique(vars.begin(), vars.end()), vars.end());
  return vars;
}

void append(Key& key, const Product& product) {
  for (const Power& p : product) {
    key.push_back(p.atom);
    key.push_back(p.exponent);
  }
}

/// b, if a = b * b for a sum b of two terms without a minus sign; its terms are as a's first and
/// last.
std::optional<Poly> square_root(const Poly& a, double folded) {
  if (a.size() != 3) return std::nullopt;
  Poly roots;
  std::optional<Monomial> mixed;
  for (const Monomial& m : a) {
    Monomial root{std::sqrt(m.coefficient), m.factors};
    bool even = m.coefficient > 0;
    for (Power& p : root.factors) {
      even = even && p.exponent % 2 == 0;
      p.exponent /= 2;
    }
    if (even) {
      roots.push_back(std::move(root));
    } else if (!std::exchange(mixed, m)) {
      continue;
    } else {
      return std::nullopt;
    }
  }
  if (roots.size() != 2 || !mixed) return std::nullopt;
  Product product = roots[0].factors;
  for (const Power& p : roots[1].factors) {
    const auto at =
        std::lower_bound(product.begin(), product.end(), p,
                         [](const Power& x, const Power& y) { return x.atom < y.atom; });
    if (at != product.end() && at->atom == p.atom) {
      at->exponent += p.exponent;
    } else {
      product.insert(at, p);
    }
  }
  std::erase_if(product, [](const Power& p) { return p.exponent == 0; });
  const double expected = 2 * roots[0].coefficient * roots[1].coefficient;
  if (product != mixed->factors || std::abs(mixed->coefficient - expected) > folded * expected)
    return std::nullopt;
  return roots;
}

// A number added to one that is larger by more stays apart from it: what else is added may leave
// it. Programs' epsilons of 1e-6 and more beside a sum of 1 do not.
constexpr double kLost = 5e-7;

// Beyond it exp() of an f64 is infinite, or 0 of its negative.
constexpr double kLargestExponent = 700;

// Bound variables of a sum whose factors hold sums of at most `height` levels: below all theirs.
Var bound_name(int height, size_t i) { return -(height * 32 + static_cast<Var>(i) + 1); }

}  // namespace

Poly Algebra::constant(double value) {
  if (value == 0) return {};
  if (std::isinf(value) && value < 0) {
    value = kMinusInfinity;
  } else if (std::isfinite(value) && std::abs(value) > kLargestKept) {
    value *= kShareKept;
  }
  return {{value, {}}};
}

template <class Make>
AtomId Algebra::intern_by_key(const Make& make) {
  if (const auto known = atom_ids_.find(key_); known != atom_ids_.end()) return known->second;
  const auto id = static_cast<AtomId>(atoms_.size());
  atom_ids_.emplace(key_, id);
  describe(make());
  return id;
}

AtomId Algebra::intern(AtomKind kind, const Element& e, const Renaming& renaming) {
  key_.assign({static_cast<int64_t>(kind), e.frame, e.x->id()});
  for (const Index& index : e.at) {
    key_.push_back(INT64_MIN);
    for (Var v : index) key_.push_back(renaming.of(v));
  }
  return intern_by_key([&] {
    Atom a{kind, e};
    for (Index& index : a.element.at)
      for (Var& v : index) v = renaming.of(v);
    return a;
  });
}

AtomId Algebra::intern(AtomKind kind, Opcode function, PolyId argument) {
  key_.assign({static_cast<int64_t>(kind), static_cast<int64_t>(function), argument});
  return intern_by_key([&] {
    Atom a{kind};
    a.function = function;
    a.argument = argument;
    return a;
  });
}

AtomId Algebra::intern_sum(std::vector<Var> bound, std::vector<int64_t> sizes, Product product) {
  key_.assign({static_cast<int64_t>(AtomKind::sum)});
  key_.insert(key_.end(), sizes.begin(), sizes.end());
  key_.insert(key_.end(), bound.begin(), bound.end());
  append(key_, product);
  return intern_by_key([&] {
    Atom a{AtomKind::sum};
    a.bound = std::move(bound);
    a.sizes = std::move(sizes);
    a.product = std::move(product);
    return a;
  });
}

void Algebra::describe(Atom a) {
  std::vector<Var> free;
  int height = 0, nesting = 0;
  switch (a.kind) {
    case AtomKind::element:
    case AtomKind::indicator:
      free = ascending(flat(a.element.at));
      break;
    case AtomKind::function:
    case AtomKind::weight:
      free = support(polys_[a.argument]);
      height = poly_heights_[a.argument];
      nesting = 1 + this->nesting(polys_[a.argument]);
      break;
    case AtomKind::sum:
      free = support(a.product);
      height = 1 + this->height(a.product);
      nesting = 1 + this->nesting({{1, a.product}});
      std::erase_if(free, [&](Var v) {
        return std::find(a.bound.begin(), a.bound.end(), v) != a.bound.end();
      });
      break;
  }
  atoms_.push_back(std::move(a));
  supports_.push_back(std::move(free));
  heights_.push_back(height);
  nesting_.push_back(nesting);
}

PolyId Algebra::intern(const Poly& poly) {
  key_.clear();
  for (const Monomial& m : poly) {
    key_.push_back(std::bit_cast<int64_t>(m.coefficient));
    key_.push_back(static_cast<int64_t>(m.factors.size()));
    append(key_, m.factors);
  }
  if (const auto known = poly_ids_.find(key_); known != poly_ids_.end()) return known->second;
  const auto id = static_cast<PolyId>(polys_.size());
  poly_ids_.emplace(key_, id);
  int height = 0;
  for (const Monomial& m : poly) height = std::max(height, this->height(m.factors));
  polys_.push_back(poly);
  poly_heights_.push_back(height);
  return id;
}

int Algebra::height(const Product& product) const {
  int height = 0;
  for (const Power& p : product) height = std::max(height, heights_[p.atom]);
  return height;
}

std::vector<Var> Algebra::support(const Product& product) const {
  std::vector<Var> all;
  for (const Power& p : product)
    all.insert(all.end(), supports_[p.atom].begin(), supports_[p.atom].end());
  return ascending(std::move(all));
}

std::vector<Var> Algebra::support(const Poly& poly) const {
  std::vector<Var> all;
  for (const Monomial& m : poly)
    for (const Power& p : m.factors)
      all.insert(all.end(), supports_[p.atom].begin(), supports_[p.atom].end());
  return ascending(std::move(all));
}

void Algebra::normalise(Poly& poly) const {
  std::sort(poly.begin(), poly.end(), [](const Monomial& a, const Monomial& b) {
    if (a.factors != b.factors) return a.factors < b.factors;
    const double size_a = std::abs(a.coefficient), size_b = std::abs(b.coefficient);
    return size_a != size_b ? size_a > size_b : a.coefficient > b.coefficient;
  });
  for (size_t i = 1; i < poly.size();) {
    const double a = poly[i - 1].coefficient, b = poly[i].coefficient;
    if (poly[i - 1].factors != poly[i].factors || std::abs(b) < kLost * std::abs(a)) {
      ++i;
      continue;
    }
    // What is left is small beside a: a tenth of what folding is allowed elsewhere.
    Monomial sum{std::abs(a + b) <= folded_ / 10 * std::abs(a) ? 0 : a + b,
                 std::move(poly[i].factors)};
    poly.erase(poly.begin() + static_cast<ptrdiff_t>(i));
    poly.erase(poly.begin() + static_cast<ptrdiff_t>(--i));
    if (sum.coefficient != 0) {
      // It may be smaller than what stood behind it.
      const auto at = std::find_if(
          poly.begin() + static_cast<ptrdiff_t>(i), poly.end(), [&](const Monomial& m) {
            return m.factors != sum.factors || std::abs(m.coefficient) < std::abs(sum.coefficient);
          });
      poly.insert(at, std::move(sum));
    }
    i = std::max<size_t>(i, 1);
  }
}

bool Algebra::is_number(const Poly& poly) {
  return std::all_of(poly.begin(), poly.end(), [](const Monomial& m) { return m.factors.empty(); });
}

double Algebra::number(const Poly& poly) {
  double sum = 0;
  for (const Monomial& m : poly) sum += m.coefficient;
  return sum;
}

Poly Algebra::add(const Poly& a, const Poly& b) const {
  Poly result;
  result.reserve(a.size() + b.size());
  result.insert(result.end(), a.begin(), a.end());
  result.insert(result.end(), b.begin(), b.end());
  normalise(result);
  return result;
}

Poly Algebra::scale(const Poly& a, double factor) const {
  Poly result = a;
  for (Monomial& m : result) m.coefficient *= factor;
  std::erase_if(result, [](const Monomial& m) { return m.coefficient == 0; });
  return result;
}

Product Algebra::merged(const Product& first, const Product& second) {
  Product result;
  result.reserve(first.size() + second.size());
  auto a = first.begin(), b = second.begin();
  while (a != first.end() || b != second.end()) {
    if (b == second.end() || (a != first.end() && a->atom < b->atom)) {
      result.push_back(*a++);
    } else if (a == first.end() || b->atom < a->atom) {
      result.push_back(*b++);
    } else {
      const int exponent = a->exponent + b->exponent;
      if (exponent != 0) result.push_back({a->atom, exponent});
      ++a, ++b;
    }
  }
  return result;
}

bool Algebra::join(Product& into, const Product& other) {
  into = merged(into, other);
  return simplify(into);
}

bool Algebra::simplify(Product& product) {
  bool weighted = false;
  for (Power& p : product) {
    if (atoms_[p.atom].kind == AtomKind::indicator) p.exponent = 1;
    weighted = weighted || atoms_[p.atom].kind == AtomKind::weight;
  }
  if (!weighted || !implied_by_weight) return true;
  for (size_t i = 0; i < product.size(); ++i) {
    const Power p = product[i];
    if (atoms_[p.atom].kind != AtomKind::weight || p.exponent < 1) continue;
    const PolyId z = atoms_[p.atom].argument;
    auto known = implied_.find(z);
    if (known == implied_.end()) known = implied_.emplace(z, implied_by_weight(z)).first;
    for (const auto& [indicator, holds] : known->second) {
      const auto found = std::find_if(product.begin(), product.end(),
                                      [&, a = indicator](auto& q) { return q.atom == a; });
      if (found == product.end()) continue;
      if (!holds) return false;
      if (found - product.begin() < static_cast<ptrdiff_t>(i)) --i;
      product.erase(found);
    }
  }
  return true;
}

Poly Algebra::multiply(const Poly& a, const Poly& b) {
  Poly result;
  for (const Monomial& x : a)
    for (const Monomial& y : b) {
      Monomial m{x.coefficient * y.coefficient, merged(x.factors, y.factors)};
      if (simplify(m.factors)) result.push_back(std::move(m));
    }
  normalise(result);
  return result;
}

Poly Algebra::cancel(Poly a) {
  for (size_t i = 0; i < a.size(); ++i)
    for (size_t j = 0; j < a[i].factors.size(); ++j)
      if (auto less = cancelled(a, i, a[i].factors[j])) return cancel(std::move(*less));
  return a;
}

std::optional<Poly> Algebra::cancelled(const Poly& a, size_t i, Power p) {
  if (atoms_[p.atom].kind != AtomKind::function || atoms_[p.atom].function != Opcode::divide ||
      p.exponent < 1)
    return std::nullopt;
  const Poly sum = polys_[atoms_[p.atom].argument];
  if (sum.size() < 2 || sum.size() > a.size()) return std::nullopt;
  const Poly one = multiply(sum, {{1, {{p.atom, 1}}}});
  const auto beside = reciprocal({one[0]});
  if (!beside || one.size() != sum.size()) return std::nullopt;
  const Poly m = multiply({a[i]}, *beside), terms = multiply(m, one);
  if (m.size() != 1 || terms.size() != one.size()) return std::nullopt;
  Poly rest = a;
  for (const Monomial& term : terms) {
    const auto found = std::find_if(rest.begin(), rest.end(), [&](const Monomial& other) {
      return other.factors == term.factors &&
             std::abs(other.coefficient - term.coefficient) <= 1e-6 * std::abs(term.coefficient);
    });
    if (found == rest.end()) return std::nullopt;
    rest.erase(found);
  }
  return add(rest, m);
}

std::optional<Poly> Algebra::reciprocal(const Poly& a) const {
  if (a.size() != 1) return std::nullopt;
  Monomial m = a[0];
  m.coefficient = 1 / m.coefficient;
  for (Power& p : m.factors) {
    if (atoms_[p.atom].kind == AtomKind::indicator) return std::nullopt;
    p.exponent = -p.exponent;
  }
  return Poly{m};
}

Poly Algebra::function(Opcode f, const Poly& argument) {
  if (f == Opcode::divide) {
    if (auto inverse = reciprocal(argument)) return *inverse;
    if (argument.size() > 1) return reciprocal_of_sum(argument);
  }
  if (is_number(argument)) {
    const double x = number(argument);
    // A number that only hides beside others is no 0 where all are as low.
    const bool hides = std::abs(x) > kLargestExponent && std::abs(x) < -kMinusInfinity / 2;
    if (f == Opcode::exponential && !hides) return constant(std::exp(x));
    if (f == Opcode::log && x > 0) return constant(std::log(x));
    if (f == Opcode::tanh) return constant(std::tanh(x));
  }
  return atom(intern(AtomKind::function, f, intern(argument)));
}

Poly Algebra::reciprocal_of_sum(const Poly& sum) {
  // The factors that all terms have, to the least of their exponents, and the first coefficient.
  std::map<AtomId, int> least;
  for (const Monomial& m : sum)
    for (const Power& p : m.factors)
      if (atoms_[p.atom].kind != AtomKind::indicator) least.emplace(p.atom, p.exponent);
  for (auto& [atom, exponent] : least)
    for (const Monomial& m : sum) {
      const auto found = std::find_if(m.factors.begin(), m.factors.end(),
                                      [a = atom](const Power& p) { return p.atom == a; });
      exponent = std::min(exponent, found == m.factors.end() ? 0 : found->exponent);
    }
  Monomial common{1 / sum[0].coefficient, {}};
  for (const auto& [atom, exponent] : least)
    if (exponent != 0) common.factors.push_back({atom, -exponent});
  Poly rest;
  for (const Monomial& m : sum) {
    Monomial left{m.coefficient * common.coefficient, m.factors};
    // No simplification: indicators and weights keep their meaning in a sum.
    for (const Power& p : common.factors) {
      auto at = std::lower_bound(left.factors.begin(), left.factors.end(), p,
                                 [](const Power& a, const Power& b) { return a.atom < b.atom; });
      if (at == left.factors.end() || at->atom != p.atom) {
        left.factors.insert(at, p);
      } else if ((at->exponent += p.exponent) == 0) {
        left.factors.erase(at);
      }
    }
    rest.push_back(std::move(left));
  }
  normalise(rest);
  if (const auto root = square_root(rest, folded_)) {
    const Poly inverse = reciprocal_of_sum(*root);
    return multiply({common}, multiply(inverse, inverse));
  }
  return multiply({common}, atom(intern(AtomKind::function, Opcode::divide, intern(rest))));
}

Poly Algebra::weight(PolyId z) { return atom(intern(AtomKind::weight, Opcode::unknown, z)); }

bool Algebra::holds_multiple(const Monomial& other, const Monomial& m) const {
  if (m.factors.empty() && !(std::abs(m.coefficient) >= kCancelling &&
                             std::abs(other.coefficient) >= std::abs(m.coefficient) / 4))
    return false;
  Product more;
  std::set_difference(other.factors.begin(), other.factors.end(), m.factors.begin(),
                      m.factors.end(), std::back_inserter(more));
  return !more.empty() && more.size() + m.factors.size() == other.factors.size() &&
         std::all_of(more.begin(), more.end(), [&](const Power& p) {
           const AtomKind kind = atoms_[p.atom].kind;
           return kind == AtomKind::element || kind == AtomKind::indicator;
         });
}

Poly Algebra::exponential(const Poly& argument, const std::vector<Var>& keys,
                          const std::function<bool(const Monomial&)>& belongs) {
  Poly result = constant(1), along_keys;
  // A mask's fill is split over terms with and without its indicators; they stay together.
  std::set<AtomId> masks;
  for (const Monomial& m : argument)
    if (intersects(support(m.factors), keys))
      for (const Power& p : m.factors)
        if (atoms_[p.atom].kind == AtomKind::indicator) masks.insert(p.atom);
  const auto belongs_to_mask = [&](const Monomial& m) {
    return m.factors.empty() ? !masks.empty()
                             : std::any_of(m.factors.begin(), m.factors.end(),
                                           [&](const Power& p) { return masks.contains(p.atom); });
  };
  // And so do a number of the row and the part of it that keys take away, as of fill - m * fill.
  const auto is_taken_away = [&](const Monomial& m) {
    return std::any_of(argument.begin(), argument.end(), [&](const Monomial& other) {
      return intersects(support(other.factors), keys) && holds_multiple(other, m);
    });
  };
  const bool is_weight = std::any_of(argument.begin(), argument.end(), [&](const Monomial& m) {
    return intersects(support(m.factors), keys);
  });
  for (const Monomial& m : argument) {
    if (intersects(support(m.factors), keys) || belongs_to_mask(m) || is_taken_away(m) ||
        (is_weight && belongs(m))) {
      along_keys.push_back(m);
      continue;
    }
    // exp(c * log x) = x^c for c = +-1; else exp(|c| t) to the power of c's sign.
    if (m.factors.size() == 1 && m.factors[0].exponent == 1 && std::abs(m.coefficient) == 1 &&
        atoms_[m.factors[0].atom].kind == AtomKind::function &&
        atoms_[m.factors[0].atom].function == Opcode::log) {
      const Poly inner = polys_[atoms_[m.factors[0].atom].argument];
      result = multiply(result, m.coefficient > 0 ? inner : function(Opcode::divide, inner));
      continue;
    }
    const Poly factor = function(Opcode::exponential, {{std::abs(m.coefficient), m.factors}});
    result = multiply(result, m.coefficient > 0 ? factor : function(Opcode::divide, factor));
  }
  return along_keys.empty() ? result : multiply(result, weight(intern(along_keys)));
}

Poly Algebra::sum(const std::vector<Var>& over, const Poly& a) {
  Poly result;
  for (const Monomial& m : a) {
    const Poly part = sum_of_product(over, m.factors, m.coefficient);
    result.insert(result.end(), part.begin(), part.end());
  }
  normalise(result);
  return result;
}

Poly Algebra::sum_of_product(std::vector<Var> over, Product product, double coefficient) {
  // Sums inside that depend on a summed variable join this one.
  for (bool again = !exhausted(); again;) {
    again = false;
    for (size_t i = 0; i < product.size(); ++i) {
      const Power p = product[i];
      if (atoms_[p.atom].kind != AtomKind::sum || p.exponent != 1 ||
          !intersects(supports_[p.atom], over))
        continue;
      const Atom inner = atoms_[p.atom];
      Renaming renaming;
      for (size_t b = 0; b < inner.bound.size(); ++b)
        over.push_back(renaming[inner.bound[b]] = elements_.fresh(inner.sizes[b]));
      product.erase(product.begin() + static_cast<ptrdiff_t>(i));
      for (const Power& q : inner.product)
        if (!join(product, {{rename(q.atom, renaming), q.exponent}})) return {};
      again = true;
      break;
    }
  }
  Product outside;
  std::vector<Power> rest;
  for (const Power& p : product)
    (intersects(supports_[p.atom], over) ? rest : outside).push_back(p);
  Monomial result{coefficient, outside};
  while (!over.empty()) {
    // The factors that share bound variables with the first one left.
    std::vector<Var> bound{over.back()};
    over.pop_back();
    Product connected;
    for (size_t i = 0; i < rest.size();) {
      if (!intersects(supports_[rest[i].atom], bound)) {
        ++i;
        continue;
      }
      connected.push_back(rest[i]);
      for (Var v : supports_[rest[i].atom])
        if (const auto found = std::find(over.begin(), over.end(), v); found != over.end()) {
          bound.push_back(v);
          over.erase(found);
        }
      rest.erase(rest.begin() + static_cast<ptrdiff_t>(i));
      i = 0;
    }
    if (connected.empty()) {
      result.coefficient *= static_cast<double>(elements_.size(bound[0]));
      continue;
    }
    std::sort(connected.begin(), connected.end());
    std::vector<int64_t> sizes;
    for (Var v : bound) sizes.push_back(elements_.size(v));
    if (!join(result.factors, {{connected_sum(bound, sizes, connected), 1}})) return {};
  }
  return {result};
}

AtomId Algebra::connected_sum(const std::vector<Var>& bound, const std::vector<int64_t>& sizes,
                              const Product& product) {
  // Names for the bound variables that depend on nothing but the sum's structure: each variable is
  // described by its size and, among those of that size, by the factors with it marked and all
  // others blanked; what is then still equal is decided by trying every order.
  const int level = height(product) + 1;
  const Var blank = bound_name(level, 30), marked = bound_name(level, 29);
  struct Described {
    Key description;  // the size first
    Var variable;
  };
  std::vector<Described> described;
  const auto renamed_product = [&](const Renaming& renaming) {
    Product result = renamed(product, renaming);
    std::sort(result.begin(), result.end());
    return result;
  };
  for (size_t i = 0; i < bound.size(); ++i) {
    Key description{sizes[i]};
    if (std::count(sizes.begin(), sizes.end(), sizes[i]) > 1) {
      Renaming renaming;
      for (Var other : bound) renaming[other] = other == bound[i] ? marked : blank;
      append(description, renamed_product(renaming));
    }
    described.push_back({std::move(description), bound[i]});
  }
  const auto before = [](const Described& a, const Described& b) {
    return a.description < b.description;
  };
  std::stable_sort(described.begin(), described.end(), before);
  const auto named = [&](const std::vector<size_t>& order) {
    Renaming renaming;
    for (size_t i = 0; i < order.size(); ++i)
      renaming[described[order[i]].variable] = bound_name(level, i);
    return renamed_product(renaming);
  };
  std::vector<size_t> order(described.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  Product best = named(order);
  if (order.size() <= 6) {
    while (std::next_permutation(order.begin(), order.end())) {
      bool allowed = true;  // only equal descriptions may change places
      for (size_t i = 0; i < order.size() && allowed; ++i)
        allowed = described[order[i]].description == described[i].description;
      if (allowed) best = std::min(best, named(order));
    }
  }
  std::vector<Var> names;
  std::vector<int64_t> ordered_sizes;
  for (size_t i = 0; i < described.size(); ++i) {
    names.push_back(bound_name(level, i));
    ordered_sizes.push_back(described[i].description[0]);
  }
  return intern_sum(std::move(names), std::move(ordered_sizes), std::move(best));
}

AtomId Algebra::rename(AtomId id, const Renaming& renaming) {
  Key key{id};
  for (Var v : supports_[id])
    if (const auto to = renaming.find(v); to != renaming.end())
      key.insert(key.end(), {v, to->second});
  if (key.size() == 1) return id;
  if (const auto known = renamed_.find(key); known != renamed_.end()) return known->second;
  const AtomId result = renamed(id, renaming);
  renamed_.emplace(std::move(key), result);
  return result;
}

AtomId Algebra::renamed(AtomId id, const Renaming& renaming) {
  // What is renamed on the way may move the atoms.
  const Atom& a = atoms_[id];
  const AtomKind kind = a.kind;
  if (kind == AtomKind::element || kind == AtomKind::indicator)
    return intern(kind, a.element, renaming);
  if (kind == AtomKind::sum) {
    const std::vector<Var> bound = a.bound;
    const std::vector<int64_t> sizes = a.sizes;
    return connected_sum(bound, sizes, renamed(Product(a.product), renaming));
  }
  const Opcode function = a.function;
  return intern(kind, function, intern(rename(Poly(polys_[a.argument]), renaming)));
}

Product Algebra::renamed(const Product& product, const Renaming& renaming) {
  Product result;
  result.reserve(product.size());
  for (const Power& p : product) result.push_back({rename(p.atom, renaming), p.exponent});
  return result;
}

Poly Algebra::rename(const Poly& poly, const Renaming& renaming) {
  Poly result = poly;
  for (Monomial& m : result) {
    for (Power& p : m.factors) p.atom = rename(p.atom, renaming);
    std::sort(m.factors.begin(), m.factors.end());
  }
  normalise(result);
  return result;
}

int Algebra::nesting(const Poly& poly) const {
  int most = 0;
  for (const Monomial& m : poly)
    for (const Power& p : m.factors) most = std::max(most, nesting_[p.atom]);
  return most;
}

bool Algebra::is_nonnegative(const Poly& poly) const {
  const auto nonnegative = [&](const auto& self, const Product& product) -> bool {
    return std::all_of(product.begin(), product.end(), [&](const Power& p) {
      const Atom& a = atoms_[p.atom];
      return a.kind == AtomKind::weight || a.kind == AtomKind::indicator ||
             (a.kind == AtomKind::function && a.function == Opcode::exponential) ||
             (a.kind == AtomKind::sum && self(self, a.product));
    });
  };
  return std::all_of(poly.begin(), poly.end(), [&](const Monomial& m) {
    return m.coefficient > 0 && nonnegative(nonnegative, m.factors);
  });
}

std::optional<double> Algebra::ratio(const Poly& a, const Poly& b) const {
  if (a.size() != b.size() || a.empty()) return std::nullopt;
  const double factor = a[0].coefficient / b[0].coefficient;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].factors != b[i].factors) return std::nullopt;
    const double expected = factor * b[i].coefficient;
    if (!(std::abs(a[i].coefficient - expected) <= folded_ * std::abs(expected)))
      return std::nullopt;
  }
  return factor;
}

}  // namespace heddle::rewrite
