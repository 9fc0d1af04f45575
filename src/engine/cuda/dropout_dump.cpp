#include "engine/cuda/dropout_dump.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/rounding.h"
#include "engine/cuda/device_names.h"
#include "engine/cuda/kernel_arguments.h"

namespace heddle::engine::cuda {

namespace {
constexpr int kThreads = 128;
}  // namespace

std::string dump_source(const problem::AttentionStructure& structure, const char* parameters,
                        const char* forward, const std::string& name) {
  return fmt::format(
      "{}#include \"attention/dropout.cuh\"\n"
      "extern \"C\" __global__ void __launch_bounds__({})\n"
      "{}(const __grid_constant__ heddle::attention::{} p) {{\n"
      "  heddle::attention::dump_keep_bits<heddle::attention::Dropout::{}>({});\n"
      "}}\n",
      argument_layout_source(argument_layout_of_dump()), kThreads, name, parameters,
      heddle::engine::cuda::name(dropout_of(structure.dropout.kind)), forward);
}

attention::ArgumentLayout argument_layout_of_dump() {
  attention::ArgumentLayout layout;
  layout.dropout = true;
  return layout;
}

Launch dump_launch(const problem::AttentionSizes& sizes) {
  return {.grid_x = static_cast<unsigned>(divide_up(sizes.kv_length, kThreads)),
          .grid_y = static_cast<unsigned>(std::min(sizes.q_length, kMostBlocksAcross)),
          .grid_z = static_cast<unsigned>(sizes.batch),
          .threads = kThreads};
}

}  // namespace heddle::engine::cuda
