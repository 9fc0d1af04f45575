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
  /// What the same kernels do by the launches of `late`; fails if that takes others.
  Result<LoadedPlan> resized(Lowering late) const;

  int64_t workspace_bytes() const { return lowering_.workspace_bytes; }
  const std::string& description() const { return lowering_.description; }
  const problem::ChosenPath* attention_path() const {
    return lowering_.attention_path ? &*lowering_.attention_path : nullptr;
  }
  /// As engine::Plan, but that launches go to a queue.
  Status execute(std::span<void* const> buffers, void* workspace, Queue& queue) const;

 private:
  LoadedPlan(const Driver& driver, Lowering lowering);

  const Driver* driver_;
  Lowering lowering_;
  std::vector<std::shared_ptr<const Kernel>> kernels_;
  uint64_t claim_;
};

}  // namespace heddle::engine::cuda
