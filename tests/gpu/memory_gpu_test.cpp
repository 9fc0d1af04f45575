// Device memory of the C interface on a GPU: in the order of a stream, from threads with and
// without a context.
#include <algorithm>
#include <cstring>
#include <thread>
#include <vector>

#include "gpu/device_graph.h"
#include "gpu/gpu_test.h"
#include "heddle/heddle.h"

namespace heddle::testing {
namespace {

constexpr size_t kBytes = 10'000'019;

std::vector<unsigned char> numbered(unsigned step) {
  std::vector<unsigned char> bytes(kBytes);
  for (size_t i = 0; i < kBytes; ++i) bytes[i] = static_cast<unsigned char>(i * step + i / 256);
  return bytes;
}

void expect_round_trip(void* stream, unsigned step) {
  const std::vector<unsigned char> given = numbered(step);
  std::vector<unsigned char> found(kBytes);
  void* memory = nullptr;
  ASSERT_EQ(heddle_memory_allocate(HEDDLE_CUDA, kBytes, stream, &memory), HEDDLE_OK)
      << heddle_last_error();
  EXPECT_EQ(reinterpret_cast<uintptr_t>(memory) % 256, 0U);
  EXPECT_EQ(heddle_memory_copy_in(HEDDLE_CUDA, memory, given.data(), kBytes, stream), HEDDLE_OK);
  EXPECT_EQ(heddle_memory_copy_out(HEDDLE_CUDA, found.data(), memory, kBytes, stream), HEDDLE_OK);
  EXPECT_TRUE(found == given);
  EXPECT_EQ(heddle_memory_clear(HEDDLE_CUDA, memory, kBytes - 1, stream), HEDDLE_OK);
  EXPECT_EQ(heddle_memory_copy_out(HEDDLE_CUDA, found.data(), memory, kBytes, stream), HEDDLE_OK);
  EXPECT_TRUE(std::all_of(found.begin(), found.end() - 1, [](unsigned char x) { return x == 0; }));
  EXPECT_EQ(found.back(), given.back());
  EXPECT_EQ(heddle_memory_free(HEDDLE_CUDA, memory, stream), HEDDLE_OK) << heddle_last_error();
}

class MemoryOnGpu : public OnGpu {};

TEST_F(MemoryOnGpu, ComesAndGoesByTheThousand) {
  const DeviceStream stream;
  ASSERT_TRUE(stream.status().is_ok()) << stream.status().message();
  const int64_t free_bytes = context_.free_bytes();
  for (unsigned n = 0; n < 1000; ++n) {
    void* memory = nullptr;
    ASSERT_EQ(heddle_memory_allocate(HEDDLE_CUDA, 100 * kBytes, stream.handle(), &memory),
              HEDDLE_OK)
        << "allocation " << n << ": " << heddle_last_error();
    ASSERT_EQ(heddle_memory_free(HEDDLE_CUDA, memory, stream.handle()), HEDDLE_OK);
  }
  // Terabytes in all; what stays is what the pool keeps.
  EXPECT_LT(free_bytes - context_.free_bytes(), int64_t{3} << 30);
  expect_round_trip(nullptr, 3);
  expect_round_trip(stream.handle(), 5);
}

TEST_F(MemoryOnGpu, OfThreadsWithoutAContext) {
  std::vector<std::thread> threads;
  for (unsigned n = 0; n < 8; ++n) threads.emplace_back(expect_round_trip, nullptr, 2 * n + 1);
  for (std::thread& thread : threads) thread.join();
}

TEST_F(MemoryOnGpu, OfMoreThanThereIsIsRefused) {
  for (const size_t bytes : {SIZE_MAX, SIZE_MAX / 2, size_t{1} << 50, size_t{1} << 42}) {
    void* memory = &memory;
    EXPECT_EQ(heddle_memory_allocate(HEDDLE_CUDA, bytes, nullptr, &memory), HEDDLE_OUT_OF_MEMORY)
        << heddle_last_error();
    EXPECT_EQ(memory, nullptr);
  }
  expect_round_trip(nullptr, 9);
}

TEST_F(MemoryOnGpu, OfACapturedStreamIsRefusedAndTheCaptureGoesOn) {
  const DeviceGraph graph([](void* stream) {
    void* memory = nullptr;
    EXPECT_EQ(heddle_memory_allocate(HEDDLE_CUDA, 8, stream, &memory), HEDDLE_INVALID_VALUE);
    EXPECT_NE(std::strstr(heddle_last_error(), "being captured"), nullptr) << heddle_last_error();
    return Status();
  });
  EXPECT_TRUE(graph.status().is_ok()) << graph.status().message();
}

}  // namespace
}  // namespace heddle::testing
