#include "rewrite/rotation.h"

#include <algorithm>

namespace heddle::rewrite {

using hlo::Instruction;
using hlo::Opcode;

namespace {

// Halves times tables: a sum of two terms, and what is on the way to it.
constexpr size_t kMaxTerms = 4;

/// Sums and products of elements, of types that attention is computed in.
Poly expanded(Elements& elements, Algebra& algebra, const Element& element, int levels) {
  const Element e = elements.resolve(element);
  const Instruction* x = e.x;
  const auto operand = [&](int i) {
    return expanded(elements, algebra, {e.frame, x->operand(i), e.at}, levels - 1);
  };
  if (levels == 0 || !is_wide_floating(x->shape().type())) return algebra.element(e);
  Poly result;
  switch (x->opcode()) {
    case Opcode::add:
      result = algebra.add(operand(0), operand(1));
      break;
    case Opcode::subtract:
      result = algebra.add(operand(0), algebra.scale(operand(1), -1));
      break;
    case Opcode::multiply:
      result = algebra.multiply(operand(0), operand(1));
      break;
    case Opcode::negate:
      return algebra.scale(operand(0), -1);
    default:
      return algebra.element(e);
  }
  return result.size() > kMaxTerms ? algebra.element(e) : result;
}

/// A half of x: which, and the slice that takes it.
struct Half {
  const Instruction* slice = nullptr;
  bool high = false;
};

std::optional<Half> half_of(const Element& e, size_t depth) {
  if (!e.x->is(Opcode::slice)) return std::nullopt;
  const hlo::Shape& whole = e.x->operand(0)->shape();
  const auto slices = e.x->slice();
  for (size_t i = 0; i < slices.size(); ++i) {
    const int64_t size = whole.dim(static_cast<int>(i));
    if (slices[i].stride != 1) return std::nullopt;
    if (i == depth) {
      if (size % 2 != 0 || slices[i].limit - slices[i].start != size / 2 ||
          slices[i].start % (size / 2) != 0)
        return std::nullopt;
    } else if (slices[i].start != 0 || slices[i].limit != size) {
      return std::nullopt;
    }
  }
  return Half{e.x, slices[depth].start != 0};
}

/// One half of the rotated: sign * half * table, twice.
struct Term {
  Half half;
  AtomId table = 0;
  double sign = 1;
};

std::optional<std::vector<Term>> terms_of(const Algebra& algebra, const Poly& poly, size_t depth) {
  std::vector<Term> terms;
  if (poly.size() != 2) return std::nullopt;
  for (const Monomial& m : poly) {
    if (m.factors.size() != 2 || std::abs(m.coefficient) != 1) return std::nullopt;
    std::optional<Term> term;
    for (int i = 0; i < 2 && !term; ++i) {
      const Atom& a = algebra.at(m.factors[i].atom);
      if (m.factors[i].exponent != 1 || a.kind != AtomKind::element) return std::nullopt;
      if (const auto half = half_of(a.element, depth))
        term = Term{*half, m.factors[1 - i].atom, m.coefficient};
    }
    if (!term) return std::nullopt;
    terms.push_back(*term);
  }
  if (terms[0].half.high) std::swap(terms[0], terms[1]);
  if (terms[0].half.high || !terms[1].half.high) return std::nullopt;
  return terms;
}

}  // namespace

std::optional<Rotation> rotation_of(Elements& elements, Algebra& algebra, int frame,
                                    const Instruction* y) {
  if (!y->is(Opcode::concatenate) || y->operand_count() != 2 || y->dimensions().size() != 1 ||
      !hlo::same_dims(y->operand(0)->shape(), y->operand(1)->shape()))
    return std::nullopt;
  Rotation rotation;
  rotation.depth = static_cast<size_t>(y->dimensions()[0]);
  const int depth = static_cast<int>(rotation.depth);
  rotation.y = elements.fresh(frame, y);
  rotation.half = elements.fresh(y->operand(0), depth);
  std::vector<std::vector<Term>> parts;
  for (const Instruction* part : y->operands()) {
    std::vector<Index> at = rotation.y.at;
    at[rotation.depth] = rotation.half;
    const auto terms = terms_of(
        algebra, expanded(elements, algebra, {frame, part, std::move(at)}, 8), rotation.depth);
    if (!terms) return std::nullopt;
    parts.push_back(*terms);
  }
  // low' = low * cos -+ high * sin, high' = high * cos +- low * sin.
  const Term &low_cos = parts[0][0], &high_sin = parts[0][1], &low_sin = parts[1][0],
             &high_cos = parts[1][1];
  if (low_cos.table != high_cos.table || low_sin.table != high_sin.table || low_cos.sign != 1 ||
      high_cos.sign != 1 || low_sin.sign != -high_sin.sign ||
      low_cos.half.slice != low_sin.half.slice || high_cos.half.slice != high_sin.half.slice ||
      low_cos.half.slice->operand(0) != high_cos.half.slice->operand(0))
    return std::nullopt;
  const Atom &cosines = algebra.at(low_cos.table), &sines = algebra.at(low_sin.table);
  if (cosines.kind != AtomKind::element || sines.kind != AtomKind::element) return std::nullopt;
  rotation.inverse = low_sin.sign < 0;
  rotation.cosines = cosines.element;
  rotation.sines = sines.element;
  const Instruction* x = low_cos.half.slice->operand(0);
  if (!hlo::same_dims(x->shape(), y->shape())) return std::nullopt;
  rotation.x = elements.resolve({frame, x, rotation.y.at});
  return rotation;
}

std::optional<Rotation> relabelled(const Elements& elements, const Rotation& rotation,
                                   const std::vector<Index>& at) {
  const auto renaming = elements.renaming(rotation.y.at, at);
  if (!renaming) return std::nullopt;
  Rotation result = rotation;
  for (Element* e : {&result.y, &result.x, &result.cosines, &result.sines})
    for (Index& index : e->at)
      for (Var& v : index)
        if (const auto to = renaming->find(v); to != renaming->end()) v = to->second;
  return result;
}

}  // namespace heddle::rewrite
