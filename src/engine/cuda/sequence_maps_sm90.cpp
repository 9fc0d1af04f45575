#include "engine/cuda/sequence_maps_sm90.h"

#include "engine/cuda/kernel_arguments.h"

namespace heddle::engine::cuda {
namespace {
constexpr const char* kName = "sequence_maps";
constexpr int kThreads = 128;
}  // namespace

size_t add_sequence_maps(Lowering& lowering) {
  std::string source = fmt::format(
      "{}#include \"sm90/sequence_maps.cuh\"\n"
      "extern \"C\" __global__ void __launch_bounds__({})\n"
      "{}(const __grid_constant__ heddle::sm90::SequenceMapArguments arguments) {{\n"
      "  heddle::sm90::make_sequence_maps(arguments);\n"
      "}}\n",
      argument_layout_source({}), kThreads, kName);
  return lowering.add_kernel({kName, std::move(source)}, kThreads);
}

int64_t sequence_map_bytes(int64_t batch) {
  return 4 * static_cast<int64_t>(sizeof(TensorMap)) * batch;
}

Status make_sequence_maps(const Execution& at, size_t kernel,
                          sm90::SequenceMapArguments sequences) {
  sequences.element_bytes = 2;
  const unsigned count = 4 * static_cast<unsigned>(sequences.batch);
  return at.launch(kernel, {.grid_x = (count + kThreads - 1) / kThreads, .threads = kThreads},
                   &sequences);
}

}  // namespace heddle::engine::cuda
