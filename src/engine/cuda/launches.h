// The launches of a plan: the same in the same order at each execution, whose arguments alone
// differ.
#pragma once

#include <memory>
#include <span>

#include "engine/cuda/kernel.h"
#include "engine/cuda/queue.h"

namespace heddle::engine::cuda {

/// What launches are made of.
struct Execution {
  std::span<void* const> buffers;  ///< one per operand
  char* workspace = nullptr;
  std::span<const std::shared_ptr<const Kernel>> kernels;  ///< as Lowering::kernels numbers them
  /// A number of the plan's own: what a workspace holds by chance is none of them. Its lowest
  /// sm90::kTicketBits bits are 0, the others are not.
  uint64_t claim = 0;
  const Driver& driver;
  Queue& queue;

  /// Queues a kernel, unless the launch is empty; `arguments` is its one parameter. With
  /// `first_layer`: Kernel::launch.
  Status launch(size_t kernel, const Launch& launch, void* arguments,
                int* first_layer = nullptr) const {
    void* parameters[] = {arguments};
    return kernels[kernel]->launch(launch, queue, parameters, first_layer);
  }
  /// That of a part whose kernels begin at number `first`.
  Execution part(size_t first) const {
    Execution at = *this;
    at.kernels = kernels.subspan(first);
    return at;
  }
};

class Launches {
 public:
  virtual ~Launches() = default;
  virtual Status execute(const Execution& at) const = 0;
};

}  // namespace heddle::engine::cuda
