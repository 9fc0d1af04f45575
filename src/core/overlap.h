// Whether two strided views of memory touch a common byte.
#pragma once

#include "core/dims.h"

namespace heddle {

/// A view of memory: elements of `element_bytes` at byte address `address`, dims and element
/// strides.
struct MemoryView {
  uintptr_t address = 0;
  int64_t element_bytes = 1;
  Dims dims, strides;
};

/// Whether two views share a byte. Exact for nested layouts that have their outer strides in
/// common, as tensors interleaved in one buffer do; conservative (true, if the spans meet)
/// otherwise. The views' spans must be within int64 bytes (span_of).
bool overlap(const MemoryView& a, const MemoryView& b);

}  // namespace heddle
