// Loops over all cores.
#pragma once

#include <cstdint>
#include <functional>

namespace heddle::hlo {

/// Calls body(begin, end) on disjoint ranges that make up [0, n), in parallel where ranges have at
/// least `grain` elements.
void parallel_ranges(int64_t n, int64_t grain, const std::function<void(int64_t, int64_t)>& body);

/// Elements from which a second core pays for itself in elementwise work.
inline constexpr int64_t kElementwiseGrain = 1 << 15;

}  // namespace heddle::hlo
