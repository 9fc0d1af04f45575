#include "rewrite/mask_value.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "rewrite/score.h"
#include "rewrite/steps.h"

namespace heddle::rewrite {

using hlo::ElementType;
using hlo::Instruction;
using hlo::Literal;

namespace {

// A predicate of more terms is one indicator: as polynomials, unions double with each predicate.
constexpr size_t kMaxTerms = 64;

/// `count` elements whose element i is `from`'s element which(i).
template <class Which>
std::optional<Literal> taken(const Literal& from, int64_t count, Which which) {
  auto result = Literal::zeros(hlo::Shape(from.shape().type(), {count}));
  if (!result) return std::nullopt;
  const auto size = static_cast<size_t>(hlo::size_of(from.shape().type()));
  std::byte* to = result->mutable_data();
  for (int64_t i = 0; i < count; ++i)
    std::memcpy(to + i * size, from.data() + which(i) * size, size);
  return std::move(*result);
}

}  // namespace

std::optional<Poly> MaskValues::value(const Element& element) {
  const std::optional<Table>& known = table(elements_.resolve(element));
  return known ? polynomial(*known) : std::nullopt;
}

const std::optional<MaskValues::Table>& MaskValues::table(const Element& resolved) {
  Key key = key_of(resolved);
  if (const auto known = tables_.find(key); known != tables_.end()) return known->second;
  struct Open {
    Element element;
    Key key;
    std::vector<const Table*> operands;
  };
  std::vector<Open> open;
  open.push_back({resolved, std::move(key), {}});
  for (;;) {
    Open& at = open.back();
    const Instruction* x = at.element.x;
    const auto done = static_cast<int>(at.operands.size());
    std::optional<Table> result;
    if (!Arithmetic::knows(x)) {
      result = leaf(at.element);
    } else if (done < x->operand_count()) {
      Element operand = operand_of(elements_, at.element, done);
      Key operand_key = key_of(operand);
      const auto known = tables_.find(operand_key);
      if (known == tables_.end()) {
        open.push_back({std::move(operand), std::move(operand_key), {}});
        continue;
      }
      if (known->second) {
        at.operands.push_back(&*known->second);
        continue;
      }
      result = leaf(at.element);  // whatever the other operands are
    } else {
      result = combined(at.element, at.operands);
      if (!result) result = leaf(at.element);
    }
    const auto entry = tables_.try_emplace(std::move(at.key), std::move(result)).first;
    open.pop_back();
    if (open.empty()) return entry->second;
  }
}

std::optional<MaskValues::Table> MaskValues::leaf(const Element& e) {
  const Literal* literal = e.x->literal();
  if (literal && is_computed_in(e.x->shape().type()) && !literal->is_elided() &&
      literal->element_count() > 0 && literal->is_splat()) {
    auto one = taken(*literal, 1, [](int64_t) { return 0; });
    if (one) return Table{{}, std::move(*one)};
  }
  if (e.x->shape().type() != ElementType::pred) return std::nullopt;
  const auto truth = truth_(e);
  return truth ? constant(*truth) : indicator(e);
}

MaskValues::Table MaskValues::constant(bool truth) {
  const uint8_t values[] = {truth};
  return {{}, *Literal::array<uint8_t>(hlo::Shape(ElementType::pred, {1}), std::span(values))};
}

MaskValues::Table MaskValues::indicator(const Element& e) {
  static constexpr uint8_t kFalseAndTrue[] = {0, 1};
  const AtomId atom = algebra_.indicator(e)[0].factors[0].atom;
  return {{atom},
          *Literal::array<uint8_t>(hlo::Shape(ElementType::pred, {2}), std::span(kFalseAndTrue))};
}

std::optional<MaskValues::Table> MaskValues::combined(const Element& e,
                                                      const std::vector<const Table*>& operands) {
  std::vector<AtomId> all;
  for (const Table* operand : operands)
    all.insert(all.end(), operand->indicators.begin(), operand->indicators.end());
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  if (all.size() > kMaxIndicators) return std::nullopt;
  std::vector<Literal> values;
  for (const Table* operand : operands) {
    std::vector<size_t> place;
    for (AtomId id : operand->indicators)
      place.push_back(std::lower_bound(all.begin(), all.end(), id) - all.begin());
    auto spread = taken(operand->values, int64_t{1} << all.size(), [&](int64_t bits) {
      int64_t own = 0;
      for (size_t i = 0; i < place.size(); ++i) own |= (bits >> place[i] & 1) << i;
      return own;
    });
    if (!spread) return std::nullopt;
    values.push_back(std::move(*spread));
  }
  auto result = arithmetic_.apply(e.x, std::move(values));
  if (!result) return std::nullopt;
  Table table{std::move(all), std::move(*result)};
  if (e.x->shape().type() == ElementType::pred && polynomial(table)->size() > kMaxTerms)
    return std::nullopt;
  return table;
}

std::optional<Poly> MaskValues::polynomial(const Table& table) const {
  std::vector<Poly> coefficients;
  for (int64_t bits = 0; bits < table.values.element_count(); ++bits) {
    const double value = table.values.get(bits);
    if (std::isnan(value) || (std::isinf(value) && value > 0)) return std::nullopt;
    coefficients.push_back(Algebra::constant(value));
  }
  // f = f(0) * (1 - p) + f(1) * p, for one indicator after the other.
  for (size_t i = 0; i < table.indicators.size(); ++i)
    for (size_t bits = 0; bits < coefficients.size(); ++bits)
      if (bits >> i & 1)
        coefficients[bits] = algebra_.add(coefficients[bits],
                                          algebra_.scale(coefficients[bits ^ size_t{1} << i], -1));
  Poly result;
  for (size_t bits = 0; bits < coefficients.size(); ++bits) {
    Product factors;
    for (size_t i = 0; i < table.indicators.size(); ++i)
      if (bits >> i & 1) factors.push_back({table.indicators[i], 1});
    // Several numbers where one is lost beside another: a fill beside the infinity that two make.
    for (const Monomial& m : coefficients[bits])
      result = algebra_.add(result, {{m.coefficient, factors}});
  }
  return result;
}

}  // namespace heddle::rewrite
