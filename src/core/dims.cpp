#include "core/dims.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

namespace heddle {

std::string to_string(const Dims& dims) {
  return fmt::format("[{}]", fmt::join(dims.begin(), dims.end(), ", "));
}

std::optional<int64_t> element_count(const Dims& dims) {
  int64_t count = 1;
  for (int64_t dim : dims) {
    if (dim < 0 || __builtin_mul_overflow(count, dim, &count)) return std::nullopt;
  }
  return count;
}

std::optional<Dims> dense_strides(const Dims& dims) {
  Dims strides = dims;
  int64_t stride = 1;
  for (int i = dims.rank() - 1; i >= 0; --i) {
    strides[i] = stride;
    if (dims[i] < 0 || __builtin_mul_overflow(stride, std::max<int64_t>(dims[i], 1), &stride))
      return std::nullopt;
  }
  return strides;
}

std::optional<int64_t> span_of(const Dims& dims, const Dims& strides) {
  int64_t last = 0;
  for (int i = 0; i < dims.rank(); ++i) {
    if (dims[i] == 0) return 0;
    if (dims[i] == 1) continue;
    int64_t reach;
    if (dims[i] < 0 || strides[i] < 0 || __builtin_mul_overflow(dims[i] - 1, strides[i], &reach) ||
        __builtin_add_overflow(last, reach, &last)) {
      return std::nullopt;
    }
  }
  if (last == INT64_MAX) return std::nullopt;
  return last + 1;
}

bool overlaps_itself(const Dims& dims, const Dims& strides) {
  // Sorted by stride, each dim must step over everything the smaller ones reach.
  std::vector<std::pair<int64_t, int64_t>> steps;
  for (int i = 0; i < dims.rank(); ++i) {
    if (dims[i] == 0) return false;
    if (dims[i] > 1) steps.emplace_back(strides[i], dims[i]);
  }
  std::sort(steps.begin(), steps.end());
  int64_t reach = 0;
  for (auto [stride, dim] : steps) {
    if (stride <= reach) return true;
    int64_t step;
    if (__builtin_mul_overflow(dim - 1, stride, &step) ||
        __builtin_add_overflow(reach, step, &reach))
      return true;
  }
  return false;
}

}  // namespace heddle
