#include "rewrite/planner.h"

#include <algorithm>
#include <array>

#include "rewrite/carry.h"

namespace heddle::rewrite {

using graph::TensorId;
using hlo::ElementType;
using hlo::Instruction;
using hlo::Opcode;

std::optional<DataType> data_type(ElementType type) {
  switch (type) {
    case ElementType::f64:
      return DataType::f64;
    case ElementType::f32:
      return DataType::f32;
    case ElementType::bf16:
      return DataType::bf16;
    case ElementType::f16:
      return DataType::f16;
    case ElementType::pred:
      return DataType::boolean;
    case ElementType::s32:
      return DataType::i32;
    default:
      return std::nullopt;
  }
}

bool is_half(ElementType type) { return type == ElementType::bf16 || type == ElementType::f16; }

Element renamed(Element element, const Renaming& names) {
  for (Index& index : element.at)
    for (Var& v : index) v = names.of(v);
  return element;
}

ElementType Planner::type_of_call(const Plan* forward) {
  const std::array types{match_.score.q.x->shape().type(), match_.score.k.x->shape().type(),
                         (match_.v_is_unread ? *match_.d_o : match_.v).x->shape().type()};
  const bool differ = types[1] != types[0] || types[2] != types[0];
  const bool fit_f32 = std::all_of(types.begin(), types.end(), [](ElementType type) {
    return type == ElementType::f32 || is_half(type);
  });
  const bool keeps_f32 =
      is_half(types[0]) && !match_.holds_narrow_scores() &&
      std::any_of(match_.outputs.begin(), match_.outputs.end(), [&](const Output& output) {
        const bool is_always_wide = output.role == Role::max || output.role == Role::sum_exp ||
                                    output.role == Role::d_bias || output.role == Role::d_sink;
        return !is_always_wide && is_kept_wide(output);
      });
  const bool beside_f32 = forward && forward->dtype == ElementType::f32;
  // What the program multiplies weights by, at most 1, may be beyond f16 times V, or dO.
  const bool multiplies_f16 = types[0] == ElementType::f16 && match_.factors.size() > 0;
  return fit_f32 && (differ || keeps_f32 || beside_f32 || multiplies_f16) ? ElementType::f32
                                                                          : types[0];
}

bool Planner::is_kept_wide(const Output& output) {
  for (std::optional<Element> link = output.place; link; link = rearranged(*link))
    if (link->x->shape().type() != ElementType::f32) return false;
  return true;
}

Status Planner::begin(const Plan* forward) {
  plan_.backward = forward != nullptr;
  plan_.home = match_.home;
  plan_.anchor = match_.anchor;
  carries_ =
      match_.anchor.frame != match_.home && can_carry(elements_, match_.anchor.frame, match_.home);
  HEDDLE_ASSIGN(plan_.roles, roles_of(elements_, *match_.algebra, match_));
  Mask mask = match_.score.mask;
  if (!match_.score.is_shifted && mask.scores_reach_fill)
    return error(Code::graph_not_supported,
                 "masked scores are filled with {}, which scores can reach, and nothing of the row "
                 "is taken off them: of a row at the fill no weight may be left",
                 as_written(mask.fill));
  // Terms beside the fills, a maximum that the program takes in some way of its own, may be as high
  // as these are low.
  const bool fills_weigh_nothing = mask.hiding == Hiding::replaces || !mask.terms_reach_fill;
  if (!match_.score.is_shifted && fills_weigh_nothing) mask.fill = kMinusInfinity;
  // Of a row that sees no key a sink takes all, as if the fills were -inf; if it lies above them.
  const bool sink_is_data = match_.sink && match_.sink->place;
  if (match_.sink && !sink_is_data && !mask.scores_reach_fill && fills_weigh_nothing &&
      match_.sink->value > mask.fill / 2)
    mask.fill = kMinusInfinity;
  if (match_.by_log_sum_exp && (mask.may_mask_whole_rows() || mask.has_free_terms))
    return error(
        Code::graph_not_supported,
        "the weights are taken from a log-sum-exp, and data decide which scores are as low "
        "as the fill: of rows with no others it holds no sum, and the weights are all 1");
  if (match_.adds_to_shifted && mask.may_mask_whole_rows())
    return error(Code::graph_not_supported,
                 "numbers are added to the scores after the row's maximum is taken off them, and "
                 "data decide which rows are at the fill {} as a whole: of these the numbers added "
                 "are all that is left",
                 as_written(mask.fill));
  const Beside beside{match_.dropout.has_value(), sink_is_data, match_.fully_masked_rows_are_zero,
                      match_.find(Role::max) != nullptr || match_.whole_rows};
  HEDDLE_ASSIGN(plan_.keys, visible_keys_of(elements_, *match_.algebra, mask, plan_.roles, beside));
  plan_.dtype = type_of_call(forward);
  if (match_.whole_rows && plan_.dtype == ElementType::f16)
    return error(
        Code::graph_not_supported,
        "these keys are a part of the softmax's, and dO times what they weigh of a row may "
        "be too small for f16");
  if (plan_.dtype != ElementType::f64 && match_.bits.product > 32)
    return error(Code::graph_not_supported,
                 "the program multiplies queries and keys in f64, and a call of {} operands in f32",
                 hlo::name(plan_.dtype));
  if (plan_.keys.fill && mask.hiding != Hiding::replaces && loses_other_scores())
    return error(Code::graph_not_supported,
                 "the fill {} is added to scores, which may be lost beside it: in the program's "
                 "floats others than in those of the call, whose operands are {}",
                 *plan_.keys.fill, hlo::name(plan_.dtype));
  return {};
}

Result<TensorId> Planner::operand(std::string name, const Element& leaf, const Axes& axes) {
  if (!varies_within(leaf, axes))
    return error(Code::graph_not_supported,
                 "%{} ({}) varies along an axis that this operand of attention does not have",
                 leaf.x->name(), name);
  auto place = local_element(elements_, match_.home, leaf);
  if (place) place = as_result(*place);
  if (!place && can_carry(elements_, leaf.frame, match_.home)) place = leaf;
  if (!place)
    return error(Code::graph_not_supported, "%{} ({}) is not kept for the loop that needs it",
                 leaf.x->name(), name);
  const auto view = view_of(elements_, *place, axes);
  const auto type = data_type(leaf.x->shape().type());
  if (!view)
    return error(Code::graph_not_supported, "%{} ({}) does not vary as attention's operands do",
                 leaf.x->name(), name);
  if (!type)
    return error(Code::graph_not_supported, "%{} ({}) has elements of type {}", leaf.x->name(),
                 name, hlo::name(leaf.x->shape().type()));
  Operand operand;
  operand.place = *place;
  operand.axes = axes;
  operand.direct = view->direct;
  operand.type = leaf.x->shape().type();
  plan_.operands.push_back(std::move(operand));
  return tensor(std::move(name), *type, view->dims, view->strides);
}

Result<TensorId> Planner::vectors(std::string name, const Element& leaf, const Axes& axes) {
  HEDDLE_ASSIGN(const TensorId id, operand(std::move(name), leaf, axes));
  return plan_.dtype == ElementType::f32 ? as_f32(id, leaf) : id;
}

Result<TensorId> Planner::values() {
  if (match_.v_is_unread) return filled("V", v_axes(), 1);
  HEDDLE_ASSIGN(const TensorId v, vectors("V", match_.v, v_axes()));
  HEDDLE_TRY(multiply_operand(v, match_.factors.of_keys));
  return v;
}

Result<TensorId> Planner::output_gradient() {
  TensorId d_o = graph::kNone;
  if (match_.d_o) {
    HEDDLE_ASSIGN(d_o, vectors("dO", *match_.d_o, o_axes()));
  } else {
    d_o = filled("dO", o_axes(), 1);
  }
  if (match_.whole_rows) {
    Operand& operand = plan_.operands.back();
    if (!varies_within(operand.place, operand.axes))
      return error(Code::graph_not_supported, "%{} (dO) repeats itself along an axis",
                   operand.place.x->name());
    HEDDLE_ASSIGN(operand.share_by, number_of_rows(match_.whole_rows->number));
    operand.value = 1;
    operand.type = plan_.dtype;
    operand.direct = false;
    plan_.graph[d_o].strides = canonical_view(operand.axes).strides;
  }
  HEDDLE_TRY(multiply_operand(d_o, match_.factors.of_rows));
  return d_o;
}

Status Planner::multiply_operand(TensorId id, const std::vector<WeightFactor>& factors) {
  if (factors.empty()) return {};
  Operand& operand = plan_.operands.back();
  if (!varies_within(operand.place, operand.axes))
    return error(Code::graph_not_supported,
                 "%{}, to which a factor of the weights goes over, repeats itself along an axis",
                 operand.place.x->name());
  HEDDLE_ASSIGN(operand.times, local_factors(factors, operand.axes));
  operand.direct = false;
  plan_.graph[id].strides = canonical_view(operand.axes).strides;
  return {};
}

Status Planner::multiply_result(const std::vector<WeightFactor>& factors) {
  if (factors.empty()) return {};
  CallResult& result = plan_.results.back();
  if (result.adds_fully_masked_rows && !result.summed.empty())
    return error(Code::graph_not_supported,
                 "rows may see no key, and %{} is a sum over values times factors of the weights",
                 result.target->name());
  HEDDLE_ASSIGN(result.times, local_factors(factors, result.axes));
  return {};
}

Result<std::vector<WeightFactor>> Planner::local_factors(std::vector<WeightFactor> factors,
                                                         const Axes& axes) {
  for (WeightFactor& factor : factors) {
    if (!varies_within(factor.place, axes))
      return error(Code::graph_not_supported,
                   "%{}, a factor of the weights, is another for each key and query head of a key "
                   "head",
                   factor.place.x->name());
    const ElementType type = factor.place.x->shape().type();
    if (type != ElementType::pred && !data_type(type))
      return error(Code::graph_not_supported,
                   "%{}, a factor of the weights, has elements of type {}", factor.place.x->name(),
                   hlo::name(factor.place.x->shape().type()));
    HEDDLE_ASSIGN(factor.place, narrow_place(factor.place, "a factor of the weights"));
  }
  return factors;
}

Status Planner::add_factor_gradient(const Output& output, size_t d_o, size_t o, size_t v,
                                    std::optional<size_t> d_v) {
  const WeightFactors& all = match_.factors;
  const bool is_of_rows = output.of < all.of_rows.size();
  std::vector<WeightFactor> others = is_of_rows ? all.of_rows : all.of_keys;
  const WeightFactor own = all[output.of];
  // A reciprocal's derivative has its square; the minus sign is in the output's factor.
  if (own.divides) {
    others.push_back(own);
  } else {
    others.erase(std::find(others.begin(), others.end(), own));
  }
  if (!plan_.fully_masked_rows) HEDDLE_TRY(find_fully_masked_rows(d_o));
  FactorGradient gradient;
  gradient.target = output.place.x;
  gradient.place = output.place;
  gradient.factor = output.factor;
  gradient.o = o;
  gradient.v = v;
  gradient.vectors = is_of_rows ? d_o : v;
  if (!is_of_rows) gradient.result = d_v;
  HEDDLE_ASSIGN(gradient.times,
                local_factors(std::move(others), plan_.operands[gradient.vectors].axes));
  plan_.factor_gradients.push_back(std::move(gradient));
  return {};
}

Result<TensorId> Planner::given_mean() {
  const Roles& r = plan_.roles;
  Operand operand;
  HEDDLE_ASSIGN(operand.place, number_of_rows(match_.whole_rows->mean));
  HEDDLE_ASSIGN(operand.share_by, number_of_rows(match_.whole_rows->number));
  operand.axes = {flat({r.batch, r.query_heads()}), {}, r.rows, {}};
  operand.value = -match_.whole_rows->factor;
  operand.direct = false;
  operand.type = at_least_f32(plan_.dtype);
  plan_.operands.push_back(std::move(operand));
  const Dims o = dims_of(o_axes());
  return tensor("dStats", *data_type(at_least_f32(plan_.dtype)), {o[0], o[1], o[2], 1},
                {o[1] * o[2], o[2], 1, 1});
}

Result<Element> Planner::number_of_rows(const Element& number) {
  const Roles& r = plan_.roles;
  if (!varies_within(number, {r.batch, r.query_heads(), r.rows, {}}))
    return error(Code::graph_not_supported, "%{} does not vary as a call's rows do",
                 number.x->name());
  const ElementType type = number.x->shape().type();
  if (hlo::bits_of(type) > hlo::bits_of(at_least_f32(plan_.dtype)))
    return error(Code::graph_not_supported, "%{} is {}, and a call of {} operands computes in f32",
                 number.x->name(), hlo::name(type), hlo::name(plan_.dtype));
  return narrow_place(number, "the gradient");
}

TensorId Planner::filled(std::string name, const Axes& axes, double value) {
  Operand operand;
  operand.place = {match_.home, nullptr, {axes.batch, axes.rows, axes.heads, axes.columns}};
  operand.axes = axes;
  operand.direct = false;
  operand.made = Made::filled;
  operand.value = value;
  operand.type = plan_.dtype;
  plan_.operands.push_back(std::move(operand));
  const TensorView view = canonical_view(axes);
  return tensor(std::move(name), *data_type(plan_.dtype), view.dims, view.strides);
}

TensorId Planner::as_f32(TensorId last, const Element& leaf) {
  if (is_half(leaf.x->shape().type())) {
    plan_.operands.back().made = Made::as_f32;
    plan_.graph[last].dtype = DataType::f32;
  }
  return last;
}

TensorId Planner::tensor(std::string name, DataType type, const Dims& dims, const Dims& strides) {
  graph::Tensor t;
  t.uid = ++last_uid_;
  t.name = std::move(name);
  t.dtype = type;
  t.dims = dims;
  t.strides = strides;
  return plan_.graph.add(std::move(t));
}

Axes Planner::q_axes() const {
  const Roles& r = plan_.roles;
  return {r.batch, r.query_heads(), r.rows, r.depth};
}

Axes Planner::k_axes() const {
  const Roles& r = plan_.roles;
  return {r.batch, r.group, r.keys, r.depth};
}

Axes Planner::v_axes() const {
  const Roles& r = plan_.roles;
  return {r.batch, r.group, r.keys, r.value_depth};
}

Axes Planner::o_axes() const {
  const Roles& r = plan_.roles;
  return {r.batch, r.query_heads(), r.rows, r.value_depth};
}

Result<TensorId> Planner::result(std::string name, const Output& output, const Axes& axes) {
  Element place = output.place;
  if (!varies_within(place, axes))
    return error(Code::graph_not_supported,
                 "%{} ({}) varies along an axis that this result of attention does not have",
                 place.x->name(), name);
  Element best = place;
  bool found = false;
  std::vector<Element> chain;
  for (;;) {
    chain.push_back(place);
    const auto view = view_of(elements_, place, axes);
    if (!view)
      return error(Code::graph_not_supported, "%{} ({}) does not vary as attention's results do",
                   place.x->name(), name);
    const ElementType type = place.x->shape().type();
    const bool wide = type == ElementType::f32;
    if (type == plan_.dtype || (wide && (!found || best.x->shape().type() == type))) {
      const bool narrower = best.x->shape().type() != type;
      if (!found || narrower || view->direct || !direct(best, axes)) best = place;
      found = true;
    }
    const auto next = rearranged(place);
    if (!next) break;
    place = *next;
  }
  if (!found && plan_.dtype == ElementType::f32 && is_half(output.place.x->shape().type()))
    return add_result(std::move(name), {plan_.dtype, output.factor, {output.place}}, axes);
  if (!found)
    return error(Code::graph_not_supported, "%{} ({}) is {}, which no call of {} operands gives",
                 place.x->name(), name, hlo::name(place.x->shape().type()), hlo::name(plan_.dtype));
  while (chain.back().x != best.x) chain.pop_back();
  return add_result(std::move(name), {best.x->shape().type(), output.factor, std::move(chain)},
                    axes);
}

Result<TensorId> Planner::wide_result(std::string name, const Output& output, const Axes& axes) {
  if (!varies_within(output.place, axes) || !view_of(elements_, output.place, axes) ||
      !data_type(output.place.x->shape().type()))
    return error(Code::graph_not_supported, "%{} ({}) is not as attention's results are",
                 output.place.x->name(), name);
  return add_result(std::move(name), {at_least_f32(plan_.dtype), output.factor, {output.place}},
                    axes);
}

TensorId Planner::add_result(std::string name, Replaced replaced, const Axes& axes) {
  CallResult result;
  result.type = replaced.type;
  result.place = replaced.chain.back();
  result.target = result.place.x;
  result.chain = std::move(replaced.chain);
  result.axes = axes;
  for (Var v : axes.canonical())
    if (const Index own = flat(result.place.at); std::find(own.begin(), own.end(), v) == own.end())
      result.summed.push_back(v);
  // What constants and their products are off by.
  const double step = plan_.dtype == ElementType::f64 ? 1e-14 : 5e-7;
  result.factor = std::abs(replaced.factor - 1) < step ? 1 : replaced.factor;
  const auto view = view_of(elements_, result.place, axes);
  result.direct = view->direct;
  if (view->direct) {
    result.dims = result.target->shape().dims();
  } else {
    const Dims& d = view->dims;
    result.dims = {d[0], d[2], d[1], d[3]};
  }
  plan_.results.push_back(result);
  return tensor(std::move(name), *data_type(result.type), view->dims, view->strides);
}

void Planner::finish() {
  for (graph::Node& node : after_) plan_.graph.nodes.push_back(std::move(node));
}

TensorId Planner::inner_result(std::string name, const Axes& axes) {
  const TensorView view = canonical_view(axes);
  const Dims& d = view.dims;
  CallResult result;
  result.type = plan_.dtype;
  result.axes = axes;
  result.direct = false;
  result.dims = {d[0], d[2], d[1], d[3]};
  plan_.results.push_back(result);
  return tensor(std::move(name), *data_type(plan_.dtype), view.dims, view.strides);
}

TensorView Planner::canonical_view(const Axes& axes) const {
  const Dims d = dims_of(axes);
  return {d, {d[1] * d[2] * d[3], d[3], d[1] * d[3], 1}, false};
}

Dims Planner::dims_of(const Axes& axes) const {
  return {elements_.size(axes.batch), elements_.size(axes.heads), elements_.size(axes.rows),
          elements_.size(axes.columns)};
}

bool Planner::needs_sum_apart() const {
  return !is_half(plan_.dtype) || plan_.keys.fill || match_.score.mask.has_free_terms ||
         match_.whole_rows;
}

TensorId Planner::statistic(const char* name) {
  const Dims o = dims_of(o_axes());
  CallResult result;
  result.type = at_least_f32(plan_.dtype);
  result.dims = {o[0], o[1], o[2]};
  const DataType type = *data_type(result.type);
  plan_.results.push_back(std::move(result));
  return tensor(name, type, {o[0], o[1], o[2], 1}, {o[1] * o[2], o[2], 1, 1});
}

Result<TensorId> Planner::statistic(const char* name, const Output& output) {
  const Roles& r = plan_.roles;
  const TensorId id = statistic(name);
  CallResult& result = plan_.results.back();
  result.place = output.place;
  result.target = output.place.x;
  result.chain = {output.place};
  result.axes = {flat({r.batch, r.query_heads()}), {}, r.rows, {}};
  result.direct = false;
  const hlo::ElementType type = result.target->shape().type();
  if (type != result.type)
    return error(Code::graph_not_supported,
                 "%{} ({}) is {}, and what the program takes off the scores rounded so; a call of "
                 "{} operands gives it as {}",
                 result.target->name(), name, hlo::name(type), hlo::name(plan_.dtype),
                 hlo::name(result.type));
  const Index all = result.axes.canonical(), own = flat(output.place.at);
  if (!std::is_permutation(all.begin(), all.end(), own.begin(), own.end()))
    return error(Code::graph_not_supported, "%{} ({}) does not vary as a call's rows do",
                 result.target->name(), name);
  return id;
}

std::optional<Element> Planner::stacked_result(const CallResult& result, const Renaming& names) {
  if (!result.target || result.factor != 1 || !result.times.empty()) return std::nullopt;
  Element place = result.place;
  place.frame = match_.anchor.frame;
  const Element behind = elements_.resolve(renamed(place, names));
  if (behind.x->shape().type() != result.type) return std::nullopt;
  const auto local = local_element(elements_, match_.home, behind);
  return local ? std::optional(behind) : std::nullopt;
}

bool Planner::direct(const Element& place, const Axes& axes) const {
  const auto view = view_of(elements_, place, axes);
  return view && view->direct;
}

TensorId Planner::virtual_tensor(std::string name, DataType type, const Dims& dims) {
  graph::Tensor t;
  t.name = std::move(name);
  t.dtype = type;
  t.dims = dims;
  t.is_virtual = true;
  return plan_.graph.add(std::move(t));
}

std::optional<Element> Planner::rearranged(const Element& place) {
  if (place.x->users().size() != 1 || place.x->is_root()) return std::nullopt;
  const Instruction* user = place.x->users()[0];
  Element next{place.frame, user, {}};
  switch (user->opcode()) {
    case Opcode::transpose:
      for (int64_t dim : user->dimensions()) next.at.push_back(place.at[dim]);
      return next;
    case Opcode::reshape: {
      auto at = elements_.regroup(place.at, user->shape().dims());
      if (!at) return std::nullopt;
      next.at = std::move(*at);
      return next;
    }
    case Opcode::convert:
      if (!data_type(user->shape().type()) || !hlo::is_floating(user->shape().type()))
        return std::nullopt;
      next.at = place.at;
      return next;
    default:
      return std::nullopt;
  }
}

Element Planner::as_result(const Element& place) const {
  const auto met = surroundings_.results.find(place.x);
  if (met == surroundings_.results.end()) return place;
  for (const auto& [plan, result, link] : met->second) {
    if (result->target == place.x || result->target->shape().type() != place.x->shape().type())
      continue;
    const auto renaming = elements_.renaming(link->at, place.at);
    if (!renaming) continue;
    Element target = result->place;
    for (Index& index : target.at)
      for (Var& v : index) {
        const auto to = renaming->find(v);
        if (to == renaming->end()) return place;
        v = to->second;
      }
    return target;
  }
  return place;
}

}  // namespace heddle::rewrite
