// The normal form of a region's elements.
#include <algorithm>

#include "rewrite/region.h"

namespace heddle::rewrite {

using hlo::ElementType;
using hlo::Instruction;
using hlo::Opcode;

namespace {

constexpr size_t kMaxTerms = 64;

std::optional<double> scalar(const Instruction* x) {
  if (x->is(Opcode::convert) && !hlo::is_complex(x->shape().type())) {
    const Instruction* from = x->operand(0);
    while (from->is(Opcode::broadcast) || from->is(Opcode::reshape)) from = from->operand(0);
    return from->is(Opcode::constant) || from->is(Opcode::convert) ? scalar(from) : std::nullopt;
  }
  const hlo::Literal* literal = x->literal();
  if (!literal || literal->is_elided() || literal->element_count() == 0 ||
      hlo::is_complex(x->shape().type()) || (literal->element_count() > 1 && !literal->is_splat()))
    return std::nullopt;
  return literal->get(0);
}

}  // namespace

Poly Region::value(const Element& element) {
  const Element place = elements_.resolve(element);
  if (const auto number = scalar(place.x)) return Algebra::constant(*number);
  if (place.x->shape().type() == ElementType::pred) return predicate(place);
  if (algebra_.exhausted()) return algebra_.element(place);
  if (!find(place.frame, place.x)) {
    const auto mask = mask_value(place);
    return mask ? *mask : algebra_.element(place);
  }
  std::vector<int64_t> key{place.frame, place.x->id()};
  for (const Index& index : place.at) {
    key.push_back(INT64_MIN);
    key.insert(key.end(), index.begin(), index.end());
  }
  if (const auto known = values_.find(key); known != values_.end()) return known->second;
  Poly result = expand(place);
  if (result.size() > kMaxTerms) result = algebra_.element(place);
  return values_.emplace(std::move(key), std::move(result)).first->second;
}

Poly Region::expand(const Element& e) {
  const Instruction* x = e.x;
  const auto operand = [&](int i) {
    const Instruction* y = x->operand(i);
    return value({e.frame, y, y->shape().is_scalar() ? std::vector<Index>{} : e.at});
  };
  switch (x->opcode()) {
    case Opcode::convert: {
      const ElementType from = x->operand(0)->shape().type();
      return hlo::is_floating(from) || from == ElementType::pred ? operand(0) : algebra_.element(e);
    }
    case Opcode::add:
      return algebra_.add(operand(0), operand(1));
    case Opcode::subtract:
      return algebra_.add(operand(0), algebra_.scale(operand(1), -1));
    case Opcode::negate:
      return algebra_.scale(operand(0), -1);
    case Opcode::multiply:
      return algebra_.multiply(operand(0), operand(1));
    case Opcode::divide:
      return algebra_.multiply(operand(0), algebra_.function(Opcode::divide, operand(1)));
    case Opcode::select: {
      const Poly p = operand(0);
      const Poly not_p = algebra_.add(Algebra::constant(1), algebra_.scale(p, -1));
      return algebra_.add(algebra_.multiply(p, operand(1)), algebra_.multiply(not_p, operand(2)));
    }
    case Opcode::maximum:
      // max(x, -inf): how a maximum over an empty axis is guarded.
      for (int i = 0; i < 2; ++i) {
        const Poly bound = operand(i);
        if (bound.size() == 1 && bound[0].factors.empty() && bound[0].coefficient <= kMinusInfinity)
          return operand(1 - i);
      }
      return algebra_.element(e);
    case Opcode::exponential:
      return algebra_.exponential(operand(0), keys_of(e));
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
      return dot(e);
    case Opcode::reduce:
      return is_sum(elements_, e.frame, x) ? reduce(e) : algebra_.element(e);
    default:
      return algebra_.element(e);
  }
}

std::optional<Poly> Region::mask_value(const Element& element) {
  const Element e = elements_.resolve(element);
  const Instruction* x = e.x;
  if (const auto number = scalar(x)) return Algebra::constant(*number);
  if (x->shape().type() == ElementType::pred) return predicate(e);
  std::vector<Poly> operands;
  switch (x->opcode()) {
    case Opcode::convert:
    case Opcode::add:
    case Opcode::subtract:
    case Opcode::multiply:
    case Opcode::negate:
    case Opcode::select:
      for (const Instruction* y : x->operands()) {
        auto value = mask_value({e.frame, y, y->shape().is_scalar() ? std::vector<Index>{} : e.at});
        if (!value) return std::nullopt;
        operands.push_back(std::move(*value));
      }
      break;
    default:
      return std::nullopt;
  }
  switch (x->opcode()) {
    case Opcode::convert:
      return operands[0];
    case Opcode::negate:
      return algebra_.scale(operands[0], -1);
    case Opcode::multiply:
      return algebra_.multiply(operands[0], operands[1]);
    case Opcode::select:
      return algebra_.add(
          algebra_.multiply(operands[0], operands[1]),
          algebra_.multiply(algebra_.add(Algebra::constant(1), algebra_.scale(operands[0], -1)),
                            operands[2]));
    default:
      return algebra_.add(operands[0],
                          algebra_.scale(operands[1], x->is(Opcode::subtract) ? -1 : 1));
  }
}

Poly Region::predicate(const Element& element) {
  const Element e = elements_.resolve(element);
  const Instruction* x = e.x;
  if (const auto number = scalar(x)) return Algebra::constant(*number != 0);
  const auto operand = [&](int i) {
    const Instruction* y = x->operand(i);
    return predicate({e.frame, y, y->shape().is_scalar() ? std::vector<Index>{} : e.at});
  };
  const auto complement = [&](const Poly& p) {
    return algebra_.add(Algebra::constant(1), algebra_.scale(p, -1));
  };
  if (x->shape().type() != ElementType::pred) return algebra_.indicator(e);
  switch (x->opcode()) {
    case Opcode::not_:
      return complement(operand(0));
    case Opcode::and_:
    case Opcode::multiply:
    case Opcode::minimum:
      return algebra_.multiply(operand(0), operand(1));
    case Opcode::or_:
    case Opcode::maximum:
      return complement(algebra_.multiply(complement(operand(0)), complement(operand(1))));
    case Opcode::select:
      return algebra_.add(algebra_.multiply(operand(0), operand(1)),
                          algebra_.multiply(complement(operand(0)), operand(2)));
    default:
      return algebra_.indicator(e);
  }
}

Poly Region::dot(const Element& e) {
  const Instruction* x = e.x;
  const Instruction* sides[] = {x->operand(0), x->operand(1)};
  const std::span<const int64_t> batch[] = {x->lhs_batch_dims(), x->rhs_batch_dims()};
  const std::span<const int64_t> contracting[] = {x->lhs_contracting_dims(),
                                                  x->rhs_contracting_dims()};
  std::vector<Index> at[2], summed;
  for (int64_t dim : contracting[0])
    summed.push_back(elements_.fresh(sides[0], static_cast<int>(dim)));
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
  size_t next = 0;
  for (int dim = 0; dim < from->shape().rank(); ++dim) {
    const auto dims = e.x->dimensions();
    if (std::find(dims.begin(), dims.end(), dim) == dims.end()) {
      at.push_back(e.at[next++]);
    } else {
      at.push_back(elements_.fresh(from, dim));
      summed.push_back(at.back());
    }
  }
  return algebra_.sum(flat(summed), value({e.frame, from, std::move(at)}));
}

Poly Region::dot_operand(const Element& element) {
  const Element e = elements_.resolve(element);
  return find(e.frame, e.x) ? value(e) : stripped(e);
}

Poly Region::stripped(const Element& element) {
  const Element e = elements_.resolve(element);
  const Instruction* x = e.x;
  const auto operand = [&](int i) { return Element{e.frame, x->operand(i), e.at}; };
  const auto constant = [&](int i) -> std::optional<double> {
    const Element y = elements_.resolve(operand(i));
    return scalar(y.x);
  };
  if (x->is(Opcode::negate)) return algebra_.scale(stripped(operand(0)), -1);
  if (x->is(Opcode::multiply) || x->is(Opcode::divide)) {
    if (const auto c = constant(1); c && *c != 0)
      return algebra_.scale(stripped(operand(0)), x->is(Opcode::multiply) ? *c : 1 / *c);
    if (const auto c = constant(0); c && *c != 0 && x->is(Opcode::multiply))
      return algebra_.scale(stripped(operand(1)), *c);
  }
  if (x->is(Opcode::convert) && hlo::is_floating(x->operand(0)->shape().type())) {
    // A rounding back to the type of what was only scaled.
    Poly inner = stripped(operand(0));
    if (inner.size() == 1 && inner[0].factors.size() == 1 && inner[0].coefficient != 1) {
      const Atom& atom = algebra_.at(inner[0].factors[0].atom);
      if (atom.kind == AtomKind::element && atom.element.x->shape().type() == x->shape().type())
        return inner;
    }
  }
  return algebra_.element(e);
}

}  // namespace heddle::rewrite
