// What the general kernels under kernels/sm80 share: which problems they take, how a problem
// becomes source, and the shared memory of a tile.
#pragma once

#include <string>
#include <vector>

#include "attention/parameters.h"
#include "engine/cuda/kernel.h"
#include "problem/attention.h"

namespace heddle::engine::cuda {

/// Shared memory every sm_80-class device gives a block (sm_86's share, the smallest).
inline constexpr int64_t kSm80SharedLimit = 99 * 1024;

/// Bytes of a swizzled tile: a plane of 16 bits an element, three for f32.
int64_t tile_bytes(int64_t rows, int64_t columns, DataType type = DataType::bf16);

/// The kind as device code names it.
const char* dropout_name(problem::Dropout::Kind kind);

/// Whether q, and with it every operand of a product, is f32.
bool is_f32(const problem::AttentionStructure& structure);

/// Whether the bound moves with the query row.
bool is_diagonal(const problem::KeyBound& bound);

/// Which limit of the general kernels a forward problem breaks, in words.
Status check_sm80(const problem::AttentionStructure& structure,
                  const problem::AttentionSizes& sizes);

/// An operand of one of the allowed types, or a sentence naming its role.
Status check_dtype(const problem::AttentionStructure& structure, problem::OperandId id,
                   const char* role, std::initializer_list<DataType> allowed);

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

/// The kernel that writes the exact keep mask (rng_dump), and its launch. `forward` is the
/// expression of the forward parameters within the block `parameters`.
std::string dump_source(const problem::AttentionStructure& structure, const char* parameters,
                        const char* forward, const std::string& name);
attention::Room room_of_dump();
Launch dump_launch(const problem::AttentionSizes& sizes);

}  // namespace heddle::engine::cuda
