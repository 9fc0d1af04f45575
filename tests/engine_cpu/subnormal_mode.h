// Whether a thread takes subnormal numbers for 0, by the register of its processor.
#pragma once

#include <cstdint>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace heddle::testing {

#if defined(__x86_64__)
inline constexpr uint64_t kSubnormalsAreZero = 0x8040;  // of results and of operands
inline uint64_t float_control() { return _mm_getcsr(); }
inline void set_float_control(uint64_t control) { _mm_setcsr(static_cast<unsigned>(control)); }
#elif defined(__aarch64__)
inline constexpr uint64_t kSubnormalsAreZero = uint64_t{1} << 24;  // of both
inline uint64_t float_control() {
  uint64_t control = 0;
  asm volatile("mrs %0, fpcr" : "=r"(control));
  return control;
}
inline void set_float_control(uint64_t control) { asm volatile("msr fpcr, %0" : : "r"(control)); }
#else
#error "Which register says what this processor does with subnormal numbers?"
#endif

/// While it lives the thread takes subnormal numbers for 0.
class FlushedToZero {
 public:
  FlushedToZero() { set_float_control(before_ | kSubnormalsAreZero); }
  ~FlushedToZero() { set_float_control(before_); }
  FlushedToZero(const FlushedToZero&) = delete;
  FlushedToZero& operator=(const FlushedToZero&) = delete;

 private:
  const uint64_t before_ = float_control();
};

}  // namespace heddle::testing
