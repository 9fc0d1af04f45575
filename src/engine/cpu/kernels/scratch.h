// Cutting a worker's scratch memory into arrays, each on a cache line of its own.
#pragma once

#include <cstdint>

namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL {

/// With a null base it only measures.
struct Scratch {
  char* base;
  int64_t used = 0;

  template <class T>
  T* take(int64_t count) {
    T* p = reinterpret_cast<T*>(base + used);
    used += (count * static_cast<int64_t>(sizeof(T)) + 63) / 64 * 64;
    return p;
  }
};

}  // namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL
