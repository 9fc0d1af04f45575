// The rules behind infer_shape(), grouped by what the operations do. Each checks operands and
// attributes of one instruction completely, so that code which reads them needs no checks of its
// own, and gives the result's shape.
#pragma once

#include <fmt/format.h>

#include "core/status.h"
#include "hlo/instruction.h"

namespace heddle::hlo {

template <class... Args>
Status misfit(const Instruction& x, fmt::format_string<Args...> format, Args&&... args) {
  return Status(Code::invalid_value, fmt::format("{}: {} ", x.name(), x.opcode_name()) +
                                         fmt::format(format, std::forward<Args>(args)...));
}

Status expect_operands(const Instruction& x, int count);
Status expect_array_operands(const Instruction& x);
/// Whether a value of one type may stand where the other is written: equal, or both floating (XLA
/// allows mixed precision).
bool types_fit(ElementType a, ElementType b);
/// Tuples hold at most this many arrays and tuples in all, and are nested at most so deep, so that
/// inferring shapes of hostile text stays cheap and what is written can be read.
inline constexpr int64_t kMaxTupleParts = 65536;
inline constexpr int kMaxTupleDepth = 64;
/// Arrays have at most this many dimensions: no program has a tenth of it.
inline constexpr int kMaxHloRank = 64;
/// The arrays, tokens and tuples within a shape; 1 for what is no tuple.
int64_t part_count(const Shape& shape);
/// Equal types and dims (bounds of dynamic ones); layouts and dynamism do not matter.
bool same_value_shape(const Shape& a, const Shape& b);
/// Whether all of `dims` lie in [0, rank) and none twice.
bool are_distinct_dimensions(std::span<const int64_t> dims, int rank);
std::string list(std::span<const int64_t> values);
/// `callee` is given, takes `parameters` and gives `result`.
Status expect_callee(const Instruction& x, const Computation* callee, std::string_view what,
                     std::span<const Shape* const> parameters, const Shape& result);
/// to_apply combines, pairwise, scalars of the element types of `result` (an array or a tuple).
Status expect_reducer(const Instruction& x, const Shape& result);

Result<Shape> infer_elementwise(const Instruction& x);
Result<Shape> infer_movement(const Instruction& x);     // broadcast ... dynamic-update-slice
Result<Shape> infer_contraction(const Instruction& x);  // dot, reduce, reduce-window, sort
Result<Shape> infer_indexing(const Instruction& x);     // gather, scatter
Result<Shape> infer_structure(const Instruction& x);    // tuple, call, while, constant, ...

}  // namespace heddle::hlo
