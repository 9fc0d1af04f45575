// Addresses and values of strided operands.
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

/// tanh as 1 - 2 / (e^2x + 1): two special-function instructions, an error of a few ulp of 1, and
/// the right limits at both ends.
HEDDLE_DEVICE float tanh(float x) {
  constexpr float kTwoLog2E = 2.8853900817779268f;
  return 1.0f - 2.0f * ptx::reciprocal(1.0f + ptx::exp2(kTwoLog2E * x));
}

/// tanh to a few ulp of itself, as f32 scores need it: by an odd polynomial where the difference
/// above cancels. Operands of 16 bits would not see it.
HEDDLE_DEVICE float tanh_f32(float x) {
  const float square = x * x;
  float series = -5.70498872745e-3f;
  series = fmaf(series, square, 2.06390887954e-2f);
  series = fmaf(series, square, -5.37397155531e-2f);
  series = fmaf(series, square, 1.33314422036e-1f);
  series = fmaf(series, square, -3.33332819422e-1f);
  const float small = fmaf(x * square, series, x);
  return square < 0.390625f ? small : tanh(x);
}

/// base ^ exponent. A base of 2, as of ALiBi's slopes, is one special-function instruction; powf
/// has some hundred, with branches, in every cell.
HEDDLE_DEVICE float power(float base, float exponent) {
  return base == 2.0f ? ptx::exp2(exponent) : powf(base, exponent);
}

HEDDLE_DEVICE int length_of(const Lengths& lengths, int batch) {
  if (!lengths.data) return lengths.full;
  const i64 end = load_integer(lengths.data, batch + lengths.cumulative, lengths.is_64_bit);
  const i64 begin = lengths.cumulative ? load_integer(lengths.data, batch, lengths.is_64_bit) : 0;
  // Lengths come from device memory, unchecked: clamp, so that a wrong one reads nothing outside.
  const i64 length = end - begin;
  return static_cast<int>(length < 0 ? 0 : length > lengths.full ? lengths.full : length);
}

/// The keys lo <= j < hi that query row `row` sees.
struct KeyInterval {
  int lo, hi;
};

HEDDLE_DEVICE KeyInterval visible_keys(const Bound* bounds, int count, int batch, int row,
                                       int q_length, int kv_length) {
  i64 lo = 0, hi = kv_length;
  for (int n = 0; n < count; ++n) {
    const Bound& bound = bounds[n];
    i64 at = bound.constant;
    // Selections, not a switch: around its jump table the compiler keeps registers in local memory.
    const Anchor anchor = bound.anchor;
    if (anchor == Anchor::top_left || anchor == Anchor::bottom_right) at += row;
    if (anchor == Anchor::kv_end || anchor == Anchor::bottom_right) at += kv_length;
    if (anchor == Anchor::bottom_right) at -= q_length;
    if (anchor == Anchor::operand)
      at += load_integer(bound.operand.data,
                         batch * bound.operand.stride[0] + row * bound.operand.stride[2],
                         bound.operand.offsets_are_64_bit);
    if (bound.upper) {
      hi = at < hi ? at : hi;
    } else {
      lo = at > lo ? at : lo;
    }
  }
  return {static_cast<int>(lo > kv_length ? kv_length : lo), static_cast<int>(hi < 0 ? 0 : hi)};
}

}  // namespace heddle::attention
