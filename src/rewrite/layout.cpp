#include "rewrite/layout.h"

#include <algorithm>
#include <map>

#include "rewrite/predicate.h"

namespace heddle::rewrite {

namespace {

bool contains(const Index& index, Var v) {
  return std::find(index.begin(), index.end(), v) != index.end();
}

template <class Keep>
Index filtered(const Index& index, Keep keep) {
  Index result;
  std::copy_if(index.begin(), index.end(), std::back_inserter(result), keep);
  return result;
}

void append(Index& to, const Index& from) { to.insert(to.end(), from.begin(), from.end()); }

/// The labels of `which` grouped as they stand side by side in the dimensions of `element`.
std::vector<Index> axes_in(const Element& element, const Index& which) {
  std::vector<Index> axes;
  for (const Index& index : element.at) {
    bool beside = false;
    for (Var v : index) {
      if (!contains(which, v)) {
        beside = false;
      } else if (beside) {
        axes.back().push_back(v);
      } else {
        axes.push_back({v});
        beside = true;
      }
    }
  }
  return axes;
}

}  // namespace

Result<Roles> roles_of(const Elements& elements, const Algebra& algebra, const Match& match) {
  const Score& score = match.score;
  const Index q = flat(score.q.at), k = flat(score.k.at), v = flat(match.v.at);
  Roles roles;
  roles.keys = filtered(k, [&](Var x) { return contains(score.keys, x); });
  roles.depth = filtered(q, [&](Var x) { return contains(score.depth, x); });
  const Index k_depth = filtered(k, [&](Var x) { return contains(score.depth, x); });
  if (k_depth.size() != roles.depth.size())
    return error(Code::graph_not_supported, "the {} repeat their numbers along a part of head_dim",
                 k_depth.size() < roles.depth.size() ? "keys" : "queries");
  if (k_depth != roles.depth)
    return error(Code::graph_not_supported,
                 "queries and keys hold the digits of head_dim in different orders");
  if (roles.keys.size() != score.keys.size())
    return error(Code::graph_not_supported, "the keys do not vary along every axis of the softmax");
  // What the scores' axes and the values' have in common, or keys or queries alone lack, is batch
  // or heads: learned queries may be the same for every entry, or values for every head.
  const auto is_own = [&](Var x) { return !contains(roles.keys, x) && !contains(roles.depth, x); };
  const Index of_keys = filtered(k, [&](Var x) { return is_own(x) && !contains(q, x); });
  const Index shared =
      filtered(q, [&](Var x) { return is_own(x) && (contains(k, x) || contains(v, x)); });
  roles.value_depth = filtered(v, [&](Var x) {
    return !contains(roles.keys, x) && !contains(of_keys, x) && !contains(q, x);
  });
  for (Var x : roles.keys)
    if (!contains(v, x))
      return error(Code::graph_not_supported, "the values do not vary along every key axis");
  if (match.d_o) {
    const Index d_o = flat(match.d_o->at);
    if (filtered(d_o, [&](Var x) { return contains(roles.value_depth, x); }) !=
        filtered(roles.value_depth, [&](Var x) { return contains(d_o, x); }))
      return error(Code::graph_not_supported,
                   "dO and the values hold the digits of their depth in different orders");
  }

  // Axes of the queries alone: rows, and the query heads that share a key head. Those that the
  // mask looks at are rows; with no mask any choice means the same, and the longest is taken.
  const Index own = filtered(q, [&](Var x) { return !contains(k, x) && !contains(v, x); });
  const Index own_rows = filtered(own, [&](Var x) { return !contains(roles.depth, x); });
  const std::vector<Index> axes = axes_in(score.q, own_rows);
  std::vector<Var> masked = support(algebra, score.mask);
  std::vector<bool> is_row(axes.size());
  for (size_t i = 0; i < axes.size(); ++i)
    is_row[i] =
        std::any_of(axes[i].begin(), axes[i].end(), [&](Var x) { return contains(masked, x); });
  if (std::find(is_row.begin(), is_row.end(), true) == is_row.end() && !axes.empty()) {
    const auto longest = std::max_element(
        axes.begin(), axes.end(),
        [&](const Index& a, const Index& b) { return elements.size(a) < elements.size(b); });
    is_row[longest - axes.begin()] = true;
  }
  for (size_t i = 0; i < axes.size(); ++i) append(is_row[i] ? roles.rows : roles.repeat, axes[i]);

  // Of the shared axes the last is the heads, if it stands inside the rows or is not alone.
  roles.batch = of_keys;
  const std::vector<Index> common = axes_in(score.q, shared);
  const auto first_row =
      roles.rows.empty() ? q.end() : std::find(q.begin(), q.end(), roles.rows.front());
  const bool last_inside =
      !common.empty() && std::find(q.begin(), q.end(), common.back()[0]) > first_row;
  for (size_t i = 0; i < common.size(); ++i) {
    const bool heads =
        i + 1 == common.size() && (last_inside || common.size() > 1 || !roles.batch.empty());
    append(heads ? roles.group : roles.batch, common[i]);
  }
  return roles;
}

Index Axes::canonical() const {
  Index all = batch;
  append(all, rows);
  append(all, heads);
  append(all, columns);
  return all;
}

bool varies_within(const Element& element, const Axes& axes) {
  const Index own = axes.canonical();
  const Index labels = flat(element.at);
  return std::all_of(labels.begin(), labels.end(), [&](Var v) { return contains(own, v); });
}

std::optional<TensorView> view_of(const Elements& elements, const Element& place,
                                  const Axes& axes) {
  std::map<Var, int64_t> stride;
  int64_t step = 1;
  for (auto index = place.at.rbegin(); index != place.at.rend(); ++index)
    for (auto digit = index->rbegin(); digit != index->rend(); ++digit) {
      if (!stride.emplace(*digit, step).second) return std::nullopt;  // a diagonal
      step *= elements.size(*digit);
    }
  const Index* lists[] = {&axes.batch, &axes.heads, &axes.rows, &axes.columns};
  TensorView view;
  size_t seen = 0;
  for (const Index* list : lists) {
    view.dims.push_back(elements.size(*list));
    int64_t inner = 1;
    for (size_t i = list->size(); i-- > 0;) {
      const auto found = stride.find((*list)[i]);
      if (found == stride.end()) {
        view.direct = false;
        continue;
      }
      ++seen;
      if (i + 1 == list->size()) {
        inner = found->second;
      } else if (found->second !=
                 inner * elements.size(Index(list->begin() + i + 1, list->end()))) {
        view.direct = false;
      }
    }
    view.strides.push_back(list->empty() ? 1 : inner);
  }
  if (!axes.columns.empty() && view.strides[3] != 1) view.direct = false;
  if (seen != stride.size() && !view.direct) return std::nullopt;
  const auto [b, h, s, d] = std::tuple(view.dims[0], view.dims[1], view.dims[2], view.dims[3]);
  if (!view.direct) view.strides = Dims{s * h * d, d, h * d, 1};
  // Strides of dimensions of one element mean nothing; make them what a dense tensor would have.
  const int64_t dense[] = {step, d, d, 1};
  for (int i = 0; i < 4; ++i)
    if (view.dims[i] == 1) view.strides[i] = view.direct ? dense[i] : view.strides[i];
  return view;
}

std::optional<Element> local_element(Elements& elements, int home, const Element& element) {
  std::vector<const hlo::Instruction*> candidates;
  if (const hlo::Instruction* x = elements.local(home, element.frame, element.x))
    candidates.push_back(x);
  for (const ReadBack& read : elements.reads(element.frame)) candidates.push_back(read.read);
  std::optional<Element> repeated;
  for (const hlo::Instruction* x : candidates) {
    Element local = elements.fresh(home, x);
    Element behind = elements.resolve(local);
    if (auto before = elements.computed_before(behind, element.frame)) behind = std::move(*before);
    if (behind.frame != element.frame || behind.x != element.x) continue;
    if (behind == local) return element;
    const auto renaming = elements.renaming(behind.at, element.at);
    if (!renaming) continue;
    bool whole = true;
    for (Index& index : local.at)
      for (Var& v : index) {
        const auto to = renaming->find(v);
        whole = whole && to != renaming->end();
        if (to != renaming->end()) v = to->second;
      }
    if (whole) return local;
    if (!repeated) repeated = local;
  }
  return repeated;
}

}  // namespace heddle::rewrite
