// RoPE that goes into a call.
#include <fmt/format.h>

#include <algorithm>

#include "rewrite/carry.h"
#include "rewrite/planner.h"

namespace heddle::rewrite {

using graph::TensorId;
using hlo::Instruction;
using hlo::Opcode;

namespace {

// A gradient turned back: parts of it, each times a table, padded, joined and added. Complex
// numbers take about fifty operations.
constexpr size_t kMaxUsers = 96;

/// Whether rotations are made of such.
bool is_of_rotations(const Instruction* x) {
  switch (x->opcode()) {
    case Opcode::add:
    case Opcode::complex:
    case Opcode::concatenate:
    case Opcode::convert:
    case Opcode::copy:
    case Opcode::imag:
    case Opcode::multiply:
    case Opcode::negate:
    case Opcode::pad:
    case Opcode::real:
    case Opcode::reshape:
    case Opcode::slice:
    case Opcode::subtract:
    case Opcode::transpose:
      return x->shape().is_array();
    default:
      return false;
  }
}

/// `rotation` with the labels of its x replaced by `at`.
std::optional<Rotation> renamed_to(const Elements& elements, const Rotation& rotation,
                                   const std::vector<Index>& at) {
  const auto names = elements.renaming(rotation.x.at, at);
  if (!names) return std::nullopt;
  std::vector<Index> own = rotation.y.at;
  for (Index& index : own)
    for (Var& v : index) v = names->of(v);
  return relabelled(elements, rotation, own);
}

}  // namespace

Result<TensorId> Planner::rotated_operand(const char* name, const Element& leaf, const Axes& axes) {
  const Plan before = plan_;
  const int64_t last_uid = last_uid_;
  auto rotated = try_rotated(name, leaf, axes);
  if (rotated && *rotated) return **rotated;
  plan_ = before;
  last_uid_ = last_uid;
  if (!rotated)
    plan_.rope_outside.push_back(fmt::format("{}: {}", name, rotated.status().message()));
  return vectors(name, leaf, axes);
}

Result<TensorId> Planner::derotated_result(const char* name, const char* operand,
                                           const Output& output, const Axes& axes) {
  const auto tables = tables_.find(operand);
  if (tables != tables_.end() && output.factor == 1) {
    for (const Element& link : links_of(output.place)) {
      const auto back = turned_back(link, axes.columns, tables->second);
      if (!back) continue;
      const Plan before = plan_;
      const int64_t last_uid = last_uid_;
      Axes turned = axes;
      turned.columns = back->columns;
      auto result = this->result(name, {output.role, back->y, 1}, turned);
      if (!result) {
        plan_ = before;
        last_uid_ = last_uid;
        break;
      }
      graph::Rope rope = tables->second.rope;
      rope.backward = true;
      rope.x = virtual_tensor(std::string(name) + " of the rotated", *data_type(plan_.dtype),
                              plan_.graph[*result].dims);
      rope.y = *result;
      after_.push_back({std::string("rotate back ") + name, rope});
      plan_.absorbed.push_back(link.x);
      return rope.x;
    }
  }
  return result(name, output, axes);
}

graph::Rope Planner::rope_of(const Rotation& rotation) {
  graph::Rope rope;
  if (rotation.neighbours) rope.pairing = graph::RopePairing::interleaved;
  if (rotation.count == elements_.size(rotation.columns)) return rope;
  rope.rope_dim = rotation.count;
  rope.leading = rotation.first == 0;
  return rope;
}

Result<std::optional<TensorId>> Planner::try_rotated(const char* name, const Element& leaf,
                                                     const Axes& axes) {
  const std::optional<TensorId> none;
  const bool found_here = leaf.frame == match_.home;
  const bool found_there = carries_ && leaf.frame == match_.anchor.frame;
  if (!found_here && !found_there) return none;
  std::string why_not;
  const auto found = rotation_of(elements_, leaf, axes.columns, nullptr, &why_not);
  if (!found && !why_not.empty()) return error(Code::graph_not_supported, "{}", why_not);
  if (!found) return none;
  const Rotation& rotation = *found;
  if (rotation.inverse) return error(Code::graph_not_supported, "it turns the other way");
  if (surroundings_.kept.contains(leaf.x))
    return error(Code::graph_not_supported, "%{} is needed elsewhere too", leaf.x->name());
  if (rotation.x.x->shape().type() != leaf.x->shape().type() ||
      leaf.x->shape().type() != plan_.dtype)
    return error(Code::graph_not_supported,
                 "what is turned is {} and the result {}, in a call of {}",
                 hlo::name(rotation.x.x->shape().type()), hlo::name(leaf.x->shape().type()),
                 hlo::name(plan_.dtype));
  graph::Rope rope = rope_of(rotation);
  // Tables that differ between batch entries are one table of all their rows.
  const bool per_entry =
      varies(rotation.cosines.place, axes.batch) || varies(rotation.sines.place, axes.batch);
  Axes table_axes{axes.rows, {}, {}, rotation.pair};
  if (per_entry)
    table_axes.batch.insert(table_axes.batch.begin(), axes.batch.begin(), axes.batch.end());
  HEDDLE_ASSIGN(rope.x, operand(std::string(name) + " before rotation", rotation.x, axes));
  HEDDLE_ASSIGN(rope.cosines,
                table(std::string("cosines of ") + name, rotation.cosines, table_axes));
  HEDDLE_ASSIGN(rope.sines, table(std::string("sines of ") + name, rotation.sines, table_axes));
  if (per_entry) rope.positions = table_starts(name, axes);
  rope.y = virtual_tensor(name, *data_type(leaf.x->shape().type()), plan_.graph[rope.x].dims);
  tables_[name] = {rotation, rope};
  plan_.graph.nodes.push_back({std::string("rotate ") + name, rope});
  plan_.absorbed.push_back(leaf.x);
  return std::optional<TensorId>(rope.y);
}

Result<TensorId> Planner::table(std::string name, const AngleTable& table, const Axes& axes) {
  if (!table.is_cut && table.part == AngleTable::Part::whole) {
    HEDDLE_ASSIGN(const TensorId id, operand(std::move(name), table.place, axes));
    return as_f32(id, table.place);
  }
  Operand operand;
  HEDDLE_ASSIGN(operand.place, whole_place(table.place, name));
  operand.place.at[table.dim] = axes.columns;
  if (!varies_within(operand.place, axes))
    return error(Code::graph_not_supported,
                 "%{} ({}) varies along an axis that tables of angles do not have",
                 table.place.x->name(), name);
  using hlo::ElementType;
  const ElementType type = table.place.x->shape().type();
  const ElementType part = type == ElementType::c64    ? ElementType::f32
                           : type == ElementType::c128 ? ElementType::f64
                                                       : type;
  const auto taken = data_type(is_half(part) ? ElementType::f32 : part);
  if (!taken || part != (table.part == AngleTable::Part::whole ? type : part))
    return error(Code::graph_not_supported, "%{} ({}) has elements of type {}",
                 table.place.x->name(), name, hlo::name(type));
  operand.made = table.part == AngleTable::Part::real        ? Made::real_part
                 : table.part == AngleTable::Part::imaginary ? Made::imaginary_part
                 : is_half(part)                             ? Made::as_f32
                                                             : Made::as_is;
  operand.cut = CutColumns{table.dim, table.columns.first, std::max<int64_t>(table.columns.step, 1),
                           elements_.size(axes.columns)};
  operand.axes = axes;
  operand.direct = false;
  operand.type = type;
  plan_.operands.push_back(std::move(operand));
  const Dims d = dims_of(axes);
  return tensor(std::move(name), *taken, d, {d[1] * d[2] * d[3], d[3], d[1] * d[3], 1});
}

Result<Element> Planner::whole_place(const Element& leaf, const std::string& name) {
  if (leaf.frame == match_.home || can_carry(elements_, leaf.frame, match_.home)) return leaf;
  const Element all = elements_.fresh(leaf.frame, leaf.x);
  auto local = local_element(elements_, match_.home, all);
  if (!local || local->at != all.at)
    return error(Code::graph_not_supported, "%{} ({}) is not kept for the loop that needs it",
                 leaf.x->name(), name);
  local->at = leaf.at;
  return std::move(*local);
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

std::optional<Rotation> Planner::turned_back(const Element& link, const Index& columns,
                                             const Tables& tables) {
  if (surroundings_.kept.contains(link.x)) return std::nullopt;
  std::vector<int64_t> digits;
  for (const Var v : columns) digits.push_back(elements_.size(v));
  std::vector<const Instruction*> met{elements_.representative(link.x)};
  for (size_t i = 0; i < met.size() && met.size() < kMaxUsers; ++i)
    for (const Instruction* user : elements_.users(met[i]))
      if (is_of_rotations(user) && std::find(met.begin(), met.end(), user) == met.end())
        met.push_back(user);
  for (const Instruction* x : met) {
    if (x == met[0] || x->shape().element_count() != link.x->shape().element_count() ||
        !(x->is(Opcode::add) || x->is(Opcode::subtract) || x->is(Opcode::concatenate) ||
          x->is(Opcode::reshape)))
      continue;
    for (int dim = x->shape().rank() - 1; dim >= 0; --dim) {
      if (x->shape().dim(dim) != elements_.size(columns)) continue;
      Element y = elements_.fresh(match_.home, x);
      Index own;
      for (const int64_t size : digits) own.push_back(elements_.fresh(size));
      y.at[dim] = own;
      const auto found = rotation_of(elements_, y, own, link.x);
      if (!found || !found->inverse || found->x.frame != link.frame) continue;
      auto back = renamed_to(elements_, *found, link.at);
      if (!back || back->neighbours != tables.rotation.neighbours ||
          back->first != tables.rotation.first || back->count != tables.rotation.count ||
          !same_table(back->cosines, tables.rotation.cosines) ||
          !same_table(back->sines, tables.rotation.sines))
        continue;
      return back;
    }
  }
  return std::nullopt;
}

}  // namespace heddle::rewrite
