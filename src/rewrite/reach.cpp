#include "rewrite/reach.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "rewrite/predicate.h"

namespace heddle::rewrite {

using hlo::Instruction;
using hlo::Opcode;

namespace {

constexpr double kAny = std::numeric_limits<double>::infinity();
// Of scores before they are scaled: what a program means has exp() of their differences.
constexpr double kOfProducts = 1e5;
constexpr int kMaxDepth = 64;

double largest(const hlo::Literal& literal) {
  if (literal.is_elided()) return kAny;
  double most = 0;
  for (int64_t i = 0; i < literal.element_count(); ++i) {
    const double size = std::abs(literal.get(i));
    if (size > most) most = size;  // NaN is no fill
  }
  return most;
}

class Reader {
 public:
  Reader(Elements& elements, int frame) : elements_(elements), frame_(frame) {}

  double read(const Instruction* x, int depth) {
    if (depth > kMaxDepth) return kAny;
    const auto known = known_.find(x);
    if (known != known_.end()) return known->second;
    const double size = computed(x, depth + 1);
    // 0 times what may be anything is not known either.
    return known_[x] = std::isnan(size) ? kAny : size;
  }

 private:
  double computed(const Instruction* x, int depth) {
    if (const hlo::Literal* literal = x->literal()) return largest(*literal);
    if (const auto number = elements_.splat(frame_, x)) return std::abs(*number);
    const auto of = [&](int i) { return read(x->operand(i), depth); };
    switch (x->opcode()) {
      case Opcode::broadcast:
      case Opcode::reshape:
      case Opcode::transpose:
      case Opcode::slice:
      case Opcode::copy:
      case Opcode::negate:
      case Opcode::abs:
      case Opcode::gather:
      case Opcode::dynamic_slice:
        return of(0);
      case Opcode::convert:
        return of_convert(x, depth);
      case Opcode::add:
      case Opcode::subtract:
        return of(0) + of(1);
      case Opcode::multiply:
        return of(0) * of(1);
      case Opcode::maximum:
      case Opcode::minimum:
      case Opcode::pad:
        return std::max(of(0), of(1));
      case Opcode::select:
        return std::max(of(1), of(2));
      case Opcode::concatenate: {
        double most = 0;
        for (int i = 0; i < x->operand_count(); ++i) most = std::max(most, of(i));
        return most;
      }
      case Opcode::dot:
        return is_of_data(x->operand(0)) && is_of_data(x->operand(1)) ? kOfProducts : kAny;
      default:
        return kAny;
    }
  }

  double of_convert(const Instruction* x, int depth) {
    const hlo::ElementType from = x->operand(0)->shape().type();
    if (hlo::is_floating(from)) return read(x->operand(0), depth);
    return from == hlo::ElementType::pred ? 1 : std::ldexp(1, hlo::bits_of(from));
  }

  /// Whether the numbers of `x` are the data's own, and choose or place no others.
  bool is_of_data(const Instruction* x) {
    const Element e = elements_.resolve(elements_.fresh(frame_, x));
    const bool is_choice =
        e.x->is(Opcode::convert) && !hlo::is_floating(e.x->operand(0)->shape().type());
    return hlo::is_floating(e.x->shape().type()) && !is_choice && !is_fixed(elements_, e);
  }

  Elements& elements_;
  int frame_;
  std::map<const Instruction*, double> known_;
};

}  // namespace

double reach_of(Elements& elements, int frame, const Instruction* x) {
  return Reader(elements, frame).read(x, 0);
}

}  // namespace heddle::rewrite
