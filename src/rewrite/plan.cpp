#include "rewrite/plan.h"

#include <algorithm>
#include <map>

#include "rewrite/carry.h"
#include "rewrite/rotation.h"

namespace heddle::rewrite {

using graph::TensorId;
using hlo::ElementType;
using hlo::Instruction;
using hlo::Opcode;

namespace {

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
    default:
      return std::nullopt;
  }
}

/// `element` with its labels replaced.
Element renamed(Element element, const Algebra::Renaming& names) {
  for (Index& index : element.at)
    for (Var& v : index)
      if (const auto to = names.find(v); to != names.end()) v = to->second;
  return element;
}

/// What both calls share: operands, roles, the attributes of the scores.
class Planner {
 public:
  Planner(Elements& elements, const Match& match, const Surroundings& surroundings)
      : elements_(elements), match_(match), surroundings_(surroundings) {}

  Status begin(bool backward) {
    plan_.backward = backward;
    plan_.home = match_.home;
    plan_.anchor = match_.anchor;
    carries_ = match_.anchor.frame != match_.home &&
               can_carry(elements_, match_.anchor.frame, match_.home);
    HEDDLE_ASSIGN(plan_.roles, roles_of(elements_, *match_.algebra, match_));
    HEDDLE_ASSIGN(plan_.band, band_of(elements_, *match_.algebra, match_.score.mask,
                                      plan_.roles.rows, plan_.roles.keys));
    if (plan_.band.empty_rows > 0 && match_.score.mask.fill > kMinusInfinity)
      return error(Code::graph_not_supported,
                   "{} rows see no key, and the fill {} gives them uniform weights; a fused call "
                   "gives them 0",
                   plan_.band.empty_rows, match_.score.mask.fill);
    plan_.dtype = match_.score.q.x->shape().type();
    return {};
  }

  /// A bound tensor of the graph for an operand of the program.
  Result<TensorId> operand(std::string name, const Element& leaf, const Axes& axes) {
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
    plan_.operands.push_back({*place, axes, view->direct});
    return tensor(std::move(name), *type, view->dims, view->strides);
  }

  /// Queries or keys: if they are a rotation of something, the call rotates.
  Result<TensorId> rotated_operand(const char* name, const Element& leaf, const Axes& axes) {
    const Plan before = plan_;
    const int64_t last_uid = last_uid_;
    auto rotated = try_rotated(name, leaf, axes);
    if (rotated && *rotated) return **rotated;
    plan_ = before;
    last_uid_ = last_uid;
    return operand(name, leaf, axes);
  }

  TensorId tensor(std::string name, DataType type, const Dims& dims, const Dims& strides) {
    graph::Tensor t;
    t.uid = ++last_uid_;
    t.name = std::move(name);
    t.dtype = type;
    t.dims = dims;
    t.strides = strides;
    return plan_.graph.add(std::move(t));
  }

  Axes q_axes() const {
    const Roles& r = plan_.roles;
    return {r.batch, r.query_heads(), r.rows, r.depth};
  }
  Axes k_axes() const {
    const Roles& r = plan_.roles;
    return {r.batch, r.group, r.keys, r.depth};
  }
  Axes v_axes() const {
    const Roles& r = plan_.roles;
    return {r.batch, r.group, r.keys, r.value_depth};
  }
  Axes o_axes() const {
    const Roles& r = plan_.roles;
    return {r.batch, r.query_heads(), r.rows, r.value_depth};
  }

  Status set_attributes(graph::AttentionAttributes& a) {
    const Score& score = match_.score;
    plan_.scale = score.soft_cap ? score.soft_cap->inner * score.soft_cap->cap : score.scale;
    a.attn_scale = plan_.scale;
    plan_.mask = "none";
    if (plan_.band.right || plan_.band.left) {
      const int64_t offset = elements_.size(plan_.roles.keys) - elements_.size(plan_.roles.rows);
      const bool bottom_right = offset != 0 && plan_.band.right == offset;
      a.diagonal_alignment = bottom_right ? graph::DiagonalAlignment::bottom_right
                                          : graph::DiagonalAlignment::top_left;
      const int64_t shift = bottom_right ? offset : 0;
      if (plan_.band.right) a.right_bound = *plan_.band.right - shift;
      if (plan_.band.left) a.left_bound = *plan_.band.left + shift;
      plan_.mask = plan_.band.right && *plan_.band.right == shift
                       ? (bottom_right ? "causal (bottom right)" : "causal")
                       : "band";
      if (plan_.band.left) plan_.mask += fmt::format(", window {}", *a.left_bound);
      if (plan_.band.right && *plan_.band.right != shift)
        plan_.mask += fmt::format(", right bound {}", *a.right_bound);
    }
    plan_.score = "dot";
    if (score.soft_cap) set_soft_cap(a, score.soft_cap->cap);
    if (!plan_.absorbed.empty()) plan_.score += ", RoPE";
    plan_.bias = "none";
    if (score.bias) {
      HEDDLE_TRY(set_bias(a));
    }
    plan_.dropout = "none";
    if (match_.dropout) HEDDLE_TRY(set_dropout(a));
    return {};
  }

