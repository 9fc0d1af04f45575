// Serialized HLO modules through the C interface.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>
#include <thread>

#include "heddle/heddle.h"

namespace {

std::string module(const char* name) {
  std::ifstream file(std::string(HEDDLE_TEST_DATA "/hlo/proto/") + name, std::ios::binary);
  std::ostringstream bytes;
  bytes << file.rdbuf();
  return bytes.str();
}

struct Fused {
  ~Fused() { heddle_fused_module_free(result); }
  heddle_status from(const std::string& bytes) {
    return heddle_fuse_module(bytes.data(), bytes.size(), HEDDLE_CPU, &result);
  }
  std::string bytes() const {
    size_t size = 0;
    const void* data = heddle_fused_module_bytes(result, &size);
    return {static_cast<const char*>(data), size};
  }
  std::string report() const { return heddle_fused_module_report(result); }
  heddle_fused_module* result = nullptr;
};

TEST(FuseModule, FusesAttentionAndThenFindsNoMore) {
  Fused once, twice;
  ASSERT_EQ(HEDDLE_OK, once.from(module("scan_grad.pb"))) << heddle_last_error();
  EXPECT_NE(std::string::npos, once.bytes().find("heddle"));
  EXPECT_NE(std::string::npos, once.report().find("attention_backward"));
  ASSERT_EQ(HEDDLE_OK, twice.from(once.bytes())) << heddle_last_error();
  EXPECT_TRUE(twice.bytes().empty());
}

TEST(FuseModule, LeavesAModuleWithoutAttentionAlone) {
  Fused fused;
  ASSERT_EQ(HEDDLE_OK, fused.from(module("operations.pb"))) << heddle_last_error();
  size_t size = 1;
  EXPECT_EQ(nullptr, heddle_fused_module_bytes(fused.result, &size));
  EXPECT_EQ(0U, size);
  EXPECT_NE(std::string::npos, fused.report().find("\"fusions\": []"));
}

TEST(FuseModule, IsTheSameFromTwoThreadsAtOnce) {
  const std::string bytes = module("scan_grad.pb");
  Fused alone, one, other;
  ASSERT_EQ(HEDDLE_OK, alone.from(bytes));
  std::thread first([&] { EXPECT_EQ(HEDDLE_OK, one.from(bytes)); });
  std::thread second([&] { EXPECT_EQ(HEDDLE_OK, other.from(bytes)); });
  first.join();
  second.join();
  EXPECT_EQ(alone.bytes(), one.bytes());
  EXPECT_EQ(alone.bytes(), other.bytes());
}

TEST(FuseModule, RefusesWhatIsNoModule) {
  Fused fused;
  EXPECT_EQ(HEDDLE_MALFORMED_INPUT, fused.from("HloModule text"));
  EXPECT_STRNE("", heddle_last_error());
  EXPECT_EQ(HEDDLE_MALFORMED_INPUT, fused.from(module("scan_grad.pb").substr(0, 1000)));
  EXPECT_EQ(nullptr, fused.result);
}

TEST(FuseModule, RefusesNullPointersAndUnknownDevices) {
  const std::string bytes = module("operations.pb");
  heddle_fused_module* fused = nullptr;
  EXPECT_EQ(HEDDLE_INVALID_VALUE, heddle_fuse_module(nullptr, 0, HEDDLE_CPU, &fused));
  EXPECT_EQ(HEDDLE_INVALID_VALUE,
            heddle_fuse_module(bytes.data(), bytes.size(), HEDDLE_CPU, nullptr));
  EXPECT_EQ(HEDDLE_INVALID_VALUE,
            heddle_fuse_module(bytes.data(), bytes.size(), static_cast<heddle_device>(7), &fused));
  EXPECT_NE(std::string(heddle_last_error()).find("7"), std::string::npos);
  EXPECT_EQ(nullptr, fused);
  EXPECT_EQ(nullptr, heddle_fused_module_bytes(nullptr, nullptr));
  EXPECT_STREQ("", heddle_fused_module_report(nullptr));
  heddle_fused_module_free(nullptr);
}

}  // namespace
