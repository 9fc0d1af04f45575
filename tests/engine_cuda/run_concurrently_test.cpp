#include "engine/cuda/run_concurrently.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <thread>
#include <vector>

namespace heddle::engine::cuda {
namespace {

TEST(RunConcurrently, RunsEachOnce) {
  for (size_t count : {0, 1, 2, 100}) {
    std::vector<std::atomic<int>> runs(count);
    EXPECT_TRUE(run_concurrently(count, [&](size_t n) {
                  ++runs[n];
                  return Status();
                }).is_ok());
    for (const std::atomic<int>& times : runs) EXPECT_EQ(times, 1);
  }
}

TEST(RunConcurrently, OneIsRunByTheCaller) {
  std::thread::id where;
  EXPECT_TRUE(run_concurrently(1, [&](size_t) {
                where = std::this_thread::get_id();
                return Status();
              }).is_ok());
  EXPECT_EQ(where, std::this_thread::get_id());
}

TEST(RunConcurrently, AFailureEndsIt) {
  std::atomic<size_t> runs = 0;
  const Status status = run_concurrently(100000, [&](size_t) -> Status {
    ++runs;
    return error(Code::io_failed, "the disk is gone");
  });
  EXPECT_EQ(status.message(), "the disk is gone");
  EXPECT_LE(runs, std::max(1u, std::thread::hardware_concurrency()));
}

TEST(RunConcurrently, AnExceptionIsTheCallers) {
  for (size_t thrower : {0, 1, 7}) {
    EXPECT_THROW((void)run_concurrently(8,
                                        [&](size_t n) -> Status {
                                          if (n == thrower) throw std::runtime_error("no memory");
                                          return {};
                                        }),
                 std::runtime_error);
  }
}

}  // namespace
}  // namespace heddle::engine::cuda