  /// A result: the farthest instruction that only rearranges or rounds the output, as it can be
  /// written in place; else a canonical array.
  Result<TensorId> result(std::string name, const Output& output, const Axes& axes) {
    Element place = output.place;
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
    if (!found)
      return error(Code::graph_not_supported, "%{} ({}) is {}, which no call of {} operands gives",
                   place.x->name(), name, hlo::name(place.x->shape().type()),
                   hlo::name(plan_.dtype));
    const auto view = view_of(elements_, best, axes);
    CallResult result;
    result.type = best.x->shape().type();
    result.target = best.x;
    result.place = best;
    while (chain.back().x != best.x) chain.pop_back();
    result.chain = std::move(chain);
    result.axes = axes;
    result.direct = view->direct;
    result.factor = std::abs(output.factor - 1) < 1e-6 ? 1 : output.factor;
    if (view->direct) {
      result.dims = best.x->shape().dims();
    } else {
      const Dims& d = view->dims;
      result.dims = {d[0], d[2], d[1], d[3]};
    }
    plan_.results.push_back(result);
    return tensor(std::move(name), *data_type(result.type), view->dims, view->strides);
  }

  /// dQ or dK: if the operand was rotated by the call and the program turns its gradient back by
  /// the same tables, the call does that too.
  Result<TensorId> derotated_result(const char* name, const char* operand, const Output& output,
                                    Axes axes) {
    const auto tables = tables_.find(operand);
    if (tables != tables_.end() && output.factor == 1) {
      for (const Element& link : links_of(output.place)) {
        const auto back = turned_back(link, tables->second);
        if (!back) continue;
        const Plan before = plan_;
        const int64_t last_uid = last_uid_;
        Axes turned = axes;
        turned.columns = back->y.at[back->depth];
        auto result = this->result(name, {output.role, back->y, 1}, turned);
        if (!result) {
          plan_ = before;
          last_uid_ = last_uid;
          break;
        }
        graph::Rope rope;
        rope.backward = true;
        rope.x = virtual_tensor(std::string(name) + " of the rotated", *data_type(plan_.dtype),
                                plan_.graph[*result].dims);
        rope.cosines = tables->second.cosines;
        rope.sines = tables->second.sines;
        rope.y = *result;
        after_.push_back({std::string("rotate back ") + name, rope});
        plan_.absorbed.push_back(link.x);
        return rope.x;
      }
    }
    return result(name, output, axes);
  }

  /// Nodes that follow the attention's own.
  void finish() {
    for (graph::Node& node : after_) plan_.graph.nodes.push_back(std::move(node));
  }

  /// A result that only a backward call reads: canonical, of the operands' type.
  TensorId inner_result(std::string name, const Axes& axes) {
    const Dims dims = dims_of(axes);
    CallResult result;
    result.type = plan_.dtype;
    result.axes = axes;
    result.direct = false;
    result.dims = {dims[0], dims[2], dims[1], dims[3]};
    plan_.results.push_back(result);
    return tensor(std::move(name), *data_type(plan_.dtype), dims,
                  {dims[1] * dims[2] * dims[3], dims[3], dims[1] * dims[3], 1});
  }

  Dims dims_of(const Axes& axes) const {
    return {elements_.size(axes.batch), elements_.size(axes.heads), elements_.size(axes.rows),
            elements_.size(axes.columns)};
  }

  TensorId stats_tensor() {
    const Dims o = dims_of(o_axes());
    return tensor("Stats", DataType::f32, {o[0], o[1], o[2], 1}, {o[1] * o[2], o[2], 1, 1});
  }

