#include "rewrite/fully_masked_rows.h"

#include <algorithm>

#include "hlo/build.h"

namespace heddle::rewrite {

using hlo::ElementType;
using hlo::Instruction;
using hlo::Opcode;

namespace {

/// Where the truth table over `predicates`, arrays of one shape, holds.
Result<Instruction*> truth(const std::vector<Instruction*>& predicates,
                           const std::vector<bool>& table) {
  Instruction* any = nullptr;
  for (size_t bits = 0; bits < table.size(); ++bits) {
    if (!table[bits]) continue;
    Instruction* all = nullptr;
    for (size_t i = 0; i < predicates.size(); ++i) {
      Instruction* one = predicates[i];
      if (!(bits >> i & 1)) {
        HEDDLE_ASSIGN(one, hlo::make_unary(Opcode::not_, one));
      }
      if (all) {
        HEDDLE_ASSIGN(one, hlo::make_binary(Opcode::and_, all, one));
      }
      all = one;
    }
    if (any) {
      HEDDLE_ASSIGN(all, hlo::make_binary(Opcode::or_, any, all));
    }
    any = all;
  }
  return any;
}

/// The rows for which no key is visible.
Result<Labelled> fully_masked_rows(const Elements& elements, const Plan& plan,
                                   const std::vector<Instruction*>& predicates) {
  const FullyMaskedRows& rows = *plan.fully_masked_rows;
  Index labels;
  for (const Element& predicate : rows.predicates)
    for (Var v : flat(predicate.at))
      if (std::find(labels.begin(), labels.end(), v) == labels.end()) labels.push_back(v);
  std::vector<Instruction*> alike;
  for (size_t i = 0; i < predicates.size(); ++i) {
    HEDDLE_ASSIGN(Instruction * x,
                  reordered(elements, {predicates[i], flat(rows.predicates[i].at)}, labels));
    alike.push_back(x);
  }
  HEDDLE_ASSIGN(Instruction * visible, truth(alike, rows.visible));
  HEDDLE_ASSIGN(Labelled seeing,
                reduced(elements, {visible, labels}, plan.roles.keys, Opcode::or_));
  HEDDLE_ASSIGN(seeing.x, hlo::make_unary(Opcode::not_, seeing.x));
  return seeing;
}

Result<Instruction*> times(Instruction* x, double factor) {
  HEDDLE_ASSIGN(Instruction * by,
                hlo::make_splat(*x->computation(), x->shape().type(), factor, x->shape().dims()));
  return hlo::make_binary(Opcode::multiply, x, by);
}

}  // namespace

Result<Instruction*> with_fully_masked_rows(const Elements& elements, const Plan& plan,
                                            const CallResult& result, Instruction* value,
                                            Instruction* source,
                                            const std::vector<Instruction*>& predicates) {
  const Index place = flat(result.place.at);
  const Index from = flat(plan.operands[plan.fully_masked_rows->operand].place.at);
  const double share = 1.0 / static_cast<double>(elements.size(plan.roles.keys));
  const ElementType type = value->shape().type(), wide = at_least_f32(type);
  HEDDLE_ASSIGN(const Labelled masked, fully_masked_rows(elements, plan, predicates));
  HEDDLE_ASSIGN(value, reordered(elements, {value, place}, place));
  HEDDLE_ASSIGN(source, hlo::make_convert(source, wide));
  if (!plan.backward) {
    HEDDLE_ASSIGN(Labelled mean, reduced(elements, {source, from}, plan.roles.keys, Opcode::add));
    HEDDLE_ASSIGN(mean.x, times(mean.x, share));
    HEDDLE_ASSIGN(Instruction * there, reordered(elements, mean, place));
    HEDDLE_ASSIGN(there, hlo::make_convert(there, type));
    HEDDLE_ASSIGN(Instruction * is_masked, reordered(elements, masked, place));
    return hlo::make_select(is_masked, there, value);
  }
  // dO may be the same along some of its axes, each of which has rows that see no key.
  const Index all = plan.operands[plan.fully_masked_rows->operand].axes.canonical();
  HEDDLE_ASSIGN(source, reordered(elements, {source, from}, all));
  HEDDLE_ASSIGN(Instruction * is_masked, reordered(elements, masked, all));
  HEDDLE_ASSIGN(Instruction * zero,
                hlo::make_splat(*source->computation(), wide, 0, source->shape().dims()));
  HEDDLE_ASSIGN(source, hlo::make_select(is_masked, source, zero));
  Index over = plan.roles.rows;
  over.insert(over.end(), plan.roles.repeat.begin(), plan.roles.repeat.end());
  HEDDLE_ASSIGN(Labelled added, reduced(elements, {source, all}, over, Opcode::add));
  HEDDLE_ASSIGN(added.x, times(added.x, share));
  // dV calls the digits of its depth by names of its own.
  const Index& depth = plan.roles.value_depth;
  for (Var& v : added.labels)
    if (const auto at = std::find(depth.begin(), depth.end(), v); at != depth.end())
      v = result.axes.columns[at - depth.begin()];
  HEDDLE_ASSIGN(Instruction * there, reordered(elements, added, place));
  HEDDLE_ASSIGN(value, hlo::make_convert(value, wide));
  HEDDLE_ASSIGN(value, hlo::make_binary(Opcode::add, value, there));
  return hlo::make_convert(value, type);
}

}  // namespace heddle::rewrite
