// Which part of what tests draw by seeds a run has: all of it, unless HEDDLE_TEST_PART=2/8 asks for
// the second of eight parts, which together are all. The sanitizers, at a tenth of the speed, see
// one part in a run of CI and another in the next.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>

namespace heddle::testing {

struct Part {
  uint64_t index = 1, count = 1;

  bool is_whole() const { return count == 1; }
  /// Neighbouring numbers are spread over the parts, whatever they have in common.
  bool has(uint64_t number) const {
    constexpr uint64_t kGoldenRatio = 0x9E3779B97F4A7C15;
    return (number * kGoldenRatio >> 32) % count == index - 1;
  }
};

/// The part this process was asked for.
inline Part part() {
  const char* asked = std::getenv("HEDDLE_TEST_PART");
  if (!asked) return {};
  unsigned long index = 0, count = 0;
  if (std::sscanf(asked, "%lu/%lu", &index, &count) != 2 || index < 1 || index > count)
    throw std::invalid_argument("HEDDLE_TEST_PART is not a part, as 2/8 is");
  return {index, count};
}

}  // namespace heddle::testing