  /// O as the forward call, which stands in the body that home reads back, leaves it in a stack
  /// that home reads; nothing if no stack holds it.
  std::optional<Element> stacked_result(const CallResult& result, const Algebra::Renaming& names) {
    if (!result.target || result.factor != 1) return std::nullopt;
    Element place = result.place;
    place.frame = match_.anchor.frame;
    const Element behind = elements_.resolve(renamed(place, names));
    if (behind.x->shape().type() != result.type) return std::nullopt;
    const auto local = local_element(elements_, match_.home, behind);
    return local ? std::optional(behind) : std::nullopt;
  }

  bool carries() const { return carries_; }
  Plan take() { return std::move(plan_); }
  Plan& plan() { return plan_; }

 private:
  bool direct(const Element& place, const Axes& axes) const {
    const auto view = view_of(elements_, place, axes);
    return view && view->direct;
  }

  struct Tables {
    TensorId cosines = graph::kNone, sines = graph::kNone;
    Element cosines_place, sines_place;
  };

  TensorId virtual_tensor(std::string name, DataType type, const Dims& dims) {
    graph::Tensor t;
    t.name = std::move(name);
    t.dtype = type;
    t.dims = dims;
    t.is_virtual = true;
    return plan_.graph.add(std::move(t));
  }

  Result<std::optional<TensorId>> try_rotated(const char* name, const Element& leaf,
                                              const Axes& axes) {
    const std::optional<TensorId> none;
    const bool found_here = leaf.frame == match_.home;
    const bool found_there = carries_ && leaf.frame == match_.anchor.frame;
    if ((!found_here && !found_there) || surroundings_.kept.contains(leaf.x)) return none;
    const bool rounded = leaf.x->is(Opcode::convert);
    const auto found =
        rotation_of(elements_, *match_.algebra, leaf.frame, rounded ? leaf.x->operand(0) : leaf.x);
    if (!found || found->inverse) return none;
    const Rotation rotation = relabelled(*found, leaf.at);
    if (rotation.y.at[rotation.depth] != axes.columns ||
        rotation.x.x->shape().type() != leaf.x->shape().type())
      return none;
    graph::Rope rope;
    Tables tables;
    const Axes table_axes{axes.rows, {}, {}, rotation.half};
    HEDDLE_ASSIGN(rope.x, operand(std::string(name) + " before rotation", rotation.x, axes));
    HEDDLE_ASSIGN(rope.cosines,
                  operand(std::string("cosines of ") + name, rotation.cosines, table_axes));
    HEDDLE_ASSIGN(rope.sines, operand(std::string("sines of ") + name, rotation.sines, table_axes));
    rope.y = virtual_tensor(name, *data_type(leaf.x->shape().type()), plan_.graph[rope.x].dims);
    tables_[name] = {rope.cosines, rope.sines, rotation.cosines, rotation.sines};
    plan_.graph.nodes.push_back({std::string("rotate ") + name, rope});
    plan_.absorbed.push_back(leaf.x);
    return std::optional<TensorId>(rope.y);
  }

  /// `place` and what only moves or rounds it.
  std::vector<Element> links_of(Element place) {
    std::vector<Element> links{place};
    for (auto next = rearranged(place); next; next = rearranged(*next)) links.push_back(*next);
    return links;
  }

  /// The program's inverse rotation of `link` by these tables, in its labels.
  std::optional<Rotation> turned_back(const Element& link, const Tables& tables) {
    if (surroundings_.kept.contains(link.x)) return std::nullopt;
    for (const Instruction* y : elements_.frames()[match_.home].computation->instructions()) {
      const auto found = rotation_of(elements_, *match_.algebra, match_.home, y);
      if (!found || !found->inverse || found->x.x != link.x || found->x.frame != link.frame ||
          found->cosines.x != tables.cosines_place.x || found->sines.x != tables.sines_place.x)
        continue;
      Algebra::Renaming renaming;
      for (size_t i = 0; i < link.at.size(); ++i)
        for (size_t j = 0; j < link.at[i].size(); ++j) renaming[found->x.at[i][j]] = link.at[i][j];
      std::vector<Index> at = found->y.at;
      for (Index& index : at)
        for (Var& v : index)
          if (const auto to = renaming.find(v); to != renaming.end()) v = to->second;
      Rotation rotation = relabelled(*found, at);
      if (same_rows(rotation.cosines, tables.cosines_place) &&
          same_rows(rotation.sines, tables.sines_place))
        return rotation;
    }
    return std::nullopt;
  }

  /// Whether two places of one table differ in nothing but the names of their halves' digits.
  static bool same_rows(const Element& a, const Element& b) {
    size_t differing = 0;
    for (size_t i = 0; i < a.at.size(); ++i) differing += a.at[i] != b.at[i];
    return a.frame == b.frame && a.x == b.x && differing <= 1;
  }

