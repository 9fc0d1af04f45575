#include "rewrite/carry.h"

#include <algorithm>

#include "hlo/build.h"

namespace heddle::rewrite {

using hlo::Computation;
using hlo::Instruction;
using hlo::Opcode;

namespace {

/// The frames from just inside `outer` to `inner`, outermost first; with -1 if `inner` is not in
/// `outer`.
std::vector<int> frames_between(const Elements& elements, int outer, int inner) {
  std::vector<int> frames;
  for (int frame = inner; frame != outer; frame = elements.frames()[frame].parent) {
    frames.push_back(frame);
    if (frame < 0) break;
  }
  std::reverse(frames.begin(), frames.end());
  return frames;
}

hlo::Shape lengthened(const hlo::Shape& tuple, const hlo::Shape& element) {
  std::vector<hlo::Shape> shapes = tuple.elements();
  shapes.push_back(element);
  return hlo::Shape::tuple(std::move(shapes));
}

Instruction* lengthened(Instruction* tuple, Instruction* element) {
  std::vector<Instruction*> elements(tuple->operands().begin(), tuple->operands().end());
  elements.push_back(element);
  return tuple->computation()->add(Opcode::tuple, lengthened(tuple->shape(), element->shape()),
                                   std::move(elements), {}, tuple->name());
}

/// One more element of what a branch is given: what it sees of it.
Result<Instruction*> add_argument(Instruction* conditional, int branch, Instruction* value) {
  Instruction* given = lengthened(conditional->operand(branch + 1), value);
  conditional->set_operand(branch + 1, given);
  Instruction* parameter = conditional->branches()[branch]->parameter(0);
  parameter->set_shape(lengthened(parameter->shape(), value->shape()));
  return hlo::make_get_tuple_element(parameter, given->operand_count() - 1);
}

/// One more result: `value` of this branch, 0 of the others.
Result<Instruction*> add_result(Instruction* conditional, int branch, Instruction* value) {
  const auto index = static_cast<int64_t>(conditional->shape().elements().size());
  int number = 0;
  for (Computation* part : conditional->branches()) {
    Instruction* element = value;
    if (number++ != branch) {
      HEDDLE_ASSIGN(element,
                    hlo::make_splat(*part, value->shape().type(), 0, value->shape().dims()));
    }
    part->set_root(lengthened(part->root(), element));
  }
  conditional->set_shape(lengthened(conditional->shape(), value->shape()));
  return hlo::make_get_tuple_element(conditional, index);
}

/// One more element of `loop`'s state, which starts as `start`; what the body sees of it.
Result<Instruction*> add_state(Instruction* loop, Instruction* start) {
  const auto index = static_cast<int64_t>(loop->shape().elements().size());
  Instruction* init = lengthened(loop->operand(0), start);
  loop->set_operand(0, init);
  loop->set_shape(init->shape());
  for (Computation* part : {loop->body(), loop->condition()})
    part->parameter(0)->set_shape(init->shape());
  return hlo::make_get_tuple_element(loop->body()->parameter(0), index);
}

void set_next(Instruction* loop, Instruction* next) {
  Computation* body = loop->body();
  body->set_root(lengthened(body->root(), next));
}

/// Starts of a slice of one row of a stack of `rank` dimensions.
std::vector<Instruction*> row_starts(Instruction* index, size_t rank) {
  std::vector<Instruction*> starts{index};
  if (rank > 1)
    starts.resize(rank, hlo::make_constant(*index->computation(),
                                           hlo::Literal::scalar(index->shape().type(), 0)));
  return starts;
}

Result<Instruction*> row_read(Instruction* stack, Instruction* index) {
  hlo::Dimensions sizes = stack->shape().dims();
  sizes[0] = 1;
  return hlo::make_dynamic_slice(stack, row_starts(index, sizes.size()), sizes);
}

}  // namespace

bool can_carry(const Elements& elements, int from, int home) {
  if (from == home) return true;
  const Frame& frame = elements.frames()[from];
  if (frame.read_by < 0) {
    const std::vector<int> between = frames_between(elements, from, home);
    return std::all_of(between.begin(), between.end(), [&](int inner) {
      return inner >= 0 && is_separable(elements.callers(), elements.frames()[inner].caller);
    });
  }
  // A stack of this loop's, or a result of this conditional's, brought to where its reader stands.
  return !elements.reads(from).empty() && is_separable(elements.callers(), frame.caller) &&
         can_carry(elements, frame.parent, frame.read_by) &&
         can_carry(elements, frame.read_by, home);
}

Result<Instruction*> Carrier::carry(Instruction* value, int from, int home) {
  if (from == home) return value;
  if (const auto known = carried_.find({value, from, home}); known != carried_.end())
    return known->second;
  const Frame frame = elements_.frames()[from];
  Instruction* brought = value;
  if (frame.read_by < 0) {
    for (int inner : frames_between(elements_, from, home)) {
      HEDDLE_ASSIGN(brought, handed_into(brought, inner));
    }
  } else if (frame.branch >= 0) {
    HEDDLE_ASSIGN(brought, add_result(mutable_of_.at(frame.caller), frame.branch, value));
    HEDDLE_ASSIGN(brought, carry(brought, frame.parent, frame.read_by));
    HEDDLE_ASSIGN(brought, carry(brought, frame.read_by, home));
  } else {
    const ReadBack& way = elements_.reads(from).front();
    HEDDLE_ASSIGN(brought, stacked(value, mutable_of_.at(frame.caller), way));
    HEDDLE_ASSIGN(brought, carry(brought, frame.parent, frame.read_by));
    HEDDLE_ASSIGN(brought, row_read(brought, mutable_of_.at(way.read)->operand(1)));
    HEDDLE_ASSIGN(brought, hlo::make_reshape(brought, value->shape().dims()));
    HEDDLE_ASSIGN(brought, carry(brought, frame.read_by, home));
  }
  carried_[{value, from, home}] = brought;
  return brought;
}

Result<Instruction*> Carrier::stacked(Instruction* value, Instruction* loop, const ReadBack& way) {
  hlo::Dimensions row_dims = value->shape().dims();
  row_dims.insert(row_dims.begin(), 1);
  hlo::Dimensions dims = row_dims;
  dims[0] = way.write->shape().dim(0);
  HEDDLE_ASSIGN(Instruction * start,
                hlo::make_splat(*loop->computation(), value->shape().type(), 0, dims));
  const auto index = static_cast<int64_t>(loop->shape().elements().size());
  HEDDLE_ASSIGN(Instruction * stack, add_state(loop, start));
  HEDDLE_ASSIGN(Instruction * row, hlo::make_reshape(value, row_dims));
  Instruction* iteration = mutable_of_.at(way.write)->operand(2);
  HEDDLE_ASSIGN(Instruction * written,
                hlo::make_dynamic_update_slice(stack, row, row_starts(iteration, dims.size())));
  set_next(loop, written);
  return hlo::make_get_tuple_element(loop, index);
}

Result<Instruction*> Carrier::handed_into(Instruction* value, int frame) {
  const int branch = elements_.frames()[frame].branch;
  Instruction* loop = mutable_of_.at(elements_.frames()[frame].caller);
  if (branch >= 0) return add_argument(loop, branch, value);
  HEDDLE_ASSIGN(Instruction * inside, add_state(loop, value));
  set_next(loop, inside);
  return inside;
}

}  // namespace heddle::rewrite
