// Choosing an instruction set by name and by machine.
#include "engine/cpu/isa.h"

#include <gtest/gtest.h>

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
    EXPECT_EQ(kernels_of(isa).name, name(isa));
    EXPECT_NE(active_isa().reason.find(name(isa)), std::string::npos);
  }
}

TEST(Isa, AnUnknownNameIsReportedAndIgnored) {
  const ForcedLevel restore(Isa::portable);
  setenv("HEDDLE_CPU_ISA", "sse9", 1);
  EXPECT_EQ(active_isa().isa, testing::available_levels().back());
  EXPECT_NE(active_isa().reason.find("\"sse9\""), std::string::npos);
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
