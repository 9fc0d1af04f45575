#include "engine/cpu/views.h"

#include <cstdint>

#include "core/dtype.h"

namespace heddle::engine::cpu {

static_assert(static_cast<int>(Element::f16) == static_cast<int>(DataType::f16));
static_assert(static_cast<int>(Element::i64) == static_cast<int>(DataType::i64));
static_assert(static_cast<int>(Element::boolean) == static_cast<int>(DataType::boolean));

Status views_of(std::string_view op, const problem::OperandTypes& types,
                const problem::OperandLayouts& layouts, std::span<void* const> buffers,
                View* views) {
  const size_t count = types.operands.size();
  if (buffers.size() != count)
    return error(Code::invalid_variant_pack, "{}: {} buffers were given for {} operands", op,
                 buffers.size(), count);
  for (size_t n = 0; n < count; ++n) {
    const problem::OperandType& type = types.operands[n];
    const problem::OperandLayout& layout = layouts.layouts[n];
    View& v = views[n];
    v = {};
    v.data = static_cast<char*>(buffers[n]);
    v.element = type.holds_codes() && type.dtype == DataType::u8 ? Element::i4
                                                                 : static_cast<Element>(type.dtype);
    v.element_bytes = static_cast<int32_t>(size_of(type.dtype));
    bool is_empty = false;
    for (int d = 0; d < 4; ++d) {
      v.dims[d] = layout.dims[d];
      v.stride[d] = layout.dims[d] == 1 ? 0 : layout.strides[d];
      is_empty |= layout.dims[d] == 0;
    }
    v.ragged = type.storage.is_ragged() ? &views[type.storage.index] : nullptr;
    v.ragged_multiplier = layout.ragged_multiplier;
    v.pages = type.storage.is_paged() ? &views[type.storage.index] : nullptr;
    v.ring = type.storage.is_ring();
    v.scale = type.holds_codes() ? &views[type.scales.operand] : nullptr;
    if (!v.data && !is_empty)
      return error(Code::invalid_variant_pack, "{}: operand {} with dims {} has no buffer", op, n,
                   to_string(layout.dims));
    if (reinterpret_cast<uintptr_t>(v.data) % static_cast<uintptr_t>(v.element_bytes) != 0)
      return error(Code::invalid_variant_pack,
                   "{}: the buffer of operand {} is not aligned to its {} elements", op, n,
                   heddle::name(type.dtype));
  }
  return {};
}

View dense_view(void* data, DataType dtype, const Dims& dims) {
  View v{};
  v.data = static_cast<char*>(data);
  v.element = static_cast<Element>(dtype);
  v.element_bytes = static_cast<int32_t>(size_of(dtype));
  int64_t stride = 1;
  for (int d = 3; d >= 0; --d) {
    v.dims[d] = dims[d];
    v.stride[d] = dims[d] == 1 ? 0 : stride;
    stride *= dims[d];
  }
  return v;
}

}  // namespace heddle::engine::cpu
