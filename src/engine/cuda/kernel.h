// A compiled kernel, loaded and ready to launch.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "core/status.h"
#include "engine/cuda/compiler.h"
#include "engine/cuda/device.h"
#include "engine/cuda/queue.h"

namespace heddle::engine::cuda {

/// A grid's second dimension, and its third: its layers.
inline constexpr int64_t kMostBlocksAcross = 65535;

/// Shape of one launch. Threads are in x.
struct Launch {
  unsigned grid_x = 1, grid_y = 1, grid_z = 1;
  unsigned threads = 1;
  unsigned shared_bytes = 0;
  /// The kernel may start while its predecessor in the stream drains; it must then wait for it
  /// itself (griddepcontrol.wait) before reading what that wrote.
  bool overlaps_predecessor = false;
  /// Blocks wait for one another: all are to run at the same time, of which there are no more than
  /// the device has room for.
  bool cooperative = false;
  /// Blocks along x that form a cluster: it divides grid_x, and is 8 at most.
  unsigned cluster = 1;

  /// Tensors without elements leave a kernel nothing to do.
  bool is_empty() const { return grid_x == 0 || grid_y == 0 || grid_z == 0; }
};

/// Its code stays loaded until the process ends: launches under way need it, and so do CUDA graphs
/// that captured some, however long after the plan they were of.
class Kernel {
 public:
  /// `name` (extern "C") of `cubin`, which is loaded once, and allowed `shared_bytes` of dynamic
  /// shared memory on `device`.
  static Result<std::shared_ptr<const Kernel>> load(const Driver& driver, const Device& device,
                                                    const std::shared_ptr<const Cubin>& cubin,
                                                    const std::string& name, int64_t shared_bytes);

  /// Queues the kernel, unless the launch is empty. `parameters` are the addresses of its
  /// arguments, in order. With `first_layer`, a place among the arguments, grid_z may be any: more
  /// layers than a grid has go in several, each told its first.
  Status launch(const Launch& launch, Queue& queue, std::span<void*> parameters,
                int* first_layer = nullptr) const;

  CuKernel handle() const { return kernel_; }
  const std::string& name() const { return name_; }

 private:
  Kernel(CuKernel kernel, std::string name) : kernel_(kernel), name_(std::move(name)) {}

  CuKernel kernel_;
  std::string name_;
};

}  // namespace heddle::engine::cuda