  /// The only user of `place`, if it moves or rounds elements and nothing else.
  std::optional<Element> rearranged(const Element& place) {
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
        if (!data_type(user->shape().type()) || user->shape().type() == ElementType::pred)
          return std::nullopt;
        next.at = place.at;
        return next;
      default:
        return std::nullopt;
    }
  }

  /// `place`, or the earlier call's result that holds the same elements in the same type.
  Element as_result(const Element& place) const {
    for (const CallResult& result : surroundings_.results)
      for (const Element& link : result.chain) {
        if (link.x != place.x || result.target == place.x ||
            result.target->shape().type() != place.x->shape().type())
          continue;
        Algebra::Renaming renaming;
        for (size_t i = 0; i < link.at.size(); ++i)
          for (size_t j = 0; j < link.at[i].size(); ++j) renaming[link.at[i][j]] = place.at[i][j];
        Element target = result.place;
        for (Index& index : target.at)
          for (Var& v : index) v = renaming.at(v);
        return target;
      }
    return place;
  }

  void set_soft_cap(graph::AttentionAttributes& a, double cap) {
    // cap * tanh(score / cap)
    graph::Graph& g = plan_.graph;
    const auto inner = [&](const char* name) {
      graph::Tensor t;
      t.name = name;
      t.is_virtual = true;
      t.dtype = DataType::f32;
      return g.add(std::move(t));
    };
    const auto constant = [&](const char* name, double value) {
      graph::Tensor t;
      t.name = name;
      t.dtype = DataType::f32;
      t.dims = {1, 1, 1, 1};
      t.strides = {1, 1, 1, 1};
      t.constant = value;
      return g.add(std::move(t));
    };
    graph::ScoreModifier mod;
    mod.score_in = inner("score");
    const TensorId cap_tensor = constant("cap", cap);
    const TensorId ratio = inner("score_over_cap"), tanh = inner("tanh");
    mod.score_out = inner("capped_score");
    const auto op = [](graph::PointwiseMode mode, std::vector<TensorId> inputs, TensorId output) {
      graph::Pointwise p;
      p.mode = mode;
      p.inputs = std::move(inputs);
      p.output = output;
      return p;
    };
    mod.ops.push_back(op(graph::PointwiseMode::div, {mod.score_in, cap_tensor}, ratio));
    mod.ops.push_back(op(graph::PointwiseMode::tanh_fwd, {ratio}, tanh));
    mod.ops.push_back(op(graph::PointwiseMode::mul, {tanh, cap_tensor}, mod.score_out));
    a.score_mod = std::move(mod);
    plan_.score = fmt::format("soft cap {}", cap);
  }

  /// Axes over rows and keys for a tensor that may lack some of them; a head or batch axis that it
  /// has only in part is broadcast whole.
  Axes score_axes(const Element& element) const {
    const Roles& r = plan_.roles;
    const auto any = [&](const Index& index) {
      return std::any_of(index.begin(), index.end(), [&](Var v) {
        return std::any_of(element.at.begin(), element.at.end(), [&](const Index& at) {
          return std::find(at.begin(), at.end(), v) != at.end();
        });
      });
    };
    const Index heads = r.query_heads();
    return {any(r.batch) ? r.batch : Index{}, any(heads) ? heads : Index{}, r.rows, r.keys};
  }

  Status set_bias(graph::AttentionAttributes& a) {
    const Element& bias = *match_.score.bias;
    HEDDLE_ASSIGN(a.bias, operand("Bias", bias, score_axes(bias)));
    plan_.bias = to_string(plan_.graph[a.bias].dims);
    return {};
  }

  /// The stride of the bits' index along an axis; nothing if its digits do not step alike.
  std::optional<int64_t> stride_along(const Index& axis, const Linear& index, size_t& seen) const {
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

  /// Whether the call can draw the mask itself; then it is told how.
  bool set_drawn_dropout(graph::AttentionAttributes& a) {
    const auto mask = drawn_mask(elements_, match_.dropout->keep);
    // The call scales what it keeps by the inverse of the probability.
    if (!mask || mask->keep_probability == 1 ||
        std::abs(match_.dropout->scale * mask->keep_probability - 1) > 1e-6)
      return false;
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
    for (const DrawnMask::KeyWord& word : mask->key) {
      if (!word.place) continue;
      if (placed && word.place->frame != key.place.frame) return false;
      key.place.frame = word.place->frame;
      placed = true;
    }
    if (!can_carry(elements_, key.place.frame, match_.home)) return false;
    key.key = mask->key;
    plan_.operands.push_back(std::move(key));
    a.dropout.threefry = true;
    a.dropout.seed = tensor("Dropout key", DataType::u32, {2}, {1});
    a.dropout.threefry_strides = strides;
    a.dropout.probability = 1 - mask->keep_probability;
    plan_.dropout = fmt::format("threefry {:.4g}", *a.dropout.probability);
    return true;
  }

  Status set_dropout(graph::AttentionAttributes& a) {
    if (set_drawn_dropout(a)) return {};
    const Element& keep = match_.dropout->keep;
    HEDDLE_ASSIGN(a.dropout.mask, operand("Dropout mask", keep, score_axes(keep)));
    graph::Tensor scale;
    scale.name = "Dropout scale";
    scale.dtype = DataType::f32;
    scale.dims = {1, 1, 1, 1};
    scale.strides = {1, 1, 1, 1};
    scale.constant = match_.dropout->scale;
    a.dropout.scale = plan_.graph.add(scale);
    if (plan_.backward) {
      scale.name = "Dropout scale inverse";
      scale.constant = 1 / match_.dropout->scale;
      a.dropout.scale_inv = plan_.graph.add(scale);
    }
    plan_.dropout = fmt::format("mask, scale {}", match_.dropout->scale);
    return {};
  }

  Elements& elements_;
  const Match& match_;
  const Surroundings& surroundings_;
  Plan plan_;
  std::map<std::string, Tables> tables_;  // by operand
  std::vector<graph::Node> after_;
  int64_t last_uid_ = 0;
  bool carries_ = false;  // from the body that home reads back
};

}  // namespace

