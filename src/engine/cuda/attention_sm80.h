// How a problem becomes source of the general kernels under kernels/sm80.
#pragma once

#include <string>

#include "problem/attention.h"

namespace heddle::engine::cuda {

/// Shared memory every sm_80-class device gives a block (sm_86's share, the smallest).
inline constexpr int64_t kSm80SharedLimit = 99 * 1024;

/// What the source of a kernel says of its tiles.
struct Sm80Tiles {
  int warps = 8;
  int tile_m = 0;  ///< query rows a step, where the kernel does not own rows
  int tile_n = 64;
  bool aligned = true;
  bool want_dk = false, want_dv = false;
  std::string load_element;  ///< type of the load gradient written; empty if none is
};

/// `extern "C" __global__ void __launch_bounds__(...)` of a kernel.
std::string kernel_source(const problem::AttentionStructure& structure, int threads);

/// The statement by which a kernel of f32 leaves where the Hopper kernel computes; `forward` is the
/// expression of the forward parameters.
std::string leave_source(const problem::AttentionStructure& structure, const char* forward);

/// `struct Config` for these tiles.
std::string config_source(const problem::AttentionStructure& structure, const Sm80Tiles& tiles);

}  // namespace heddle::engine::cuda
