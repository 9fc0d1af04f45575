// How a problem runs on an architecture: what is compiled, what is launched in which order, and how
// much workspace that takes. Made of a problem and a target alone; a device comes in
// when the kernels are loaded (loaded_plan.h).
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/cuda/kernel_unit.h"
#include "engine/cuda/launches.h"
#include "engine/cuda/target.h"
#include "engine/engine.h"

namespace heddle::engine::cuda {

/// A kernel of a unit, as it is loaded and launched.
struct LoweredKernel {
  size_t unit = 0;  ///< index into Lowering::units
  std::string name;
  int threads = 0;
  int64_t shared_bytes = 0;  ///< dynamic
};

/// A way that was asked before the one that was taken, and why it has no kernels for the problem.
struct PassedOver {
  std::string name, reason;
};

struct Lowering {
  std::vector<KernelUnit> units;       ///< each once, those that compile longest first
  std::vector<LoweredKernel> kernels;  ///< as Execution::launch numbers them
  std::shared_ptr<const Launches> launches;
  int64_t workspace_bytes = 0;
  std::string description;  ///< one line for people
  std::vector<PassedOver> passed_over;
  std::optional<problem::ChosenPath> attention_path;  ///< of an attention's forward

  /// The number of a kernel of `unit`, whose name is the unit's unless one is given.
  size_t add_kernel(KernelUnit unit, int threads, int64_t shared_bytes = 0, std::string name = "");
  /// Takes over the units and kernels of another; the first of these has the number returned.
  size_t add_kernels(const Lowering& part);
};

/// For each kernel of `late` the number of the same one of `planned`, which it is to run by. Fails
/// if that has none.
Result<std::vector<size_t>> kernels_of_plan(const Lowering& planned, const Lowering& late);

/// The first way of the table (lower.cpp) that takes the problem, or the last one's reason.
Result<Lowering> lower(const Problem& problem, const Target& target);

}  // namespace heddle::engine::cuda