std::vector<const Instruction*> Operand::sources() const {
  if (of_forward) return {};
  if (!key) return {place.x};
  std::vector<const Instruction*> words;
  for (const DrawnMask::KeyWord& word : *key)
    if (word.place) words.push_back(word.place->x);
  return words;
}

Result<Plan> plan_forward(Elements& elements, const Match& match, bool stats,
                          const Surroundings& surroundings) {
  Planner planner(elements, match, surroundings);
  HEDDLE_TRY(planner.begin(false));
  graph::Sdpa op;
  HEDDLE_ASSIGN(op.q, planner.rotated_operand("Q", match.score.q, planner.q_axes()));
  HEDDLE_ASSIGN(op.k, planner.rotated_operand("K", match.score.k, planner.k_axes()));
  HEDDLE_ASSIGN(op.v, planner.operand("V", match.v, planner.v_axes()));
  HEDDLE_TRY(planner.set_attributes(op.attention));
  if (const Output* o = match.find(Role::o)) {
    HEDDLE_ASSIGN(op.o, planner.result("O", *o, planner.o_axes()));
  } else {
    op.o = planner.inner_result("O", planner.o_axes());
  }
  if (stats) {
    op.stats = planner.stats_tensor();
    CallResult result;
    const Dims& dims = planner.plan().graph[op.stats].dims;
    result.dims = {dims[0], dims[1], dims[2]};
    planner.plan().results.push_back(result);
  }
  planner.plan().graph.nodes.push_back({"attention", op});
  return planner.take();
}

std::optional<Algebra::Renaming> same_attention(const Match& forward, const Match& backward,
                                                const Elements& elements) {
  const auto computation = [&](int frame) { return elements.frames()[frame].computation; };
  if (forward.anchor.x != backward.anchor.x ||
      computation(forward.anchor.frame) != computation(backward.anchor.frame))
    return std::nullopt;
  Algebra::Renaming names;
  // Both places of one value: labels of dimensions in the order in which they stand.
  const auto agree = [&](const Element& a, const Element& b) {
    const bool same_frame =
        a.frame == b.frame || (a.frame == forward.anchor.frame && b.frame == backward.anchor.frame);
    if (!same_frame || a.x != b.x) return false;
    for (size_t i = 0; i < a.at.size(); ++i) {
      if (a.at[i].size() != b.at[i].size()) return false;
      for (size_t j = 0; j < a.at[i].size(); ++j)
        if (names.try_emplace(a.at[i][j], b.at[i][j]).first->second != b.at[i][j]) return false;
    }
    return true;
  };
  if (!agree(forward.anchor, backward.anchor) || !agree(forward.score.q, backward.score.q) ||
      !agree(forward.score.k, backward.score.k) || !agree(forward.v, backward.v) ||
      !forward.dropout != !backward.dropout)
    return std::nullopt;
  if (forward.dropout && (!agree(forward.dropout->keep, backward.dropout->keep) ||
                          std::abs(forward.dropout->scale / backward.dropout->scale - 1) > 1e-5))
    return std::nullopt;
  return names;
}

