#include "rewrite/visible_keys.h"

#include <algorithm>

namespace heddle::rewrite {

using hlo::ElementType;
using hlo::Opcode;

namespace {

bool varies_only(const Element& element, const Index& along) {
  return std::all_of(element.at.begin(), element.at.end(), [&](const Index& index) {
    return std::all_of(index.begin(), index.end(), [&](Var v) {
      return std::find(along.begin(), along.end(), v) != along.end();
    });
  });
}

struct Comparison {
  Element a, b;
  std::string_view direction;
};

/// A comparison of 32-bit integers.
std::optional<Comparison> comparison(Elements& elements, const Element& element) {
  const Element e = elements.resolve(element);
  if (!e.x->is(Opcode::compare) || e.x->operand(0)->shape().type() != ElementType::s32)
    return std::nullopt;
  return Comparison{elements.resolve({e.frame, e.x->operand(0), e.at}),
                    elements.resolve({e.frame, e.x->operand(1), e.at}), e.x->direction()};
}

/// Whether `element` holds where the index along `axis` is below a length of each batch entry.
std::optional<Lengths> lengths_along(Elements& elements, const Element& element, const Index& axis,
                                     const Index& batch) {
  auto c = comparison(elements, element);
  if (!c) return std::nullopt;
  if (c->direction == "GT" || c->direction == "GE") {
    std::swap(c->a, c->b);
    c->direction = c->direction == "GT" ? "LT" : "LE";
  }
  if ((c->direction != "LT" && c->direction != "LE") || !varies_only(c->b, batch))
    return std::nullopt;
  const auto first = offset_along(elements, c->a, axis);
  if (!first) return std::nullopt;
  const int64_t plus = (c->direction == "LE" ? 1 : 0) - *first;
  // It is added in 32 bits.
  if (plus > INT32_MAX || plus < INT32_MIN) return std::nullopt;
  return Lengths{c->b, plus};
}

std::optional<Segments> segments_of(Elements& elements, const Element& element,
                                    const Roles& roles) {
  const auto c = comparison(elements, element);
  if (!c || c->direction != "EQ") return std::nullopt;
  const Index outer = flat({roles.batch, roles.query_heads()});
  const Index row = flat({outer, roles.rows}), key = flat({outer, roles.keys});
  for (const auto& [a, b] : {std::pair(c->a, c->b), std::pair(c->b, c->a)})
    if (varies_only(a, row) && varies_only(b, key) && varies(a, roles.rows) &&
        varies(b, roles.keys))
      return Segments{a, b};
  return std::nullopt;
}

/// The mask without indicator `i`, which must hold wherever it shows anything.
Mask without(const Mask& mask, size_t i) {
  Mask rest = mask;
  rest.indicators.erase(rest.indicators.begin() + static_cast<std::ptrdiff_t>(i));
  rest.visible.clear();
  for (size_t bits = 0; bits < mask.visible.size(); ++bits)
    if (bits >> i & 1) rest.visible.push_back(mask.visible[bits]);
  return rest;
}

bool must_hold(const Mask& mask, size_t i) {
  for (size_t bits = 0; bits < mask.visible.size(); ++bits)
    if (mask.visible[bits] && !(bits >> i & 1)) return false;
  return true;
}

/// Of a mask that the text alone decides: a band, or its predicates, if every row sees a key.
Result<VisibleKeys> fixed_keys_of(Elements& elements, const Algebra& algebra, const Mask& mask,
                                  const Roles& roles) {
  VisibleKeys keys;
  int64_t fully_masked_rows = 0;
  if (const auto band = band_of(elements, algebra, mask, roles.rows, roles.keys)) {
    keys.band = *band;
    fully_masked_rows = band->empty_rows;
  } else {
    const auto count = fully_masked_rows_of(elements, algebra, mask, roles.keys);
    if (!count) return band.status();
    fully_masked_rows = *count;
    for (AtomId id : mask.indicators) keys.predicates.push_back(algebra.at(id).element);
    keys.visible = mask.visible;
  }
  if (fully_masked_rows > 0 && mask.fill > kMinusInfinity)
    return error(Code::graph_not_supported,
                 "{} rows see no key, and the fill {} gives them uniform weights; a fused call "
                 "gives them 0",
                 fully_masked_rows, as_written(mask.fill));
  return keys;
}

}  // namespace

std::string VisibleKeys::description(const Elements& elements, const Roles& roles) const {
  std::string text;
  const auto add = [&](const std::string& part) { text += (text.empty() ? "" : ", ") + part; };
  if (band.right || band.left) {
    const int64_t offset = elements.size(roles.keys) - elements.size(roles.rows);
    const bool bottom_right = offset != 0 && band.right == offset;
    const int64_t shift = bottom_right ? offset : 0;
    const bool causal = band.right && *band.right == shift;
    add(causal ? (bottom_right ? "causal (bottom right)" : "causal") : "band");
    if (band.left) add(fmt::format("window {}", *band.left + shift));
    if (band.right && !causal) add(fmt::format("right bound {}", *band.right));
  }
  if (q_lengths) add("query lengths");
  if (kv_lengths) add("key lengths");
  if (!segments.empty()) add("segments");
  if (!predicates.empty()) add("predicate");
  return text.empty() ? "none" : text;
}

Result<VisibleKeys> visible_keys_of(Elements& elements, const Algebra& algebra, const Mask& mask,
                                    const Roles& roles, const Beside& beside) {
  VisibleKeys keys;
  if (!mask.hides_anything()) return keys;
  if (mask.is_fixed && !mask.may_mask_whole_rows())
    return fixed_keys_of(elements, algebra, mask, roles);
  if (mask.may_mask_whole_rows()) {
    const bool alike =
        mask.hiding == Hiding::replaces && !mask.terms_reach_fill && !mask.scores_reach_fill;
    // Where a row's hidden keys are all that it weighs, and are taken away, nothing is left: 0.
    const bool are_zero = alike && beside.masked_again;
    keys.may_be_fully_masked =
        alike && !are_zero && !beside.dropout && !beside.sink_is_data && !beside.statistics;
    if (!keys.may_be_fully_masked && !are_zero) {
      if (mask.hiding == Hiding::mixes)
        return error(Code::graph_not_supported, "{}", weighed_by_fills(algebra, mask));
      if (beside.masked_again)
        return error(Code::graph_not_supported,
                     "the weights are masked again (by %{}) after scores that may reach the mask's "
                     "fill {}",
                     algebra.at(mask.indicators[0]).element.x->name(), as_written(mask.fill));
      keys.fill = as_written(mask.fill);
    }
  }
  Mask rest = mask;
  for (size_t i = rest.indicators.size(); i-- > 0;) {
    const Element element = algebra.at(rest.indicators[i]).element;
    if (algebra.is_fixed(element) || !must_hold(rest, i)) continue;
    if (auto lengths = lengths_along(elements, element, roles.keys, roles.batch);
        lengths && !keys.kv_lengths) {
      keys.kv_lengths = std::move(lengths);
    } else if (lengths = lengths_along(elements, element, roles.rows, roles.batch);
               lengths && !keys.q_lengths) {
      keys.q_lengths = std::move(lengths);
    } else if (auto segments = segments_of(elements, element, roles)) {
      keys.segments.push_back(std::move(*segments));
    } else {
      continue;
    }
    rest = without(rest, i);
  }
  // Of what is left, fixed predicates are a band if they can be told from the others.
  Mask open = rest;
  bool all_must_hold = true;
  for (size_t i = 0; i < rest.indicators.size(); ++i)
    all_must_hold = all_must_hold && must_hold(rest, i);
  if (all_must_hold) {
    Mask fixed = rest;
    for (size_t i = rest.indicators.size(); i-- > 0;) {
      const bool is_fixed = algebra.is_fixed(algebra.at(rest.indicators[i]).element);
      (is_fixed ? open : fixed) = without(is_fixed ? open : fixed, i);
    }
    if (const auto band = band_of(elements, algebra, fixed, roles.rows, roles.keys)) {
      keys.band = *band;
    } else {
      open = rest;
    }
  }
  if (open.hides_anything()) {
    for (AtomId id : open.indicators) keys.predicates.push_back(algebra.at(id).element);
    keys.visible = open.visible;
  }
  return keys;
}

}  // namespace heddle::rewrite
