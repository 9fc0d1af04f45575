// What a call is told of its scores: bounds, soft cap, bias, dropout.
#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "rewrite/carry.h"
#include "rewrite/planner.h"
#include "rewrite/reach.h"

namespace heddle::rewrite {

using graph::TensorId;

namespace {

/// Of operands that the program scales one by one the call multiplies unscaled ones: where all
/// factors together are farther from 1 than 2 to this power, scores of usual sizes come of products
/// that the type does not hold.
int most_exponent(hlo::ElementType type) { return type == hlo::ElementType::f64 ? 900 : 100; }

/// f32 has 16 bits more than bf16: beside a number so many times as large as a fill it rounds as
/// bf16 does beside the fill.
constexpr double kMoreBits = 0x1p16;

}  // namespace

Status Planner::set_attributes(graph::AttentionAttributes& a) {
  const Score& score = match_.score;
  plan_.scale = score.soft_cap ? score.soft_cap->inner * score.soft_cap->cap : score.scale;
  const int most = most_exponent(plan_.dtype);
  if (plan_.scale != 0 && std::abs(std::log2(std::abs(plan_.scale))) > most) {
    return error(Code::graph_not_supported,
                 "scores are scaled by {:.6g} in all, expected 0 or a magnitude from 2^-{} to 2^{}",
                 plan_.scale, most, most);
  }
  a.attn_scale = plan_.scale;
  ScoreGraph score_graph(plan_.graph, *data_type(at_least_f32(plan_.dtype)));
  plan_.score = "dot";
  if (score.soft_cap) HEDDLE_TRY(set_cap(a, score_graph));
  HEDDLE_TRY(set_factors(a, score_graph));
  // In the program's order, which decides what a fill leaves of the terms.
  const bool mask_first = plan_.keys.fill && score.mask.hiding == Hiding::replaces_product;
  if (mask_first) HEDDLE_TRY(set_mask(a, score_graph));
  HEDDLE_TRY(set_added(a, score_graph));
  if (!mask_first) HEDDLE_TRY(set_mask(a, score_graph));
  if (visible_ != graph::kNone)
    score_graph.raise_where_not(visible_, kMoreBits * *plan_.keys.fill, *plan_.keys.fill);
  if (!score_graph.is_empty()) a.score_mod = score_graph.take();
  if (!plan_.absorbed.empty()) plan_.score += ", RoPE";
  for (const std::string& why : plan_.rope_outside)
    plan_.score += fmt::format(", RoPE outside of the call ({})", why);
  plan_.sink = "none";
  if (match_.sink) HEDDLE_TRY(set_sink(a));
  plan_.dropout = "none";
  if (match_.dropout) HEDDLE_TRY(set_dropout(a));
  return {};
}

Status Planner::set_mask(graph::AttentionAttributes& a, ScoreGraph& score) {
  const VisibleKeys& keys = plan_.keys;
  const Roles& roles = plan_.roles;
  plan_.mask = keys.description(elements_, roles);
  const bool by_score = bounds_by_score();
  const bool padded = !by_score && (keys.q_lengths || keys.kv_lengths);
  if (!by_score && (keys.band.right || keys.band.left)) {
    const int64_t shift = corner();
    a.diagonal_alignment =
        shift != 0 ? graph::DiagonalAlignment::bottom_right : graph::DiagonalAlignment::top_left;
    if (keys.band.right) a.right_bound = *keys.band.right - shift;
    if (keys.band.left) a.left_bound = *keys.band.left + shift;
  }
  if (padded) {
    a.padding_mask = true;
    HEDDLE_ASSIGN(a.seq_len_q,
                  lengths("Query lengths", keys.q_lengths, elements_.size(roles.rows)));
    HEDDLE_ASSIGN(a.seq_len_kv,
                  lengths("Key lengths", keys.kv_lengths, elements_.size(roles.keys)));
  }
  std::vector<TensorId> keeps;  // all must hold
  if (by_score) HEDDLE_TRY(add_bounds(keys, score, keeps));
  for (const Segments& segments : keys.segments) {
    TensorId equal[2];
    for (bool high : {false, true}) {
      const Made half = high ? Made::high_half : Made::low_half;
      HEDDLE_ASSIGN(const TensorId row, score_operand("Segments of rows", segments.row, half));
      HEDDLE_ASSIGN(const TensorId key, score_operand("Segments of keys", segments.key, half));
      equal[high] = score.apply(graph::PointwiseMode::cmp_eq, {row, key}, "equal half");
    }
    keeps.push_back(
        score.apply(graph::PointwiseMode::logical_and, {equal[0], equal[1]}, "same segment"));
  }
  std::vector<TensorId> predicates;
  for (const Element& predicate : keys.predicates) {
    HEDDLE_ASSIGN(const TensorId id, score_operand("Mask", predicate, Made::as_is));
    predicates.push_back(id);
  }
  if (!predicates.empty()) keeps.push_back(score.truth(predicates, keys.visible));
  if (!keys.fill) {
    for (TensorId predicate : keeps) score.hide_where_not(predicate);
    return {};
  }
  if (keeps.empty()) return {};  // of indices that hide nothing
  TensorId visible = keeps[0];
  for (size_t i = 1; i < keeps.size(); ++i)
    visible = score.apply(graph::PointwiseMode::logical_and, {visible, keeps[i]}, "visible");
  if (adds_fill_in_bf16()) visible_ = visible;
  const double fill = adds_fill_in_bf16() ? kMoreBits * *keys.fill : *keys.fill;
  if (match_.score.mask.hiding == Hiding::adds) {
    score.add_where_not(visible, fill);
  } else {
    score.replace_where_not(visible, fill);
  }
  return {};
}

bool Planner::adds_fill_in_bf16() const {
  // bf16 alone of the types of 16 bits has such fills. Beside a lower one f32 keeps nothing either.
  constexpr double kLosesAll = kReachOfProducts * 0x1p24;
  return match_.adds_fills_in_half && plan_.keys.fill && -*plan_.keys.fill < kLosesAll;
}

int64_t Planner::corner() const {
  const VisibleKeys& keys = plan_.keys;
  // With lengths the bottom right is another corner in every batch entry.
  if (keys.q_lengths || keys.kv_lengths) return 0;
  const int64_t offset = elements_.size(plan_.roles.keys) - elements_.size(plan_.roles.rows);
  return keys.band.right == offset ? offset : 0;
}

bool Planner::bounds_by_score() const {
  const VisibleKeys& keys = plan_.keys;
  const Band& band = keys.band;
  // A window's left bound is the call's own only where rows are no more than keys, and no bound is
  // that leaves out the key at the corner.
  const bool more_rows = elements_.size(plan_.roles.rows) > elements_.size(plan_.roles.keys);
  return keys.fill || (band.left && (more_rows || *band.left + corner() <= 0)) ||
         (band.right && *band.right < corner());
}

Status Planner::add_bounds(const VisibleKeys& keys, ScoreGraph& score,
                           std::vector<TensorId>& keeps) {
  // Calls compute indices in f32.
  constexpr int64_t kExact = 1 << 24;
  const int64_t rows = elements_.size(plan_.roles.rows), columns = elements_.size(plan_.roles.keys);
  if (std::max(rows, columns) > kExact)
    return error(
        Code::graph_not_supported,
        "a mask of {} x {} whose fill the scores may reach, or of fewer keys than rows, is "
        "computed up to {} rows or keys",
        rows, columns, kExact);
  using graph::PointwiseMode;
  if (keys.band.right || keys.band.left) {
    const TensorId ahead =
        score.apply(PointwiseMode::sub, {score.index(3), score.index(2)}, "columns ahead");
    const auto bound = [&](PointwiseMode mode, int64_t at) {
      const TensorId number = score.constant("bound", static_cast<double>(at));
      keeps.push_back(score.apply(mode, {ahead, number}, "within the bound"));
    };
    if (keys.band.right) bound(PointwiseMode::cmp_le, *keys.band.right);
    if (keys.band.left) bound(PointwiseMode::cmp_gt, -*keys.band.left);
  }
  const auto limit = [&](int axis, const char* name, const std::optional<Lengths>& of,
                         int64_t size) -> Status {
    if (!of) return {};
    HEDDLE_ASSIGN(const TensorId length, lengths(name, of, size));
    keeps.push_back(
        score.apply(PointwiseMode::cmp_lt, {score.index(axis), length}, "within the length"));
    return {};
  };
  HEDDLE_TRY(limit(2, "Query lengths", keys.q_lengths, rows));
  return limit(3, "Key lengths", keys.kv_lengths, columns);
}

Result<TensorId> Planner::lengths(const char* name, const std::optional<Lengths>& of,
                                  int64_t limit) {
  Operand operand;
  operand.axes = {plan_.roles.batch, {}, {}, {}};
  operand.limit = limit;
  const int64_t batch = elements_.size(plan_.roles.batch);
  if (of) {
    HEDDLE_ASSIGN(operand.place, narrow_place(of->length, "the mask"));
    const auto view = view_of(elements_, operand.place, operand.axes);
    if (!view || !varies_within(of->length, operand.axes))
      return error(Code::graph_not_supported, "%{} ({}) does not vary as lengths do",
                   of->length.x->name(), name);
    operand.direct = view->direct;
    operand.made = Made::lengths;
    operand.plus = of->plus;
  } else {
    operand.place.frame = match_.home;
    operand.made = Made::full_lengths;
  }
  plan_.operands.push_back(std::move(operand));
  return tensor(name, DataType::i32, {batch, 1, 1, 1}, {1, 1, 1, 1});
}

Result<TensorId> Planner::score_operand(const char* name, const Element& leaf, Made made) {
  Operand operand;
  HEDDLE_ASSIGN(operand.place, narrow_place(leaf, "the mask or a term of the scores"));
  operand.axes = score_axes(leaf);
  operand.made = made;
  operand.type = leaf.x->shape().type();
  const auto view = view_of(elements_, operand.place, operand.axes);
  if (!view || !varies_within(leaf, operand.axes))
    return error(Code::graph_not_supported, "%{} ({}) does not vary as scores do", leaf.x->name(),
                 name);
  operand.direct = view->direct;
  plan_.operands.push_back(std::move(operand));
  // There may be several.
  return tensor(fmt::format("{} {}", name, last_uid_ + 1),
                made == Made::as_is ? *data_type(leaf.x->shape().type()) : DataType::i32,
                view->dims, view->strides);
}

Result<Element> Planner::narrow_place(const Element& leaf, const char* whose) {
  const auto local = local_element(elements_, match_.home, leaf);
  const auto count = [](const Element& e) { return e.x->shape().element_count(); };
  if (local && count(*local) == count(leaf)) return *local;
  if (can_carry(elements_, leaf.frame, match_.home)) return leaf;
  return error(Code::graph_not_supported,
               "%{}, which {} is made of, is not within reach of the loop that needs it",
               leaf.x->name(), whose);
}

Status Planner::add_fully_masked_rows(size_t operand) {
  HEDDLE_TRY(find_fully_masked_rows(operand));
  plan_.results.back().adds_fully_masked_rows = plan_.fully_masked_rows.has_value();
  return {};
}

Status Planner::find_fully_masked_rows(size_t operand) {
  if (!plan_.keys.may_be_fully_masked) return {};
  const Mask& mask = match_.score.mask;
  FullyMaskedRows masked;
  for (AtomId id : mask.indicators) {
    HEDDLE_ASSIGN(Element place, narrow_place(match_.algebra->at(id).element, "the mask"));
    masked.predicates.push_back(std::move(place));
  }
  masked.visible = mask.visible;
  masked.operand = operand;
  // Each row's or key's own part of V or dO, and nothing besides.
  const Element& values = plan_.operands[operand].place;
  if (!varies_within(values, plan_.operands[operand].axes))
    return error(Code::graph_not_supported,
                 "rows may see no key, and %{} repeats itself along an axis", values.x->name());
  plan_.fully_masked_rows = std::move(masked);
  return {};
}

Axes Planner::score_axes(const Element& element) const {
  const auto part = [&](const Index& axis) { return varies(element, axis) ? axis : Index{}; };
  const Roles& r = plan_.roles;
  return {part(r.batch), part(r.query_heads()), part(r.rows), part(r.keys)};
}

bool Planner::wants_gradient_of(const Element& number) const {
  return match_.find(Role::d_bias) && match_.score.bias && number == match_.score.bias->element;
}

Result<TensorId> Planner::number_of_data(const char* name, const Element& number,
                                         graph::AttentionAttributes& a) {
  if (!data_type(number.x->shape().type()))
    return error(Code::graph_not_supported, "%{}, which the scores hold, has elements of type {}",
                 number.x->name(), hlo::name(number.x->shape().type()));
  if (!wants_gradient_of(number)) return score_operand(name, number, Made::as_is);
  if (a.bias == graph::kNone) {
    HEDDLE_ASSIGN(a.bias, operand(name, number, score_axes(number)));
  }
  return a.bias;
}

Status Planner::set_factors(graph::AttentionAttributes& a, ScoreGraph& score) {
  for (const Power& p : match_.score.factors) {
    HEDDLE_ASSIGN(const TensorId id,
                  number_of_data("Factor", match_.algebra->at(p.atom).element, a));
    for (int i = 0; i < std::abs(p.exponent); ++i)
      p.exponent > 0 ? score.multiply(id) : score.divide(id);
    plan_.score = "dot times numbers of data";
  }
  return {};
}

Status Planner::set_cap(graph::AttentionAttributes& a, ScoreGraph& score) {
  const SoftCap& cap = *match_.score.soft_cap;
  for (Monomial m : cap.added) {
    HEDDLE_TRY(check_leaves_scores(m));
    m.coefficient *= cap.cap;
    const auto term = computable(m);
    HEDDLE_ASSIGN(const TensorId id, term ? computed(*term, score) : product(m, a, score));
    score.add(id);
  }
  score.cap(cap.cap);
  plan_.score = fmt::format("soft cap {}{}", cap.cap, cap.added.empty() ? "" : " of it and a term");
  return {};
}

bool Planner::is_of_rows(const Monomial& m) const {
  const Index& keys = plan_.roles.keys;
  return std::none_of(m.factors.begin(), m.factors.end(), [&](const Power& p) {
    const std::vector<Var>& support = match_.algebra->support(p.atom);
    return std::find_first_of(support.begin(), support.end(), keys.begin(), keys.end()) !=
           support.end();
  });
}

Status Planner::check_leaves_scores(const Monomial& m) const {
  if (!swallows_scores(*match_.algebra, m)) return {};
  // A program that rounds to 16 bits leaves nothing of scores beside it, a sum of f32 a part that
  // tells keys apart at random.
  if (match_.holds_narrow_scores() && is_of_rows(m))
    return error(Code::graph_not_supported,
                 "what is added to all scores of a row may be so large that scores of 16 bits are "
                 "lost beside it");
  if (loses_other_scores())
    return error(Code::graph_not_supported,
                 "what is added to scores may be so large that they are lost beside it: in the "
                 "program's floats others than in those of the call, whose operands are {}",
                 hlo::name(plan_.dtype));
  return {};
}

bool Planner::loses_other_scores() const {
  return plan_.dtype == hlo::ElementType::f64 ? match_.bits.fewest < 64 : match_.bits.most > 32;
}

Status Planner::set_added(graph::AttentionAttributes& a, ScoreGraph& score) {
  plan_.bias = "none";
  const auto describe = [&](const std::string& part) {
    plan_.bias = plan_.bias == "none" ? part : plan_.bias + ", " + part;
  };
  std::optional<Element> bias;
  for (const Monomial& m : match_.score.added) {
    HEDDLE_TRY(check_leaves_scores(m));
    const bool is_bias =
        match_.score.bias && match_.score.bias->is_term && m.factors.size() == 1 &&
        match_.algebra->at(m.factors[0].atom).element == match_.score.bias->element;
    if (const auto term = computable(m)) {
      HEDDLE_ASSIGN(const TensorId id, computed(*term, score));
      score.add(id);
      describe("of indices");
    } else if (is_bias) {
      bias = match_.score.bias->element;
    } else {
      HEDDLE_ASSIGN(const TensorId id, product(m, a, score));
      score.add(id);
      describe("a term");
    }
  }
  if (!bias) return {};
  HEDDLE_ASSIGN(a.bias, operand("Bias", *bias, score_axes(*bias)));
  // What a fill replaces is replaced with the bias that was added before; so is what the score
  // hides, where the bias may be no number. Beside a fill that is added in bf16 it is rounded.
  const VisibleKeys& keys = plan_.keys;
  const bool hides = bounds_by_score() || !keys.segments.empty() || !keys.predicates.empty();
  const Hiding hiding = match_.score.mask.hiding;
  if (keys.fill ? hiding == Hiding::replaces || adds_fill_in_bf16()
                : hides && hiding != Hiding::adds)
    score.add(a.bias);
  const std::string dims = to_string(plan_.graph[a.bias].dims);
  plan_.bias = plan_.bias == "none" ? dims : dims + ", " + plan_.bias;
  return {};
}

Result<TensorId> Planner::product(const Monomial& m, graph::AttentionAttributes& a,
                                  ScoreGraph& score) {
  using graph::PointwiseMode;
  TensorId result = graph::kNone;
  const auto multiply = [&](TensorId by) {
    result = result == graph::kNone ? by : score.apply(PointwiseMode::mul, {result, by}, "term");
  };
  std::vector<TensorId> divisors;
  for (const Power& p : m.factors) {
    HEDDLE_ASSIGN(const TensorId id, number_of_data("Term", match_.algebra->at(p.atom).element, a));
    for (int i = 0; i < p.exponent; ++i) multiply(id);
    for (int i = 0; i > p.exponent; --i) divisors.push_back(id);
  }
  if (m.coefficient != 1 || result == graph::kNone)
    multiply(score.constant("factor", m.coefficient));
  for (TensorId divisor : divisors)
    result = score.apply(PointwiseMode::div, {result, divisor}, "term");
  return result;
}

std::optional<IndexTerm> Planner::computable(const Monomial& m) {
  // What a gradient is wanted of has to be the one operand that the call gives it of.
  for (const Power& p : m.factors)
    if (wants_gradient_of(match_.algebra->at(p.atom).element)) return std::nullopt;
  auto term = index_term(elements_, *match_.algebra, plan_.roles, m);
  if (!term) return term;
  for (const IndexTerm* leaf : term->operands()) {
    const auto place = narrow_place(leaf->place, "a term of the scores");
    const Axes axes = score_axes(leaf->place);
    if (!place || !data_type(leaf->place.x->shape().type()) || !varies_within(leaf->place, axes) ||
        !view_of(elements_, *place, axes))
      return std::nullopt;
  }
  return term;
}

Result<TensorId> Planner::computed(const IndexTerm& term, ScoreGraph& score) {
  switch (term.kind) {
    case IndexTerm::Kind::number:
      return score.constant("number", term.number);
    case IndexTerm::Kind::index:
      return score.index(term.axis);
    case IndexTerm::Kind::operand:
      return score_operand("Term", term.place, Made::as_is);
    case IndexTerm::Kind::operation:
      break;
  }
  std::vector<TensorId> inputs;
  for (const IndexTerm& input : term.inputs) {
    HEDDLE_ASSIGN(const TensorId id, computed(input, score));
    inputs.push_back(id);
  }
  return score.apply(term.mode, std::move(inputs), "term");
}

Status Planner::set_sink(graph::AttentionAttributes& a) {
  const Index heads = plan_.roles.query_heads();
  const int64_t count = elements_.size(heads);
  Operand operand;
  operand.axes.heads = heads;
  Dims strides{count, 1, 1, 1};
  if (const auto& leaf = match_.sink->place) {
    if (!varies_within(*leaf, operand.axes))
      return error(Code::graph_not_supported,
                   "the sink (%{}) differs between rows or batch entries; a call has one a head",
                   leaf->x->name());
    if (!hlo::is_floating(leaf->x->shape().type()) || !data_type(leaf->x->shape().type()))
      return error(Code::graph_not_supported, "%{} (Sink) has elements of type {}", leaf->x->name(),
                   hlo::name(leaf->x->shape().type()));
    HEDDLE_ASSIGN(operand.place, narrow_place(*leaf, "the sink"));
    const auto view = view_of(elements_, operand.place, operand.axes);
    if (!view)
      return error(Code::graph_not_supported, "%{} (Sink) does not vary as sinks do",
                   leaf->x->name());
    operand.direct = view->direct;
    strides = view->strides;
    plan_.sink = "per head";
  } else {
    operand.place.frame = match_.home;
    operand.made = Made::logits;
    operand.value = match_.sink->value;
    plan_.sink = fmt::format("{:.4g}", operand.value);
  }
  operand.type = at_least_f32(plan_.dtype);
  plan_.operands.push_back(std::move(operand));
  a.sink = tensor("Sink", *data_type(at_least_f32(plan_.dtype)), {1, count, 1, 1}, strides);
  return {};
}

std::optional<int64_t> Planner::stride_along(const Index& axis, const Linear& index,
                                             size_t& seen) const {
  int64_t stride = 0, inner = 1;
  for (size_t i = axis.size(); i-- > 0;) {
    const auto weight = index.weights.find(axis[i]);
    const int64_t step = weight == index.weights.end() ? 0 : weight->second;
    if (i + 1 == axis.size()) stride = step;
    if (step != stride * inner) return std::nullopt;
    seen += step != 0;
    inner *= elements_.size(axis[i]);
  }
  return stride;
}

bool Planner::set_drawn_dropout(graph::AttentionAttributes& a) {
  const auto mask =
      rng_dropout_mask(elements_, match_.dropout->keep.predicate, match_.dropout->keep.is_negated);
  if (!mask || mask->keep_probability == 1) return false;
  const Roles& r = plan_.roles;
  Dims strides;
  size_t seen = 0;
  for (const Index& axis : {r.batch, r.query_heads(), r.rows, r.keys}) {
    const auto stride = stride_along(axis, mask->index, seen);
    if (!stride) return false;
    strides.push_back(*stride);
  }
  if (seen != mask->index.weights.size()) return false;
  Operand key;
  key.place.frame = match_.home;
  bool placed = false;
  for (const RngDropoutMask::KeyWord& word : mask->key) {
    if (!word.place) continue;
    if (placed && word.place->frame != key.place.frame) return false;
    key.place.frame = word.place->frame;
    placed = true;
  }
  if (!can_carry(elements_, key.place.frame, match_.home)) return false;
  key.made = Made::key;
  key.key = mask->key;
  plan_.operands.push_back(std::move(key));
  a.dropout.threefry = true;
  a.dropout.seed = tensor("Dropout key", DataType::u32, {2}, {1});
  a.dropout.threefry_strides = strides;
  a.dropout.probability = 1 - mask->keep_probability;
  // In 16 bits it is not the inverse of the probability, which is rounded before the division.
  if (plan_.dtype == hlo::ElementType::f64 ||
      std::abs(match_.dropout->scale * mask->keep_probability - 1) > 1e-6)
    a.dropout.factor = match_.dropout->scale;
  plan_.dropout = fmt::format("threefry {:.4g}", *a.dropout.probability);
  return true;
}

Status Planner::set_dropout(graph::AttentionAttributes& a) {
  if (set_drawn_dropout(a)) return {};
  const auto& [predicate, is_negated] = match_.dropout->keep;
  HEDDLE_ASSIGN(a.dropout.mask, operand("Dropout mask", predicate, score_axes(predicate)));
  if (is_negated) plan_.operands.back().made = Made::negated;
  graph::Tensor scale;
  scale.name = "Dropout scale";
  scale.dtype = data_type(at_least_f32(plan_.dtype));
  scale.dims = {1, 1, 1, 1};
  scale.strides = {1, 1, 1, 1};
  scale.constant = match_.dropout->scale;
  a.dropout.scale = plan_.graph.add(scale);
  if (plan_.backward) {
    scale.name = "Dropout scale inverse";
    scale.constant = 1 / match_.dropout->scale;
    a.dropout.scale_inv = plan_.graph.add(scale);
  }
  plan_.dropout = fmt::format("mask kept: {:.4g}x", match_.dropout->scale);
  return {};
}

}  // namespace heddle::rewrite
