#include "rewrite/reach.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <vector>

#include "rewrite/positive.h"
#include "rewrite/predicate.h"

namespace heddle::rewrite {

using hlo::Instruction;
using hlo::Opcode;

namespace {

constexpr double kAny = std::numeric_limits<double>::infinity();
// What a model multiplies by: scales of embeddings, constants of erf. Layer upon layer they would
// add up to what only a fill is, though norms between them take them back.
constexpr double kOfModels = 256;
constexpr int kMaxDepth = 64;
// Of a temperature or a scale of quantised keys: of scores multiplied by more exp() leaves one.
constexpr double kOfFactors = 1e10;
constexpr size_t kMostOfFactor = 256;

/// NaN is no fill.
double size_of(double number) { return std::isnan(number) ? 0 : std::abs(number); }

double largest(const hlo::Literal& literal) {
  if (literal.is_elided()) return kAny;
  double most = 0;
  for (int64_t i = 0; i < literal.element_count(); ++i)
    most = std::max(most, size_of(literal.get(i)));
  return most;
}

/// Sizes in units of what data are: `data` is the size of a number that data decide, infinity where
/// it is asked for itself, 1 where it is asked what the text makes of it.
class Reader {
 public:
  Reader(Elements& elements, int frame, double data)
      : elements_(elements), frame_(frame), data_(data) {}

  double read(const Instruction* x, int depth) {
    if (depth > kMaxDepth) return data_;
    const auto known = known_.find(x);
    if (known != known_.end()) return known->second;
    const double size = computed(x, depth + 1);
    // 0 times what may be anything is not known either.
    return known_[x] = std::isnan(size) ? data_ : size;
  }

 private:
  double computed(const Instruction* x, int depth) {
    if (const hlo::Literal* literal = x->literal()) return of_number(largest(*literal));
    if (const auto number = elements_.splat(frame_, x)) return of_number(size_of(*number));
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
        // A sum of data is data: else every layer of a model would double its size.
        return data_ == 1 ? std::max(of(0), of(1)) : of(0) + of(1);
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
        return of_product(x, depth);
      case Opcode::divide:
        if (const auto number = elements_.splat(frame_, x->operand(1)); number && data_ == 1)
          return of(0) / std::abs(*number);
        return data_;
      case Opcode::reduce:
      case Opcode::reverse:
        return data_ == 1 ? of(0) : kAny;
      case Opcode::scatter:
      case Opcode::dynamic_update_slice:
        return data_ == 1 ? std::max(of(0), of(x->is(Opcode::scatter) ? 2 : 1)) : kAny;
      default:
        return data_;
    }
  }

  double of_number(double size) const {
    return data_ == 1 && size <= kOfModels ? std::min(size, 1.0) : size;
  }

  double of_product(const Instruction* x, int depth) {
    const Instruction *a = x->operand(0), *b = x->operand(1);
    if (data_ == 1) return read(a, depth) * read(b, depth);
    if (!is_of_data(a) || !is_of_data(b) || may_be_infinite(elements_, frame_, a) ||
        may_be_infinite(elements_, frame_, b))
      return kAny;
    Reader made(elements_, frame_, 1);
    return kReachOfProducts * std::max(1.0, made.read(a, 0)) * std::max(1.0, made.read(b, 0));
  }

  double of_convert(const Instruction* x, int depth) {
    const hlo::ElementType from = x->operand(0)->shape().type();
    if (hlo::is_floating(from)) return read(x->operand(0), depth);
    if (data_ == 1) return 1;
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
  double data_;
  std::map<const Instruction*, double> known_;
};

/// Whether it makes infinities of finite numbers that are none too large.
bool has_pole(Elements& elements, const Element& e) {
  const auto may_be_zero = [&](int i) { return !is_positive(elements, e.frame, e.x->operand(i)); };
  switch (e.x->opcode()) {
    case Opcode::divide:
      return elements.splat(e.frame, e.x->operand(1)).value_or(0) == 0 && may_be_zero(1);
    case Opcode::log:
    case Opcode::rsqrt:
      return may_be_zero(0);
    case Opcode::log_plus_one:
    case Opcode::power:
    case Opcode::tan:
      return true;
    default:
      return false;
  }
}

bool is_bounded(Opcode opcode) {
  return opcode == Opcode::logistic || opcode == Opcode::tanh || opcode == Opcode::cosine ||
         opcode == Opcode::sine;
}

}  // namespace

bool may_be_infinite(Elements& elements, int frame, const Instruction* x) {
  std::vector<std::pair<int, const Instruction*>> work{{frame, x}};
  std::set<std::pair<int, const Instruction*>> seen;
  while (!work.empty()) {
    const auto [in, at] = work.back();
    work.pop_back();
    const Element e = elements.resolve(elements.fresh(in, at));
    if (!hlo::is_floating(e.x->shape().type()) || is_bounded(e.x->opcode()) ||
        !seen.insert({e.frame, e.x}).second)
      continue;
    if (seen.size() > kMostOfFactor) return true;
    if (has_pole(elements, e)) return true;
    const bool passes_on = hlo::is_elementwise(e.x->opcode()) || e.x->is(Opcode::reduce) ||
                           e.x->is(Opcode::concatenate) || e.x->is(Opcode::pad) ||
                           e.x->is(Opcode::slice) || e.x->is(Opcode::dynamic_slice) ||
                           e.x->is(Opcode::gather);
    if (!passes_on) continue;
    for (const Instruction* operand : e.x->operands())
      if (operand->shape().is_array()) work.emplace_back(e.frame, operand);
  }
  return false;
}

double reach_of_factor(Elements& elements, int frame, const Instruction* x) {
  const double reach = reach_of(elements, frame, x);
  if (reach < kAny || may_be_infinite(elements, frame, x)) return reach;
  return kOfFactors * std::max(1.0, Reader(elements, frame, 1).read(x, 0));
}

double reach_of(Elements& elements, int frame, const Instruction* x) {
  return Reader(elements, frame, kAny).read(x, 0);
}

}  // namespace heddle::rewrite
