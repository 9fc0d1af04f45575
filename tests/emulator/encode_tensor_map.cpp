#include <cstring>

#include "emulator/copy_engine.h"
#include "emulator/tensor_map.h"

namespace heddle::emulator {
namespace {

using engine::cuda::TensorMapSwizzle;
using engine::cuda::TensorMapType;

constexpr unsigned kSwizzledBytes = 128;

unsigned bytes_of(TensorMapType type) {
  switch (type) {
    case TensorMapType::uint8:
      return 1;
    case TensorMapType::float16:
    case TensorMapType::bfloat16:
      return 2;
    case TensorMapType::float32:
      return 4;
  }
  return 0;
}

bool is_aligned(const void* pointer, uintptr_t bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

}  // namespace

bool encode_tensor_map(TensorMap* map, TensorMapType type, unsigned rank, void* address,
                       const uint64_t* dims, const uint64_t* stride_bytes, const unsigned* box,
                       const unsigned* element_strides, int interleave, TensorMapSwizzle swizzle,
                       engine::cuda::TensorMapPromotion, int out_of_bounds_fill) {
  const unsigned element = bytes_of(type);
  if (!map || !is_aligned(map, 64) || element == 0 || rank < 1 || rank > 5 || !address ||
      !is_aligned(address, 16))
    return false;
  if (interleave != 0 || swizzle != TensorMapSwizzle::bytes128 || out_of_bounds_fill != 0)
    return false;
  // Narrower lines than the swizzle's are legal, and no kernel has them.
  if (box[0] * element != kSwizzledBytes) return false;
  TiledTensor tensor{.encoded = TiledTensor::kEncoded,
                     .address = static_cast<u8*>(address),
                     .dims = {},
                     .stride_bytes = {},
                     .box = {},
                     .rank = static_cast<u8>(rank),
                     .element_bytes = static_cast<u8>(element)};
  for (unsigned d = 0; d < rank; ++d) {
    if (dims[d] < 1 || dims[d] > uint64_t{1} << 32 || box[d] < 1 || box[d] > 256 ||
        element_strides[d] != 1)
      return false;
    tensor.dims[d] = dims[d];
    tensor.box[d] = static_cast<u16>(box[d]);
    if (d + 1 == rank) break;
    if (stride_bytes[d] % 16 != 0 || stride_bytes[d] >= uint64_t{1} << 40) return false;
    tensor.stride_bytes[d] = stride_bytes[d];
  }
  std::memcpy(map, &tensor, sizeof tensor);
  return true;
}

}  // namespace heddle::emulator
