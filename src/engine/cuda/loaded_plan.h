// A lowering with its kernels compiled and loaded on a device.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/cuda/lowering.h"

namespace heddle::engine::cuda {

class LoadedPlan {
 public:
  /// Compiles what was not before.
  static Result<LoadedPlan> load(const Driver& driver, const Device& device, Lowering lowering);

  int64_t workspace_bytes() const { return workspace_bytes_; }
  const std::string& description() const { return description_; }
  /// As engine::Plan, but that launches go to a queue.
  Status execute(std::span<void* const> buffers, void* workspace, Queue& queue) const;

 private:
  explicit LoadedPlan(const Driver& driver) : driver_(&driver) {}

  const Driver* driver_;
  std::shared_ptr<const Launches> launches_;
  std::vector<std::shared_ptr<const Kernel>> kernels_;
  uint64_t claim_ = 0;
  int64_t workspace_bytes_ = 0;
  std::string description_;
};

}  // namespace heddle::engine::cuda
