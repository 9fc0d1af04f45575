#include "engine/cuda/sequence_maps_sm90.h"

#include "engine/cuda/passed_arguments.h"

namespace heddle::engine::cuda {

KernelUnit sequence_maps_unit() {
  return {
      kSequenceMapsName,
      fmt::format("{}#include \"sm90/sequence_maps.cuh\"\n"
                  "extern \"C\" __global__ void __launch_bounds__({})\n"
                  "{}(const __grid_constant__ heddle::sm90::SequenceMapArguments arguments) {{\n"
                  "  heddle::sm90::make_sequence_maps(arguments);\n"
                  "}}\n",
                  room_source({}), kSequenceMapThreads, kSequenceMapsName)};
}

int64_t sequence_map_bytes(int64_t batch) {
  return 4 * static_cast<int64_t>(sizeof(TensorMap)) * batch;
}

Status make_sequence_maps(const Kernel& kernel, sm90::SequenceMapArguments sequences,
                          Queue& queue) {
  sequences.element_bytes = 2;
  void* parameters[] = {&sequences};
  const unsigned count = 4 * static_cast<unsigned>(sequences.batch);
  return kernel.launch({.grid_x = (count + kSequenceMapThreads - 1) / kSequenceMapThreads,
                        .threads = kSequenceMapThreads},
                       queue, parameters);
}

}  // namespace heddle::engine::cuda
