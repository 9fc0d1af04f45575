#include "rewrite/column_terms.h"

#include <utility>

namespace heddle::rewrite {

using hlo::Instruction;
using hlo::Opcode;

namespace {

// A rotation's column is two products; on the way to it a zero, or a part that is padding.
constexpr size_t kMaxTerms = 4;

ColumnValue factor(Element place) { return {false, {}, {std::move(place), {}}}; }

}  // namespace

bool ColumnTerms::settle(Element& element) {
  do {
    element.x = elements_.representative(element.x);
    if (element.x == x_) return true;
  } while (--budget_ > 0 && (runs_.look_through(element, true) || runs_.look_into_parts(element)));
  return false;
}

std::optional<ColumnValue> ColumnTerms::of(Element element) {
  const Element whole = element;
  if (settle(element)) return ColumnValue{true, {{1, std::move(element), std::nullopt}}, {}};
  if (--budget_ <= 0) return std::nullopt;
  const Instruction* x = element.x;
  if (elements_.splat(element.frame, x) == 0) return ColumnValue{true, {}, {}};
  const auto operand = [&](int i) { return of({element.frame, x->operand(i), element.at}); };
  switch (x->opcode()) {
    case Opcode::add:
      return sum(operand(0), operand(1), 1, whole);
    case Opcode::subtract:
      return sum(operand(0), operand(1), -1, whole);
    case Opcode::multiply:
      return product(operand(0), operand(1), whole);
    case Opcode::negate: {
      const auto value = operand(0);
      if (!value) return std::nullopt;
      return negated(*value, whole);
    }
    case Opcode::real:
    case Opcode::imag: {
      if (!hlo::is_complex(x->operand(0)->shape().type())) return factor(whole);
      auto value = complex_of({element.frame, x->operand(0), element.at});
      if (!value) return std::nullopt;
      return x->is(Opcode::real) ? std::move(value->real) : std::move(value->imaginary);
    }
    default:
      return factor(whole);
  }
}

std::optional<ColumnTerms::Complex> ColumnTerms::complex_of(Element element) {
  const Element whole = element;
  if (settle(element) || --budget_ <= 0) return std::nullopt;
  const Instruction* x = element.x;
  const Complex opaque{{false, {}, {whole, ColumnFactor::Part::real}},
                       {false, {}, {whole, ColumnFactor::Part::imaginary}}};
  const auto pair = [](std::optional<ColumnValue> real, std::optional<ColumnValue> imaginary) {
    if (!real || !imaginary) return std::optional<Complex>();
    return std::optional<Complex>({std::move(*real), std::move(*imaginary)});
  };
  if (x->is(Opcode::complex))
    return pair(of({element.frame, x->operand(0), element.at}),
                of({element.frame, x->operand(1), element.at}));
  if (x->is(Opcode::negate)) {
    const auto value = complex_of({element.frame, x->operand(0), element.at});
    if (!value) return std::nullopt;
    if (!value->real.is_sum || !value->imaginary.is_sum) return opaque;
    return Complex{negated(value->real, whole), negated(value->imaginary, whole)};
  }
  if (!x->is(Opcode::multiply) && !x->is(Opcode::add)) return opaque;
  const auto a = complex_of({element.frame, x->operand(0), element.at});
  const auto b = complex_of({element.frame, x->operand(1), element.at});
  if (!a || !b) return std::nullopt;
  const auto has_x = [](const Complex& c) { return c.real.is_sum || c.imaginary.is_sum; };
  if (!has_x(*a) && !has_x(*b)) return opaque;
  if (x->is(Opcode::add))
    return pair(sum(a->real, b->real, 1, whole), sum(a->imaginary, b->imaginary, 1, whole));
  return pair(
      sum(product(a->real, b->real, whole), product(a->imaginary, b->imaginary, whole), -1, whole),
      sum(product(a->real, b->imaginary, whole), product(a->imaginary, b->real, whole), 1, whole));
}

ColumnValue ColumnTerms::negated(ColumnValue value, const Element& whole) {
  if (!value.is_sum) return factor(whole);
  for (ColumnTerm& term : value.terms) term.sign = -term.sign;
  return value;
}

std::optional<ColumnValue> ColumnTerms::sum(const std::optional<ColumnValue>& a,
                                            std::optional<ColumnValue> b, double sign,
                                            const Element& whole) {
  if (!a || !b) return std::nullopt;
  if (!a->is_sum && !b->is_sum) return factor(whole);
  const auto is_zero = [](const ColumnValue& v) { return v.is_sum && v.terms.empty(); };
  if (is_zero(*b)) return a;
  if (is_zero(*a) && sign > 0) return b;
  if (!a->is_sum || !b->is_sum) return std::nullopt;
  ColumnValue result = *a;
  for (ColumnTerm& term : b->terms) {
    term.sign *= sign;
    result.terms.push_back(std::move(term));
  }
  if (result.terms.size() > kMaxTerms) return std::nullopt;
  return result;
}

std::optional<ColumnValue> ColumnTerms::product(const std::optional<ColumnValue>& a,
                                                const std::optional<ColumnValue>& b,
                                                const Element& whole) {
  if (!a || !b) return std::nullopt;
  if (!a->is_sum && !b->is_sum) return factor(whole);
  if (a->is_sum && b->is_sum) {
    if (!a->terms.empty() && !b->terms.empty()) return std::nullopt;
    return ColumnValue{true, {}, {}};
  }
  ColumnValue result = a->is_sum ? *a : *b;
  const ColumnFactor& number = a->is_sum ? b->factor : a->factor;
  const auto constant = number.part == ColumnFactor::Part::whole
                            ? elements_.splat(number.place.frame, number.place.x)
                            : std::nullopt;
  for (ColumnTerm& term : result.terms) {
    if (constant && (*constant == 1 || *constant == -1)) {
      term.sign *= *constant;
    } else if (term.factor) {
      return std::nullopt;
    } else {
      term.factor = number;
    }
  }
  return result;
}

}  // namespace heddle::rewrite
