#include "core/overlap.h"

#include <span>

namespace heddle {
namespace {

struct Step {
  int64_t stride;  // bytes
  int64_t count;
};

/// A view's dims as steps in bytes, the widest first, the element's own bytes last.
struct Nest {
  std::array<Step, kMaxRank + 1> steps;
  int count = 0;

  explicit Nest(const MemoryView& view) {
    for (int i = 0; i < view.dims.rank(); ++i) {
      if (view.dims[i] > 1 && view.strides[i] > 0) {
        steps[count++] = {view.strides[i] * view.element_bytes, view.dims[i]};
      }
    }
    steps[count++] = {1, view.element_bytes};
    std::sort(steps.begin(), steps.begin() + count,
              [](Step a, Step b) { return a.stride > b.stride; });
  }
  std::span<const Step> all() const { return {steps.data(), static_cast<size_t>(count)}; }
};

/// The byte after the last, from the first.
int64_t extent(std::span<const Step> steps) {
  int64_t bytes = 1;
  for (Step step : steps) bytes += step.stride * (step.count - 1);
  return bytes;
}

/// Whether a (at 0) and b (at `offset`) share a byte.
bool share(std::span<const Step> a, std::span<const Step> b, int64_t offset) {
  if (offset >= extent(a) || -offset >= extent(b)) return false;
  if (a.empty() || b.empty() || a[0].stride != b[0].stride) return true;
  const int64_t stride = a[0].stride;
  const auto inner_a = a.subspan(1), inner_b = b.subspan(1);
  if (extent(inner_a) > stride || extent(inner_b) > stride) return true;
  // Row i of a begins at i * stride, row j of b at offset + j * stride, and rows are no longer than
  // a stride: rows of both can only meet if their distance is one of the two nearest to 0.
  int64_t quotient = offset / stride, remainder = offset % stride;
  if (remainder < 0) {
    remainder += stride;
    --quotient;
  }
  // i - j == quotient puts b's row `remainder` after a's; i - j == quotient + 1 puts it `stride -
  // remainder` before.
  const auto reachable = [&](int64_t difference) {
    return difference < a[0].count && -difference < b[0].count;
  };
  return (reachable(quotient) && share(inner_a, inner_b, remainder)) ||
         (reachable(quotient + 1) && share(inner_a, inner_b, remainder - stride));
}

bool empty(const MemoryView& view) {
  return std::find(view.dims.begin(), view.dims.end(), 0) != view.dims.end();
}

}  // namespace

bool overlap(const MemoryView& a, const MemoryView& b) {
  if (empty(a) || empty(b)) return false;
  const Nest nest_a(a), nest_b(b);
  return share(nest_a.all(), nest_b.all(), static_cast<int64_t>(b.address - a.address));
}

}  // namespace heddle
