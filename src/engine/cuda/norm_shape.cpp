#include "engine/cuda/norm_shape.h"

#include <algorithm>

#include "core/dims.h"
#include "engine/cuda/device_names.h"

namespace heddle::engine::cuda {

using problem::kAbsent;
using problem::OperandId;
using problem::OperandLayout;

namespace {

/// Rows and columns are counted in 32 bits, with room for a block's stride past the end.
constexpr int64_t kMost = int64_t{1} << 30;

}  // namespace

Status NormShape::check(const Member& member) const {
  const problem::OperandType& type = types_[static_cast<size_t>(member.id)];
  if (type.dtype != DataType::f64 && type.dtype != DataType::f32 && type.dtype != DataType::bf16 &&
      type.dtype != DataType::f16) {
    return error(Code::graph_not_supported,
                 "cuda: {} {} is {}, but the kernels take f64, f32, bf16 and f16", op_,
                 member.label, name(type.dtype));
  }
  if (type.on_host || type.storage.is_ragged()) {
    return error(Code::graph_not_supported,
                 "cuda: {} {} is {}, expected a dense tensor in device memory", op_, member.label,
                 type.on_host ? "passed by value" : "ragged");
  }
  return {};
}

Status NormShape::set() {
  for (const Member& member : members_) {
    HEDDLE_TRY(check(member));
    is_f64_ |= types_[static_cast<size_t>(member.id)].dtype == DataType::f64;
  }
  const Dims& x = layouts_[static_cast<size_t>(members_.front().id)].dims;
  if (joined_.rows > kMost || joined_.columns > kMost || joined_.columns < 1) {
    return error(Code::graph_not_supported,
                 "cuda: {} x has dims {}; the kernels take up to 2^30 rows of 1 to 2^30 elements",
                 op_, to_string(x));
  }
  if (facts_.row_dims > streaming::kMaxDims || facts_.column_dims > streaming::kMaxDims) {
    return error(
        Code::graph_not_supported,
        "cuda: {} x has dims {}; the kernels step through up to {} of rows and {} of columns", op_,
        to_string(x), streaming::kMaxDims, streaming::kMaxDims);
  }
  return {};
}

streaming::Extents NormShape::extents() const {
  streaming::Extents extents{};
  const auto counted = [](const problem::NormRows::Joined& one) {
    return static_cast<int>(one.extent);
  };
  std::ranges::transform(joined_.row_dims, extents.rows, counted);
  std::ranges::transform(joined_.column_dims, extents.columns, counted);
  return extents;
}

streaming::Tensor NormShape::tensor(OperandId id) const {
  streaming::Tensor tensor{};
  if (id == kAbsent) return tensor;
  const OperandLayout& layout = layouts_[static_cast<size_t>(id)];
  const auto stride = [&](const problem::NormRows::Joined& joined) {
    return layout.dims[joined.dim] == 1 ? 0 : layout.strides[joined.dim];
  };
  for (size_t n = 0; n < joined_.row_dims.size(); ++n)
    tensor.row_stride[n] = stride(joined_.row_dims[n]);
  for (size_t n = 0; n < joined_.column_dims.size(); ++n)
    tensor.column_stride[n] = stride(joined_.column_dims[n]);
  return tensor;
}

void NormShape::set_element(Element& element, OperandId id) const {
  if (id != kAbsent) element = element_of(types_[static_cast<size_t>(id)].dtype);
}

Status NormShape::check_buffers(std::span<void* const> buffers) const {
  if (buffers.size() != types_.size()) {
    return error(Code::invalid_variant_pack, "cuda: {} has {} operands, but {} buffers were given",
                 op_, types_.size(), buffers.size());
  }
  for (const Member& member : members_) {
    const auto address = reinterpret_cast<uintptr_t>(buffers[static_cast<size_t>(member.id)]);
    if (address == 0 && (joined_.rows > 0 || member.part == Part::column)) {
      return error(Code::invalid_variant_pack, "cuda: {} {} has no buffer", op_, member.label);
    }
    const int64_t size = size_of(types_[static_cast<size_t>(member.id)].dtype);
    const int64_t unit = member.part == Part::row ? size : std::min<int64_t>(16, vector() * size);
    if (address % static_cast<uintptr_t>(unit) != 0) {
      return error(
          Code::invalid_variant_pack,
          "cuda: {} {} is at address {:#x}, expected a multiple of {} for the kernel planned for "
          "it",
          op_, member.label, address, unit);
    }
  }
  return {};
}

}  // namespace heddle::engine::cuda
