#include "hlo/interpreter/parallel.h"

#include <tbb/blocked_range.h>
#include <tbb/parallel_for.h>

#include "hlo/interpreter/codec.h"

namespace heddle::hlo {

void parallel_ranges(int64_t n, int64_t grain, const std::function<void(int64_t, int64_t)>& body) {
  if (n < 2 * grain) {
    if (n > 0) body(0, n);
    return;
  }
  tbb::parallel_for(
      tbb::blocked_range<int64_t>(0, n, grain),
      [&](const tbb::blocked_range<int64_t>& range) { body(range.begin(), range.end()); });
}

const float* float16_values() {
  static const float* const values = [] {
    float* table = new float[65536];
    for (int bits = 0; bits < 65536; ++bits) {
      table[bits] = to_float(float16{static_cast<uint16_t>(bits)});
    }
    return table;
  }();
  return values;
}

}  // namespace heddle::hlo
