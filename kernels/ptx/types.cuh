// The few names every kernel needs. Compiled by NVRTC without any system header.
#pragma once

#include "tensor_map.h"

namespace heddle {

using u8 = unsigned char;
using i8 = signed char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i32 = int;
using i64 = long long;

#define HEDDLE_DEVICE __device__ __forceinline__

/// Element types of tiles in global and shared memory. They are names only: arithmetic happens in
/// f32 registers, and packed pairs travel as u32.
struct bf16 {
  u16 bits;
};
struct f16 {
  u16 bits;
};
struct f8e4m3 {
  u8 bits;
};
struct f8e5m2 {
  u8 bits;
};

template <typename A, typename B>
inline constexpr bool is_same = false;
template <typename A>
inline constexpr bool is_same<A, A> = true;

template <bool kFirst, typename A, typename B>
struct Choice {
  using Type = A;
};
template <typename A, typename B>
struct Choice<false, A, B> {
  using Type = B;
};

HEDDLE_DEVICE constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }
HEDDLE_DEVICE constexpr int round_up(int a, int b) { return ceil_div(a, b) * b; }
HEDDLE_DEVICE constexpr int min_of(int a, int b) { return a < b ? a : b; }
HEDDLE_DEVICE constexpr int max_of(int a, int b) { return a > b ? a : b; }

/// Address of `pointer` in the shared window, as PTX instructions want it.
HEDDLE_DEVICE u32 shared_address(const void* pointer) {
  return static_cast<u32>(__cvta_generic_to_shared(pointer));
}

}  // namespace heddle
