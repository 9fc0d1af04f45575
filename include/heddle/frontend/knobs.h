// Knobs of cuDNN's engines, for programs that ask for them: Heddle's engines have none.
#pragma once

#include <cstdint>

namespace heddle::frontend {

enum class KnobType_t : int64_t {
  NOT_SET,
  SWIZZLE,
  TILE_SIZE,
  EDGE,
  MULTIPLY,
  SPLIT_K_BUF,
  TILEK,
  STAGES,
  REDUCTION_MODE,
  SPLIT_K_SLC,
  IDX_MODE,
  SPECFILT,
  KERNEL_CFG,
  WORKSPACE,
  TILE_CGA_M,
  TILE_CGA_N,
  BLOCK_SIZE,
  OCCUPANCY,
  ARRAY_SIZE_PER_THREAD,
  SPLIT_COLS,
  TILE_ROWS,
  TILE_COLS,
  LOAD_SIZE,
  CTA_COUNT,
  STREAM_K,
  SPLIT_P_SLC,
  TILE_M,
  TILE_N,
  WARP_SPEC_CFG,
  SWAP_AB,
  INPUT_TMA_ENABLE,
  OUTPUT_TMA_ENABLE,
};

struct Knob {
  KnobType_t type = KnobType_t::NOT_SET;
  int64_t maxValue = 0, minValue = 0, stride = 0;
};

}  // namespace heddle::frontend
