#include "rewrite/same_number.h"

#include <algorithm>

namespace heddle::rewrite {

using hlo::Instruction;
using hlo::Opcode;

namespace {

// From a table back to its angles: a function, a product with frequencies, views.
constexpr int kMaxDepth = 16;
constexpr int64_t kMaxNumbers = int64_t{1} << 22;

/// Whether a literal has the same numbers at two runs along `dim`, at every place of the others.
bool same_in_literal(const Runs& runs, const hlo::Literal& literal, size_t dim, const Run& a,
                     const Run& b) {
  const std::vector<int64_t>& dims = literal.shape().dims();
  if (literal.is_elided() || literal.element_count() > kMaxNumbers ||
      hlo::is_complex(literal.shape().type()))
    return false;
  int64_t outer = 1, inner = 1;
  for (size_t i = 0; i < dim; ++i) outer *= dims[i];
  for (size_t i = dim + 1; i < dims.size(); ++i) inner *= dims[i];
  for (int64_t o = 0; o < outer; ++o)
    for (int64_t n = 0; n < runs.count(); ++n)
      for (int64_t i = 0; i < inner; ++i) {
        const auto at = [&](const Run& run) {
          return literal.get((o * dims[dim] + run.first + n * run.step) * inner + i);
        };
        if (at(a) != at(b)) return false;
      }
  return true;
}

bool is_function_of_elements(const Instruction* x) {
  return hlo::is_elementwise_unary(x->opcode()) || hlo::is_elementwise_binary(x->opcode()) ||
         x->is(Opcode::convert);
}

bool same(Elements& elements, Runs& runs, Element a, Element b, int depth) {
  if (depth == 0) return false;
  for (Element* e : {&a, &b})
    while (runs.look_through(*e, false) || runs.look_into_parts(*e)) {
    }
  if (a.frame != b.frame || a.at.size() != b.at.size()) return false;
  std::optional<size_t> differs;  // the dimension along which they are at different runs
  for (size_t i = 0; i < a.at.size(); ++i) {
    if (a.at[i] == b.at[i]) continue;
    const auto first = runs.run_of(a.at[i]), second = runs.run_of(b.at[i]);
    if (!first || !second || (*first != *second && differs)) return false;
    if (*first != *second) differs = i;
  }
  if (a.x == b.x && !differs) return true;
  if (a.x == b.x && a.x->literal())
    return same_in_literal(runs, *a.x->literal(), *differs, *runs.run_of(a.at[*differs]),
                           *runs.run_of(b.at[*differs]));
  if (a.x->opcode() != b.x->opcode() || !is_function_of_elements(a.x) ||
      a.x->shape().type() != b.x->shape().type())
    return false;
  for (int i = 0; i < a.x->operand_count(); ++i)
    if (!same(elements, runs, {a.frame, a.x->operand(i), a.at}, {b.frame, b.x->operand(i), b.at},
              depth - 1))
      return false;
  return true;
}

}  // namespace

bool same_number(Elements& elements, Runs& runs, const ColumnFactor& a, const ColumnFactor& b) {
  return a.part == b.part && same(elements, runs, a.place, b.place, kMaxDepth);
}

}  // namespace heddle::rewrite
