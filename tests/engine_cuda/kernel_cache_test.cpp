#include "engine/cuda/kernel_cache.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>

namespace heddle::engine::cuda {
namespace {

namespace fs = std::filesystem;

class KernelCacheTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "heddle-cache-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
  }
  void TearDown() override { fs::remove_all(root_); }

  static Cubin cubin_of(const std::string& image) {
    return {.image = {image.begin(), image.end()}};
  }
  static KernelKey key_of(const std::string& source) {
    return kernel_key(source, "sm_90a", {.major = 13, .minor = 0});
  }

  fs::path root_;
};

TEST_F(KernelCacheTest, GivesBackWhatWasStored) {
  const KernelCache cache(root_);
  ASSERT_TRUE(cache.store(key_of("a"), "forward", cubin_of("machine code")).is_ok());
  const Result<Cubin> found = cache.find(key_of("a"));
  ASSERT_TRUE(found.is_ok()) << found.status().message();
  EXPECT_EQ(std::string(found->image.begin(), found->image.end()), "machine code");
}

TEST_F(KernelCacheTest, KeyDependsOnSourceArchitectureAndCompiler) {
  const KernelKey key = kernel_key("a", "sm_90a", {.major = 13, .minor = 0});
  EXPECT_EQ(key.digest(), kernel_key("a", "sm_90a", {.major = 13, .minor = 0}).digest());
  EXPECT_NE(key.digest(), kernel_key("b", "sm_90a", {.major = 13, .minor = 0}).digest());
  EXPECT_NE(key.digest(), kernel_key("a", "sm_80", {.major = 13, .minor = 0}).digest());
  EXPECT_NE(key.digest(), kernel_key("a", "sm_90a", {.major = 13, .minor = 1}).digest());
}

TEST_F(KernelCacheTest, AMissIsNotAnEntry) {
  EXPECT_FALSE(KernelCache(root_).find(key_of("a")).is_ok());
  EXPECT_TRUE(KernelCache(root_).list().empty());
}

TEST_F(KernelCacheTest, ADamagedEntryIsRemovedAndCanBeStoredAgain) {
  const KernelCache cache(root_);
  const KernelKey key = key_of("a");
  ASSERT_TRUE(cache.store(key, "forward", cubin_of("machine code")).is_ok());
  std::ofstream(root_ / key.digest() / "kernel.cubin") << "machine c0de";
  EXPECT_NE(cache.find(key).status().message().find("its checksum is wrong"), std::string::npos);
  EXPECT_FALSE(fs::exists(root_ / key.digest()));
  ASSERT_TRUE(cache.store(key, "forward", cubin_of("machine code")).is_ok());
  EXPECT_TRUE(cache.find(key).is_ok());
}

TEST_F(KernelCacheTest, ATruncatedDescriptionIsRemoved) {
  const KernelCache cache(root_);
  const KernelKey key = key_of("a");
  ASSERT_TRUE(cache.store(key, "forward", cubin_of("machine code")).is_ok());
  fs::resize_file(root_ / key.digest() / "meta.json", 20);
  EXPECT_NE(cache.find(key).status().message().find("does not parse"), std::string::npos);
  EXPECT_FALSE(fs::exists(root_ / key.digest()));
}

TEST_F(KernelCacheTest, ALinkThatLeadsNowhereIsRemovedAndCanBeStoredAgain) {
  const KernelCache cache(root_);
  const KernelKey key = key_of("a");
  fs::create_symlink("nowhere", root_ / key.digest());
  EXPECT_NE(cache.find(key).status().message().find("lacks a file"), std::string::npos);
  ASSERT_TRUE(cache.store(key, "forward", cubin_of("machine code")).is_ok());
  EXPECT_TRUE(cache.find(key).is_ok());
}

TEST_F(KernelCacheTest, AFolderThatCannotBeMadeIsNamed) {
  std::ofstream(root_ / "file") << "text";
  const KernelCache cache(root_ / "file" / "heddle");
  EXPECT_EQ(cache.store(key_of("a"), "forward", cubin_of("machine code")).message(),
            (root_ / "file" / "heddle").string() + " could not be made: Not a directory");
}

