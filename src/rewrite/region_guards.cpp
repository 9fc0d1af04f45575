// What guards the sum of a row's weights against 0. Where the row's maximum is taken off its scores
// its largest exponential is 1, and the sum 1 or more, in any precision: a guard that leaves such
// numbers as they are changes nothing of a row that sees a key. Of one that sees none every weight
// is 0, and so has to be whatever the guard goes into.
#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "rewrite/arithmetic.h"
#include "rewrite/region.h"
#include "rewrite/score.h"
#include "rewrite/steps.h"

namespace heddle::rewrite {

using hlo::Instruction;
using hlo::Opcode;

namespace {

// A guard of what is guarded already, and comparisons of such.
constexpr int kMaxGuards = 8;
// What a row's number is the maximum of, maxima of maxima taken apart.
constexpr int kMaxMaxima = 8;

bool compares(double a, std::string_view direction, double b) {
  if (direction == "EQ") return a == b;
  if (direction == "NE") return a != b;
  if (direction == "LT") return a < b;
  if (direction == "LE") return a <= b;
  return direction == "GT" ? a > b : a >= b;
}

bool is_maximum(Elements& elements, int frame, const Instruction* reduce) {
  if (!reduce->is(Opcode::reduce) || reduce->operand_count() != 2) return false;
  const Instruction* root = reduce->to_apply()->root();
  const auto start = elements.splat(frame, reduce->operand(1));
  return root->is(Opcode::maximum) && root->operand(0)->is(Opcode::parameter) &&
         root->operand(1)->is(Opcode::parameter) && root->operand(0) != root->operand(1) && start &&
         *start <= -largest_finite(reduce->shape().type());
}

}  // namespace

bool Region::sees_largest_weight() {
  if (sees_largest_weight_) return *sees_largest_weight_;
  sees_largest_weight_ = false;
  Element shifted = operand_of(elements_, anchor_, 0);
  if (is_rounding(shifted.x)) shifted = operand_of(elements_, shifted, 0);
  if (!shifted.x->is(Opcode::subtract)) return false;
  Element maximum = operand_of(elements_, shifted, 1);
  while (const auto behind = behind_stand_in(maximum)) maximum = *behind;
  if (!is_maximum(elements_, maximum.frame, maximum.x)) return false;
  const auto scores = reduced_over_keys(maximum.frame, maximum.x);
  sees_largest_weight_ = scores && scores->of_rows == maximum.at &&
                         are_shown_of(operand_of(elements_, shifted, 0), scores->read) &&
                         holds_fills();
  return *sees_largest_weight_;
}

bool Region::is_largest_of(const Element& maximum, const Element& scores) {
  // Another start than -inf is a row's maximum where its scores are lower.
  if (!is_maximum(elements_, maximum.frame, maximum.x) ||
      !std::isinf(*elements_.splat(maximum.frame, maximum.x->operand(1))))
    return false;
  const auto over_keys = reduced_over_keys(maximum.frame, maximum.x);
  return over_keys && over_keys->of_rows == maximum.at && over_keys->read == scores;
}

std::optional<TakenOff> Region::taken_off() {
  const Element shifted = operand_of(elements_, anchor_, 0);
  if (!shifted.x->is(Opcode::subtract)) return std::nullopt;
  Element number = operand_of(elements_, shifted, 1);
  auto maximum = largest_in(number, operand_of(elements_, shifted, 0), kMaxMaxima);
  return maximum ? std::optional(TakenOff{std::move(number), std::move(*maximum)}) : std::nullopt;
}

std::optional<Element> Region::largest_in(const Element& number, const Element& scores,
                                          int levels) {
  if (is_largest_of(number, scores)) return number;
  if (levels == 0) return std::nullopt;
  if (number.x->is(Opcode::maximum))
    for (int i : {0, 1}) {
      auto found = largest_in(operand_of(elements_, number, i), scores, levels - 1);
      // Beside others of the same scores, which are computed for these anyway, nothing is saved.
      if (found && !depends_on_scores(operand_of(elements_, number, 1 - i))) return found;
    }
  const auto behind = behind_stand_in(number);
  return behind ? largest_in(*behind, scores, levels - 1) : std::nullopt;
}

bool Region::holds_fills() {
  const std::vector<const Member*> all = members(frame_);
  return std::all_of(all.begin(), all.end(), [&](const Member* member) {
    const Instruction* x = member->place.x;
    return member->kind != Kind::matrix || !is_wide_floating(x->shape().type()) ||
           elements_.position(x) >= elements_.position(anchor_.x) ||
           rewrite::holds_fills(algebra_, value(member->place), largest_finite(x->shape().type()));
  });
}

bool Region::adds_fills_in_half() {
  const std::vector<const Member*> all = members(frame_);
  return std::any_of(all.begin(), all.end(), [&](const Member* member) {
    const Instruction* x = member->place.x;
    if (member->kind != Kind::matrix || !is_wide_floating(x->shape().type()) ||
        hlo::bits_of(x->shape().type()) > 16 ||
        elements_.position(x) >= elements_.position(anchor_.x))
      return false;
    // Numbers of whole rows, as the maximum that is taken off, change no weight.
    const std::vector<Poly> beside = beside_fills(algebra_, value(member->place));
    return std::any_of(beside.begin(), beside.end(),
                       [&](const Poly& rest) { return is_of_keys(rest); });
  });
}

std::optional<Element> Region::behind_stand_in(const Element& e) {
  if (e.x->is(Opcode::maximum)) {
    for (int i : {0, 1})
      if (const auto bound = elements_.splat(e.frame, e.x->operand(i));
          bound && *bound <= -largest_finite(e.x->shape().type()))
        return operand_of(elements_, e, 1 - i);
    return std::nullopt;
  }
  if (!e.x->is(Opcode::select)) return std::nullopt;
  const Element predicate = operand_of(elements_, e, 0);
  const auto chosen_by = [&](const Element& number, bool truth) -> std::optional<Element> {
    const Element chosen = operand_of(elements_, e, truth ? 1 : 2);
    return number == chosen ? std::optional(chosen) : std::nullopt;
  };
  if (predicate.x->is(Opcode::is_finite))
    return chosen_by(operand_of(elements_, predicate, 0), true);
  if (!predicate.x->is(Opcode::compare)) return std::nullopt;
  for (int i : {0, 1}) {
    const auto bound = elements_.splat(predicate.frame, predicate.x->operand(1 - i));
    if (!bound || !std::isinf(*bound)) continue;
    // All finite numbers stand to an infinity as 0 does.
    Element number = operand_of(elements_, predicate, i);
    if (number.x->is(Opcode::abs)) number = operand_of(elements_, number, 0);
    const std::string_view direction = predicate.x->direction();
    return chosen_by(number,
                     i == 0 ? compares(0, direction, *bound) : compares(*bound, direction, 0));
  }
  return std::nullopt;
}

std::optional<Region::OverKeys> Region::reduced_over_keys(int frame, const Instruction* reduce) {
  const Member* member = find(frame, reduce->operand(0));
  if (!member || member->kind != Kind::matrix) return std::nullopt;
  OverKeys found;
  std::set<Var> over;
  for (int dim = 0; dim < static_cast<int>(member->place.at.size()); ++dim) {
    const Index& at = member->place.at[dim];
    const auto dims = reduce->dimensions();
    if (std::find(dims.begin(), dims.end(), dim) == dims.end())
      found.of_rows.push_back(at);
    else
      over.insert(at.begin(), at.end());
  }
  if (over != std::set<Var>(keys_.begin(), keys_.end())) return std::nullopt;
  found.read = elements_.resolve({frame, reduce->operand(0), member->place.at});
  return found;
}

bool Region::are_shown_of(const Element& shown, const Element& scores) {
  if (shown == scores) return true;
  if (!shown.x->is(Opcode::select)) return false;
  const auto nothing = elements_.splat(shown.frame, shown.x->operand(2));
  if (!nothing || *nothing > -std::numeric_limits<double>::infinity()) return false;
  // Hidden cells of `scores` are no larger than those it shows if they hold a fill that no number
  // is below, or none of these scores.
  const auto mask = mask_of(algebra_, algebra_.intern(value(scores)));
  if (!mask || !mask->hides_anything()) return false;
  const bool is_lowest = as_written(mask->fill) <= -largest_finite(scores.x->shape().type());
  const bool is_one_fill = mask->hiding == Hiding::replaces || mask->fill == kMinusInfinity;
  if ((mask->terms_reach_fill || mask->scores_reach_fill) && !(is_lowest && is_one_fill))
    return false;
  // Nor does it matter where all are at that fill and `shown` shows some of them.
  const Element predicate = operand_of(elements_, shown, 0);
  const Poly cells = visible_cells(algebra_, *mask), those = value(predicate);
  const bool are_the_same = algebra_.ratio(cells, those) == 1.0;
  const bool are_among_them = algebra_.ratio(algebra_.multiply(cells, those), cells) == 1.0;
  if (!are_the_same && !(are_among_them && is_one_fill)) return false;
  const auto where_shown = [&](Element e) {
    while (e.x->is(Opcode::select) && operand_of(elements_, e, 0) == predicate)
      e = operand_of(elements_, e, 1);
    return e;
  };
  return where_shown(shown) == where_shown(scores);
}

std::optional<Element> Region::behind_guard(const Element& e) {
  const auto guarded = [&](int i) -> std::optional<Element> {
    Element sum = operand_of(elements_, e, i);
    if (!is_sum_of_weights(sum)) return std::nullopt;
    looked_behind_guards_ = true;
    return sum;
  };
  switch (e.x->opcode()) {
    case Opcode::maximum:
    case Opcode::add:
      for (int i : {0, 1}) {
        const auto number = elements_.splat(e.frame, e.x->operand(i));
        if (!number) continue;
        const bool is_lost =
            *number >= 0 &&
            *number * static_cast<double>(2 * largest_exact(e.x->shape().type())) <= 1;
        if (e.x->is(Opcode::maximum) ? *number <= 1 : is_lost) return guarded(1 - i);
      }
      return std::nullopt;
    case Opcode::select: {
      const auto truth = truth_beside_keys(operand_of(elements_, e, 0));
      return truth ? guarded(*truth ? 1 : 2) : std::nullopt;
    }
    default:
      return std::nullopt;
  }
}

bool Region::adds_up_weights(const Element& e) {
  if (e.frame != frame_ || !is_sum(elements_, e.frame, e.x)) return false;
  auto weights = reduced_over_keys(e.frame, e.x);
  if (!weights) return false;
  Element& read = weights->read;
  if (is_rounding(read.x)) read = operand_of(elements_, read, 0);
  if (read == anchor_) return true;
  // Or what a mask shows of them, where they are 0 without it.
  return read.x->is(Opcode::select) && operand_of(elements_, read, 1) == anchor_ &&
         elements_.splat(read.frame, read.x->operand(2)) == 0.0 &&
         algebra_.ratio(value(read), value(anchor_)) == 1.0;
}

const Instruction* Region::guard_of_sum() {
  for (const Member* member : members(frame_)) {
    const Instruction* x = member->place.x;
    if (!x->is(Opcode::maximum) && !x->is(Opcode::select)) continue;
    for (int i = 0; i < x->operand_count(); ++i)
      if (adds_up_weights(operand_of(elements_, member->place, i)) && !behind_guard(member->place))
        return x;
  }
  return nullptr;
}

bool Region::is_sum_of_weights(const Element& place) {
  const auto [known, is_new] = sums_of_weights_.try_emplace({place.frame, place.x}, false);
  if (!is_new || guards_ == kMaxGuards) return known->second;
  ++guards_;
  Element e = place;
  if (is_rounding(e.x)) e = operand_of(elements_, e, 0);
  const bool is_sum = behind_guard(e) || (adds_up_weights(e) && sees_largest_weight());
  --guards_;
  return sums_of_weights_[{place.frame, place.x}] = is_sum;
}

std::optional<bool> Region::truth_beside_keys(const Element& predicate) {
  if (!predicate.x->is(Opcode::compare)) return std::nullopt;
  Element sides[] = {operand_of(elements_, predicate, 0), operand_of(elements_, predicate, 1)};
  if (!find(sides[0].frame, sides[0].x) && !find(sides[1].frame, sides[1].x)) return std::nullopt;
  const std::string_view direction = predicate.x->direction();
  for (int i : {0, 1}) {
    const auto number = elements_.splat(sides[1 - i].frame, sides[1 - i].x);
    // All numbers from 1 on stand to a smaller one as 1 does.
    if (!number || !(*number < 1) || !is_sum_of_weights(sides[i])) continue;
    looked_behind_guards_ = true;
    return i == 0 ? compares(1, direction, *number) : compares(*number, direction, 1);
  }
  bool is_guarded = false;
  for (Element& side : sides)
    if (const auto behind = behind_guard(side)) {
      side = *behind;
      is_guarded = true;
    }
  return is_guarded && sides[0] == sides[1] ? std::optional(compares(1, direction, 1))
                                            : std::nullopt;
}

bool Region::holds_without_keys(const Element& place) {
  if (!looked_behind_guards_) return true;
  if (zeros_without_keys_.empty()) find_zeros_without_keys();
  return is_known_zero(place.frame, place.x);
}

bool Region::is_known_zero(int frame, const Instruction* x) {
  const Element e = elements_.resolve(elements_.fresh(frame, x));
  return zeros_without_keys_.contains({e.frame, e.x}) || elements_.splat(frame, x) == 0.0;
}

void Region::find_zeros_without_keys() {
  zeros_without_keys_.insert({anchor_.frame, anchor_.x});
  for (int frame : {frame_, home_})
    for (const Member* member : members(frame))
      if (member->place.x->shape().is_array() && vanishes(*member))
        zeros_without_keys_.insert({frame, member->place.x});
}

bool Region::vanishes(const Member& member) {
  const Instruction* x = member.place.x;
  const auto is_zero = [&](int i) { return is_known_zero(member.place.frame, x->operand(i)); };
  switch (x->opcode()) {
    case Opcode::multiply:
    case Opcode::dot:
      return is_zero(0) || is_zero(1);
    case Opcode::add:
    case Opcode::subtract:
      return is_zero(0) && is_zero(1);
    case Opcode::select:
      return is_zero(1) && is_zero(2);
    case Opcode::reduce:
      return is_sum(elements_, member.place.frame, x) && is_zero(0);
    case Opcode::convert:
    case Opcode::divide:
    case Opcode::negate:
    case Opcode::slice:
      return is_zero(0);
    case Opcode::exponential: {
      // The same weights with something else of the row taken off.
      const Poly weights = value(anchor_), other = value(member.place);
      const auto weight_of = [&](const Poly& poly) -> std::optional<AtomId> {
        if (poly.size() == 1)
          for (const Power& p : poly[0].factors)
            if (algebra_.at(p.atom).kind == AtomKind::weight && p.exponent == 1) return p.atom;
        return std::nullopt;
      };
      return weight_of(weights) && weight_of(weights) == weight_of(other);
    }
    default:
      return false;
  }
}

}  // namespace heddle::rewrite
