#include "engine/cpu/norm_shape.h"

#include <algorithm>

#include "core/dims.h"

namespace heddle::engine::cpu {

using problem::kAbsent;
using problem::OperandId;
using problem::OperandLayout;

static_assert(kMaxRowDims >= kMaxRank);

Status NormShape::set_x(OperandId x) {
  x_dims_ = layouts_[static_cast<size_t>(x)].dims;
  rank_ = x_dims_.rank();
  rows_.width = 1;
  for (int d = rank_ - normalised_; d < rank_; ++d) rows_.width *= x_dims_[d];
  rows_.dims = rank_ - normalised_;
  for (int d = 0; d < rows_.dims; ++d) rows_.extent[d] = x_dims_[d];
  if (rows_.width < 1 || rows_.width > (int64_t{1} << 31)) {
    return error(Code::graph_not_supported,
                 "{}: {} elements are normalised together, but the CPU engine takes 1 to 2^31", op_,
                 rows_.width);
  }
  return {};
}

std::optional<int64_t> NormShape::column_stride(const OperandLayout& layout) const {
  std::optional<int64_t> stride;  // along the row; 0 is one too
  int64_t next = 0;               // of the dim further out
  for (int d = rank_ - 1; d >= rank_ - normalised_; --d) {
    if (layout.dims[d] == 1) continue;
    if (!stride) {
      stride = layout.strides[d];
    } else if (layout.strides[d] != next) {
      return {};
    }
    next = layout.strides[d] * layout.dims[d];
  }
  return stride.value_or(0);
}

Status NormShape::check(std::string_view label, OperandId id, Part part) const {
  if (id == kAbsent) return {};
  const OperandLayout& layout = layouts_[static_cast<size_t>(id)];
  const DataType dtype = types_[static_cast<size_t>(id)].dtype;
  if (dtype != DataType::f64 && dtype != DataType::f32 && dtype != DataType::bf16 &&
      dtype != DataType::f16) {
    return error(Code::graph_not_supported,
                 "{}: {} is {}, but the CPU engine takes f64, f32, bf16 and f16", op_, label,
                 name(dtype));
  }
  if (types_[static_cast<size_t>(id)].storage.is_ragged()) {
    return error(Code::graph_not_supported, "{}: {} is ragged, expected a dense tensor", op_,
                 label);
  }
  if (part != Part::row && !column_stride(layout)) {
    return error(Code::graph_not_supported,
                 "{}: {} has dims {} and strides {}, but the CPU engine needs one stride along the "
                 "{} normalised dims",
                 op_, label, to_string(layout.dims), to_string(layout.strides), normalised_);
  }
  return {};
}

RowsView NormShape::view(OperandId id, Part part) const {
  RowsView view{};
  if (id == kAbsent) return view;
  const OperandLayout& layout = layouts_[static_cast<size_t>(id)];
  const DataType dtype = types_[static_cast<size_t>(id)].dtype;
  view.element = static_cast<Element>(dtype);
  view.element_bytes = static_cast<int32_t>(size_of(dtype));
  for (int d = 0; d < rows_.dims; ++d) {
    view.stride[d] = layout.dims[d] == 1 ? 0 : layout.strides[d];
  }
  view.column_stride = part == Part::row ? 0 : *column_stride(layout);
  return view;
}

int64_t NormShape::row_count() const {
  int64_t count = 1;
  for (int d = 0; d < rows_.dims; ++d) count *= rows_.extent[d];
  return count;
}

bool NormShape::is_wide() const {
  return std::any_of(types_.begin(), types_.end(),
                     [](const problem::OperandType& type) { return type.dtype == DataType::f64; });
}

Status NormShape::bind(std::string_view label, OperandId id, std::span<void* const> buffers,
                       RowsView& view) const {
  if (id == kAbsent) return {};
  view.data = static_cast<char*>(buffers[static_cast<size_t>(id)]);
  if (!view.data) return error(Code::invalid_variant_pack, "{}: {} has no buffer", op_, label);
  if (reinterpret_cast<uintptr_t>(view.data) % static_cast<uintptr_t>(view.element_bytes) != 0) {
    return error(Code::invalid_variant_pack,
                 "{}: the buffer of {} is not aligned to its elements of {} bytes", op_, label,
                 view.element_bytes);
  }
  return {};
}

}  // namespace heddle::engine::cpu
