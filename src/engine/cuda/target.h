// What problems are lowered for: an architecture, with or without a device of it at hand.
#pragma once

#include <string>

#include "core/status.h"
#include "engine/cuda/device.h"
#include "problem/attention_path.h"

namespace heddle::engine::cuda {

struct Target {
  std::string architecture;          ///< what kernels are compiled for: "sm_90a", "sm_80"
  int compute_capability = 0;        ///< 90 for 9.0
  int processors = 0;                ///< multiprocessors, which some kernels share their work among
  problem::AllowedPaths paths = {};  ///< of attention forwards

  bool is_hopper() const { return compute_capability == 90; }
  /// Bytes of shared memory that a block may have.
  int shared_limit() const;
};

Target target_of(const Device& device);

/// The architecture's largest device, or why no device runs code of this name: sm_80 and later do;
/// 9.0 is sm_90a.
Result<Target> target_named(const std::string& architecture);

}  // namespace heddle::engine::cuda
