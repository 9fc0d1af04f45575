// Where launches go, and plans that are nothing but launches.
#pragma once

#include <span>
#include <string>

#include "core/status.h"
#include "engine/cuda/driver.h"

namespace heddle::engine::cuda {

class Kernel;
struct Launch;

class Queue {
 public:
  virtual ~Queue() = default;
  /// Takes the launch, which is not empty, and copies its arguments; `parameters` are their
  /// addresses.
  virtual Status launch(const Kernel& kernel, const Launch& launch,
                        std::span<void*> parameters) = 0;
};

/// Each launch is a call of the driver.
class StreamQueue final : public Queue {
 public:
  StreamQueue(const Driver& driver, CuStream stream) : driver_(driver), stream_(stream) {}
  Status launch(const Kernel& kernel, const Launch& launch, std::span<void*> parameters) override;

 private:
  const Driver& driver_;
  CuStream stream_;
};

/// As engine::Plan, but that an execution goes to a queue. It makes the same launches in the same
/// order each time: arguments alone differ.
class QueuedPlan {
 public:
  virtual ~QueuedPlan() = default;
  virtual int64_t workspace_bytes() const = 0;
  virtual Status execute(std::span<void* const> buffers, void* workspace, Queue& queue) const = 0;
  virtual std::string description() const = 0;
};

}  // namespace heddle::engine::cuda
