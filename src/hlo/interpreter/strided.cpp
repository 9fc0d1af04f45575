#include "hlo/interpreter/strided.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "hlo/interpreter/parallel.h"

namespace heddle::hlo {
namespace {

struct Loop {
  int64_t size;
  int64_t from;
  int64_t to;
};

struct Wide {
  uint64_t halves[2];
};

// Innermost first. Unit loops vanish; loops that continue one another on both sides become one.
std::vector<Loop> merged_loops(std::span<const int64_t> dims, std::span<const int64_t> from,
                               std::span<const int64_t> to) {
  std::vector<Loop> loops;
  for (size_t i = dims.size(); i-- > 0;) {
    if (dims[i] == 1) continue;
    if (!loops.empty()) {
      Loop& inner = loops.back();
      if (from[i] == inner.from * inner.size && to[i] == inner.to * inner.size) {
        inner.size *= dims[i];
        continue;
      }
    }
    loops.push_back({dims[i], from[i], to[i]});
  }
  if (loops.empty()) loops.push_back({1, 0, 0});
  return loops;
}

template <class T>
void copy_row(const T* from, T* to, const Loop& loop) {
  if (loop.from == 1 && loop.to == 1) {
    std::memcpy(to, from, loop.size * sizeof(T));
  } else if (loop.from == 0 && loop.to == 1) {
    std::fill(to, to + loop.size, *from);
  } else {
    for (int64_t i = 0; i < loop.size; ++i) to[i * loop.to] = from[i * loop.from];
  }
}

// A block of the two innermost loops at a time, so that a transpose reads and writes whole cache
// lines.
template <class T>
void copy_plane(const T* from, T* to, const Loop& inner, const Loop& outer) {
  constexpr int64_t kBlock = 32;
  const bool crossed = inner.to == 1 && outer.from == 1;
  if (!crossed) {
    for (int64_t j = 0; j < outer.size; ++j) {
      copy_row(from + j * outer.from, to + j * outer.to, inner);
    }
    return;
  }
  for (int64_t j0 = 0; j0 < outer.size; j0 += kBlock) {
    for (int64_t i0 = 0; i0 < inner.size; i0 += kBlock) {
      const int64_t j1 = std::min(j0 + kBlock, outer.size);
      const int64_t i1 = std::min(i0 + kBlock, inner.size);
      for (int64_t j = j0; j < j1; ++j) {
        for (int64_t i = i0; i < i1; ++i) {
          to[j * outer.to + i] = from[i * inner.from + j];
        }
      }
    }
  }
}

template <class T>
void copy(const std::vector<Loop>& loops, const T* from, T* to) {
  if (loops.size() == 1) {
    const Loop& loop = loops[0];
    parallel_ranges(loop.size, kElementwiseGrain, [&](int64_t begin, int64_t end) {
      copy_row(from + begin * loop.from, to + begin * loop.to, {end - begin, loop.from, loop.to});
    });
    return;
  }
  const int64_t plane = loops[0].size * loops[1].size;
  int64_t planes = 1;
  for (size_t i = 2; i < loops.size(); ++i) planes *= loops[i].size;
  if (planes == 1) {
    const int64_t rows = std::max<int64_t>(32, kElementwiseGrain / loops[0].size);
    parallel_ranges(loops[1].size, rows, [&](int64_t begin, int64_t end) {
      copy_plane(from + begin * loops[1].from, to + begin * loops[1].to, loops[0],
                 {end - begin, loops[1].from, loops[1].to});
    });
    return;
  }
  parallel_ranges(planes, std::max<int64_t>(1, kElementwiseGrain / plane),
                  [&](int64_t begin, int64_t end) {
                    for (int64_t p = begin; p < end; ++p) {
                      int64_t rest = p;
                      int64_t at_from = 0;
                      int64_t at_to = 0;
                      for (size_t i = 2; i < loops.size(); ++i) {
                        at_from += rest % loops[i].size * loops[i].from;
                        at_to += rest % loops[i].size * loops[i].to;
                        rest /= loops[i].size;
                      }
                      copy_plane(from + at_from, to + at_to, loops[0], loops[1]);
                    }
                  });
}

template <class F>
void with_element(int64_t size, F&& f) {
  switch (size) {
    case 1:
      return f.template operator()<uint8_t>();
    case 2:
      return f.template operator()<uint16_t>();
    case 4:
      return f.template operator()<uint32_t>();
    case 8:
      return f.template operator()<uint64_t>();
    default:
      return f.template operator()<Wide>();
  }
}

}  // namespace

void strided_copy(int64_t element_size, std::span<const int64_t> dims, const std::byte* from,
                  std::span<const int64_t> from_strides, std::byte* to,
                  std::span<const int64_t> to_strides) {
  if (std::find(dims.begin(), dims.end(), 0) != dims.end()) return;
  const std::vector<Loop> loops = merged_loops(dims, from_strides, to_strides);
  with_element(element_size, [&]<class T>() {
    copy(loops, reinterpret_cast<const T*>(from), reinterpret_cast<T*>(to));
  });
}

void fill(int64_t element_size, const std::byte* value, std::byte* to, int64_t count) {
  const int64_t dims[] = {count};
  const int64_t still[] = {0};
  const int64_t dense[] = {1};
  strided_copy(element_size, dims, value, still, to, dense);
}

}  // namespace heddle::hlo