TEST_F(KernelCacheTest, LosingTheRaceIsSuccess) {
  const KernelCache cache(root_);
  ASSERT_TRUE(cache.store(key_of("a"), "forward", cubin_of("first")).is_ok());
  ASSERT_TRUE(cache.store(key_of("a"), "forward", cubin_of("second")).is_ok());
  const Result<Cubin> found = cache.find(key_of("a"));
  ASSERT_TRUE(found.is_ok());
  EXPECT_EQ(std::string(found->image.begin(), found->image.end()), "first");
  EXPECT_EQ(cache.list().size(), 1u);
}

TEST_F(KernelCacheTest, ManyProcessesStoreAndFindTheSameKeys) {
  constexpr int kProcesses = 8, kKeys = 20;
  std::vector<pid_t> children;
  for (int process = 0; process < kProcesses; ++process) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      const KernelCache cache(root_);
      bool good = true;
      for (int n = 0; n < kKeys; ++n) {
        const KernelKey key = key_of(std::to_string(n));
        const std::string image(1000 + static_cast<size_t>(n), static_cast<char>('a' + n));
        good = good && cache.store(key, "forward", cubin_of(image)).is_ok();
        const Result<Cubin> found = cache.find(key);
        good =
            good && found.is_ok() && std::string(found->image.begin(), found->image.end()) == image;
      }
      _exit(good ? 0 : 1);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  EXPECT_EQ(KernelCache(root_).list().size(), static_cast<size_t>(kKeys));
}

TEST_F(KernelCacheTest, PruneKeepsTheMostRecentlyUsed) {
  const KernelCache cache(root_);
  for (int n = 0; n < 3; ++n) {
    const KernelKey key = key_of(std::to_string(n));
    ASSERT_TRUE(cache.store(key, "forward", cubin_of(std::string(100000, 'x'))).is_ok());
    const timespec times[2] = {{1000 + n, 0}, {1000 + n, 0}};
    ASSERT_EQ(utimensat(AT_FDCWD, (root_ / key.digest() / "meta.json").c_str(), times, 0), 0);
  }
  ASSERT_TRUE(cache.find(key_of("0")).is_ok());  // Used again: now the most recent.
  const Result<int64_t> removed = cache.prune(250000);
  ASSERT_TRUE(removed.is_ok());
  EXPECT_EQ(*removed, 1);
  EXPECT_TRUE(cache.find(key_of("0")).is_ok());
  EXPECT_FALSE(cache.find(key_of("1")).is_ok());
  EXPECT_TRUE(cache.find(key_of("2")).is_ok());
  ASSERT_TRUE(cache.clear().is_ok());
  EXPECT_TRUE(cache.list().empty());
}

TEST_F(KernelCacheTest, AStrayOfACrashedProcessIsNoEntryAndGoesWhenOld) {
  const KernelCache cache(root_);
  fs::create_directory(root_ / "writing-1-0");
  fs::create_directory(root_ / "writing-2-0");
  const timespec old[2] = {{1000, 0}, {1000, 0}};
  ASSERT_EQ(utimensat(AT_FDCWD, (root_ / "writing-1-0").c_str(), old, 0), 0);
  ASSERT_TRUE(cache.prune(1 << 20).is_ok());
  EXPECT_FALSE(fs::exists(root_ / "writing-1-0"));
  EXPECT_TRUE(fs::exists(root_ / "writing-2-0"));
  EXPECT_TRUE(cache.list().empty());
}

TEST_F(KernelCacheTest, HalfAnEntryIsNoneAndGivesWayToAWholeOne) {
  const KernelCache cache(root_);
  const KernelKey key = key_of("a");
  for (const char* lost : {"meta.json", "kernel.cubin"}) {
    ASSERT_TRUE(cache.store(key, "forward", cubin_of("machine code")).is_ok());
    fs::remove(root_ / key.digest() / lost);
    EXPECT_NE(cache.find(key).status().message().find("it lacks a file"), std::string::npos);
    ASSERT_TRUE(cache.store(key, "forward", cubin_of("machine code")).is_ok());
    EXPECT_TRUE(cache.find(key).is_ok()) << lost;
  }
}

