// Addresses and values of strided operands, and the lengths that operands hold.
#pragma once

#include "../ptx/math.cuh"
#include "../ptx/types.cuh"
#include "parameters.h"

namespace heddle::attention {

HEDDLE_DEVICE i64 load_integer(const void* data, i64 index, bool is_64_bit) {
  return is_64_bit ? static_cast<const i64*>(data)[index] : static_cast<const i32*>(data)[index];
}

/// First element of (batch, head).
template <typename T>
HEDDLE_DEVICE T* head_pointer(const Tensor& tensor, int batch, int head) {
  const i64 start =
      tensor.offsets
          ? load_integer(tensor.offsets, batch, tensor.offsets_are_64_bit) * tensor.multiplier
          : batch * tensor.stride[0];
  return static_cast<T*>(tensor.data) + start + head * tensor.stride[1];
}

template <typename T>
HEDDLE_DEVICE T* element_pointer(const Tensor& tensor, int batch, int head, int row, int column) {
  return head_pointer<T>(tensor, batch, head) + row * tensor.stride[2] + column * tensor.stride[3];
}

/// One element of a dense operand as f32; strides of broadcast dims are 0. Without kPerRow or
/// kPerColumn the operand is known to be broadcast along them: the load is then the same for many
/// cells, and as a read-only load made once.
template <typename T, bool kPerRow = true, bool kPerColumn = true>
HEDDLE_DEVICE float load(const Tensor& tensor, int batch, int head, int row, int column) {
  const T* element = static_cast<const T*>(tensor.data) + batch * tensor.stride[0] +
                     head * tensor.stride[1] + (kPerRow ? row * tensor.stride[2] : 0) +
                     (kPerColumn ? column * tensor.stride[3] : 0);
  if constexpr (is_same<T, bf16> || is_same<T, f16>) {
    return ptx::widen(T{__ldg(&element->bits)});
  } else {
    return static_cast<float>(__ldg(element));
  }
}

HEDDLE_DEVICE int length_of(const Lengths& lengths, int batch) {
  if (!lengths.data) return lengths.full;
  const i64 end = load_integer(lengths.data, batch + lengths.cumulative, lengths.is_64_bit);
  const i64 begin = lengths.cumulative ? load_integer(lengths.data, batch, lengths.is_64_bit) : 0;
  // Lengths come from device memory, unchecked: clamp, so that a wrong one reads nothing outside.
  // Without a sign the difference of any two prefix sums takes 64 bits at most.
  if (end <= begin) return 0;
  const u64 length = static_cast<u64>(end) - static_cast<u64>(begin);
  return length < static_cast<u64>(lengths.full) ? static_cast<int>(length) : lengths.full;
}

}  // namespace heddle::attention
