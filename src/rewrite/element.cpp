#include "rewrite/element.h"

#include <algorithm>

#include "rewrite/loop.h"
#include "rewrite/numbering.h"
#include "rewrite/predicate.h"
#include "rewrite/view_step.h"

namespace heddle::rewrite {

using hlo::Computation;
using hlo::ElementType;
using hlo::Instruction;
using hlo::Opcode;

bool is_widening(ElementType from, ElementType to) {
  if (from == to) return true;
  switch (from) {
    case ElementType::bf16:
    case ElementType::f16:
      return to == ElementType::f32 || to == ElementType::f64;
    case ElementType::f32:
      return to == ElementType::f64;
    default:
      return false;
  }
}

bool is_wide_floating(ElementType type) {
  return type == ElementType::f64 || type == ElementType::f32 || type == ElementType::bf16 ||
         type == ElementType::f16;
}

bool is_number(const Instruction* x, double number) {
  while (x->is(Opcode::broadcast) || x->is(Opcode::reshape) || x->is(Opcode::convert))
    x = x->operand(0);
  const hlo::Literal* literal = x->literal();
  return literal && !literal->is_elided() && literal->element_count() == 1 &&
         literal->get(0) == number;
}

bool is_rounding(const Instruction* convert) {
  return convert->is(Opcode::convert) && is_wide_floating(convert->shape().type()) &&
         is_wide_floating(convert->operand(0)->shape().type());
}

Index flat(const std::vector<Index>& at) {
  size_t count = 0;
  for (const Index& index : at) count += index.size();
  Index all;
  all.reserve(count);
  for (const Index& index : at) all.insert(all.end(), index.begin(), index.end());
  return all;
}

bool varies(const Element& element, const Index& along) {
  return std::any_of(element.at.begin(), element.at.end(), [&](const Index& index) {
    return std::any_of(index.begin(), index.end(), [&](Var v) {
      return std::find(along.begin(), along.end(), v) != along.end();
    });
  });
}

namespace {

// Loops and branches in one another, and slices of slices, as deep as no program nests them.
constexpr int kMaxLoopDepth = 64;
constexpr int kMaxResolving = 64;
// What chooses a branch: a comparison of an argument, converted.
constexpr int kMaxScalarDepth = 8;
// What a checkpoint computes again of what it saved: biases, norms, rotations of queries and keys.
constexpr int kMaxComputedAgain = 48;

}  // namespace

Elements::Elements(const hlo::Module& module)
    : decided_masks(std::make_shared<DecidedMasks>()), callers_(module), digits_(module) {
  known_.reserve(module.instruction_count());
  Numbering numbering;
  for (const Computation* computation : module.callees_first()) {
    const std::vector<const Instruction*> firsts = numbering.number(computation);
    std::vector<const Instruction*>& order = orders_[computation];
    for (const Instruction* x : computation->dependency_order()) {
      const Instruction* first = firsts[x->position()];
      known_[x] = {first, order.size(), numbering.operation_of(x)};
      if (x != first) equals_[first].push_back(x);
      order.push_back(x);
    }
  }
  frames_.push_back({module.entry()});
  add_frames(module.entry(), 0, 0);
  // Resolving what enters each body shows which outer values it holds, and which stacks it reads.
  const size_t count = frames_.size();
  for (size_t frame = 0; frame < count; ++frame)
    for (const Instruction* x : frames_[frame].computation->instructions())
      if (x->shape().is_array() &&
          (x->is(Opcode::get_tuple_element) || x->is(Opcode::dynamic_slice)))
        resolve(fresh(static_cast<int>(frame), x));
  // And once the iterations that are read back are known, which rows both loops read.
  if (forward_iterations_.empty()) return;
  same_.clear();
  for (size_t frame = 0; frame < count; ++frame)
    for (const Instruction* x : frames_[frame].computation->instructions())
      if (x->is(Opcode::dynamic_slice)) resolve(fresh(static_cast<int>(frame), x));
  same_.clear();  // what was no equal yet
}

void Elements::add_frames(const Computation* computation, int frame, int depth) {
  if (depth == kMaxLoopDepth) return;
  for (const Instruction* x : computation->instructions()) {
    if (x->is(Opcode::conditional)) {
      int number = -1;
      for (const Computation* branch : x->branches()) {
        ++number;
        if (!callers_.only(branch) || frame_of(branch) >= 0) continue;
        frames_.push_back({branch, frame, x, number});
        add_frames(branch, static_cast<int>(frames_.size()) - 1, depth + 1);
      }
      continue;
    }
    if (!x->is(Opcode::while_) || !callers_.only(x->body())) continue;
    frames_.push_back({x->body(), frame, x});
    add_frames(x->body(), static_cast<int>(frames_.size()) - 1, depth + 1);
  }
}

const std::vector<const Instruction*>& Elements::order(int frame) const {
  return orders_.at(frames_[frame].computation);
}

std::vector<const Instruction*> Elements::users(const Instruction* x) const {
  std::vector<const Instruction*> users(x->users().begin(), x->users().end());
  if (const auto equals = equals_.find(x); equals != equals_.end())
    for (const Instruction* y : equals->second)
      users.insert(users.end(), y->users().begin(), y->users().end());
  return users;
}

int Elements::frame_of(const Computation* computation) const {
  for (size_t i = 0; i < frames_.size(); ++i)
    if (frames_[i].computation == computation && frames_[i].read_by < 0) return static_cast<int>(i);
  return -1;
}

const Instruction* Elements::representative(const Instruction* x) const {
  const auto found = known_.find(x);
  return found == known_.end() ? x : found->second.representative;
}

int64_t Elements::size(const Index& index) const {
  int64_t product = 1;
  for (Var digit : index) product *= sizes_[digit];
  return product;
}

Var Elements::fresh(int64_t size) {
  sizes_.push_back(size);
  return static_cast<Var>(sizes_.size()) - 1;
}

Index Elements::fresh(const Instruction* x, int dim) {
  Index index;
  for (int64_t size : digits_.of(x, dim)) index.push_back(fresh(size));
  return index;
}

Element Elements::fresh(int frame, const Instruction* x) {
  Element element{frame, x, {}};
  for (int dim = 0; dim < x->shape().rank(); ++dim) element.at.push_back(fresh(x, dim));
  return element;
}

std::optional<Renaming> Elements::renaming(const std::vector<Index>& from,
                                           const std::vector<Index>& to) const {
  Renaming result;
  if (from.size() != to.size()) return std::nullopt;
  for (size_t i = 0; i < from.size(); ++i) {
    if (from[i].size() != to[i].size()) return std::nullopt;
    for (size_t j = 0; j < from[i].size(); ++j) {
      if (size(from[i][j]) != size(to[i][j])) return std::nullopt;
      result[from[i][j]] = to[i][j];
    }
  }
  return result;
}

std::optional<std::vector<Index>> Elements::regroup(const std::vector<Index>& from,
                                                    const std::vector<int64_t>& dims) const {
  const Index all = flat(from);
  std::vector<Index> result(dims.size());
  size_t next = 0;
  for (size_t i = 0; i < dims.size(); ++i) {
    int64_t covered = 1;
    while (covered < dims[i]) {
      if (next == all.size()) return std::nullopt;
      covered *= sizes_[all[next]];
      result[i].push_back(all[next++]);
    }
    if (covered != dims[i]) return std::nullopt;
  }
  if (next != all.size()) return std::nullopt;
  return result;
}

Element Elements::resolve(Element element) {
  struct Crossing {
    int frame;
    const Instruction* x;
  };
  std::vector<Crossing> crossings;
  ++resolving_;
  for (;;) {
    element.x = representative(element.x);
    const int frame = element.frame;
    const Instruction* x = element.x;
    if (!step(element)) break;
    if (element.frame != frame) crossings.push_back({frame, x});
  }
  --resolving_;
  for (const Crossing& crossing : crossings)
    local_.try_emplace({crossing.frame, element.frame, element.x}, crossing.x);
  return element;
}

bool Elements::step(Element& element) {
  const Instruction* x = element.x;
  switch (x->opcode()) {
    case Opcode::transpose:
    case Opcode::broadcast:
    case Opcode::reshape:
    case Opcode::copy:
      return step_behind_view(element, [this](const std::vector<Index>& at, const auto& dims) {
        return regroup(at, dims);
      });
    case Opcode::convert:
      if (!is_widening(x->operand(0)->shape().type(), x->shape().type()))
        return resolving_ < kMaxResolving && step_back(element);
      element.x = x->operand(0);
      return true;
    case Opcode::get_tuple_element:
      return step_state(element);
    case Opcode::dynamic_slice:
      return resolving_ < kMaxResolving && (step_stack(element) || step_row(element));
    case Opcode::slice:
      return resolving_ < kMaxResolving && step_slice(element);
    default:
      return false;
  }
}

bool Elements::step_back(Element& element) {
  // Rounded to the type from which nothing but views has widened it: as it was.
  Element before = resolve({element.frame, element.x->operand(0), element.at});
  if (before.x->shape().type() != element.x->shape().type()) return false;
  element = std::move(before);
  return true;
}

bool Elements::step_state(Element& element) {
  const Instruction* from = element.x->operand(0);
  const int64_t index = element.x->tuple_index();
  if (from->is(Opcode::tuple)) {
    element.x = from->operand(static_cast<int>(index));
    return true;
  }
  if (from->is(Opcode::while_)) {
    const Instruction* start = is_invariant(from->body(), index) ? initial(from, index) : nullptr;
    if (!start) return false;
    element.x = start;
    return true;
  }
  const Frame& frame = frames_[element.frame];
  if (!from->is(Opcode::parameter) || from->computation() != frame.computation) return false;
  if (frame.branch >= 0) return resolving_ < kMaxResolving && step_branch(element);
  if (frame.caller && is_invariant(frame.computation, index)) {
    const Instruction* start = initial(frame.caller, index);
    if (!start) return false;
    element.x = start;
    element.frame = frame.parent;
    return true;
  }
  return false;
}

bool Elements::step_stack(Element& element) {
  const Frame reader = frames_[element.frame];
  const Instruction* read = element.x;
  if (!reader.is_body() || reader.read_by >= 0 || !touches_one_row(read, 1, read->shape()))
    return false;
  const auto count = counted(reader.caller);
  if (!count) return false;
  const int read_way = direction(reader.caller, *count, read->operand(1));
  if (read_way == 0) return false;
  const Element whole = fresh(element.frame, read->operand(0));
  const Element stack = resolve(whole);
  if (!stack.x->is(Opcode::get_tuple_element) || !stack.x->operand(0)->is(Opcode::while_) ||
      stack.at != whole.at)
    return false;
  const Instruction* loop = stack.x->operand(0);
  const auto written = counted(loop);
  if (!written || written->trips != count->trips) return false;
  const Instruction* write = stack_write(loop, *written, stack.x->tuple_index());
  if (!write) return false;
  // The iteration that wrote the row: of the reader's own number, or counted from the end.
  const int way = read_way * direction(loop, *written, write->operand(2));
  const auto [iteration, added] = forward_iterations_.try_emplace({element.frame * 4 + way, loop},
                                                                  static_cast<int>(frames_.size()));
  if (added) frames_.push_back({loop->body(), stack.frame, loop, -1, element.frame});
  note_read(iteration->second, {read, write->operand(1), write, -1});
  element = {iteration->second, write->operand(1), std::move(element.at)};
  return true;
}

void Elements::note_read(int frame, const ReadBack& read) {
  auto& reads = reads_[frame];
  if (std::none_of(reads.begin(), reads.end(),
                   [&](const ReadBack& known) { return known.read == read.read; }))
    reads.push_back(read);
}

bool Elements::step_branch(Element& element) {
  const Frame reader = frames_[element.frame];
  const Instruction* read = element.x;
  const Instruction* given = reader.caller->operand(reader.branch + 1);
  if (reader.read_by >= 0 || !given->is(Opcode::tuple) || !read->shape().is_array()) return false;
  const Element whole = fresh(reader.parent, given->operand(static_cast<int>(read->tuple_index())));
  const Element result = resolve(whole);
  if (!result.x->is(Opcode::get_tuple_element) || result.at != whole.at) return false;
  const Instruction* other = result.x->operand(0);
  if (!other->is(Opcode::conditional) || !is_separable(callers_, other) ||
      !is_separable(callers_, reader.caller))
    return false;
  const std::vector<Computation*> branches = other->branches();
  if (branches.size() != reader.caller->branches().size() ||
      !are_same({result.frame, other->operand(0), {}},
                {reader.parent, reader.caller->operand(0), {}}, kMaxScalarDepth))
    return false;
  const Computation* branch = branches[reader.branch];
  const auto [frame, added] = kept_branches_.try_emplace({element.frame, result.frame, other},
                                                         static_cast<int>(frames_.size()));
  if (added) frames_.push_back({branch, result.frame, other, reader.branch, element.frame});
  const int64_t number = result.x->tuple_index();
  const Instruction* kept = branch->root()->operand(static_cast<int>(number));
  note_read(frame->second, {read, kept, nullptr, number});
  element = {frame->second, kept, std::move(element.at)};
  return true;
}

bool Elements::are_same(Element a, Element b, int depth) {
  a = resolve(std::move(a)), b = resolve(std::move(b));
  if (a == b) return true;
  const int64_t operation = known_.at(a.x).operation;
  if (depth == 0 || operation < 0 || operation != known_.at(b.x).operation || a.at != b.at)
    return false;
  const auto [same, is_new] = same_.try_emplace({a.frame, a.x, b.frame, b.x}, false);
  if (!is_new) return same->second;
  if (a.x->operand_count() == 0)
    return same->second = a.x->is(Opcode::constant) || a.x->is(Opcode::iota);
  for (int i = 0; i < a.x->operand_count(); ++i) {
    const Instruction *of_a = a.x->operand(i), *of_b = b.x->operand(i);
    if (!of_a->shape().is_array() || !hlo::same_dims(of_a->shape(), of_b->shape())) return false;
    // One place of both, any, whatever the operation takes of them.
    const Element whole = fresh(a.frame, of_a);
    if (!are_same(whole, {b.frame, of_b, whole.at}, depth - 1)) return false;
  }
  return same->second = true;
}

bool Elements::step_row(Element& element) {
  const Instruction* read = element.x;
  auto& [known, row] = rows_[{element.frame, read}];
  if (known != forward_iterations_.size()) {
    known = forward_iterations_.size();
    row = forward_row(element.frame, read);
  }
  if (!row) return false;
  element = {row->first, row->second, std::move(element.at)};
  return true;
}

std::optional<std::pair<int, const Instruction*>> Elements::forward_row(int frame,
                                                                        const Instruction* read) {
  const Frame reader = frames_[frame];
  if (!reader.is_body() || reader.read_by >= 0 || !touches_one_row(read, 1, read->shape()))
    return std::nullopt;
  const auto count = counted(reader.caller);
  const int read_way = count ? direction(reader.caller, *count, read->operand(1)) : 0;
  if (read_way == 0) return std::nullopt;
  const Element whole = fresh(frame, read->operand(0));
  const Element array = resolve(whole);
  if (array.frame == frame) return std::nullopt;
  const auto iterations = forward_iterations_;
  for (const auto& [key, iteration] : iterations) {
    const auto& [number, loop] = key;
    const int way = number - 4 * frame;
    const auto written = counted(loop);
    if (std::abs(way) != 1 || !written) continue;
    for (const Instruction* x : loop->body()->instructions()) {
      if (!x->is(Opcode::dynamic_slice) || !hlo::same_dims(x->shape(), read->shape()) ||
          !touches_one_row(x, 1, x->shape()) ||
          way * direction(loop, *written, x->operand(1)) != read_way)
        continue;
      if (resolve({iteration, x->operand(0), whole.at}) == array)
        return std::pair(iteration, representative(x));
    }
  }
  return std::nullopt;
}

bool Elements::step_slice(Element& element) {
  const Instruction* from = element.x->operand(0);
  std::optional<int> cut;
  for (int dim = 0; dim < from->shape().rank(); ++dim) {
    const hlo::SliceDimension& s = element.x->slice()[dim];
    if (s.start == 0 && s.limit == from->shape().dim(dim) && s.stride == 1) continue;
    if (cut || s.stride != 1) return false;
    cut = dim;
  }
  if (!cut) {
    element.x = from;
    return true;
  }
  // Of a whole whose digits along the cut dimension are its own; whole behind every view as well.
  Element whole{element.frame, from, element.at};
  const Index along = whole.at[*cut] = fresh(from, *cut);
  whole = resolve(std::move(whole));
  if (along.empty() || !whole.x->is(Opcode::concatenate)) return false;
  const auto joined = static_cast<size_t>(whole.x->dimensions()[0]);
  if (whole.at[joined] != along) return false;
  const hlo::SliceDimension& s = element.x->slice()[*cut];
  int64_t start = 0;
  for (const Instruction* part : whole.x->operands()) {
    const int64_t size = part->shape().dim(static_cast<int>(joined));
    if (start == s.start && start + size == s.limit) {
      whole.at[joined] = element.at[*cut];
      element = {whole.frame, part, std::move(whole.at)};
      return true;
    }
    start += size;
  }
  return false;
}

std::optional<Element> Elements::computed_before(const Element& element, int iteration) {
  if (element.frame == iteration || frames_[iteration].read_by != element.frame)
    return std::nullopt;
  const auto [before, is_new] = before_.try_emplace({element.frame, element.x, iteration}, nullptr);
  if (is_new && known_.at(element.x).operation >= 0 && element.x->operand_count() > 0) {
    const Element whole = fresh(element.frame, element.x);
    for (const Instruction* y : order(iteration))
      if (!before->second && representative(y) == y &&
          known_.at(y).operation == known_.at(element.x).operation &&
          are_same(whole, {iteration, y, whole.at}, kMaxComputedAgain))
        before->second = y;
    if (before->second) local_.try_emplace({element.frame, iteration, before->second}, element.x);
  }
  if (!before->second) return std::nullopt;
  return Element{iteration, before->second, element.at};
}

const Instruction* Elements::local(int frame, int of, const Instruction* x) const {
  if (frame == of) return x;
  const auto found = local_.find({frame, of, x});
  return found == local_.end() ? nullptr : found->second;
}

const std::vector<ReadBack>& Elements::reads(int frame) const {
  static const std::vector<ReadBack> kNone;
  const auto found = reads_.find(frame);
  return found == reads_.end() ? kNone : found->second;
}

std::optional<double> Elements::splat(int frame, const Instruction* x) {
  if (!x->shape().is_array()) return std::nullopt;
  const Element element = resolve(fresh(frame, x));
  const hlo::Literal* literal = element.x->literal();
  if (!literal || literal->is_elided() || literal->element_count() == 0 ||
      hlo::is_complex(literal->shape().type()))
    return std::nullopt;
  if (literal->element_count() > 1 && !literal->is_splat()) return std::nullopt;
  return literal->get(0);
}

}  // namespace heddle::rewrite
