#include "rewrite/piecewise.h"

#include <algorithm>
#include <cmath>

#include "rewrite/cells.h"

namespace heddle::rewrite {

using hlo::ElementType;
using hlo::Instruction;
using hlo::Literal;
using hlo::Opcode;

namespace {

// Vectors read number by number, of one mask; and the pieces that one may have.
constexpr int kMaxVectors = 8;
constexpr double kMaxWork = 1e8;  // for one of them
constexpr size_t kMaxRuns = 64;

/// Of 64-bit integers only those that an f64 tells from their neighbours: 2^53 + 1 reads as 2^53.
std::optional<int64_t> whole_number(const Literal& values, int64_t i) {
  const double value = values.get(i);
  const auto end = static_cast<double>(largest_exact(ElementType::f64));
  if (std::trunc(value) != value || !(std::abs(value) < end)) return std::nullopt;
  return static_cast<int64_t>(value);
}

class Reader {
 public:
  Reader(Elements& elements, const std::vector<Step>& steps, const Index& rows, const Index& keys)
      : elements_(elements),
        steps_(steps),
        rows_(rows),
        keys_(keys),
        whole_(whole_zone(elements.size(rows), elements.size(keys))) {}

  std::optional<Pieces> read() {
    std::vector<std::optional<Pieces>> values;
    for (size_t i = 0; i < steps_.size(); ++i) {
      const Step& step = steps_[i];
      std::vector<const Pieces*> operands;
      bool all_known = true;
      for (int number : step.operands) {
        all_known = all_known && values[number];
        if (all_known) operands.push_back(&*values[number]);
      }
      std::optional<Pieces> value;
      if (step.operands.empty()) {
        value = leaf(step.element);
      } else if (all_known) {
        value = operation(step.element.x, operands);
      }
      // An operand that is not in pieces may have become so: a vector of any numbers.
      if (!value) value = vector(i);
      values.push_back(std::move(value));
    }
    return values.back();
  }

 private:
  Pieces constant(int64_t value) const { return {{whole_, {0, 0, value}}}; }

  std::optional<Pieces> leaf(const Element& e) const {
    const ElementType type = e.x->shape().type();
    if (e.x->is(Opcode::iota)) {
      const auto position = linear(e.at[e.x->iota_dimension()]);
      if (!position) return std::nullopt;
      return in_type(type, Pieces{{whole_, *position}});
    }
    const Literal* literal = e.x->literal();
    if (!literal || literal->element_count() == 0 || !literal->is_splat()) return std::nullopt;
    const auto number = whole_number(*literal, 0);
    return number ? std::optional(constant(*number)) : std::nullopt;
  }

  /// A position made of digits of rows and keys, linear in both.
  std::optional<Linear2> linear(const Index& digits) const {
    std::map<Var, int64_t> weights;
    int64_t weight = 1;
    for (auto digit = digits.rbegin(); digit != digits.rend(); ++digit) {
      weights[*digit] += weight;
      weight *= elements_.size(*digit);
    }
    size_t seen = 0;
    const auto along = [&](const Index& axis) -> std::optional<int64_t> {
      int64_t step = 0, inner = 1;
      for (auto digit = axis.rbegin(); digit != axis.rend(); ++digit) {
        const auto found = weights.find(*digit);
        const int64_t own = found == weights.end() ? 0 : found->second;
        seen += found != weights.end();
        if (digit == axis.rbegin()) step = own;
        if (own != step * inner) return std::nullopt;
        inner *= elements_.size(*digit);
      }
      return step;
    };
    const auto row = along(rows_), key = along(keys_);
    if (!row || !key || seen != weights.size()) return std::nullopt;
    return Linear2{*row, *key, 0};
  }

  std::optional<Pieces> in_type(ElementType type, const std::optional<Pieces>& value) const {
    if (!value) return std::nullopt;
    return hlo::is_integral(type) ? wrapped_in(type, *value) : held_in(type, *value);
  }

