#include <algorithm>

#include "hlo/computation.h"
#include "hlo/infer_rules.h"

namespace heddle::hlo {
namespace {

Result<Shape> infer_dot(const Instruction& x) {
  HEDDLE_TRY(expect_operands(x, 2));
  HEDDLE_TRY(expect_array_operands(x));
  const Shape& lhs = x.operand(0)->shape();
  const Shape& rhs = x.operand(1)->shape();
  const auto lhs_batch = x.lhs_batch_dims(), lhs_contracting = x.lhs_contracting_dims();
  const auto rhs_batch = x.rhs_batch_dims(), rhs_contracting = x.rhs_contracting_dims();
  const auto side = [&](const Shape& shape, std::span<const int64_t> batch,
                        std::span<const int64_t> contracting) -> Status {
    std::vector<int64_t> dims;
    dims.reserve(batch.size() + contracting.size());
    dims.insert(dims.end(), batch.begin(), batch.end());
    dims.insert(dims.end(), contracting.begin(), contracting.end());
    if (are_distinct_dimensions(dims, shape.rank())) return {};
    return misfit(x, "batch {} and contracting {} are not distinct dimensions of {}", list(batch),
                  list(contracting), to_string_without_layout(shape));
  };
  HEDDLE_TRY(side(lhs, lhs_batch, lhs_contracting));
  HEDDLE_TRY(side(rhs, rhs_batch, rhs_contracting));
  const auto pair = [&](std::span<const int64_t> a, std::span<const int64_t> b) {
    if (a.size() != b.size()) return false;
    for (size_t i = 0; i < a.size(); ++i) {
      if (lhs.dim(static_cast<int>(a[i])) != rhs.dim(static_cast<int>(b[i]))) return false;
    }
    return true;
  };
  if (!pair(lhs_batch, rhs_batch) || !pair(lhs_contracting, rhs_contracting)) {
    return misfit(x, "pairs dimensions of {} and {} of different sizes",
                  to_string_without_layout(lhs), to_string_without_layout(rhs));
  }
  // Any type may be preferred for the result: integers may give floating numbers.
  if (!x.shape().is_array()) {
    return misfit(x, "gives an array, not {}", to_string_without_layout(x.shape()));
  }
  std::vector<int64_t> dims;
  dims.reserve(lhs.rank() + rhs.rank());
  for (int64_t i : lhs_batch) dims.push_back(lhs.dim(static_cast<int>(i)));
  const auto append_free = [&](const Shape& shape, std::span<const int64_t> batch,
                               std::span<const int64_t> contracting) {
    for (int i = 0; i < shape.rank(); ++i) {
      if (std::find(batch.begin(), batch.end(), i) == batch.end() &&
          std::find(contracting.begin(), contracting.end(), i) == contracting.end()) {
        dims.push_back(shape.dim(i));
      }
    }
  };
  append_free(lhs, lhs_batch, lhs_contracting);
  append_free(rhs, rhs_batch, rhs_contracting);
  if (!checked_element_count(dims)) return misfit(x, "gives more than 2^48 elements");
  return Shape(x.shape().type(), std::move(dims));
}

// Operands are n arrays of equal dims, then n scalars of fitting types; `dims` are the result's.
Result<Shape> reduced(const Instruction& x, const std::vector<int64_t>& dims) {
  const int count = x.operand_count() / 2;
  std::vector<Shape> results;
  results.reserve(count);
  for (int i = 0; i < count; ++i) results.emplace_back(x.operand(count + i)->shape().type(), dims);
  Shape result = count == 1 ? std::move(results[0]) : Shape::tuple(std::move(results));
  // Mixed precision: the result's own floating types decide.
  const Shape& own = x.shape();
  if (count == 1 && types_fit(own.type(), result.type())) result = result.with_type(own.type());
  if (count > 1 && own.elements().size() == static_cast<size_t>(count)) {
    for (int i = 0; i < count; ++i) {
      Shape& element = result.elements()[i];
      if (types_fit(own.elements()[i].type(), element.type())) {
        element = element.with_type(own.elements()[i].type());
      }
    }
  }
  HEDDLE_TRY(expect_reducer(x, result));
  return result;
}

Status expect_reduction_operands(const Instruction& x) {
  HEDDLE_TRY(expect_array_operands(x));
  const int count = x.operand_count() / 2;
  if (count == 0 || x.operand_count() % 2 != 0) {
    return misfit(x, "takes arrays and as many initial values, not {} operands", x.operand_count());
  }
  const Shape& first = x.operand(0)->shape();
  for (int i = 0; i < count; ++i) {
    const Shape& array = x.operand(i)->shape();
    const Shape& init = x.operand(count + i)->shape();
    if (array.dims() != first.dims()) {
      return misfit(x, "takes arrays of one shape, not {} and {}", to_string_without_layout(first),
                    to_string_without_layout(array));
    }
    if (!init.is_scalar() || !types_fit(init.type(), array.type())) {
      return misfit(x, "starts {} with a scalar of its type, not {}",
                    to_string_without_layout(array), to_string_without_layout(init));
    }
  }
  return {};
}

Result<Shape> infer_reduce(const Instruction& x) {
  HEDDLE_TRY(expect_reduction_operands(x));
  const Shape& first = x.operand(0)->shape();
  const auto dimensions = x.dimensions();
  if (!are_distinct_dimensions(dimensions, first.rank())) {
    return misfit(x, "needs distinct dimensions of {}, not {}", to_string_without_layout(first),
                  list(dimensions));
  }
  std::vector<int64_t> dims;
  for (int i = 0; i < first.rank(); ++i) {
    if (std::find(dimensions.begin(), dimensions.end(), i) == dimensions.end()) {
      dims.push_back(first.dim(i));
    }
  }
  return reduced(x, dims);
}

Result<Shape> infer_reduce_window(const Instruction& x) {
  HEDDLE_TRY(expect_reduction_operands(x));
  const Shape& first = x.operand(0)->shape();
  const auto window = x.window();
  if (static_cast<int>(window.size()) != first.rank()) {
    return misfit(x, "of {} needs a window of {} dimensions, not {}",
                  to_string_without_layout(first), first.rank(), window.size());
  }
  std::vector<int64_t> dims;
  for (int i = 0; i < first.rank(); ++i) {
    const WindowDimension& w = window[i];
    constexpr int64_t kLimit = int64_t{1} << 30;  // products of two and sums stay far from overflow
    const auto in = [](int64_t value, int64_t low, int64_t high) {
      return value >= low && value <= high;
    };
    if (!in(w.size, 1, kLimit) || !in(w.stride, 1, kLimit) || !in(w.lhs_dilate, 1, kLimit) ||
        !in(w.rhs_dilate, 1, kLimit) || !in(w.pad_low, -kLimit, kLimit) ||
        !in(w.pad_high, -kLimit, kLimit) || first.dim(i) > kLimit) {
      return misfit(x, "window dimension {} has a size outside of [1, 2^30]", i);
    }
    const int64_t base = first.dim(i) == 0 ? 0 : (first.dim(i) - 1) * w.lhs_dilate + 1;
    const int64_t padded = base + w.pad_low + w.pad_high;
    const int64_t reach = (w.size - 1) * w.rhs_dilate + 1;
    dims.push_back(padded < reach ? 0 : (padded - reach) / w.stride + 1);
  }
  if (!checked_element_count(dims)) return misfit(x, "gives more than 2^48 elements");
  return reduced(x, dims);
}

Result<Shape> infer_sort(const Instruction& x) {
  if (x.operand_count() == 0) return misfit(x, "takes at least one operand");
  HEDDLE_TRY(expect_array_operands(x));
  const Shape& first = x.operand(0)->shape();
  if (x.dimensions().size() != 1 || !are_distinct_dimensions(x.dimensions(), first.rank())) {
    return misfit(x, "needs one dimension of {}, not {}", to_string_without_layout(first),
                  list(x.dimensions()));
  }
  std::vector<Shape> results;
  std::vector<Shape> scalars;
  for (const Instruction* operand : x.operands()) {
    const Shape& shape = operand->shape();
    if (shape.dims() != first.dims()) {
      return misfit(x, "takes arrays of one shape, not {} and {}", to_string_without_layout(first),
                    to_string_without_layout(shape));
    }
    results.push_back(shape.without_layout());
    scalars.push_back(Shape::scalar(shape.type()));
  }
  std::vector<const Shape*> compared;
  for (const Shape& scalar : scalars) compared.insert(compared.end(), 2, &scalar);
  HEDDLE_TRY(
      expect_callee(x, x.to_apply(), "a to_apply", compared, Shape::scalar(ElementType::pred)));
  return results.size() == 1 ? results[0] : Shape::tuple(std::move(results));
}

// The k largest (or smallest) of each line along the last dimension, and their indices.
Result<Shape> infer_topk(const Instruction& x) {
  HEDDLE_TRY(expect_operands(x, 1));
  HEDDLE_TRY(expect_array_operands(x));
  const Shape& operand = x.operand(0)->shape();
  const int64_t k = x.integer("k").value_or(-1);
  if (operand.rank() == 0 || k < 0 || k > operand.dims().back()) {
    return misfit(x, "needs a k of at most the last dimension of {}, not {}",
                  to_string_without_layout(operand), k);
  }
  std::vector<int64_t> dims = operand.dims();
  dims.back() = k;
  return Shape::tuple({Shape(operand.type(), dims), Shape(ElementType::s32, dims)});
}

}  // namespace

Result<Shape> infer_contraction(const Instruction& x) {
  switch (x.opcode()) {
    case Opcode::dot:
      return infer_dot(x);
    case Opcode::reduce:
      return infer_reduce(x);
    case Opcode::reduce_window:
      return infer_reduce_window(x);
    case Opcode::topk:
      return infer_topk(x);
    default:
      return infer_sort(x);
  }
}

}  // namespace heddle::hlo
