#include "engine/cpu/processor.h"

#if defined(HEDDLE_CPU_X86)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace heddle::engine::cpu {

#if defined(HEDDLE_CPU_X86)

namespace {

struct Registers {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};

/// All 0 where the processor does not answer.
Registers cpuid(unsigned leaf) {
  Registers r;
  __get_cpuid_count(leaf, 0, &r.eax, &r.ebx, &r.ecx, &r.edx);
  return r;
}

/// Not every Clang's __builtin_cpu_supports knows this one.
bool has_f16c() { return (cpuid(1).ecx & bit_F16C) != 0; }

/// The processor's registers that the operating system saves, a bit for each kind.
unsigned saved_registers() {
  if ((cpuid(1).ecx & bit_OSXSAVE) == 0) return 0;
  unsigned low = 0, high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

constexpr unsigned kTileConfiguration = 17, kTileData = 18;  // kinds of saved registers

/// Whether Linux gives this process, and all its threads, room to save tiles in; it says no if a
/// thread's stack for signals is too small for them.
bool tiles_are_granted() {
#if defined(__linux__) && defined(SYS_arch_prctl)
  constexpr int kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  static const bool granted = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return granted;
#else
  return false;
#endif
}

bool has_amx() {
  constexpr unsigned kAmxBf16 = 1u << 22, kAmxTile = 1u << 24, kAmxInt8 = 1u << 25;  // leaf 7, edx
  constexpr unsigned kAll = kAmxBf16 | kAmxTile | kAmxInt8;
  constexpr unsigned kTiles = (1u << kTileConfiguration) | (1u << kTileData);
  return (cpuid(7).edx & kAll) == kAll && (saved_registers() & kTiles) == kTiles &&
         tiles_are_granted();
}

}  // namespace

// GCC's and Clang's __builtin_cpu_supports asks cpuid and whether the operating system saves the
// registers.
bool machine_has(Isa isa) {
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512dq");
  const bool bf16 = avx512 && __builtin_cpu_supports("avx512bf16");
  switch (isa) {
    case Isa::portable:
      return true;
    case Isa::avx2:
      return avx2;
    case Isa::avx512:
      return avx512;
    case Isa::avx512_bf16:
      return bf16;
    case Isa::amx:
      return bf16 && has_amx();
  }
  return false;
}

#else

bool machine_has(Isa isa) { return isa == Isa::portable; }

#endif

}  // namespace heddle::engine::cpu
