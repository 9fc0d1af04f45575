// What one element is computed from, operation by operation: a list in which every operand stands
// before what is made of it, and once however often it is used.
#pragma once

#include <optional>
#include <vector>

#include "rewrite/element.h"
#include "rewrite/key.h"

namespace heddle::rewrite {

/// One operation, or a leaf without operands.
struct Step {
  Element element;            // resolved
  std::vector<int> operands;  // numbers of earlier steps
};

/// The place of operand `i` of an elementwise operation, behind all views.
Element operand_of(Elements& elements, const Element& e, int i);

/// A place as a key: of resolved elements, equal keys hold equal values.
Key key_of(const Element& element);

/// The steps that end in `element`. `computes` says which operations are taken apart; the others
/// are leaves. Nothing if there are more than any mask needs.
template <class Computes>
std::optional<std::vector<Step>> steps_of(Elements& elements, const Element& element,
                                          Computes computes) {
  constexpr size_t kMaxSteps = 20000;
  std::vector<Step> steps;
  ByKey<int> numbers;
  struct Open {
    Element element;
    std::vector<int> operands;
  };
  std::vector<Open> open;
  open.push_back({elements.resolve(element), {}});
  while (!open.empty()) {
    if (steps.size() + open.size() > kMaxSteps) return std::nullopt;
    const Element at = open.back().element;
    const auto done = static_cast<int>(open.back().operands.size());
    if (computes(at) && done < at.x->operand_count()) {
      Element operand = operand_of(elements, at, done);
      const auto known = numbers.find(key_of(operand));
      if (known != numbers.end()) {
        open.back().operands.push_back(known->second);
      } else {
        open.push_back({std::move(operand), {}});
      }
      continue;
    }
    // Its number reaches the operation that asked for it by way of `numbers`.
    numbers[key_of(at)] = static_cast<int>(steps.size());
    steps.push_back({at, std::move(open.back().operands)});
    open.pop_back();
  }
  return steps;
}

}  // namespace heddle::rewrite
