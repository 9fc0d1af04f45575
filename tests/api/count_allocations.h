// Counts what goes through operator new, which this test program replaces.
#pragma once

#include <cstdint>

namespace heddle::testing {

/// Of the calling thread.
int64_t allocations();
/// What all threads have and did not give back.
int64_t live_bytes();

}  // namespace heddle::testing
