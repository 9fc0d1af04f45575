#include "api/count_allocations.h"

#include <cstdlib>
#include <new>

namespace heddle::testing {
namespace {
thread_local int64_t count = 0;
}  // namespace

int64_t allocations() { return count; }
void count_one() { ++count; }

}  // namespace heddle::testing

void* operator new(size_t size) {
  heddle::testing::count_one();
  if (void* memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
void* operator new(size_t size, const std::nothrow_t&) noexcept {
  try {
    return operator new(size);
  } catch (...) {
    return nullptr;
  }
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
