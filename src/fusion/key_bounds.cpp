#include "fusion/key_bounds.h"

#include <cmath>
#include <optional>

#include "problem/score_builder.h"

namespace heddle::fusion {

using problem::Anchor;
using problem::ScoreExpression;
using problem::ScoreNode;
using problem::ScoreOp;

namespace {

/// An integer form: column, row, q_length and kv_length with coefficients, plus a constant.
struct Affine {
  int64_t column = 0, row = 0, q_length = 0, kv_length = 0, constant = 0;

  Affine operator*(int64_t factor) const {
    return {column * factor, row * factor, q_length * factor, kv_length * factor,
            constant * factor};
  }
  Affine operator+(const Affine& o) const {
    return {column + o.column, row + o.row, q_length + o.q_length, kv_length + o.kv_length,
            constant + o.constant};
  }
  Affine operator-(const Affine& o) const { return *this + o * -1; }
  bool is_constant() const { return column == 0 && row == 0 && q_length == 0 && kv_length == 0; }
};

/// Coefficients and constants beyond this could overflow when forms are added up; no mask means
/// them.
constexpr double kLargest = 1 << 30;

std::optional<int64_t> whole(double value) {
  if (!(std::fabs(value) <= kLargest) || value != std::floor(value)) return {};
  return static_cast<int64_t>(value);
}

bool is_small(const Affine& form) {
  for (int64_t x : {form.column, form.row, form.q_length, form.kv_length, form.constant}) {
    if (std::abs(x) > static_cast<int64_t>(kLargest)) return false;
  }
  return true;
}

/// The form of a node whose operands' forms are known; nothing if it has none.
std::optional<Affine> affine(const ScoreNode& node,
                             const std::vector<std::optional<Affine>>& forms) {
  const auto form = [&](int32_t n) { return forms[static_cast<size_t>(n)]; };
  switch (node.op) {
    case ScoreOp::column:
      return Affine{.column = 1};
    case ScoreOp::row:
      return Affine{.row = 1};
    case ScoreOp::q_length:
      return Affine{.q_length = 1};
    case ScoreOp::kv_length:
      return Affine{.kv_length = 1};
    case ScoreOp::constant: {
      const auto value = whole(node.value);
      if (!value) return {};
      return Affine{.constant = *value};
    }
    case ScoreOp::negate: {
      const auto a = form(node.a);
      if (!a) return {};
      return *a * -1;
    }
    case ScoreOp::add:
    case ScoreOp::subtract: {
      const auto a = form(node.a), b = form(node.b);
      if (!a || !b) return {};
      const Affine sum = node.op == ScoreOp::add ? *a + *b : *a - *b;
      if (!is_small(sum)) return {};
      return sum;
    }
    default:
      return {};
  }
}

/// The anchor that equals row, q_length and kv_length with the form's coefficients.
std::optional<Anchor> anchor_of(const Affine& form) {
  const auto is = [&](int64_t row, int64_t q, int64_t kv) {
    return form.row == row && form.q_length == q && form.kv_length == kv;
  };
  if (is(0, 0, 0)) return Anchor::start;
  if (is(0, 0, 1)) return Anchor::kv_end;
  if (is(1, 0, 0)) return Anchor::top_left;
  if (is(1, -1, 1)) return Anchor::bottom_right;
  return {};
}

/// Adds the bound "a < b" or "a <= b"; false if it is none.
bool add_less(const Affine& a, const Affine& b, bool or_equal, Bounds& bounds) {
  const Affine form = b - a;  // 0 < form, or 0 <= form
  if (std::abs(form.column) != 1) return false;
  // column + rest > 0 is column >= 1 - rest; rest - column > 0 is column < rest.
  Affine rest = form;
  rest.column = 0;
  const bool upper = form.column < 0;
  if (!upper) rest = rest * -1;
  const auto anchor = anchor_of(rest);
  if (!anchor) return false;
  bounds.add(upper, *anchor, rest.constant + (upper == or_equal ? 1 : 0));
  return true;
}

/// Finds the bounds that predicates of one expression mean. Values may be used by many and nest
/// deep: each is looked at once, without recursion.
class Intervals {
 public:
  explicit Intervals(const ScoreExpression& e)
      : e_(e), seen_{std::vector<bool>(e.nodes.size()), std::vector<bool>(e.nodes.size())} {
    forms_.reserve(e.nodes.size());
    for (const ScoreNode& node : e.nodes) forms_.push_back(affine(node, forms_));
  }

