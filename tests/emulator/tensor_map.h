// Our own reading of a tensor map's 128 bytes.
#pragma once

#include "emulator/device.h"
#include "ptx/tensor_map.h"

namespace heddle::emulator {

/// A tensor of up to five dims, the first of which is contiguous, and the box that is copied of it.
struct TiledTensor {
  static constexpr u64 kEncoded = 0x64656c6974;

  u64 encoded;  ///< kEncoded, where the driver has written the map
  u8* address;
  u64 dims[5];
  u64 stride_bytes[4];  ///< of all dims but the first
  u16 box[5];
  u8 rank, element_bytes;
};
static_assert(sizeof(TiledTensor) <= sizeof(TensorMap));

}  // namespace heddle::emulator
