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

int64_t product(const Dims& dims, int first, int end) {
  int64_t count = 1;
  for (int d = first; d < end; ++d) count *= dims[d];
  return count;
}

}  // namespace

Status NormShape::check(const Member& member) const {
  const problem::OperandType& type = types_[static_cast<size_t>(member.id)];
  if (type.dtype != DataType::f64 && type.dtype != DataType::f32 && type.dtype != DataType::bf16 &&
      type.dtype != DataType::f16) {
    return error(Code::graph_not_supported,
                 "cuda: rms_norm {} is {}, but the kernels take f64, f32, bf16 and f16",
                 member.label, name(type.dtype));
  }
  if (type.on_host || type.ragged_offsets != kAbsent) {
    return error(Code::graph_not_supported,
                 "cuda: rms_norm {} is {}, expected a dense tensor in device memory", member.label,
                 type.on_host ? "passed by value" : "ragged");
  }
  return {};
}

Status NormShape::set() {
  for (const Member& member : members_) {
    HEDDLE_TRY(check(member));
    is_f64_ |= types_[static_cast<size_t>(member.id)].dtype == DataType::f64;
  }
  const OperandId id = members_.front().id;
  const Dims& x = layouts_[static_cast<size_t>(id)].dims;
  const int split = x.rank() - normalised_;
  if (product(x, 0, split) > kMost || product(x, split, x.rank()) > kMost ||
      product(x, split, x.rank()) < 1) {
    return error(Code::graph_not_supported,
                 "cuda: rms_norm x has dims {}; the kernels take up to 2^30 rows of 1 to 2^30 "
                 "elements",
                 to_string(x));
  }
  rows_ = static_cast<int>(product(x, 0, split));
  columns_ = static_cast<int>(product(x, split, x.rank()));
  row_dims_ = join(0, split, Part::row);
  column_dims_ = join(split, x.rank(), Part::column);
  if (row_dims() > streaming::kMaxDims || column_dims() > streaming::kMaxDims) {
    return error(
        Code::graph_not_supported,
        "cuda: rms_norm x has dims {}; the kernels step through up to {} of rows and {} of "
        "columns",
        to_string(x), streaming::kMaxDims, streaming::kMaxDims);
  }
  vector_ = 16 / static_cast<int>(size_of(types_[static_cast<size_t>(id)].dtype));
  while (vector_ > 1 && !steps_by(vector_)) vector_ /= 2;
  return {};
}

/// Dims [first, end) of x, innermost last, without those of extent 1; neighbours become one where
/// every whole tensor, and every one that is `other`, steps through them evenly.
std::vector<NormShape::Joined> NormShape::join(int first, int end, Part other) const {
  const Dims& x = layouts_[static_cast<size_t>(members_.front().id)].dims;
  std::vector<Joined> result;  // innermost first, until the end
  for (int d = end - 1; d >= first; --d) {
    if (x[d] == 1) continue;
    const auto follows = [&](const Member& member) {
      const Dims& strides = layouts_[static_cast<size_t>(member.id)].strides;
      return (member.part != Part::whole && member.part != other) ||
             strides[d] == strides[result.back().dim] * result.back().extent;
    };
    if (!result.empty() && std::all_of(members_.begin(), members_.end(), follows)) {
      result.back().extent *= static_cast<int>(x[d]);
    } else {
      result.push_back({d, static_cast<int>(x[d])});
    }
  }
  std::reverse(result.begin(), result.end());
  return result;
}

/// Whether runs of `vector` columns lie together, and begin on as many elements, in every operand.
bool NormShape::steps_by(int vector) const {
  if (columns_ % vector != 0 || column_dims() != 1) return false;
  return std::all_of(members_.begin(), members_.end(), [&](const Member& member) {
    if (member.part == Part::row) return true;
    const Dims& strides = layouts_[static_cast<size_t>(member.id)].strides;
    return strides[column_dims_[0].dim] == 1 &&
           (member.part == Part::column ||
            std::all_of(row_dims_.begin(), row_dims_.end(),
                        [&](const Joined& joined) { return strides[joined.dim] % vector == 0; }));
  });
}

streaming::Extents NormShape::extents() const {
  streaming::Extents extents{};
  for (size_t n = 0; n < row_dims_.size(); ++n) extents.rows[n] = row_dims_[n].extent;
  for (size_t n = 0; n < column_dims_.size(); ++n) extents.columns[n] = column_dims_[n].extent;
  return extents;
}

streaming::Tensor NormShape::tensor(OperandId id) const {
  streaming::Tensor tensor{};
  if (id == kAbsent) return tensor;
  const OperandLayout& layout = layouts_[static_cast<size_t>(id)];
  const auto stride = [&](const Joined& joined) {
    return layout.dims[joined.dim] == 1 ? 0 : layout.strides[joined.dim];
  };
  for (size_t n = 0; n < row_dims_.size(); ++n) tensor.row_stride[n] = stride(row_dims_[n]);
  for (size_t n = 0; n < column_dims_.size(); ++n)
    tensor.column_stride[n] = stride(column_dims_[n]);
  return tensor;
}

void NormShape::set_element(Element& element, OperandId id) const {
  if (id != kAbsent) element = element_of(types_[static_cast<size_t>(id)].dtype);
}

Status NormShape::check_buffers(std::span<void* const> buffers) const {
  if (buffers.size() != types_.size()) {
    return error(Code::invalid_variant_pack,
                 "cuda: rms_norm has {} operands, but {} buffers were given", types_.size(),
                 buffers.size());
  }
  for (const Member& member : members_) {
    const auto address = reinterpret_cast<uintptr_t>(buffers[static_cast<size_t>(member.id)]);
    if (address == 0 && (rows_ > 0 || member.part == Part::column)) {
      return error(Code::invalid_variant_pack, "cuda: rms_norm {} has no buffer", member.label);
    }
    const int64_t size = size_of(types_[static_cast<size_t>(member.id)].dtype);
    const int64_t unit = member.part == Part::row ? size : std::min<int64_t>(16, vector_ * size);
    if (address % static_cast<uintptr_t>(unit) != 0) {
      return error(
          Code::invalid_variant_pack,
          "cuda: rms_norm {} is at address {:#x}, expected a multiple of {} for the kernel "
          "planned for it",
          member.label, address, unit);
    }
  }
  return {};
}

}  // namespace heddle::engine::cuda