TEST_F(KernelCacheTest, ClearTakesHalfAndEmptyEntriesToo) {
  const KernelCache cache(root_);
  ASSERT_TRUE(cache.store(key_of("a"), "forward", cubin_of("machine code")).is_ok());
  fs::remove(root_ / key_of("a").digest() / "meta.json");
  fs::create_directory(root_ / key_of("b").digest());
  EXPECT_EQ(*cache.clear(), 2);
  EXPECT_TRUE(fs::is_empty(root_));
}

TEST_F(KernelCacheTest, AHostileDescriptionEndsNothing) {
  const KernelCache cache(root_);
  for (const char* meta :
       {R"({"name": 5, "key": ["sm_90a"], "checksum": "x"})", "[]", "null", ""}) {
    const KernelKey key = key_of("a");
    ASSERT_TRUE(cache.store(key, "forward", cubin_of("machine code")).is_ok());
    std::ofstream(root_ / key.digest() / "meta.json") << meta;
    ASSERT_EQ(cache.list().size(), 1u);
    EXPECT_EQ(cache.list()[0].words.name, "");
    EXPECT_TRUE(cache.prune(1 << 20).is_ok());
    EXPECT_NE(cache.find(key).status().message().find("does not parse"), std::string::npos) << meta;
  }
}

TEST_F(KernelCacheTest, WhatIsNoReasonableFileIsNotRead) {
  const KernelCache cache(root_);
  const KernelKey key = key_of("a");
  const fs::path code = root_ / key.digest() / "kernel.cubin";
  const auto expect_replaced = [&] {
    EXPECT_FALSE(cache.find(key).is_ok());
    ASSERT_TRUE(cache.store(key, "forward", cubin_of("machine code")).is_ok());
    EXPECT_TRUE(cache.find(key).is_ok());
  };
  ASSERT_TRUE(cache.store(key, "forward", cubin_of("machine code")).is_ok());
  fs::resize_file(code, uintmax_t{1} << 40);  // of holes
  expect_replaced();
  fs::remove(code);
  ASSERT_EQ(mkfifo(code.c_str(), 0644), 0);
  expect_replaced();
  fs::remove_all(root_ / key.digest());
  std::ofstream(root_ / key.digest()) << "a file";
  expect_replaced();
}

TEST_F(KernelCacheTest, OtherThingsInItsFolderAreLeftAlone) {
  const KernelCache cache(root_);
  ASSERT_TRUE(cache.store(key_of("a"), "forward", cubin_of("machine code")).is_ok());
  fs::create_directory(root_ / "experiments");
  std::ofstream(root_ / "experiments" / "meta.json") << "{}";
  EXPECT_EQ(cache.list().size(), 1u);
  EXPECT_EQ(*cache.clear(), 1);
  EXPECT_TRUE(fs::exists(root_ / "experiments" / "meta.json"));
}

