// Choosing an instruction set by name and by machine.
#include "engine/cpu/isa.h"

#include <gtest/gtest.h>

#include "engine/cpu/processor.h"
#include "engine_cpu/levels.h"

namespace heddle::engine::cpu {
namespace {

using testing::ForcedLevel;

TEST(Isa, PortableIsAlwaysThere) { EXPECT_TRUE(is_available(Isa::portable)); }

TEST(Isa, NamesGoThereAndBack) {
  for (Isa isa : kIsas) EXPECT_EQ(isa_from_name(name(isa)), isa);
  EXPECT_EQ(isa_from_name("sse9"), std::nullopt);
}

TEST(Isa, TheEnvironmentForcesEveryAvailableLevel) {
  for (Isa isa : testing::available_levels()) {
    const ForcedLevel level(isa);
    EXPECT_EQ(active_isa().isa, isa);
    const std::string_view kernels = kernels_of(isa).name;
    if (isa != Isa::amx || kernels != "amx_stand_in") {
      EXPECT_TRUE(machine_has(isa));
      EXPECT_EQ(kernels, name(isa));
    }
    EXPECT_NE(active_isa().reason.find(name(isa)), std::string::npos);
  }
}

TEST(Isa, AnUnknownNameIsReportedAndIgnored) {
  const ForcedLevel restore(Isa::portable);
  setenv("HEDDLE_CPU_ISA", "sse9", 1);
  const IsaChoice choice = active_isa();
  EXPECT_NE(choice.reason.find("\"sse9\""), std::string::npos);
  unsetenv("HEDDLE_CPU_ISA");
  EXPECT_EQ(choice.isa, active_isa().isa);
}

// What the machine has decides among levels without products of bf16 of their own, and how fast it
// is with them among the others.
TEST(Isa, TheFastestLevelIsActive) {
  const char* before = std::getenv("HEDDLE_CPU_ISA");
  if (before) GTEST_SKIP() << "HEDDLE_CPU_ISA is set to " << before;
  const IsaChoice choice = active_isa();
  EXPECT_TRUE(machine_has(choice.isa)) << choice.reason;
  for (Isa isa : {Isa::avx2, Isa::avx512}) {
    EXPECT_TRUE(choice.isa >= isa || !is_available(isa)) << choice.reason;
  }
  EXPECT_EQ(active_isa().reason, choice.reason);
  RecordProperty("choice", choice.reason);
}

TEST(Isa, ALevelIsFasterByMoreThanClocksWaver) {
  const auto of = [](double avx512, double pairs, double tiles) {
    const Speed speeds[] = {{Isa::avx512, avx512}, {Isa::avx512_bf16, pairs}, {Isa::amx, tiles}};
    return fastest(speeds);
  };
  EXPECT_EQ(of(100, 200, 1000), Isa::amx);
  EXPECT_EQ(of(100, 50, 1000), Isa::amx);
  EXPECT_EQ(of(100, 50, 60), Isa::avx512);
  EXPECT_EQ(of(100, 200, 150), Isa::avx512_bf16);
  EXPECT_EQ(of(100, 105, 110), Isa::avx512);
}

TEST(Isa, TheReportNamesEachLevelAndOneActive) {
  const std::vector<IsaReport> report = isa_report();
  ASSERT_EQ(report.size(), std::size(kIsas));
  int active = 0;
  for (const IsaReport& line : report) {
    active += line.active;
    EXPECT_FALSE(line.needs.empty());
    EXPECT_EQ(line.available, is_available(line.isa));
  }
  EXPECT_EQ(active, 1);
}

}  // namespace
}  // namespace heddle::engine::cpu
