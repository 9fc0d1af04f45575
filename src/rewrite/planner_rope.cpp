// RoPE that goes into a call.
#include "rewrite/planner.h"

namespace heddle::rewrite {

using graph::TensorId;
using hlo::Instruction;
using hlo::Opcode;

Result<TensorId> Planner::rotated_operand(const char* name, const Element& leaf, const Axes& axes) {
  const Plan before = plan_;
  const int64_t last_uid = last_uid_;
  auto rotated = try_rotated(name, leaf, axes);
  if (rotated && *rotated) return **rotated;
  plan_ = before;
  last_uid_ = last_uid;
  return vectors(name, leaf, axes);
}

Result<TensorId> Planner::derotated_result(const char* name, const char* operand,
                                           const Output& output, const Axes& axes) {
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
      rope.positions = tables->second.starts;
      rope.y = *result;
      after_.push_back({std::string("rotate back ") + name, rope});
      plan_.absorbed.push_back(link.x);
      return rope.x;
    }
  }
  return result(name, output, axes);
}

Result<std::optional<TensorId>> Planner::try_rotated(const char* name, const Element& leaf,
                                                     const Axes& axes) {
  const std::optional<TensorId> none;
  const bool found_here = leaf.frame == match_.home;
  const bool found_there = carries_ && leaf.frame == match_.anchor.frame;
  if ((!found_here && !found_there) || surroundings_.kept.contains(leaf.x)) return none;
  const bool rounded = leaf.x->is(Opcode::convert);
  const auto found =
      rotation_of(elements_, *match_.algebra, leaf.frame, rounded ? leaf.x->operand(0) : leaf.x);
  if (!found || found->inverse) return none;
  const std::optional<Rotation> as_read = relabelled(elements_, *found, leaf.at);
  if (!as_read) return none;
  const Rotation& rotation = *as_read;
  if (rotation.y.at[rotation.depth] != axes.columns ||
      rotation.x.x->shape().type() != leaf.x->shape().type() ||
      leaf.x->shape().type() != plan_.dtype)
    return none;
  graph::Rope rope;
  Tables tables;
  // Tables that differ between batch entries are one table of all their rows.
  const bool per_entry = varies(rotation.cosines, axes.batch) || varies(rotation.sines, axes.batch);
  Axes table_axes{axes.rows, {}, {}, rotation.half};
  if (per_entry)
    table_axes.batch.insert(table_axes.batch.begin(), axes.batch.begin(), axes.batch.end());
  HEDDLE_ASSIGN(rope.x, operand(std::string(name) + " before rotation", rotation.x, axes));
  HEDDLE_ASSIGN(rope.cosines,
                table(std::string("cosines of ") + name, rotation.cosines, table_axes));
  HEDDLE_ASSIGN(rope.sines, table(std::string("sines of ") + name, rotation.sines, table_axes));
  if (per_entry) rope.positions = table_starts(name, axes);
  rope.y = virtual_tensor(name, *data_type(leaf.x->shape().type()), plan_.graph[rope.x].dims);
  tables_[name] = {rope.cosines, rope.sines, rope.positions, rotation.cosines, rotation.sines};
  plan_.graph.nodes.push_back({std::string("rotate ") + name, rope});
  plan_.absorbed.push_back(leaf.x);
  return std::optional<TensorId>(rope.y);
}

Result<TensorId> Planner::table(std::string name, const Element& leaf, const Axes& axes) {
  HEDDLE_ASSIGN(const TensorId id, operand(std::move(name), leaf, axes));
  return as_f32(id, leaf);
}

TensorId Planner::table_starts(const char* name, const Axes& axes) {
  Operand operand;
  operand.place.frame = match_.home;
  operand.axes.batch = axes.batch;
  operand.made = Made::table_starts;
  operand.limit = elements_.size(axes.rows);
  plan_.operands.push_back(std::move(operand));
  // No apostrophe: XLA escapes it in a call's configuration, which MLIR then cannot read.
  return tensor(fmt::format("first rows of the tables of {}", name), DataType::i32,
                {elements_.size(axes.batch), 1, 1, 1}, {1, 1, 1, 1});
}

std::vector<Element> Planner::links_of(const Element& place) {
  std::vector<Element> links{place};
  for (auto next = rearranged(place); next; next = rearranged(*next)) links.push_back(*next);
  return links;
}

std::optional<Rotation> Planner::turned_back(const Element& link, const Tables& tables) {
  if (surroundings_.kept.contains(link.x)) return std::nullopt;
  for (const Instruction* y : elements_.frames()[match_.home].computation->instructions()) {
    const auto found = rotation_of(elements_, *match_.algebra, match_.home, y);
    if (!found || !found->inverse || found->x.x != link.x || found->x.frame != link.frame ||
        found->cosines.x != tables.cosines_place.x || found->sines.x != tables.sines_place.x)
      continue;
    const auto renaming = elements_.renaming(found->x.at, link.at);
    if (!renaming) continue;
    std::vector<Index> at = found->y.at;
    for (Index& index : at)
      for (Var& v : index)
        if (const auto to = renaming->find(v); to != renaming->end()) v = to->second;
    std::optional<Rotation> rotation = relabelled(elements_, *found, at);
    if (rotation && same_rows(rotation->cosines, tables.cosines_place) &&
        same_rows(rotation->sines, tables.sines_place))
      return rotation;
  }
  return std::nullopt;
}

bool Planner::same_rows(const Element& a, const Element& b) {
  size_t differing = 0;
  for (size_t i = 0; i < a.at.size(); ++i) differing += a.at[i] != b.at[i];
  return a.frame == b.frame && a.x == b.x && differing <= 1;
}

}  // namespace heddle::rewrite
