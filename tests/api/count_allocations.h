// Counts the calling thread's uses of operator new, which this test program replaces.
#pragma once

#include <cstdint>

namespace heddle::testing {

int64_t allocations();

}  // namespace heddle::testing
