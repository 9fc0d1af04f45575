// Every instruction set that this build and this machine have, one after the other.
#pragma once

#include <cstdlib>
#include <string>
#include <vector>

#include "engine/cpu/isa.h"
#include "engine/cpu/processor.h"

#if defined(HEDDLE_TEST_AMX_STAND_IN)
namespace heddle::engine::cpu::amx_stand_in {
extern const Kernels kKernels;
}
#endif

namespace heddle::testing {

/// amx, where this machine has none, by its stand-in: packing, layouts and tails are tested
/// everywhere, the instructions where they are.
inline std::vector<engine::cpu::Isa> available_levels() {
  using engine::cpu::Isa;
#if defined(HEDDLE_TEST_AMX_STAND_IN)
  if (!engine::cpu::is_available(Isa::amx) && engine::cpu::machine_has(Isa::avx2))
    engine::cpu::stand_in_for_amx(engine::cpu::amx_stand_in::kKernels);
#endif
  std::vector<engine::cpu::Isa> levels;
  for (engine::cpu::Isa isa : engine::cpu::kIsas) {
    if (engine::cpu::is_available(isa)) levels.push_back(isa);
  }
  return levels;
}

/// Plans made while this lives use the level.
class ForcedLevel {
 public:
  explicit ForcedLevel(engine::cpu::Isa isa) {
    const char* before = std::getenv("HEDDLE_CPU_ISA");
    if (before) before_ = before;
    setenv("HEDDLE_CPU_ISA", std::string(engine::cpu::name(isa)).c_str(), 1);
  }
  ~ForcedLevel() {
    if (before_.empty()) {
      unsetenv("HEDDLE_CPU_ISA");
    } else {
      setenv("HEDDLE_CPU_ISA", before_.c_str(), 1);
    }
  }
  ForcedLevel(const ForcedLevel&) = delete;
  ForcedLevel& operator=(const ForcedLevel&) = delete;

 private:
  std::string before_;
};

}  // namespace heddle::testing
