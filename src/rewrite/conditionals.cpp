#include "rewrite/conditionals.h"

#include <algorithm>
#include <vector>

#include "hlo/build.h"

namespace heddle::rewrite {

using hlo::Computation;
using hlo::Instruction;
using hlo::Opcode;

namespace {

/// `whole` as a tuple of its elements, or of itself if it is an array.
Result<Instruction*> by_elements(Instruction* whole) {
  if (whole->is(Opcode::tuple)) return whole;
  std::vector<Instruction*> elements;
  if (whole->shape().is_tuple()) {
    for (size_t i = 0; i < whole->shape().elements().size(); ++i) {
      HEDDLE_ASSIGN(Instruction * element,
                    hlo::make_get_tuple_element(whole, static_cast<int64_t>(i)));
      elements.push_back(element);
    }
  } else {
    elements.push_back(whole);
  }
  return hlo::make_tuple(*whole->computation(), std::move(elements));
}

/// `array`, a parameter or a conditional, becomes a tuple of which it is the only element.
Status make_tuple_of(Instruction* array) {
  array->set_shape(hlo::Shape::tuple({array->shape()}));
  HEDDLE_ASSIGN(Instruction * element, hlo::make_get_tuple_element(array, 0));
  array->replace_all_uses_with(element);
  return {};
}

/// What `conditional` gives, as elements. Its branches have no other callers.
Status take_results_apart(Instruction* conditional) {
  const bool gives_array = conditional->shape().is_array();
  if (!gives_array && !conditional->shape().is_tuple()) return {};  // a token
  for (Computation* branch : conditional->branches()) {
    HEDDLE_ASSIGN(Instruction * results, by_elements(branch->root()));
    branch->set_root(results);
  }
  return gives_array ? make_tuple_of(conditional) : Status();
}

}  // namespace

Status take_conditionals_apart(Computation& computation, const Callers& callers) {
  for (Instruction* x : computation.instructions()) {
    if (!x->is(Opcode::conditional)) continue;
    int given = 0;
    for (Computation* branch : x->branches()) {
      ++given;
      if (!callers.only(branch)) continue;
      const hlo::Shape& takes = branch->parameter(0)->shape();
      const bool takes_array = takes.is_array();
      if (!takes_array && !takes.is_tuple()) continue;  // a token
      HEDDLE_ASSIGN(Instruction * elements, by_elements(x->operand(given)));
      x->set_operand(given, elements);
      if (takes_array) HEDDLE_TRY(make_tuple_of(branch->parameter(0)));
    }
    const std::vector<Computation*> branches = x->branches();
    if (std::all_of(branches.begin(), branches.end(),
                    [&](const Computation* branch) { return callers.only(branch) != nullptr; }))
      HEDDLE_TRY(take_results_apart(x));
  }
  return {};
}

}  // namespace heddle::rewrite
