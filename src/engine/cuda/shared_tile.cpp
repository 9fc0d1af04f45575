#include "engine/cuda/shared_tile.h"

#include "core/rounding.h"

namespace heddle::engine::cuda {

int64_t tile_bytes(int64_t rows, int64_t columns, DataType type) {
  const int64_t planes = type == DataType::f32 ? 3 : 1;
  return planes * rows * divide_up(columns, 64) * 128;
}

}  // namespace heddle::engine::cuda
