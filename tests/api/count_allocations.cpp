#include "api/count_allocations.h"

#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <new>

namespace heddle::testing {
namespace {
thread_local int64_t count = 0;
std::atomic<int64_t> live = 0;

}  // namespace

int64_t allocations() { return count; }
int64_t live_bytes() { return live; }
void* take(size_t size) {
  ++count;
  void* const memory = std::malloc(size);
  live.fetch_add(static_cast<int64_t>(malloc_usable_size(memory)), std::memory_order_relaxed);
  return memory;
}
void give_back(void* memory) {
  live.fetch_sub(static_cast<int64_t>(malloc_usable_size(memory)), std::memory_order_relaxed);
  std::free(memory);
}

}  // namespace heddle::testing

void* operator new(size_t size) {
  if (void* memory = heddle::testing::take(size)) return memory;
  throw std::bad_alloc();
}
void* operator new(size_t size, const std::nothrow_t&) noexcept {
  try {
    return operator new(size);
  } catch (...) {
    return nullptr;
  }
}
void operator delete(void* memory) noexcept { heddle::testing::give_back(memory); }
void operator delete(void* memory, size_t) noexcept { heddle::testing::give_back(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept {
  heddle::testing::give_back(memory);
}