Result<Plan> plan_backward(Elements& elements, const Match& match, const ForwardCall& forward,
                           const Surroundings& surroundings) {
  Planner planner(elements, match, surroundings);
  HEDDLE_TRY(planner.begin(true));
  graph::SdpaBackward op;
  HEDDLE_ASSIGN(op.q, planner.rotated_operand("Q", match.score.q, planner.q_axes()));
  HEDDLE_ASSIGN(op.k, planner.rotated_operand("K", match.score.k, planner.k_axes()));
  HEDDLE_ASSIGN(op.v, planner.operand("V", match.v, planner.v_axes()));
  HEDDLE_ASSIGN(op.d_o, planner.operand("dO", *match.d_o, planner.o_axes()));
  // O and Stats as the forward call returns them; O perhaps as the program itself keeps it.
  const graph::Sdpa& sdpa = std::get<graph::Sdpa>(forward.plan.graph.nodes.back().op);
  const auto from_forward = [&](TensorId id, int number) {
    const graph::Tensor& t = forward.plan.graph[id];
    Operand operand;
    operand.of_forward = number;
    planner.plan().operands.push_back(std::move(operand));
    return planner.tensor(t.name, *t.dtype, t.dims, t.strides);
  };
  planner.plan().forward = forward.number;
  const bool elsewhere = forward.plan.home != match.home;
  if (elsewhere && !planner.carries())
    return error(Code::graph_not_supported,
                 "the loop that holds the forward cannot keep anything more for the loop that "
                 "holds the backward");
  const auto kept =
      elsewhere ? planner.stacked_result(forward.plan.results[0], forward.names) : std::nullopt;
  if (kept) {
    HEDDLE_ASSIGN(op.o, planner.operand("O", *kept, planner.o_axes()));
  } else {
    op.o = from_forward(sdpa.o, 0);
  }
  op.stats = from_forward(sdpa.stats, 1);
  HEDDLE_TRY(planner.set_attributes(op.attention));
  const Roles roles = planner.plan().roles;
  const auto labels_beyond = [&](const Element& place, Index known) {
    Index rest;
    for (const Index& index : place.at)
      for (Var v : index)
        if (std::find(known.begin(), known.end(), v) == known.end()) rest.push_back(v);
    return rest;
  };
  const auto joined = [](std::initializer_list<Index> lists) {
    Index all;
    for (const Index& list : lists) all.insert(all.end(), list.begin(), list.end());
    return all;
  };
  for (const Output& output : match.outputs) {
    // In the order of the operands, so that uids and results agree.
    Axes axes;
    switch (output.role) {
      case Role::d_q: {
        axes = planner.q_axes();
        axes.columns = labels_beyond(output.place, joined({axes.batch, axes.heads, axes.rows}));
        HEDDLE_ASSIGN(op.d_q, planner.derotated_result("dQ", "Q", output, axes));
        break;
      }
      case Role::d_k: {
        axes = planner.k_axes();
        axes.columns = labels_beyond(output.place, joined({axes.batch, axes.heads, axes.rows}));
        HEDDLE_ASSIGN(op.d_k, planner.derotated_result("dK", "K", output, axes));
        break;
      }
      case Role::d_v: {
        axes = planner.v_axes();
        axes.columns = labels_beyond(output.place, joined({axes.batch, axes.heads, axes.rows}));
        HEDDLE_ASSIGN(op.d_v, planner.result("dV", output, axes));
        break;
      }
      case Role::d_bias: {
        const graph::Tensor& bias = planner.plan().graph[op.attention.bias];
        axes = {bias.dims[0] == 1 ? Index{} : roles.batch,
                bias.dims[1] == 1 ? Index{} : roles.query_heads(), roles.rows, roles.keys};
        HEDDLE_ASSIGN(op.d_bias, planner.result("dBias", output, axes));
        break;
      }
      case Role::o:
        break;
    }
  }
  planner.plan().graph.nodes.push_back({"attention_backward", op});
  planner.finish();
  return planner.take();
}

}  // namespace heddle::rewrite
