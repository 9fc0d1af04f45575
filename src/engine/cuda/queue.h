// Where launches go.
#pragma once

#include <span>

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

}  // namespace heddle::engine::cuda