TEST_F(KernelCacheTest, AFullDiskLeavesNothingBehind) {
  const pid_t child = fork();
  if (child == 0) {
    // Files end after 8 bytes, as they do when a disk is full.
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{8, 8};
    setrlimit(RLIMIT_FSIZE, &limit);
    const KernelCache cache(root_);
    const Status status = cache.store(key_of("a"), "forward", cubin_of("machine code"));
    const bool said = status.code() == Code::io_failed &&
                      status.message().find("could not be written") != std::string::npos &&
                      !cache.look().is_ok();
    _exit(said && fs::is_empty(root_) ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(KernelCache(root_).look().is_ok());
  EXPECT_TRUE(fs::is_empty(root_));
}

TEST_F(KernelCacheTest, LookingMakesNothing) {
  using Place = KernelCache::Place;
  EXPECT_EQ(*KernelCache(root_).look(), Place::ready);
  EXPECT_EQ(*KernelCache(root_ / "mistyped" / "heddle").look(), Place::not_there_yet);
  EXPECT_TRUE(fs::is_empty(root_));
  std::ofstream(root_ / "file") << "text";
  const std::string file = (root_ / "file").string();
  for (const fs::path& path : {root_ / "file", root_ / "file" / "heddle"})
    EXPECT_EQ(KernelCache(path).look().status().message(), file + " is no folder");
  fs::create_symlink(root_ / "nowhere", root_ / "link");
  EXPECT_NE(KernelCache(root_ / "link").look().status().message().find("No such file"),
            std::string::npos);
  fs::create_directory_symlink(root_, root_ / "loop");
  EXPECT_EQ(*KernelCache(root_ / "loop").look(), Place::ready);
}

TEST_F(KernelCacheTest, AnEntrySaysWhatItWasMadeFor) {
  const KernelCache cache(root_);
  const UnitSummary summary{.dtype = "bf16", .head_dim = "64", .features = "causal, window"};
  const std::string source = "text";
  ASSERT_TRUE(cache.store(key_of(source), "forward", cubin_of("machine code"), summary).is_ok());
  const KernelKey older{"headers 0123\n--gpu-architecture=sm_80\n" + source};
  ASSERT_TRUE(cache.store(older, "forward", cubin_of("machine code"), summary).is_ok());
  const std::string hostile = "\x1b[2Jforward\n";
  const UnitSummary hostile_summary{.dtype = hostile, .head_dim = hostile, .features = hostile};
  ASSERT_TRUE(cache.store({hostile}, hostile, cubin_of("machine code"), hostile_summary).is_ok());
  for (const KernelCache::Entry& entry : cache.list()) {
    if (entry.digest == KernelKey{hostile}.digest()) {
      EXPECT_EQ(entry.words.name, "");
      EXPECT_EQ(entry.words.made_for, UnitSummary());
      continue;
    }
    const bool is_older = entry.digest == older.digest();
    EXPECT_EQ(entry.words.outdated, is_older);
    EXPECT_EQ(entry.words.architecture, is_older ? "sm_80" : "sm_90a");
    EXPECT_EQ(entry.words.name, "forward");
    EXPECT_EQ(entry.words.made_for, summary);
  }
}

TEST_F(KernelCacheTest, TheLimitIsANumberOfBytes) {
  EXPECT_EQ(*cache_limit_bytes(), kDefaultCacheLimit);
  setenv("HEDDLE_CACHE_BYTES", "5000", 1);
  EXPECT_EQ(*cache_limit_bytes(), 5000);
  for (const char* wrong : {"1G", "-1", "5000 ", "9223372036854775808"}) {
    setenv("HEDDLE_CACHE_BYTES", wrong, 1);
    EXPECT_EQ(cache_limit_bytes().status().message(),
              std::string("HEDDLE_CACHE_BYTES is '") + wrong + "', expected a number of bytes");
  }
  unsetenv("HEDDLE_CACHE_BYTES");
}

TEST_F(KernelCacheTest, AnUnwritableCacheSaysSo) {
  std::ofstream(root_ / "file") << "not a folder";
  const Status status =
      KernelCache(root_ / "file" / "cache").store(key_of("a"), "forward", cubin_of("x"));
  EXPECT_EQ(status.code(), Code::io_failed);
  EXPECT_NE(status.message().find("could not be made"), std::string::npos) << status.message();
}

TEST(CompilationLog, ResourceLinesAreRead) {
  const std::vector<KernelResources> kernels = parse_resources(
      "ptxas info    : 0 bytes gmem\n"
      "ptxas info    : Compiling entry function 'forward' for 'sm_90a'\n"
      "ptxas info    : Function properties for forward\n"
      "    256 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads\n"
      "ptxas info    : Used 168 registers, used 9 barriers, 1024 bytes smem\n"
      "ptxas info    : Compiling entry function 'convert' for 'sm_90a'\n"
      "ptxas info    : Used 32 registers\n");
  ASSERT_EQ(kernels.size(), 2u);
  EXPECT_EQ(kernels[0].kernel, "forward");
  EXPECT_EQ(kernels[0].registers, 168);
  EXPECT_EQ(kernels[0].stack_bytes, 256);
  EXPECT_EQ(kernels[0].spill_store_bytes, 8);
  EXPECT_EQ(kernels[0].spill_load_bytes, 12);
  EXPECT_EQ(kernels[0].shared_bytes, 1024);
  EXPECT_EQ(kernels[1].registers, 32);
}

}  // namespace
}  // namespace heddle::engine::cuda