  /// Adds the bounds of a predicate that must hold (or must not, if `negated`), less those that are
  /// there from before; false, and nothing added, if it is none.
  bool add(int32_t predicate, bool negated, Bounds& bounds) {
    const size_t before = bounds.bounds.size();
    std::vector<Wanted> wanted{{predicate, negated}};
    while (!wanted.empty()) {
      const Wanted next = wanted.back();
      wanted.pop_back();
      if (seen_[next.negated][static_cast<size_t>(next.node)]) continue;
      seen_[next.negated][static_cast<size_t>(next.node)] = true;
      const ScoreNode& node = e_.nodes[static_cast<size_t>(next.node)];
      if (node.op == ScoreOp::logical_not) {
        wanted.push_back({node.a, !next.negated});
      } else if (node.op == (next.negated ? ScoreOp::logical_or : ScoreOp::logical_and)) {
        wanted.push_back({node.b, next.negated});
        wanted.push_back({node.a, next.negated});
      } else if (!add_comparison(node, next.negated, bounds)) {
        bounds.bounds.resize(before);
        bounds.constants.resize(before);
        return false;
      }
    }
    return true;
  }

 private:
  struct Wanted {
    int32_t node;
    bool negated;
  };

  bool add_comparison(const ScoreNode& node, bool negated, Bounds& bounds) const {
    if (arity(node.op) != 2) return false;
    const auto &a = forms_[static_cast<size_t>(node.a)], &b = forms_[static_cast<size_t>(node.b)];
    if (!a || !b) return false;
    switch (node.op) {
      case ScoreOp::less:
        return negated ? add_less(*b, *a, true, bounds) : add_less(*a, *b, false, bounds);
      case ScoreOp::less_equal:
        return negated ? add_less(*b, *a, false, bounds) : add_less(*a, *b, true, bounds);
      case ScoreOp::greater:
        return negated ? add_less(*a, *b, true, bounds) : add_less(*b, *a, false, bounds);
      case ScoreOp::greater_equal:
        return negated ? add_less(*a, *b, false, bounds) : add_less(*b, *a, true, bounds);
      case ScoreOp::equal:
        return !negated && add_less(*a, *b, true, bounds) && add_less(*b, *a, true, bounds);
      case ScoreOp::not_equal:
        return negated && add_less(*a, *b, true, bounds) && add_less(*b, *a, true, bounds);
      default:
        return false;
    }
  }

  const ScoreExpression& e_;
  std::vector<std::optional<Affine>> forms_;  ///< of each node
  std::vector<bool> seen_[2];                 ///< by whether it must not hold
};

bool is_minus_infinity(const ScoreNode& node) {
  return node.op == ScoreOp::constant && std::isinf(node.value) && node.value < 0;
}

}  // namespace

void Bounds::add(bool upper, Anchor anchor, int64_t constant) {
  bounds.push_back({upper, anchor});
  constants.push_back(constant);
}

void Bounds::add(const Bounds& others) {
  bounds.insert(bounds.end(), others.bounds.begin(), others.bounds.end());
  constants.insert(constants.end(), others.constants.begin(), others.constants.end());
}

Bounds diagonal_bounds(const graph::AttentionAttributes& a) {
  const bool top_left = a.diagonal_alignment == graph::DiagonalAlignment::top_left;
  const Anchor anchor = top_left ? Anchor::top_left : Anchor::bottom_right;
  Bounds bounds;
  if (a.right_bound) bounds.add(true, anchor, *a.right_bound + 1);
  if (a.left_bound) bounds.add(false, anchor, 1 - *a.left_bound);
  return bounds;
}

ScoreExpression without_interval_masks(const ScoreExpression& score, Bounds& bounds) {
  ScoreExpression rest = problem::simplified(score);
  Intervals intervals(rest);
  for (;;) {
    const ScoreNode& root = rest.nodes[static_cast<size_t>(rest.root)];
    if (root.op != ScoreOp::select) break;
    const bool masks_else = is_minus_infinity(rest.nodes[static_cast<size_t>(root.c)]);
    const bool masks_then = is_minus_infinity(rest.nodes[static_cast<size_t>(root.b)]);
    if (masks_else == masks_then || !intervals.add(root.a, masks_then, bounds)) break;
    rest.root = masks_then ? root.c : root.b;
  }
  return problem::simplified(rest);
}

}  // namespace heddle::fusion
