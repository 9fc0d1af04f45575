#include "engine/cpu/isa.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>

#include "core/environment.h"
#include "engine/cpu/processor.h"

namespace heddle::engine::cpu {

namespace portable {
extern const Kernels kKernels;
}
#if defined(HEDDLE_CPU_HAS_AVX2)
namespace avx2 {
extern const Kernels kKernels;
}
#endif
#if defined(HEDDLE_CPU_HAS_AVX512)
namespace avx512 {
extern const Kernels kKernels;
}
#endif
#if defined(HEDDLE_CPU_HAS_AVX512_BF16)
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
    case Isa::amx:
      return "amx";
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

std::atomic<const Kernels*> stand_in{nullptr};

/// Null if this build has none of the level.
const Kernels* compiled(Isa isa) {
  switch (isa) {
    case Isa::portable:
      return &portable::kKernels;
#if defined(HEDDLE_CPU_HAS_AVX2)
    case Isa::avx2:
      return &avx2::kKernels;
#endif
#if defined(HEDDLE_CPU_HAS_AVX512)
    case Isa::avx512:
      return &avx512::kKernels;
#endif
#if defined(HEDDLE_CPU_HAS_AVX512_BF16)
    case Isa::avx512_bf16:
      return &avx512_bf16::kKernels;
    case Isa::amx: {  // the same kernels, told to multiply bf16 by tiles
      static const Kernels amx = [] {
        Kernels kernels = avx512_bf16::kKernels;
        kernels.name = "amx", kernels.attention.shape = kAmxShape;
        return kernels;
      }();
      return &amx;
    }
#endif
    default:
      return nullptr;
  }
}

/// Without what stands in.
bool is_served(Isa isa) { return compiled(isa) != nullptr && machine_has(isa); }

/// Multiply-adds of bf16 a second, in billions: the best of some tries, each of a few microseconds,
/// the first of which may meet a core that has yet to raise its clock.
double bf16_rate(const Kernels& kernels, std::vector<float>& memory) {
  using Clock = std::chrono::steady_clock;
  double best = 0;
  for (int n = 0; n < 8; ++n) {
    const auto start = Clock::now();
    const int64_t done = kernels.product_sample(kernels.attention.shape.of_bf16, memory.data());
    const std::chrono::duration<double, std::nano> passed = Clock::now() - start;
    best = std::max(best, static_cast<double>(done) / std::max(passed.count(), 1.0));
  }
  return best;
}

IsaChoice measured_choice() {
  Isa best = Isa::portable;
  for (Isa isa : {Isa::avx2, Isa::avx512}) {
    if (is_served(isa)) best = isa;
  }
  std::vector<Speed> speeds{{best, 0}};
  for (Isa isa : {Isa::avx512_bf16, Isa::amx}) {
    if (is_served(isa)) speeds.push_back({isa, 0});
  }
  if (speeds.size() == 1) return {best, "the best this machine has"};
  std::vector<float> memory(kProductSampleFloats);
  for (int round = 0; round < 3; ++round) {
    for (Speed& speed : speeds)
      speed.rate = std::max(speed.rate, bf16_rate(kernels_of(speed.isa), memory));
  }
  std::string reason = "the fastest with bf16, in billions of multiply-adds a second on one core:";
  for (const Speed& speed : speeds)
    reason += fmt::format(" {} {:.0f}{}", name(speed.isa), speed.rate,
                          &speed == &speeds.back() ? "" : ",");
  return {fastest(speeds), std::move(reason)};
}

/// Timed once, so that all plans of a process use one level.
const IsaChoice& choice_of_machine() {
  static const IsaChoice choice = measured_choice();
  return choice;
}

IsaChoice instead(std::string_view what) {
  IsaChoice choice = choice_of_machine();
  choice.reason = fmt::format("{}; using {}", what, choice.reason);
  return choice;
}

}  // namespace

bool is_available(Isa isa) { return is_served(isa) || (isa == Isa::amx && stand_in.load()); }

Isa fastest(std::span<const Speed> speeds) {
  constexpr double kMargin = 1.15;
  Speed best = speeds.front();
  for (const Speed& speed : speeds.subspan(1)) {
    if (speed.rate > kMargin * best.rate) best = speed;
  }
  return best.isa;
}

IsaChoice active_isa() {
  const char* wanted = environment::value_of("HEDDLE_CPU_ISA");
  if (wanted == nullptr || *wanted == '\0') return choice_of_machine();
  const std::optional<Isa> isa = isa_from_name(wanted);
  if (!isa) {
    return instead(
        fmt::format("HEDDLE_CPU_ISA is \"{}\", which is none of portable, avx2, avx512, "
                    "avx512_bf16, amx",
                    wanted));
  }
  if (!is_available(*isa)) {
    return instead(fmt::format("HEDDLE_CPU_ISA asks for {}, which this {} lacks", wanted,
                               compiled(*isa) ? "machine" : "build of Heddle"));
  }
  return {*isa, fmt::format("HEDDLE_CPU_ISA asks for {}", wanted)};
}

std::vector<IsaReport> isa_report() {
  static constexpr const char* kNeeds[] = {
      "nothing", "avx2, fma, f16c", "avx512f, avx512bw, avx512vl, avx512dq",
      "those of avx512 and avx512_bf16", "those of avx512_bf16, amx_tile, amx_bf16 and amx_int8"};
  const Isa active = active_isa().isa;
  std::vector<IsaReport> report;
  for (Isa isa : kIsas)
    report.push_back({isa, is_available(isa), isa == active, kNeeds[static_cast<int>(isa)]});
  return report;
}

const Kernels& kernels_of(Isa isa) {
  return isa == Isa::amx && !is_served(isa) ? *stand_in.load() : *compiled(isa);
}

template <>
const AttentionKernels<float>& attention_kernels_of(Isa isa) {
  return kernels_of(isa).attention;
}
template <>
std::span<const KernelShape> attention_shapes<float>() {
  return kShapes;
}

void stand_in_for_amx(const Kernels& kernels) { stand_in.store(&kernels); }

}  // namespace heddle::engine::cpu
