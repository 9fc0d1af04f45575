// The driver's CUtensorMap: 128 opaque bytes that cuTensorMapEncodeTiled writes and the copy engine
// reads. Plain, so that host and device code share it.
#pragma once

namespace heddle {

struct alignas(128) TensorMap {
  unsigned long long opaque[16];
};

}  // namespace heddle
