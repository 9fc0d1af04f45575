#include "rewrite/positive.h"

#include "rewrite/region.h"

namespace heddle::rewrite {

using hlo::Instruction;
using hlo::Opcode;

namespace {

// Norms have 1e-12 and more. What is divided by less may be as good as infinite.
constexpr double kLeastEpsilon = 1e-13;
constexpr int kMaxDepth = 8;  // a mean of squares, its epsilon and its root are five

class Signs {
 public:
  explicit Signs(Elements& elements) : elements_(elements) {}

  bool is_positive(int frame, const Instruction* x, int depth) {
    // What is divided by 1 or more becomes no larger.
    if (const auto number = elements_.splat(frame, x)) return *number >= 1;
    if (depth == 0) return false;
    const Element e = elements_.resolve(elements_.fresh(frame, x));
    const auto of = [&](int i) { return is_positive(e.frame, e.x->operand(i), depth - 1); };
    const auto never_below = [&](int i) {
      return is_nonnegative(e.frame, e.x->operand(i), depth - 1);
    };
    switch (e.x->opcode()) {
      case Opcode::add:
        return (of(0) && never_below(1)) || (of(1) && never_below(0)) || is_norm(e, depth);
      case Opcode::maximum:
        return of(0) || of(1) || is_norm(e, depth);
      case Opcode::minimum:
        return of(0) && of(1);
      case Opcode::select:
        return of(1) && of(2);
      case Opcode::sqrt:
        return of(0);
      default:
        return false;
    }
  }

 private:
  /// Whether it is an epsilon and a sum over an axis of what is not below 0: what such a sum of
  /// squares divides is as small as it is.
  bool is_norm(const Element& e, int depth) {
    for (int i : {0, 1}) {
      const auto epsilon = elements_.splat(e.frame, e.x->operand(i));
      const Instruction* sum = e.x->operand(1 - i);
      if (epsilon && *epsilon >= kLeastEpsilon && is_nonnegative(e.frame, sum, depth - 1) &&
          is_made_of_sum(e.frame, sum, depth - 1))
        return true;
    }
    return false;
  }

  bool is_made_of_sum(int frame, const Instruction* x, int depth) {
    if (depth == 0) return false;
    const Element e = elements_.resolve(elements_.fresh(frame, x));
    const auto of = [&](int i) { return is_made_of_sum(e.frame, e.x->operand(i), depth - 1); };
    switch (e.x->opcode()) {
      case Opcode::reduce:
        return is_sum(elements_, e.frame, e.x);
      case Opcode::sqrt:
      case Opcode::convert:
      case Opcode::divide:
      case Opcode::subtract:
        return of(0);
      case Opcode::multiply:
      case Opcode::maximum:
        return of(0) || of(1);
      default:
        return false;
    }
  }

  bool is_nonnegative(int frame, const Instruction* x, int depth) {
    if (const auto number = elements_.splat(frame, x)) return *number >= 0;
    if (depth == 0) return false;
    const Element e = elements_.resolve(elements_.fresh(frame, x));
    const auto of = [&](int i) { return is_nonnegative(e.frame, e.x->operand(i), depth - 1); };
    switch (e.x->opcode()) {
      case Opcode::abs:
      case Opcode::exponential:
      case Opcode::logistic:
      case Opcode::sqrt:
        return true;
      case Opcode::multiply:
        return is_square(e.x) || (of(0) && of(1));
      case Opcode::add:
      case Opcode::divide:
      case Opcode::minimum:
        return of(0) && of(1);
      case Opcode::maximum:
        return of(0) || of(1);
      case Opcode::select:
        return of(1) && of(2);
      case Opcode::convert:
        return hlo::is_unsigned_integral(e.x->operand(0)->shape().type()) || of(0);
      case Opcode::reduce:
        return is_sum(elements_, e.frame, e.x) && of(0);
      default:
        return false;
    }
  }

  bool is_square(const Instruction* product) {
    return elements_.representative(product->operand(0)) ==
           elements_.representative(product->operand(1));
  }

  Elements& elements_;
};

}  // namespace

bool is_positive(Elements& elements, int frame, const Instruction* x) {
  return Signs(elements).is_positive(frame, x, kMaxDepth);
}

}  // namespace heddle::rewrite
