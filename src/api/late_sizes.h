// A plan's executables for sizes that come at its executions.
#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "api/executable.h"

namespace heddle::api {

/// Thread-safe. Finding what is there allocates nothing.
class LateSizes {
 public:
  /// `planned` at these shapes; always the same one is to be given.
  Result<std::shared_ptr<const Executable>> find_or_make(const Executable& planned,
                                                         std::span<const Shape> shapes);

  /// The layers of a model take the same sizes one after the other, and a step later all of them
  /// take others. Executables in use live on with their users.
  static constexpr size_t kCapacity = 16;

 private:
  struct Sized {
    std::vector<Shape> shapes;
    std::shared_ptr<const Executable> executable;
  };

  std::mutex mutex_;
  std::list<Sized> recent_;  ///< last used first
};

}  // namespace heddle::api
