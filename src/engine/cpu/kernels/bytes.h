#pragma once

namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL {

/// The T at p, which need not be aligned.
template <class T>
inline T read_as(const char* p) {
  T x;
  __builtin_memcpy(&x, p, sizeof x);
  return x;
}

}  // namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL
