#include "engine/cuda/queue.h"

#include <array>

#include "engine/cuda/kernel.h"

namespace heddle::engine::cuda {

Status StreamQueue::launch(const Kernel& kernel, const Launch& launch,
                           std::span<void*> parameters) {
  std::array<LaunchAttribute, 3> attributes{};
  unsigned count = 0;
  if (launch.overlaps_predecessor) {
    attributes[count].id = LaunchAttributeId::programmatic_stream_serialization;
    attributes[count++].value.programmatic_stream_serialization_allowed = 1;
  }
  if (launch.cooperative) {
    attributes[count].id = LaunchAttributeId::cooperative;
    attributes[count++].value.cooperative = 1;
  }
  if (launch.cluster > 1) {
    attributes[count].id = LaunchAttributeId::cluster_dimension;
    attributes[count++].value.cluster = {launch.cluster, 1, 1};
  }
  const LaunchConfig config{.grid_x = launch.grid_x,
                            .grid_y = launch.grid_y,
                            .grid_z = launch.grid_z,
                            .block_x = launch.threads,
                            .block_y = 1,
                            .block_z = 1,
                            .shared_bytes = launch.shared_bytes,
                            .stream = stream_,
                            .attributes = attributes.data(),
                            .attribute_count = count};
  return driver_.check(driver_.launch_kernel(&config, kernel.handle(), parameters.data(), nullptr),
                       kernel.name().c_str());
}

}  // namespace heddle::engine::cuda
