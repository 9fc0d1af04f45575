#include <algorithm>

#include "hlo/infer_rules.h"

namespace heddle::hlo {
namespace {

Status expect_array_result(const Instruction& x) {
  if (x.shape().is_array()) return {};
  return misfit(x, "gives an array, not {}", to_string_without_layout(x.shape()));
}

Result<Shape> infer_bitcast_convert(const Instruction& x) {
  HEDDLE_TRY(expect_operands(x, 1));
  HEDDLE_TRY(expect_array_operands(x));
  HEDDLE_TRY(expect_array_result(x));
  const Shape& from = x.operand(0)->shape();
  const int64_t from_size = bits_of(from.type());
  const int64_t to_size = bits_of(x.shape().type());
  std::vector<int64_t> dims = from.dims();
  if (from_size > to_size) {
    dims.push_back(from_size / to_size);
  } else if (from_size < to_size) {
    if (dims.empty() || dims.back() != to_size / from_size) {
      return misfit(x, "from {} to {} takes a last dimension of {}", to_string_without_layout(from),
                    name(x.shape().type()), to_size / from_size);
    }
    dims.pop_back();
  }
  return Shape(x.shape().type(), dims);
}

Result<Shape> infer_broadcast(const Instruction& x) {
  HEDDLE_TRY(expect_operands(x, 1));
  HEDDLE_TRY(expect_array_operands(x));
  HEDDLE_TRY(expect_array_result(x));
  const Shape& operand = x.operand(0)->shape();
  const auto dimensions = x.dimensions();
  if (static_cast<int>(dimensions.size()) != operand.rank() ||
      !are_distinct_dimensions(dimensions, x.shape().rank())) {
    return misfit(x, "of {} to {} needs {} distinct dimensions of the result, not {}",
                  to_string_without_layout(operand), to_string_without_layout(x.shape()),
                  operand.rank(), list(dimensions));
  }
  for (int i = 0; i < operand.rank(); ++i) {
    if (x.shape().dim(static_cast<int>(dimensions[i])) != operand.dim(i)) {
      return misfit(x, "puts dimension {} of {} onto dimension {} of {}, of another size", i,
                    to_string_without_layout(operand), dimensions[i],
                    to_string_without_layout(x.shape()));
    }
  }
  return Shape(operand.type(), x.shape().dims());
}

Result<Shape> infer_reshape(const Instruction& x) {
  HEDDLE_TRY(expect_operands(x, 1));
  HEDDLE_TRY(expect_array_operands(x));
  HEDDLE_TRY(expect_array_result(x));
  const Shape& operand = x.operand(0)->shape();
  if (checked_element_count(operand.dims()) != checked_element_count(x.shape().dims())) {
    return misfit(x, "keeps the number of elements, {} and {} have different ones",
                  to_string_without_layout(operand), to_string_without_layout(x.shape()));
  }
  return Shape(operand.type(), x.shape().dims());
}

Result<Shape> infer_transpose(const Instruction& x) {
  HEDDLE_TRY(expect_operands(x, 1));
  HEDDLE_TRY(expect_array_operands(x));
  const Shape& operand = x.operand(0)->shape();
  const auto permutation = x.dimensions();
  if (static_cast<int>(permutation.size()) != operand.rank() ||
      !are_distinct_dimensions(permutation, operand.rank())) {
    return misfit(x, "of {} needs a permutation of its {} dimensions, not {}",
                  to_string_without_layout(operand), operand.rank(), list(permutation));
  }
  std::vector<int64_t> dims;
  for (int64_t from : permutation) dims.push_back(operand.dim(static_cast<int>(from)));
  return Shape(operand.type(), dims);
}

Result<Shape> infer_reverse(const Instruction& x) {
  HEDDLE_TRY(expect_operands(x, 1));
  HEDDLE_TRY(expect_array_operands(x));
  const Shape& operand = x.operand(0)->shape();
  if (!are_distinct_dimensions(x.dimensions(), operand.rank())) {
    return misfit(x, "needs distinct dimensions of {}, not {}", to_string_without_layout(operand),
                  list(x.dimensions()));
  }
  return Shape(operand.type(), operand.dims());
}

Result<Shape> infer_slice(const Instruction& x) {
  HEDDLE_TRY(expect_operands(x, 1));
  HEDDLE_TRY(expect_array_operands(x));
  const Shape& operand = x.operand(0)->shape();
  const auto slice = x.slice();
  if (static_cast<int>(slice.size()) != operand.rank()) {
    return misfit(x, "of {} needs {} ranges, not {}", to_string_without_layout(operand),
                  operand.rank(), slice.size());
  }
  std::vector<int64_t> dims;
  for (int i = 0; i < operand.rank(); ++i) {
    const auto& [start, limit, stride] = slice[i];
    if (start < 0 || limit < start || limit > operand.dim(i) || stride < 1) {
      return misfit(x, "range [{}:{}:{}] does not lie in dimension {} of {}", start, limit, stride,
                    i, to_string_without_layout(operand));
    }
    dims.push_back(limit == start ? 0 : (limit - start - 1) / stride + 1);
  }
  return Shape(operand.type(), dims);
}

Result<Shape> infer_pad(const Instruction& x) {
  HEDDLE_TRY(expect_operands(x, 2));
  HEDDLE_TRY(expect_array_operands(x));
  const Shape& operand = x.operand(0)->shape();
  const Shape& value = x.operand(1)->shape();
  if (!value.is_scalar() || !types_fit(value.type(), operand.type())) {
    return misfit(x, "fills {} with a scalar of its type, not {}",
                  to_string_without_layout(operand), to_string_without_layout(value));
  }
  const auto padding = x.padding();
  if (static_cast<int>(padding.size()) != operand.rank()) {
    return misfit(x, "of {} needs {} paddings, not {}", to_string_without_layout(operand),
                  operand.rank(), padding.size());
  }
  std::vector<int64_t> dims;
  for (int i = 0; i < operand.rank(); ++i) {
    const auto& [low, high, interior] = padding[i];
    // Bounded so that the sum below cannot overflow: an array is never that long.
    const bool sane = low >= -kMaxElements && low <= kMaxElements && high >= -kMaxElements &&
                      high <= kMaxElements && interior >= 0 &&
                      interior <= kMaxElements / std::max<int64_t>(operand.dim(i), 1);
    const int64_t dim =
        sane ? low + high + operand.dim(i) + interior * std::max<int64_t>(operand.dim(i) - 1, 0)
             : -1;
    if (dim < 0) {
      return misfit(x, "by {}_{}_{} leaves no size for dimension {} of {}", low, high, interior, i,
                    to_string_without_layout(operand));
    }
    dims.push_back(dim);
  }
  if (!checked_element_count(dims)) return misfit(x, "gives more than 2^48 elements");
  return Shape(operand.type(), dims);
}

Result<Shape> infer_concatenate(const Instruction& x) {
  if (x.operand_count() == 0) return misfit(x, "takes at least one operand");
  HEDDLE_TRY(expect_array_operands(x));
  const Shape& first = x.operand(0)->shape();
  const auto dimensions = x.dimensions();
  if (dimensions.size() != 1 || !are_distinct_dimensions(dimensions, first.rank())) {
    return misfit(x, "needs one dimension of {}, not {}", to_string_without_layout(first),
                  list(dimensions));
  }
  const int along = static_cast<int>(dimensions[0]);
  std::vector<int64_t> dims = first.dims();
  dims[along] = 0;
  for (const Instruction* operand : x.operands()) {
    const Shape& shape = operand->shape();
    bool fits = shape.rank() == first.rank() && types_fit(shape.type(), first.type());
    for (int i = 0; fits && i < first.rank(); ++i) {
      fits = i == along || shape.dim(i) == first.dim(i);
    }
    if (!fits) {
      return misfit(x, "along dimension {} cannot join {} and {}", along,
                    to_string_without_layout(first), to_string_without_layout(shape));
    }
    dims[along] += shape.dim(along);
    if (!checked_element_count(dims)) return misfit(x, "gives more than 2^48 elements");
  }
  return Shape(first.type(), dims);
}

Status expect_starts(const Instruction& x, int first, const Shape& array) {
  HEDDLE_TRY(expect_operands(x, first + array.rank()));
  for (int i = first; i < x.operand_count(); ++i) {
    const Shape& start = x.operand(i)->shape();
    if (!start.is_scalar() || !is_integral(start.type())) {
      return misfit(x, "takes scalar integers as starts, not {}", to_string_without_layout(start));
    }
  }
  return {};
}

Result<Shape> infer_dynamic_slice(const Instruction& x) {
  HEDDLE_TRY(expect_array_operands(x));
  if (x.operand_count() == 0) return misfit(x, "takes an array and its starts");
  const Shape& operand = x.operand(0)->shape();
  HEDDLE_TRY(expect_starts(x, 1, operand));
  const auto sizes = x.integers("dynamic_slice_sizes");
  bool fits = static_cast<int>(sizes.size()) == operand.rank();
  for (int i = 0; fits && i < operand.rank(); ++i) {
    fits = sizes[i] >= 0 && sizes[i] <= operand.dim(i);
  }
  if (!fits) {
    return misfit(x, "sizes {} do not fit into {}", list(sizes), to_string_without_layout(operand));
  }
  return Shape(operand.type(), {sizes.begin(), sizes.end()});
}

Result<Shape> infer_dynamic_update_slice(const Instruction& x) {
  HEDDLE_TRY(expect_array_operands(x));
  if (x.operand_count() < 2) return misfit(x, "takes an array, an update and its starts");
  const Shape& operand = x.operand(0)->shape();
  const Shape& update = x.operand(1)->shape();
  HEDDLE_TRY(expect_starts(x, 2, operand));
  bool fits = update.rank() == operand.rank() && types_fit(update.type(), operand.type());
  for (int i = 0; fits && i < operand.rank(); ++i) fits = update.dim(i) <= operand.dim(i);
  if (!fits) {
    return misfit(x, "update {} does not fit into {}", to_string_without_layout(update),
                  to_string_without_layout(operand));
  }
  return Shape(operand.type(), operand.dims());
}

Result<Shape> infer_iota(const Instruction& x) {
  HEDDLE_TRY(expect_operands(x, 0));
  HEDDLE_TRY(expect_array_result(x));
  const int64_t dimension = x.iota_dimension();
  if (dimension < 0 || dimension >= x.shape().rank()) {
    return misfit(x, "needs an iota_dimension of {}, not {}", to_string_without_layout(x.shape()),
                  dimension);
  }
  return x.shape().without_layout();
}

}  // namespace

Result<Shape> infer_movement(const Instruction& x) {
  switch (x.opcode()) {
    case Opcode::bitcast_convert:
      return infer_bitcast_convert(x);
    case Opcode::broadcast:
      return infer_broadcast(x);
    case Opcode::concatenate:
      return infer_concatenate(x);
    case Opcode::dynamic_slice:
      return infer_dynamic_slice(x);
    case Opcode::dynamic_update_slice:
      return infer_dynamic_update_slice(x);
    case Opcode::pad:
      return infer_pad(x);
    case Opcode::reshape:
      return infer_reshape(x);
    case Opcode::reverse:
      return infer_reverse(x);
    case Opcode::slice:
      return infer_slice(x);
    case Opcode::transpose:
      return infer_transpose(x);
    default:
      return infer_iota(x);
  }
}

}  // namespace heddle::hlo
