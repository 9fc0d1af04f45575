// Which instruction set the CPU engine runs: the best the machine has, unless the environment says
// otherwise. HEDDLE_CPU_ISA names one of the levels below ("portable", "avx2", "avx512",
// "avx512_bf16", "amx"); a level the machine lacks, or an unknown name, is reported and ignored.
//
// The last two differ from avx512 in how they multiply bf16, and amx in how it multiplies codes of
// caches; not every machine that has such instructions is faster with them: the first plan of a
// process times them.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/cpu/kernels.h"

namespace heddle::engine::cpu {

/// In order: each has what those before it have.
enum class Isa : uint8_t { portable, avx2, avx512, avx512_bf16, amx };
inline constexpr Isa kIsas[] = {Isa::portable, Isa::avx2, Isa::avx512, Isa::avx512_bf16, Isa::amx};

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

/// Those of attention, in f32 or f64.
template <class Real>
const AttentionKernels<Real>& attention_kernels_of(Isa isa);
/// The shapes of all levels' kernels.
template <class Real>
std::span<const KernelShape> attention_shapes();

/// Of a level: a name, and billions of multiply-adds of bf16 a second on one core.
struct Speed {
  Isa isa;
  double rate;
};
/// The fastest of the speeds, which are in the order of levels: a later level has to be faster than
/// an earlier one by more than clocks waver, so that a machine's choice is always the same.
Isa fastest(std::span<const Speed> speeds);

/// Kernels of the shape of amx's for tests to run where there is no AMX: there the level is
/// available from now on, and active where the environment names it.
void stand_in_for_amx(const Kernels& kernels);

}  // namespace heddle::engine::cpu
