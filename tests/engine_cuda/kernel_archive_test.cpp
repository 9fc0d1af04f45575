// Kernels that a package carries: found by what they were made from, or not at all.
#include "engine/cuda/kernel_archive.h"

#include <sys/stat.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>

#include "engine/cuda/compiled_kernel.h"
#include "engine/cuda/engine.h"
#include "engine_cuda/fake_machine.h"
#include "kernels/cases.h"
#include "kernels/lowered.h"

namespace heddle::engine::cuda {
namespace {

namespace fs = std::filesystem;
using ::testing::ExitedWithCode;

const CompilerVersion kMaker{.major = 13, .minor = 0};

ArchivedKernel archived(const std::string& name, const std::string& source,
                        const std::string& architecture, const std::string& code) {
  Cubin cubin;
  cubin.image.assign(code.begin(), code.end());
  return {{name, source, {"bf16", "128", "causal"}}, architecture, std::move(cubin)};
}

class KernelArchiveTest : public FakeMachine {
 protected:
  void SetUp() override {
    FakeMachine::SetUp();
    ASSERT_TRUE(write_archive(path(), kernels_, kMaker).is_ok());
  }
  fs::path path() const { return root_ / "share" / "kernels"; }
  std::string bytes() const {
    std::ifstream file(path(), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void rewrite(const std::string& bytes) const {
    std::ofstream(path(), std::ios::binary | std::ios::trunc) << bytes;
  }

  std::vector<ArchivedKernel> kernels_ = {archived("forward", "source a", "sm_90a", "code of a"),
                                          archived("forward", "source a", "sm_80", "another code"),
                                          archived("backward", "source b", "sm_90a", "code of b")};
};

TEST_F(KernelArchiveTest, EveryKernelIsFoundByItsSourceAndArchitecture) {
  const Result<KernelArchive> archive = KernelArchive::open(path());
  ASSERT_TRUE(archive.is_ok()) << archive.status().message();
  EXPECT_EQ(archive->made_by().major, 13);
  EXPECT_EQ(archive->list().size(), 3u);
  for (const EntryWords& entry : archive->list()) {
    EXPECT_FALSE(entry.name.empty() || entry.outdated) << entry.architecture;
    EXPECT_EQ(entry.made_for.features, "causal");
  }
  for (const ArchivedKernel& kernel : kernels_) {
    const Result<Cubin> found = archive->find(kernel.unit.source, kernel.architecture);
    ASSERT_TRUE(found.is_ok()) << found.status().message();
    EXPECT_EQ(found->image, kernel.cubin.image);
  }
  for (const auto& [source, architecture] :
       {std::pair("source b", "sm_80"), std::pair("source c", "sm_90a"), std::pair("", "")}) {
    EXPECT_EQ(archive->find(source, architecture).status().message(),
              path().string() + " has no such kernel");
  }
}

TEST_F(KernelArchiveTest, TheSameKernelsMakeTheSameFile) {
  const std::string before = bytes();
  std::swap(kernels_.front(), kernels_.back());
  ASSERT_TRUE(write_archive(path(), kernels_, kMaker).is_ok());
  EXPECT_EQ(bytes(), before);
}

TEST_F(KernelArchiveTest, WhatIsNoFileIsNotReplaced) {
  const std::string pipe = (root_ / "pipe").string();
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(write_archive(pipe, kernels_, kMaker).message(),
            pipe + " is no file, expected one or a name for one");
  EXPECT_TRUE(fs::is_fifo(pipe));
}

TEST_F(KernelArchiveTest, OneThatIsCutShortOrNoneIsRefused) {
  const std::string whole = bytes();
  for (size_t length = 0; length < whole.size(); ++length) {
    rewrite(whole.substr(0, length));
    ASSERT_FALSE(KernelArchive::open(path()).is_ok()) << length;
  }
  rewrite(whole + "x");
  const auto length = std::to_string(whole.size());
  EXPECT_EQ(KernelArchive::open(path()).status().message(),
            path().string() + " is not used: it has " + std::to_string(whole.size() + 1) +
                " bytes, and says that it has " + length);
  for (const char* none : {"/no/such", "/dev/null", "/"})
    EXPECT_FALSE(KernelArchive::open(none).is_ok()) << none;
}

TEST_F(KernelArchiveTest, NoDamageServesAnotherKernel) {
  const std::string whole = bytes();
  for (size_t at = 0; at < whole.size(); ++at) {
    for (const unsigned bit : {0u, 3u, 7u}) {
      std::string damaged = whole;
      damaged[at] = static_cast<char>(static_cast<unsigned char>(damaged[at]) ^ 1u << bit);
      rewrite(damaged);
      const Result<KernelArchive> archive = KernelArchive::open(path());
      if (!archive) continue;
      (void)archive->list();
      for (const ArchivedKernel& kernel : kernels_) {
        const Result<Cubin> found = archive->find(kernel.unit.source, kernel.architecture);
        if (found.is_ok()) {
          ASSERT_EQ(found->image, kernel.cubin.image) << at;
        }
      }
    }
  }
}

/// A file whose index is whole and says what it likes.
TEST_F(KernelArchiveTest, AHostileIndexReadsNothingOutsideTheFile) {
  constexpr size_t kHeader = 48, kEntry = 64, kChecksumAt = 32;
  const std::string whole = bytes();
  for (const uint64_t value : {uint64_t{0}, uint64_t{whole.size()}, uint64_t{1} << 40, ~uint64_t{0},
                               ~uint64_t{0} - whole.size()}) {
    for (const size_t field : {32u, 40u, 48u, 56u}) {
      std::string hostile = whole;
      std::memcpy(hostile.data() + kHeader + field, &value, sizeof value);
      const uint64_t sum = checksum(std::span(hostile).subspan(kHeader, 3 * kEntry));
      std::memcpy(hostile.data() + kChecksumAt, &sum, sizeof sum);
      rewrite(hostile);
      const Result<KernelArchive> archive = KernelArchive::open(path());
      if (!archive) continue;
      (void)archive->list();
      for (const ArchivedKernel& kernel : kernels_) {
        const Result<Cubin> found = archive->find(kernel.unit.source, kernel.architecture);
        if (found.is_ok()) {
          ASSERT_EQ(found->image, kernel.cubin.image) << field << " " << value;
        }
      }
    }
  }
}

TEST_F(KernelArchiveTest, AKernelOfOtherDeviceCodeIsNotServed) {
  // As another version of the library left it: under this one's digest, made from other headers.
  std::string stale = bytes();
  const size_t at = stale.find("headers ");
  ASSERT_NE(at, std::string::npos);
  for (size_t next = at; next != std::string::npos; next = stale.find("headers ", next + 1))
    stale[next + 8] = stale[next + 8] == '0' ? '1' : '0';
  rewrite(stale);
  const Result<KernelArchive> archive = KernelArchive::open(path());
  ASSERT_TRUE(archive.is_ok());
  for (const EntryWords& entry : archive->list()) EXPECT_TRUE(entry.outdated);
  for (const ArchivedKernel& kernel : kernels_) {
    const Status status = archive->find(kernel.unit.source, kernel.architecture).status();
    EXPECT_TRUE(status.message().ends_with("is not used: it was made from another source"))
        << status.message();
  }
}

// ---- Plans by an archive. Each in a process of its own: what loaded a compiler keeps it.

[[noreturn]] void leave(const Status& status) {
  std::fputs(status.message().c_str(), stderr);
  std::_Exit(status.is_ok() ? 0 : 1);
}

class PlansByAnArchive : public KernelArchiveTest {
 protected:
  void SetUp() override {
    KernelArchiveTest::SetUp();
    const auto units = units_of(forward_of(carried_), "sm_90a");
    ASSERT_TRUE(units.is_ok());
    std::vector<ArchivedKernel> kernels;
    for (const KernelUnit& unit : *units)
      kernels.push_back(archived(unit.name, unit.source, "sm_90a", "no machine code"));
    ASSERT_TRUE(write_archive(path(), kernels, kMaker).is_ok());
    setenv("HEDDLE_KERNELS", path().c_str(), 1);
  }
  void TearDown() override {
    unsetenv("HEDDLE_KERNELS");
    KernelArchiveTest::TearDown();
  }
  [[noreturn]] static void plan_without_compiler(const Case& c) {
    setenv("HEDDLE_NVRTC", "/no/such", 1);
    leave(cuda_engine().plan(forward_of(c)).status());
  }

  const Case carried_{.qk_dim = 128, .v_dim = 128, .length = 2048};
  const Case other_{.qk_dim = 40, .v_dim = 40, .length = 2048};
};

TEST_F(PlansByAnArchive, NeedNoCompilerAndLeaveTheCacheAlone) {
  EXPECT_EXIT(plan_without_compiler(carried_), ExitedWithCode(0), "");
  EXPECT_FALSE(fs::exists(root_ / "cache"));
  EXPECT_EQ(compilations(), 0);
}

TEST_F(PlansByAnArchive, SayWhatIsMissingWhereThereIsNoCompilerEither) {
  EXPECT_EXIT(plan_without_compiler(other_), ExitedWithCode(1),
              "could not be loaded .tried /no/such.*share/kernels has no such kernel");
  fs::resize_file(path(), 1000);
  EXPECT_EXIT(plan_without_compiler(carried_), ExitedWithCode(1),
              "could not be loaded .tried /no/such.*share/kernels is not used: it has 1000 bytes");
  EXPECT_EXIT(
      {
        setenv("HEDDLE_KERNELS", "", 1);
        plan_without_compiler(carried_);
      },
      ExitedWithCode(1), "HEDDLE_KERNELS is set to nothing");
}

TEST_F(PlansByAnArchive, CompileWhatItLacks) {
  ASSERT_TRUE(cuda_engine().plan(forward_of(other_)).is_ok());
  EXPECT_EQ(compilations(), 1);
}

TEST_F(PlansByAnArchive, ADriverOlderThanItsCompilerIsGivenNothingOfIt) {
  const auto with_driver = [&](const char* version) {
    setenv("FAKE_CUDA_VERSION", version, 1);
    plan_without_compiler(carried_);
  };
  EXPECT_EXIT(with_driver("12080"), ExitedWithCode(1),
              "is not used: NVRTC 13.0 compiled it, and the driver supports CUDA 12.8");
  EXPECT_EXIT(with_driver("13020"), ExitedWithCode(0), "");
}

}  // namespace
}  // namespace heddle::engine::cuda
