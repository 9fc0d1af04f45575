// What the driver without a GPU was asked for.
#pragma once

#include <atomic>

namespace heddle::testing {

struct FakeCudaCalls {
  std::atomic<int> libraries = 0;  ///< loaded at present
  std::atomic<int> launches = 0, memsets = 0, maps = 0;
  std::atomic<unsigned> filled = 0;  ///< with which word, at last
};

}  // namespace heddle::testing
