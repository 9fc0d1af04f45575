#include "fusion/operands.h"

#include <numeric>

namespace heddle::fusion {

using graph::kNone;
using graph::TensorId;
using problem::kAbsent;
using problem::OperandId;

namespace {

/// Dims and strides in the order of `axes`, strides of dims of 1 set to 0.
problem::OperandLayout layout(const graph::Tensor& tensor, const std::vector<int>& axes) {
  problem::OperandLayout layout;
  layout.ragged_multiplier = tensor.ragged_offset_multiplier;
  for (int axis : axes) {
    const int64_t dim = tensor.dims[axis];
    layout.dims.push_back(dim);
    layout.strides.push_back(dim == 1 ? 0 : tensor.strides[axis]);
  }
  return layout;
}

}  // namespace

OperandId Operands::add(TensorId id) {
  if (id == kNone) return kAbsent;
  std::vector<int> axes(static_cast<size_t>(graph_[id].dims.rank()));
  std::iota(axes.begin(), axes.end(), 0);
  const OperandId operand = add_permuted(id, axes);
  problem::OperandLayout& layout = layouts_[static_cast<size_t>(operand)];
  while (layout.dims.rank() < 4) {  // vectors keep rank 4 with ones
    layout.dims.push_back(1);
    layout.strides.push_back(0);
  }
  return operand;
}

OperandId Operands::add_with_trailing_dims(TensorId id) {
  const OperandId operand = add(id);
  const graph::Tensor& tensor = graph_[id];
  const int rank = tensor.dims.rank();
  problem::OperandLayout& layout = layouts_[static_cast<size_t>(operand)];
  layout.dims = {1, 1, 1, 1}, layout.strides = {0, 0, 0, 0};
  for (int d = 0; d < rank; ++d) {
    layout.dims[4 - rank + d] = tensor.dims[d];
    layout.strides[4 - rank + d] = tensor.dims[d] == 1 ? 0 : tensor.strides[d];
  }
  return operand;
}

OperandId Operands::add_permuted(TensorId id, const std::vector<int>& axes) {
  if (id == kNone) return kAbsent;
  return known_or_new(id, plain_type(id), /*is_cut=*/false, axes);
}

OperandId Operands::add_cache(const Cache& cache) {
  if (cache.tensor == kNone) return kAbsent;
  const OperandId table = add(cache.table), scale = add(cache.scale);
  problem::OperandType type = plain_type(cache.tensor);
  if (table != kAbsent) type.storage = problem::Storage::paged_by(table);
  if (cache.ring) type.storage = problem::Storage::in_ring();
  if (scale != kAbsent) {
    using Per = problem::Scales::Per;
    const Dims& dims = layouts_[static_cast<size_t>(scale)].dims;
    type.scales = {dims[3] > 1 ? Per::channel : dims[1] > 1 ? Per::head : Per::tensor, scale};
  }
  const OperandId operand = known_or_new(cache.tensor, type, cache.rows.has_value(), {0, 1, 2, 3});
  if (cache.rows) {
    problem::OperandLayout& layout = layouts_[static_cast<size_t>(operand)];
    layout.dims[2] = *cache.rows;
    if (*cache.rows == 1) layout.strides[2] = 0;
  }
  return operand;
}

problem::OperandType Operands::plain_type(TensorId id) {
  const graph::Tensor& tensor = graph_[id];
  problem::OperandType type;
  type.dtype = *tensor.dtype;
  type.on_host = tensor.pass_by_value || tensor.constant.has_value();
  if (tensor.ragged_offset != kNone)
    type.storage = problem::Storage::ragged_by(add(tensor.ragged_offset));
  return type;
}

OperandId Operands::known_or_new(TensorId id, const problem::OperandType& type, bool is_cut,
                                 const std::vector<int>& axes) {
  for (size_t n = 0; n < tensors_.size(); ++n)
    if (tensors_[n] == id && types_[n] == type && is_cut_[n] == is_cut)
      return static_cast<OperandId>(n);
  types_.push_back(type);
  layouts_.push_back(layout(graph_[id], axes));
  tensors_.push_back(id);
  is_cut_.push_back(is_cut);
  return static_cast<OperandId>(tensors_.size()) - 1;
}

}  // namespace heddle::fusion
