#include "engine/cpu/isa.h"

#include <fmt/format.h>

#if defined(HEDDLE_CPU_X86)
#include <cpuid.h>
#endif

#include "core/environment.h"

namespace heddle::engine::cpu {

namespace portable {
extern const Kernels kKernels;
}
#if defined(HEDDLE_CPU_X86)
namespace avx2 {
extern const Kernels kKernels;
}
namespace avx512 {
extern const Kernels kKernels;
}
namespace avx512_bf16 {
extern const Kernels kKernels;
}
#endif

std::string_view name(Isa isa) {
  switch (isa) {
    case Isa::portable:
      return "portable";
    case Isa::avx2:
      return "avx2";
    case Isa::avx512:
      return "avx512";
    case Isa::avx512_bf16:
      return "avx512_bf16";
  }
  return "";
}

std::optional<Isa> isa_from_name(std::string_view text) {
  for (Isa isa : kIsas) {
    if (name(isa) == text) return isa;
  }
  return std::nullopt;
}

namespace {

#if defined(HEDDLE_CPU_X86)
/// Not every Clang's __builtin_cpu_supports knows this one.
bool has_f16c() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}
#endif

}  // namespace

// GCC's and Clang's __builtin_cpu_supports asks cpuid and whether the operating system saves the
// registers.
bool is_available(Isa isa) {
#if defined(HEDDLE_CPU_X86)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512dq");
  switch (isa) {
    case Isa::portable:
      return true;
    case Isa::avx2:
      return avx2;
    case Isa::avx512:
      return avx512;
    case Isa::avx512_bf16:
      return avx512 && __builtin_cpu_supports("avx512bf16");
  }
#endif
  return isa == Isa::portable;
}

IsaChoice active_isa() {
  Isa best = Isa::portable;
  for (Isa isa : kIsas) {
    if (is_available(isa)) best = isa;
  }
  const char* wanted = environment::value_of("HEDDLE_CPU_ISA");
  if (wanted == nullptr || *wanted == '\0') return {best, "the best this machine has"};
  const std::optional<Isa> isa = isa_from_name(wanted);
  if (!isa) {
    return {best, fmt::format("HEDDLE_CPU_ISA is \"{}\", which is none of portable, avx2, avx512, "
                              "avx512_bf16; using the "
                              "best this machine has",
                              wanted)};
  }
  if (!is_available(*isa)) {
    return {best, fmt::format(
                      "HEDDLE_CPU_ISA asks for {}, which this machine lacks; using the best it has",
                      wanted)};
  }
  return {*isa, fmt::format("HEDDLE_CPU_ISA asks for {}", wanted)};
}

std::vector<IsaReport> isa_report() {
  static constexpr const char* kNeeds[] = {"nothing", "avx2, fma, f16c",
                                           "avx512f, avx512bw, avx512vl, avx512dq",
                                           "those of avx512 and avx512_bf16"};
  const Isa active = active_isa().isa;
  std::vector<IsaReport> report;
  for (Isa isa : kIsas)
    report.push_back({isa, is_available(isa), isa == active, kNeeds[static_cast<int>(isa)]});
  return report;
}

const Kernels& kernels_of([[maybe_unused]] Isa isa) {
#if defined(HEDDLE_CPU_X86)
  if (isa == Isa::avx2) return avx2::kKernels;
  if (isa == Isa::avx512) return avx512::kKernels;
  if (isa == Isa::avx512_bf16) return avx512_bf16::kKernels;
#endif
  return portable::kKernels;
}

}  // namespace heddle::engine::cpu
