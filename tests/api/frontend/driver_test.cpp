// What the builder asks of the NVIDIA driver itself, CUDA graphs and a device's properties, with a
// driver that launches nothing (fake_libcuda.cpp).
#include <dlfcn.h>
#include <gtest/gtest.h>

#include "heddle/cudnn_frontend.h"

namespace fe = cudnn_frontend;

namespace {

template <class Function>
Function* fake(const char* name) {
  return reinterpret_cast<Function*>(dlsym(dlopen("libcuda.so.1", RTLD_NOW), name));
}

/// A function of a stream that launches kernels of these numbers.
auto launching(std::vector<int> values, int kind = 0) {
  return [values, kind](void* stream) {
    for (int value : values) fake<void(void*, int, int)>("fake_launch")(stream, kind, value);
    return fe::error_t();
  };
}

class BuildersDriver : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(fe::detail::call_driver("cuGraphCreate", &graph, 0u).is_good());
  }
  void TearDown() override {
    EXPECT_TRUE(fe::detail::call_driver("cuGraphDestroy", graph).is_good());
    EXPECT_EQ(fake<int()>("fake_live")(), 0) << "streams and graphs left";
  }
  std::vector<int> values() {
    std::vector<void*> nodes;
    EXPECT_TRUE(fe::detail::kernel_nodes(graph, nodes).is_good());
    std::vector<int> found;
    for (void* node : nodes) {
      int value = 0;
      EXPECT_TRUE(fe::detail::call_driver("cuGraphKernelNodeGetParams_v2", node, &value).is_good());
      found.push_back(value);
    }
    return found;
  }

  CUgraph_st* graph = nullptr;
};

TEST_F(BuildersDriver, PutsLaunchesIntoAGraphAndGivesThemOtherArguments) {
  ASSERT_TRUE(fe::detail::capture(graph, launching({3, 5})).is_good());
  EXPECT_EQ(values(), (std::vector<int>{3, 5}));
  ASSERT_TRUE(fe::detail::capture_again(graph, launching({7, 2})).is_good());
  EXPECT_EQ(values(), (std::vector<int>{7, 2}));
}

TEST_F(BuildersDriver, RefusesAGraphOfOtherLaunches) {
  ASSERT_TRUE(fe::detail::capture(graph, launching({3, 5})).is_good());
  const fe::error_t fewer = fe::detail::capture_again(graph, launching({7}));
  EXPECT_EQ(fewer.get_code(), fe::error_code_t::INVALID_VALUE);
  EXPECT_NE(fewer.get_message().find("has 2 kernels and the call 1"), std::string::npos);
  EXPECT_EQ(values(), (std::vector<int>{3, 5})) << "nothing is written";
  ASSERT_TRUE(fe::detail::capture(graph, launching({1}, 2)).is_good());
  const fe::error_t copies = fe::detail::capture_again(graph, launching({7, 2, 1}));
  EXPECT_NE(copies.get_message().find("a node of the driver's kind 2"), std::string::npos);
}

TEST_F(BuildersDriver, HandsOnWhatTheCallSays) {
  const auto failing = [](void*) {
    return fe::error_t{fe::error_code_t::INVALID_VARIANT_PACK, "no such memory"};
  };
  EXPECT_EQ(fe::detail::capture(graph, failing).get_message(), "no such memory");
  EXPECT_EQ(fe::detail::capture_again(graph, failing).get_message(), "no such memory");
}

TEST_F(BuildersDriver, NamesAFunctionThatAnOldDriverHasNot) {
  const fe::error_t error = fe::detail::call_driver("cuOfLater", 1);
  EXPECT_EQ(error.get_code(), fe::error_code_t::CUDA_API_FAILED);
  EXPECT_NE(error.get_message().find("has no cuOfLater, expected one of CUDA 12.3"),
            std::string::npos);
}

TEST_F(BuildersDriver, KnowsADevicesProperties) {
  fe::DeviceProperties properties;
  ASSERT_TRUE(properties.set_device_id(0).build().is_good());
  EXPECT_EQ(properties.get_sm_version(), 90);
  EXPECT_EQ(properties.get_sm_count(), 132);
  const fe::error_t none = properties.set_device_id(3).build();
  EXPECT_EQ(none.get_code(), fe::error_code_t::CUDA_API_FAILED);
  EXPECT_EQ(none.get_message(), "cuDeviceGet failed with CUDA error 101.");
}

}  // namespace
