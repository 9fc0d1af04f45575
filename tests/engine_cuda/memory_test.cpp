// Memory of a device, on a driver that does what the real one may: copies wait until they are
// waited for.
#include "engine/cuda/memory.h"

#include <chrono>
#include <thread>

#include "engine/cuda/events.h"
#include "engine_cuda/fake_machine.h"

namespace heddle::engine::cuda {
namespace {

class Memory : public FakeMachine {
 protected:
  void SetUp() override {
    FakeMachine::SetUp();
    before_ = calls().allocations;
  }
  void TearDown() override {
    EXPECT_EQ(calls().allocations, before_) << "memory was left";
    FakeMachine::TearDown();
  }
  int before_ = 0;
};

void expect_round_trip() {
  const std::array<int, 5> given{1, 2, 3, 4, 5};
  std::array<int, 5> found{};
  const Result<void*> memory = allocate(sizeof given, nullptr);
  ASSERT_TRUE(memory.is_ok()) << memory.status().message();
  EXPECT_TRUE(copy_in(*memory, given.data(), sizeof given, nullptr).is_ok());
  EXPECT_TRUE(copy_out(found.data(), *memory, sizeof found, nullptr).is_ok());
  EXPECT_EQ(found, given);
  EXPECT_TRUE(clear(*memory, sizeof(int), nullptr).is_ok());
  EXPECT_TRUE(copy_out(found.data(), *memory, sizeof found, nullptr).is_ok());
  EXPECT_EQ(found, (std::array{0, 2, 3, 4, 5}));
  EXPECT_TRUE(free(*memory, nullptr).is_ok());
}

TEST_F(Memory, ACopyHasBeenMadeWhenItReturns) {
  expect_round_trip();
  const int pools = calls().pools;
  expect_round_trip();
  EXPECT_EQ(calls().pools, pools) << "a device has one";
}

TEST_F(Memory, IsCopiedOnTheDevice) {
  const std::array<int, 3> given{1, 2, 3};
  std::array<int, 3> found{};
  const Result<void*> from = allocate(sizeof given, nullptr), to = allocate(sizeof given, nullptr);
  ASSERT_TRUE(from.is_ok() && to.is_ok());
  EXPECT_TRUE(copy_in(*from, given.data(), sizeof given, nullptr).is_ok());
  EXPECT_TRUE(copy(*to, *from, sizeof given, nullptr).is_ok());
  EXPECT_TRUE(copy_out(found.data(), *to, sizeof found, nullptr).is_ok());
  EXPECT_EQ(found, given);
  EXPECT_TRUE(free(*from, nullptr).is_ok());
  EXPECT_TRUE(free(*to, nullptr).is_ok());
}

TEST_F(Memory, EventsTellTheTimeBetweenThem) {
  const int events = calls().events;
  const Result<void*> from = create_event(), to = create_event();
  ASSERT_TRUE(from.is_ok() && to.is_ok()) << from.status().message();
  EXPECT_EQ(calls().events, events + 2);
  EXPECT_TRUE(record_event(*from, nullptr).is_ok());
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  EXPECT_TRUE(record_event(*to, nullptr).is_ok());
  EXPECT_GE(*seconds_between(*from, *to), 0.0019);
  destroy_event(*from), destroy_event(*to), destroy_event(nullptr);
  EXPECT_EQ(calls().events, events);
}

TEST_F(Memory, EventsAreAskedAndWaitedFor) {
  const Result<void*> event = create_event();
  ASSERT_TRUE(event.is_ok()) << event.status().message();
  EXPECT_TRUE(*is_passed(*event)) << "it was never recorded";
  setenv("FAKE_CUDA_BEHIND", "50", 1);
  EXPECT_TRUE(record_event(*event, nullptr).is_ok());
  EXPECT_FALSE(*is_passed(*event));
  EXPECT_TRUE(wait_for_event(*event).is_ok());
  EXPECT_TRUE(*is_passed(*event));
  unsetenv("FAKE_CUDA_BEHIND");
  setenv("FAKE_CUDA_CAPTURES", "1", 1);
  EXPECT_EQ(record_event(*event, nullptr).code(), Code::invalid_value);
  unsetenv("FAKE_CUDA_CAPTURES");
  destroy_event(*event);
}

TEST_F(Memory, AThreadWithoutAContextIsGivenOne) {
  setenv("FAKE_CUDA_NO_CONTEXT", "1", 1);
  const int retained = calls().retained_contexts;
  for (int n = 0; n < 3; ++n) std::thread(expect_round_trip).join();
  EXPECT_LE(calls().retained_contexts, retained + 1);
  // Memory that another thread allocated.
  Result<void*> memory = nullptr;
  std::thread([&] { memory = allocate(8, nullptr); }).join();
  ASSERT_TRUE(memory.is_ok());
  std::thread([&] { EXPECT_TRUE(free(*memory, nullptr).is_ok()); }).join();
}

TEST_F(Memory, WhatTheDeviceDoesNotHaveIsRefused) {
  EXPECT_EQ(allocate(SIZE_MAX, nullptr).status().code(), Code::out_of_memory);
  setenv("FAKE_CUDA_ALLOCATIONS", "0", 1);
  const Status status = allocate(12345, nullptr).status();
  EXPECT_EQ(status.code(), Code::out_of_memory);
  EXPECT_EQ(status.message(), "The GPU has no memory for 12345 bytes.");
}

TEST_F(Memory, AStreamThatIsCapturedIsRefused) {
  const Result<void*> memory = allocate(8, nullptr);
  ASSERT_TRUE(memory.is_ok());
  std::array<char, 8> host{};
  setenv("FAKE_CUDA_CAPTURES", "1", 1);
  const std::array<Status, 5> refused{allocate(8, nullptr).status(), clear(*memory, 8, nullptr),
                                      copy_in(*memory, host.data(), 8, nullptr),
                                      copy_out(host.data(), *memory, 8, nullptr),
                                      free(*memory, nullptr)};
  unsetenv("FAKE_CUDA_CAPTURES");
  for (const Status& status : refused) {
    EXPECT_EQ(status.code(), Code::invalid_value);
    EXPECT_EQ(status.message(),
              "The stream is being captured into a CUDA graph, expected one that is not.");
  }
  EXPECT_TRUE(free(*memory, nullptr).is_ok());
}

// Device 1 of the fake driver has no pool yet.
TEST_F(Memory, APoolThatCannotBeSetUpGoes) {
  setenv("FAKE_CUDA_DEVICE", "1", 1);
  setenv("FAKE_CUDA_NO_POOLS", "1", 1);
  const int pools = calls().pools;
  EXPECT_EQ(allocate(8, nullptr).status().message(),
            "cuMemPoolSetAttribute failed: invalid argument (CUDA error 1)");
  EXPECT_EQ(calls().pools, pools);
  unsetenv("FAKE_CUDA_NO_POOLS");
  expect_round_trip();
  EXPECT_EQ(calls().pools, pools + 1);
}

}  // namespace
}  // namespace heddle::engine::cuda
