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

double share_of_a_key(const Elements& elements, const Plan& plan) {
  return 1.0 / static_cast<double>(elements.size(plan.roles.keys));
}

Result<Instruction*> times(Instruction* x, double factor) {
  HEDDLE_ASSIGN(Instruction * by,
                hlo::make_splat(*x->computation(), x->shape().type(), factor, x->shape().dims()));
  return hlo::make_binary(Opcode::multiply, x, by);
}

}  // namespace

Result<Instruction*> with_means_of_values(const Elements& elements, const Plan& plan,
                                          const Labelled& o, const Labelled& v,
                                          const std::vector<Instruction*>& predicates) {
  const ElementType type = o.x->shape().type();
  HEDDLE_ASSIGN(const Labelled masked, fully_masked_rows(elements, plan, predicates));
  HEDDLE_ASSIGN(Instruction * value, reordered(elements, o, o.labels));
  HEDDLE_ASSIGN(Instruction * source, hlo::make_convert(v.x, at_least_f32(type)));
  HEDDLE_ASSIGN(Labelled mean, reduced(elements, {source, v.labels}, plan.roles.keys, Opcode::add));
  HEDDLE_ASSIGN(mean.x, times(mean.x, share_of_a_key(elements, plan)));
  HEDDLE_ASSIGN(Instruction * there, reordered(elements, mean, o.labels));
  HEDDLE_ASSIGN(there, hlo::make_convert(there, type));
  HEDDLE_ASSIGN(Instruction * is_masked, reordered(elements, masked, o.labels));
  return hlo::make_select(is_masked, there, value);
}

Result<Instruction*> with_shares_of_gradients(const Elements& elements, const Plan& plan,
                                              const Labelled& d_v, const Index& columns,
                                              const Labelled& d_o, const Index& all,
                                              const std::vector<Instruction*>& predicates) {
  const ElementType type = d_v.x->shape().type(), wide = at_least_f32(type);
  HEDDLE_ASSIGN(const Labelled masked, fully_masked_rows(elements, plan, predicates));
  HEDDLE_ASSIGN(Instruction * value, reordered(elements, d_v, d_v.labels));
  HEDDLE_ASSIGN(Instruction * source, hlo::make_convert(d_o.x, wide));
  HEDDLE_ASSIGN(source, reordered(elements, {source, d_o.labels}, all));
  HEDDLE_ASSIGN(Instruction * is_masked, reordered(elements, masked, all));
  HEDDLE_ASSIGN(Instruction * zero,
                hlo::make_splat(*source->computation(), wide, 0, source->shape().dims()));
  HEDDLE_ASSIGN(source, hlo::make_select(is_masked, source, zero));
  const Index& depth = plan.roles.value_depth;
  const auto is_in = [](const Index& labels, Var v) {
    return std::find(labels.begin(), labels.end(), v) != labels.end();
  };
  // Rows, and what values are shared along.
  Index over;
  for (Var v : all)
    if (!is_in(depth, v) && !is_in(d_v.labels, v)) over.push_back(v);
  HEDDLE_ASSIGN(Labelled added, reduced(elements, {source, all}, over, Opcode::add));
  HEDDLE_ASSIGN(added.x, times(added.x, share_of_a_key(elements, plan)));
  for (Var& v : added.labels)
    if (const auto at = std::find(depth.begin(), depth.end(), v); at != depth.end())
      v = columns[at - depth.begin()];
  HEDDLE_ASSIGN(Instruction * there, reordered(elements, added, d_v.labels));
  HEDDLE_ASSIGN(value, hlo::make_convert(value, wide));
  HEDDLE_ASSIGN(value, hlo::make_binary(Opcode::add, value, there));
  return hlo::make_convert(value, type);
}

}  // namespace heddle::rewrite
