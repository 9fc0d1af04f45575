// What CUDA's C++ has beside C++ itself, as far as the kernels use it: before each of their
// sources.
#pragma once

#include <bit>
#include <cmath>

#include "numbers.h"

#define __device__
#define __global__
#define __constant__
#define __grid_constant__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
// A block is an operating system's thread.
#define __shared__ thread_local

#define threadIdx (::heddle::emulator::here().thread)
#define blockIdx (::heddle::emulator::here().block)
#define blockDim (::heddle::emulator::here().threads)
#define gridDim (::heddle::emulator::here().blocks)

struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(16) double2 {
  double x, y;
};
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline double2 make_double2(double x, double y) { return {x, y}; }

using std::isinf;
using std::isnan;
template <class T>
T min(T a, T b) {
  return b < a ? b : a;
}
template <class T>
T max(T a, T b) {
  return a < b ? b : a;
}
inline float min(float a, float b) { return std::fmin(a, b); }
inline float max(float a, float b) { return std::fmax(a, b); }
inline float rsqrtf(float x) { return 1 / std::sqrt(x); }

inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline double __hiloint2double(int high, int low) {
  return std::bit_cast<double>(static_cast<unsigned long long>(static_cast<unsigned>(high)) << 32 |
                               static_cast<unsigned>(low));
}
inline int __double2hiint(double x) {
  return static_cast<int>(std::bit_cast<unsigned long long>(x) >> 32);
}
inline int __double2loint(double x) {
  return static_cast<int>(std::bit_cast<unsigned long long>(x));
}
/// Toward zero; of what is no int the nearest one, of a NaN 0.
inline int __float2int_rz(float x) {
  if (x != x) return 0;
  if (x >= 0x1p31f) return 0x7fffffff;
  return x < -0x1p31f ? -0x7fffffff - 1 : static_cast<int>(x);
}
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float x) { return std::sqrt(x); }
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>(static_cast<unsigned long long>(a) * b >> 32);
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
  return shift % 32 == 0 ? high : high << shift % 32 | low >> (32 - shift % 32);
}
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
  const unsigned long long bytes = static_cast<unsigned long long>(b) << 32 | a;
  unsigned word = 0;
  for (int n = 0; n < 4; ++n)
    word |= static_cast<unsigned>(bytes >> 8 * (selector >> 4 * n & 7) & 255) << 8 * n;
  return word;
}
inline unsigned long long __cvta_generic_to_shared(const void* pointer) {
  return ::heddle::emulator::window_address(pointer);
}
template <class T>
T __ldg(const T* from) {
  return *from;
}
template <class T>
T __ldcg(const T* from) {
  return *from;
}

inline void __syncthreads() { ::heddle::emulator::count_in_block(false); }
inline int __syncthreads_and(int given) {
  return ::heddle::emulator::count_in_block(given == 0) == 0;
}
inline void __syncwarp(unsigned mask = 0xffffffff) { ::heddle::emulator::exchange(mask, 0); }
inline int __any_sync(unsigned mask, int given) {
  const unsigned long long* const all = ::heddle::emulator::exchange(mask, given != 0);
  for (int n = 0; n < 32; ++n)
    if (mask >> n & 1 && all[n]) return 1;
  return 0;
}
inline unsigned __ballot_sync(unsigned mask, int given) {
  const unsigned long long* const all = ::heddle::emulator::exchange(mask, given != 0);
  unsigned ballot = 0;
  for (int n = 0; n < 32; ++n)
    if (mask >> n & 1 && all[n]) ballot |= 1U << n;
  return ballot;
}
namespace heddle::emulator {
/// A value of another lane of the warp's part of so many; its own where there is none.
template <class T>
T value_of_lane(unsigned mask, T value, int from, int width) {
  static_assert(sizeof(T) <= 8);
  u64 word = 0;
  __builtin_memcpy(&word, &value, sizeof value);
  const int own = static_cast<int>(lane()), first = own / width * width;
  const u64* const all = exchange(mask, word);
  if (from < 0 || from >= width) return value;
  if (!(mask >> (first + from) & 1)) fail("a lane reads a value of one outside the mask");
  word = all[first + from];
  __builtin_memcpy(&value, &word, sizeof value);
  return value;
}
}  // namespace heddle::emulator
template <class T>
T __shfl_sync(unsigned mask, T value, int from, int width = 32) {
  return ::heddle::emulator::value_of_lane(mask, value, from % width, width);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32) {
  const int own = static_cast<int>(::heddle::emulator::lane()) % width;
  return ::heddle::emulator::value_of_lane(mask, value, own ^ bits, width);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, int lanes, int width = 32) {
  const int own = static_cast<int>(::heddle::emulator::lane()) % width;
  return ::heddle::emulator::value_of_lane(mask, value, own - lanes, width);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, int lanes, int width = 32) {
  const int own = static_cast<int>(::heddle::emulator::lane()) % width;
  return ::heddle::emulator::value_of_lane(mask, value, own + lanes, width);
}
template <class T>
T __reduce_max_sync(unsigned mask, T value) {
  const unsigned long long* const all =
      ::heddle::emulator::exchange(mask, static_cast<unsigned>(value));
  for (int n = 0; n < 32; ++n)
    if (mask >> n & 1 && static_cast<T>(all[n]) > value) value = static_cast<T>(all[n]);
  return value;
}
template <class T>
T __reduce_min_sync(unsigned mask, T value) {
  const unsigned long long* const all =
      ::heddle::emulator::exchange(mask, static_cast<unsigned>(value));
  for (int n = 0; n < 32; ++n)
    if (mask >> n & 1 && static_cast<T>(all[n]) < value) value = static_cast<T>(all[n]);
  return value;
}

template <class T>
T atomicAdd(T* at, T value) {
  return __atomic_fetch_add(at, value, __ATOMIC_RELAXED);
}
template <class T>
T atomicCAS(T* at, T expected, T value) {
  __atomic_compare_exchange_n(at, &expected, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  return expected;
}
template <class T>
T atomicMax(T* at, T value) {
  T was = __atomic_load_n(at, __ATOMIC_RELAXED);
  while (was < value &&
         !__atomic_compare_exchange_n(at, &was, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
  return was;
}

namespace heddle::emulator {
/// Of a kernel's arguments, ended by a 0.
template <class... Arguments>
const unsigned* sizes_of(void (*)(Arguments...)) {
  static constexpr unsigned kSizes[] = {sizeof(Arguments)..., 0};
  return kSizes;
}

/// A kernel by the addresses of its arguments.
template <class... Arguments>
void call(void (*kernel)(Arguments...), void** parameters) {
  int n = 0;
  // Braces are evaluated from left to right.
  struct Call {
    Call(void (*kernel)(Arguments...), Arguments... arguments) { kernel(arguments...); }
  };
  Call{kernel, *static_cast<std::remove_cv_t<Arguments>*>(parameters[n++])...};
}
}  // namespace heddle::emulator
