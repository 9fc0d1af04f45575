// Copies between arrays whose dimensions lie at any strides: the one loop behind transpose,
// broadcast, slice, pad, concatenate and their kin.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace heddle::hlo {

/// to[i . to_strides] = from[i . from_strides] for every index i of `dims`; strides in elements, of
/// `element_size` bytes (1, 2, 4, 8 or 16). Strides may be 0 or negative on the reading side.
void strided_copy(int64_t element_size, std::span<const int64_t> dims, const std::byte* from,
                  std::span<const int64_t> from_strides, std::byte* to,
                  std::span<const int64_t> to_strides);

/// Sets `count` elements to the one at `value`.
void fill(int64_t element_size, const std::byte* value, std::byte* to, int64_t count);

}  // namespace heddle::hlo
