// Which instruction set the CPU engine runs: the best the machine has, unless the environment says
// otherwise. HEDDLE_CPU_ISA names one of the levels below ("portable", "avx2", "avx512",
// "avx512_bf16"); a level the machine lacks, or an unknown name, is reported and ignored.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/cpu/kernels.h"

namespace heddle::engine::cpu {

/// In order: each has what those before it have.
enum class Isa : uint8_t { portable, avx2, avx512, avx512_bf16 };
inline constexpr Isa kIsas[] = {Isa::portable, Isa::avx2, Isa::avx512, Isa::avx512_bf16};

std::string_view name(Isa isa);
std::optional<Isa> isa_from_name(std::string_view name);
/// Whether this build has the level's kernels and this machine (and its operating system) runs
/// them.
bool is_available(Isa isa);

/// The level new plans use, and one sentence why.
struct IsaChoice {
  Isa isa;
  std::string reason;
};
IsaChoice active_isa();

/// Every level with what the machine says about it, for `heddle doctor`.
struct IsaReport {
  Isa isa;
  bool available;
  bool active;
  std::string needs;  ///< the processor features the level needs
};
std::vector<IsaReport> isa_report();

/// The kernels of an available level.
const Kernels& kernels_of(Isa isa);

}  // namespace heddle::engine::cpu
