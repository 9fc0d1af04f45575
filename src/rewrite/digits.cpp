#include "rewrite/digits.h"

#include <algorithm>
#include <numeric>

namespace heddle::rewrite {

using hlo::Instruction;
using hlo::Opcode;
using hlo::Shape;

int leaf_count(const Shape& shape) {
  if (!shape.is_tuple()) return 1;
  int count = 0;
  for (const Shape& element : shape.elements()) count += leaf_count(element);
  return count;
}

int first_leaf(const Shape& tuple, int64_t index) {
  int leaf = 0;
  for (int64_t i = 0; i < index; ++i) leaf += leaf_count(tuple.elements()[i]);
  return leaf;
}

Digits::Digits(const hlo::Module& module) {
  for (const hlo::Computation* computation : module.computations())
    for (const Instruction* x : computation->instructions()) add_slots(x);
  parent_.resize(size_.size());
  std::iota(parent_.begin(), parent_.end(), 0);
  cuts_.resize(size_.size());
  for (const hlo::Computation* computation : module.computations())
    for (const Instruction* x : computation->instructions()) link_instruction(x);
  for (bool changed = true; changed;) {
    changed = false;
    for (const Regrouping& regrouping : regroupings_) changed |= spread(regrouping);
  }
}

std::vector<int64_t> Digits::of(const Instruction* x, int dim) const {
  int64_t rest = x->shape().dim(dim);
  std::vector<int64_t> digits;
  if (rest <= 1) return digits;
  const std::set<int64_t>& cuts = cuts_[root(slot(x, 0, dim))];
  for (auto cut = cuts.rbegin(); cut != cuts.rend(); ++cut) {
    digits.push_back(rest / *cut);
    rest = *cut;
  }
  digits.push_back(rest);
  return digits;
}

void Digits::add_slots(const Instruction* x) {
  std::vector<Slot>& leaves = leaves_[x];
  auto add = [&](auto& self, const Shape& shape) -> void {
    if (shape.is_tuple()) {
      for (const Shape& element : shape.elements()) self(self, element);
      return;
    }
    leaves.push_back(static_cast<Slot>(size_.size()));
    if (shape.is_array()) size_.insert(size_.end(), shape.dims().begin(), shape.dims().end());
  };
  add(add, x->shape());
}

Digits::Slot Digits::slot(const Instruction* x, int leaf, int64_t dim) const {
  return leaves_.at(x)[leaf] + static_cast<Slot>(dim);
}

Digits::Slot Digits::root(Slot slot) const {
  while (parent_[slot] != slot) slot = parent_[slot] = parent_[parent_[slot]];
  return slot;
}

void Digits::unite(Slot a, Slot b) {
  if (size_[a] != size_[b]) return;
  parent_[root(a)] = root(b);
}

void Digits::link(const Instruction* a, int64_t dim_a, const Instruction* b, int64_t dim_b) {
  unite(slot(a, 0, dim_a), slot(b, 0, dim_b));
}

void Digits::link_whole(const Instruction* a, int first_leaf_a, const Instruction* b,
                        int first_leaf_b, const Shape& shape) {
  int leaf = 0;
  auto walk = [&](auto& self, const Shape& part) -> void {
    if (part.is_tuple()) {
      for (const Shape& element : part.elements()) self(self, element);
      return;
    }
    for (int dim = 0; part.is_array() && dim < part.rank(); ++dim)
      unite(slot(a, first_leaf_a + leaf, dim), slot(b, first_leaf_b + leaf, dim));
    ++leaf;
  };
  walk(walk, shape);
}

void Digits::link_instruction(const Instruction* x) {
  switch (x->opcode()) {
    case Opcode::transpose:
      for (int i = 0; i < x->shape().rank(); ++i) link(x, i, x->operand(0), x->dimensions()[i]);
      return;
    case Opcode::broadcast:
      for (int i = 0; i < x->operand(0)->shape().rank(); ++i)
        link(x, x->dimensions()[i], x->operand(0), i);
      return;
    case Opcode::reshape:
      return link_reshape(x);
    case Opcode::dot:
      return link_dot(x);
    case Opcode::reduce: {
      if (!x->shape().is_array()) return;
      const auto reduced = x->dimensions();
      int out = 0;
      for (int i = 0; i < x->operand(0)->shape().rank(); ++i)
        if (std::find(reduced.begin(), reduced.end(), i) == reduced.end())
          link(x, out++, x->operand(0), i);
      return;
    }
    case Opcode::slice:
    case Opcode::dynamic_slice:
    case Opcode::dynamic_update_slice:
    case Opcode::pad:
    case Opcode::concatenate:
    case Opcode::reverse:
      for (const Instruction* operand : x->operands())
        if (operand->shape().rank() == x->shape().rank())
          for (int i = 0; i < x->shape().rank(); ++i) link(x, i, operand, i);
      return;
    case Opcode::tuple:
      for (int i = 0; i < x->operand_count(); ++i)
        link_whole(x, first_leaf(x->shape(), i), x->operand(i), 0, x->operand(i)->shape());
      return;
    case Opcode::get_tuple_element:
      link_whole(x, 0, x->operand(0), first_leaf(x->operand(0)->shape(), x->tuple_index()),
                 x->shape());
      return;
    case Opcode::opt_barrier:
    case Opcode::copy:
      link_whole(x, 0, x->operand(0), 0, x->shape());
      return;
    case Opcode::while_: {
      const Instruction* state = x->body()->parameter(0);
      link_whole(x, 0, x->operand(0), 0, x->shape());
      link_whole(x, 0, state, 0, x->shape());
      link_whole(x, 0, x->body()->root(), 0, x->shape());
      return;
    }
    case Opcode::conditional: {
      int given = 1;
      for (const hlo::Computation* branch : x->branches()) {
        link_whole(x, 0, branch->root(), 0, x->shape());
        const Instruction* argument = x->operand(given++);
        link_whole(branch->parameter(0), 0, argument, 0, argument->shape());
      }
      return;
    }
    default:
      if (!hlo::is_elementwise(x->opcode()) || !x->shape().is_array()) return;
      for (const Instruction* operand : x->operands())
        if (hlo::same_dims(operand->shape(), x->shape()))
          for (int i = 0; i < x->shape().rank(); ++i) link(x, i, operand, i);
  }
}

void Digits::link_reshape(const Instruction* x) {
  const Instruction* from = x->operand(0);
  const auto& a = from->shape().dims();
  const auto& b = x->shape().dims();
  if (from->shape().element_count() == 0) return;
  size_t i = 0, j = 0;
  while (i < a.size() || j < b.size()) {
    Regrouping group;
    int64_t before = 1, after = 1;
    auto take_before = [&] { before *= a[i], group.before.push_back(slot(from, 0, i++)); };
    auto take_after = [&] { after *= b[j], group.after.push_back(slot(x, 0, j++)); };
    if (i < a.size()) take_before();
    if (j < b.size()) take_after();
    while (before != after || before == 1) {
      if (before <= after && i < a.size()) {
        take_before();
      } else if (j < b.size()) {
        take_after();
      } else if (i < a.size()) {
        take_before();
      } else {
        break;
      }
    }
    regroupings_.push_back(std::move(group));
  }
}

void Digits::link_dot(const Instruction* x) {
  const Instruction* lhs = x->operand(0);
  const Instruction* rhs = x->operand(1);
  const auto lb = x->lhs_batch_dims(), rb = x->rhs_batch_dims();
  const auto lc = x->lhs_contracting_dims(), rc = x->rhs_contracting_dims();
  int out = 0;
  for (size_t i = 0; i < lb.size(); ++i) {
    link(lhs, lb[i], rhs, rb[i]);
    link(x, out++, lhs, lb[i]);
  }
  for (size_t i = 0; i < lc.size(); ++i) link(lhs, lc[i], rhs, rc[i]);
  auto link_free = [&](const Instruction* side, auto batch, auto contracting) {
    for (int i = 0; i < side->shape().rank(); ++i)
      if (std::find(batch.begin(), batch.end(), i) == batch.end() &&
          std::find(contracting.begin(), contracting.end(), i) == contracting.end())
        link(x, out++, side, i);
  };
  link_free(lhs, lb, lc);
  link_free(rhs, rb, rc);
}

namespace {

/// Cuts must divide one another in order, or the digits between them would not be whole.
bool insert_cut(std::set<int64_t>& cuts, int64_t cut) {
  const auto above = cuts.lower_bound(cut);
  if (above != cuts.end() && *above % cut != 0) return false;
  if (above != cuts.begin() && cut % *std::prev(above) != 0) return false;
  return cuts.insert(cut).second;
}

}  // namespace

bool Digits::spread(const Regrouping& regrouping) {
  std::set<int64_t> all;
  auto collect = [&](const std::vector<Slot>& dims) {
    int64_t inner = 1;
    for (auto dim = dims.rbegin(); dim != dims.rend(); ++dim) {
      for (int64_t cut : cuts_[root(*dim)]) all.insert(inner * cut);
      inner *= size_[*dim];
      all.insert(inner);
    }
  };
  collect(regrouping.before);
  collect(regrouping.after);
  all.insert(1);
  int64_t last = 1;
  for (int64_t cut : all) {
    if (cut % last != 0) return false;  // [6] as [2,3] and as [3,2]: no common digits
    last = cut;
  }
  bool changed = false;
  auto distribute = [&](const std::vector<Slot>& dims) {
    int64_t inner = 1;
    for (auto dim = dims.rbegin(); dim != dims.rend(); ++dim) {
      std::set<int64_t>& cuts = cuts_[root(*dim)];
      const int64_t outer = inner * size_[*dim];
      for (auto cut = all.upper_bound(inner); cut != all.end() && *cut < outer; ++cut)
        changed |= insert_cut(cuts, *cut / inner);
      inner = outer;
    }
  };
  distribute(regrouping.before);
  distribute(regrouping.after);
  return changed;
}

}  // namespace heddle::rewrite