  std::optional<Pieces> operation(const Instruction* x,
                                  const std::vector<const Pieces*>& operands) const {
    const ElementType type = x->shape().type();
    const bool is_truth = type == ElementType::pred;
    const Pieces& a = *operands[0];
    const Pieces& b = *operands[operands.size() > 1 ? 1 : 0];
    const auto smaller = [](const Pieces& x, const Pieces& y) {
      const auto is_less = compared(x, y, "LT");
      return is_less ? selected(*is_less, x, y) : std::nullopt;
    };
    const auto larger = [](const Pieces& x, const Pieces& y) {
      const auto is_less = compared(x, y, "LT");
      return is_less ? selected(*is_less, y, x) : std::nullopt;
    };
    switch (x->opcode()) {
      case Opcode::add:
        return is_truth ? larger(a, b) : in_type(type, plus(a, b, 1));
      case Opcode::subtract:
        return in_type(type, plus(a, b, -1));
      case Opcode::multiply:
        return in_type(type, times(a, b));
      case Opcode::negate:
        return in_type(type, plus(constant(0), a, -1));
      case Opcode::abs: {
        const auto is_less = compared(a, constant(0), "LT");
        const auto negated = in_type(type, plus(constant(0), a, -1));
        return is_less && negated ? selected(*is_less, *negated, a) : std::nullopt;
      }
      case Opcode::minimum:
        return smaller(a, b);
      case Opcode::maximum:
        return larger(a, b);
      case Opcode::clamp: {
        const auto raised = larger(b, a);
        return raised ? smaller(*raised, *operands[2]) : std::nullopt;
      }
      case Opcode::and_:
        return is_truth ? smaller(a, b) : std::nullopt;
      case Opcode::or_:
        return is_truth ? larger(a, b) : std::nullopt;
      case Opcode::xor_:
        return is_truth ? compared(a, b, "NE") : std::nullopt;
      case Opcode::not_:
        return is_truth ? compared(a, constant(0), "EQ") : in_type(type, plus(constant(-1), a, -1));
      case Opcode::select:
        return selected(a, b, *operands[2]);
      case Opcode::compare:
        // The total order knows two zeros.
        if (hlo::is_floating(x->operand(0)->shape().type()) && x->text("type") == "TOTALORDER")
          return std::nullopt;
        return compared(a, b, x->direction());
      case Opcode::convert:
        if (is_truth) return compared(a, constant(0), "NE");
        // Integers wrap, what was a floating number does not.
        return hlo::is_floating(x->operand(0)->shape().type()) ? held_in(type, a)
                                                               : in_type(type, a);
      default:
        return std::nullopt;
    }
  }

  /// Step `last` as a vector along rows or keys, computed number by number.
  std::optional<Pieces> vector(size_t last) {
    const Element& e = steps_[last].element;
    const bool of_rows = varies(e, rows_);
    if (of_rows == varies(e, keys_) || vectors_++ == kMaxVectors) return std::nullopt;
    std::vector<Extent> extents;
    for (Var v : of_rows ? rows_ : keys_) extents.push_back({v, 0, elements_.size(v)});
    const std::vector<Step> steps = steps_before(last);
    const auto values = work_of(steps, extents) > kMaxWork
                            ? std::nullopt
                            : Cells(elements_).evaluate(steps, extents);
    if (!values) return std::nullopt;
    const std::vector<int64_t> numbers = whole_numbers(*values, extents);
    Pieces pieces;
    for (size_t begin = 0; begin < numbers.size();) {
      size_t end = begin + 1;
      // Truth is constant on every piece.
      const bool may_rise = end < numbers.size() && e.x->shape().type() != ElementType::pred;
      const int64_t step = may_rise ? numbers[end] - numbers[begin] : 0;
      while (end < numbers.size() && numbers[end] - numbers[end - 1] == step) ++end;
      Zone zone = whole_;
      (of_rows ? zone.row : zone.key) = {static_cast<int64_t>(begin),
                                         static_cast<int64_t>(end) - 1};
      const auto part = meet(zone, zone);
      const int64_t at_zero = numbers[begin] - step * static_cast<int64_t>(begin);
      if (!part || pieces.size() == kMaxRuns) return std::nullopt;
      pieces.push_back({*part, of_rows ? Linear2{step, 0, at_zero} : Linear2{0, step, at_zero}});
      begin = end;
    }
    return pieces.empty() ? std::nullopt : std::optional(std::move(pieces));
  }

  /// The steps that step `last` is computed from, and itself.
  std::vector<Step> steps_before(size_t last) const {
    std::vector<bool> needed(last + 1);
    needed[last] = true;
    for (size_t i = last + 1; i-- > 0;)
      for (int operand : steps_[i].operands) needed[operand] = needed[operand] || needed[i];
    std::vector<Step> steps;
    std::vector<int> number(last + 1);
    for (size_t i = 0; i <= last; ++i) {
      if (!needed[i]) continue;
      number[i] = static_cast<int>(steps.size());
      steps.push_back(steps_[i]);
      for (int& operand : steps.back().operands) operand = number[operand];
    }
    return steps;
  }

  /// The numbers along all extents; none if one is not whole.
  static std::vector<int64_t> whole_numbers(const Literal& values,
                                            const std::vector<Extent>& extents) {
    std::vector<int64_t> dims;
    for (const Extent& extent : extents) dims.push_back(extent.end - extent.begin);
    const auto all = spread(values, dims);
    std::vector<int64_t> numbers;
    for (int64_t i = 0; all && i < all->element_count(); ++i) {
      const auto number = whole_number(*all, i);
      if (!number) return {};
      numbers.push_back(*number);
    }
    return numbers;
  }

  Elements& elements_;
  const std::vector<Step>& steps_;
  const Index& rows_;
  const Index& keys_;
  Zone whole_;
  int vectors_ = 0;
};

}  // namespace

std::optional<Pieces> pieces_of(Elements& elements, const std::vector<Step>& steps,
                                const Index& rows, const Index& keys) {
  return Reader(elements, steps, rows, keys).read();
}

}  // namespace heddle::rewrite
