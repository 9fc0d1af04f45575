// The library's operators for CUDA's provider, on a driver that runs nothing: whose stream, memory
// and addresses kernels are launched with, and that nothing is kept, whatever fails.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>

#include "engine_cuda/fake/calls.h"
#include "host.h"
#include "support/environment.h"

extern "C" {
heddle::onnxruntime::abi::Status* RegisterCustomOps(
    heddle::onnxruntime::abi::SessionOptions* options,
    const heddle::onnxruntime::abi::ApiBase* base);
uint64_t heddle_onnxruntime_calls(void);
}

namespace heddle::onnxruntime {
namespace {

using abi::ElementType;
using abi::Value;

/// A tensor of a GPU, of zeros. What holds one thing is no tensor of another: addresses differ.
Value on_gpu(ElementType type, std::vector<int64_t> dims, size_t element_bytes, int gpu = 0) {
  Value out{type, std::move(dims), {}, nullptr, gpu};
  size_t bytes = element_bytes;
  for (const int64_t dim : out.dims) bytes *= static_cast<size_t>(dim);
  constexpr size_t kAlignment = 256;
  out.owned.resize(bytes + kAlignment);
  const auto address = reinterpret_cast<uintptr_t>(out.owned.data());
  out.data = out.owned.data() + (kAlignment - address % kAlignment) % kAlignment;
  return out;
}

Value number(int32_t value) {
  Value out{ElementType::i32, {1}, {}, nullptr};
  out.owned.resize(sizeof value);
  std::memcpy(out.owned.data(), &value, sizeof value);
  out.data = out.owned.data();
  return out;
}

/// One token of a batch of two in buffers of 512 rows that past and present share.
struct Decoding {
  explicit Decoding(int gpu = 0) : gpu(gpu) {}
  int gpu;
  Value query = on_gpu(ElementType::f16, {2, 1, 256}, 2, gpu),
        key = on_gpu(ElementType::f16, {2, 1, 128}, 2, gpu),
        next = on_gpu(ElementType::f16, {2, 1, 128}, 2, gpu),
        past_key = on_gpu(ElementType::f16, {2, 2, 512, 64}, 2, gpu),
        past_value = on_gpu(ElementType::f16, {2, 2, 512, 64}, 2, gpu),
        lengths = on_gpu(ElementType::i32, {2}, 4, gpu), total = number(400),
        output = on_gpu(ElementType::f16, {2, 1, 256}, 2, gpu);
  int stream = 0;
  abi::KernelContext context{{&query, &key, &next, &past_key, &past_value, &lengths, &total},
                             {&output, &past_key, &past_value},
                             &stream};
  abi::KernelInfo info{{{"num_heads", int64_t{4}}, {"kv_num_heads", int64_t{2}}},
                       {"output", "present_key", "present_value"},
                       "layer0/attn",
                       gpu};
};

struct Made {
  const abi::CustomOp& op;
  void* kernel = nullptr;
  ~Made() {
    if (kernel) op.destroy(kernel);
  }
};

/// A machine whose driver and compiler do nothing, and a host to which the library is registered.
class DeviceKernel : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    // The engine opens it by its name, which then is this one's.
    void* const driver = dlopen(FAKE_CUDA, RTLD_NOW | RTLD_GLOBAL);
    ASSERT_NE(driver, nullptr) << dlerror();
    calls_ = reinterpret_cast<testing::FakeCudaCalls* (*)()>(dlsym(driver, "fake_cuda_calls"))();
  }
  void SetUp() override {
    std::string pattern =
        (std::filesystem::temp_directory_path() / "heddle-device-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    cache_ = pattern;
    setenv("HEDDLE_CACHE_DIR", cache_.c_str(), 1);
    setenv("HEDDLE_NVRTC", FAKE_NVRTC, 1);
    ASSERT_EQ(host_.sentence(RegisterCustomOps(nullptr, &host_.base())), "");
  }
  void TearDown() override {
    EXPECT_EQ(host_.lent(), Lent{});
    std::filesystem::remove_all(cache_);
  }

  /// The first overload of an operator with that type of its first input, for CUDA's provider.
  const abi::CustomOp& op(const std::string& name, ElementType type) {
    for (const abi::CustomOp* one : host_.operators()) {
      const char* const provider = one->provider(one);
      if (provider && provider == std::string("CUDAExecutionProvider") && name == one->name(one) &&
          one->input_type(one, 0) == type)
        return *one;
    }
    ADD_FAILURE() << "There is no operator " << name;
    std::abort();
  }
  std::string make(Made& made, const abi::KernelInfo& info) {
    return host_.sentence(made.op.create_kernel_v2(&made.op, &host_.api(), &info, &made.kernel));
  }
  std::string run(const Made& made, abi::KernelContext& context) {
    return host_.sentence(made.op.compute_v2(made.kernel, &context));
  }

  static inline Host host_;
  static inline testing::FakeCudaCalls* calls_ = nullptr;
  std::filesystem::path cache_;
};

TEST_F(DeviceKernel, IsThereForEveryOverloadOfTheCpus) {
  std::map<std::string, int> of_cpu, of_cuda;
  for (const abi::CustomOp* one : host_.operators()) {
    const char* const provider = one->provider(one);
    ++(provider ? of_cuda : of_cpu)[one->name(one)];
    if (provider) EXPECT_STREQ(provider, "CUDAExecutionProvider");
  }
  EXPECT_EQ(of_cpu, of_cuda);
  EXPECT_EQ(of_cuda["GroupQueryAttention"], 12);
  const abi::CustomOp& gqa = op("GroupQueryAttention", ElementType::f16);
  EXPECT_EQ(gqa.input_memory(&gqa, 6), abi::MemoryType::cpu_input);
  EXPECT_EQ(gqa.input_memory(&gqa, 5), abi::MemoryType::provider);
  const abi::CustomOp& mha = op("MultiHeadAttention", ElementType::f16);
  EXPECT_EQ(mha.input_memory(&mha, 8), abi::MemoryType::cpu_input);
}

TEST_F(DeviceKernel, RunsOnTheSessionsStreamInItsMemory) {
  Decoding node;
  Made made{op("GroupQueryAttention", ElementType::f16)};
  ASSERT_EQ(make(made, node.info), "");
  const uint64_t before = heddle_onnxruntime_calls();
  const int blocks = host_.blocks_for_streams(), launches = calls_->launches,
            allocations = calls_->allocations;
  for (int step = 0; step < 3; ++step) ASSERT_EQ(run(made, node.context), "");
  EXPECT_EQ(heddle_onnxruntime_calls(), before + 3);
  EXPECT_GT(calls_->launches, launches);
  EXPECT_EQ(calls_->stream, &node.stream);
  EXPECT_EQ(calls_->appended_q, node.query.data);
  EXPECT_EQ(calls_->appended_k, node.key.data);
  EXPECT_EQ(calls_->cache_k, node.past_key.data);
  EXPECT_EQ(host_.blocks_for_streams(), blocks + 3);  // a decoding step has a workspace
  EXPECT_EQ(calls_->allocations, allocations);        // none of the driver
}

/// What a session captures into a graph is launched, and waits for nothing.
TEST_F(DeviceKernel, LaunchesAloneWhileTheStreamIsCaptured) {
  Decoding node;
  Made made{op("GroupQueryAttention", ElementType::f16)};
  ASSERT_EQ(make(made, node.info), "");
  ASSERT_EQ(run(made, node.context), "");  // plans and loads
  const testing::Environment captured("FAKE_CUDA_CAPTURES", "1");
  const int libraries = calls_->libraries, waits = calls_->synchronizations,
            graphs = calls_->graph_launches, allocations = calls_->allocations;
  const int launches = calls_->launches;
  ASSERT_EQ(run(made, node.context), "");
  EXPECT_GT(calls_->launches, launches);
  EXPECT_EQ(calls_->libraries, libraries);
  EXPECT_EQ(calls_->synchronizations, waits);
  EXPECT_EQ(calls_->graph_launches, graphs);
  EXPECT_EQ(calls_->allocations, allocations);
}

TEST_F(DeviceKernel, RunsOnItsProvidersGpu) {
  for (const int gpu : {0, 1}) {
    const testing::Environment current("FAKE_CUDA_DEVICE", gpu == 0 ? "0" : "1");
    Decoding node(gpu);
    Made made{op("GroupQueryAttention", ElementType::f16)};
    ASSERT_EQ(make(made, node.info), "");
    ASSERT_EQ(run(made, node.context), "");
    EXPECT_EQ(calls_->stream, &node.stream);
    EXPECT_EQ(calls_->cache_k, node.past_key.data);
  }
}

TEST_F(DeviceKernel, PassesOnWhateverFailsAndKeepsNothing) {
  Decoding node;
  for (int n = 1;; ++n) {
    host_.fail_at(n);
    Made tried{op("GroupQueryAttention", ElementType::f16)};
    const std::string said = make(tried, node.info);
    if (said.empty()) break;
    EXPECT_EQ(said, "the host failed");
    EXPECT_EQ(tried.kernel, nullptr);
    EXPECT_EQ(host_.lent(), Lent{});
  }
  host_.fail_at(0);
  Made made{op("GroupQueryAttention", ElementType::f16)};
  ASSERT_EQ(make(made, node.info), "");
  ASSERT_EQ(run(made, node.context), "");
  const Lent kept = host_.lent();  // the kernel's allocator
  for (int failures = 0;; ++failures) {
    host_.fail_at(failures + 1);
    const int launches = calls_->launches;
    const uint64_t before = heddle_onnxruntime_calls();
    const std::string said = run(made, node.context);
    EXPECT_EQ(host_.lent(), kept);
    if (said.empty()) {
      EXPECT_GT(failures, 50);
      break;
    }
    EXPECT_EQ(said, "the host failed");
    EXPECT_EQ(calls_->launches, launches) << "launched by a run that failed";
    EXPECT_EQ(heddle_onnxruntime_calls(), before);
  }
  host_.fail_at(0);
  host_.be_out_of_memory(true);
  const std::string said = run(made, node.context);
  host_.be_out_of_memory(false);
  EXPECT_NE(said.find("The session's allocator has no"), std::string::npos) << said;
}

/// What is done in the host's memory no GPU does: here a mask is filled up to a buffer's length.
TEST_F(DeviceKernel, RefusesWhatIsDoneInTheHostsMemory) {
  Value query = on_gpu(ElementType::f16, {2, 1, 128}, 2),
        key = on_gpu(ElementType::f16, {2, 1, 128}, 2),
        next = on_gpu(ElementType::f16, {2, 1, 128}, 2), mask = on_gpu(ElementType::i32, {2, 4}, 4),
        past_key = on_gpu(ElementType::f16, {2, 2, 8, 64}, 2),
        past_value = on_gpu(ElementType::f16, {2, 2, 8, 64}, 2), length = number(3),
        output = on_gpu(ElementType::f16, {2, 1, 128}, 2);
  int stream = 0;
  abi::KernelContext context{
      {&query, &key, &next, nullptr, &mask, nullptr, &past_key, &past_value, &length},
      {&output, &past_key, &past_value},
      &stream};
  const abi::KernelInfo info{
      {{"num_heads", int64_t{2}}}, {"output", "present_key", "present_value"}, "", 0};
  Made made{op("MultiHeadAttention", ElementType::f16)};
  ASSERT_EQ(make(made, info), "");
  EXPECT_EQ(run(made, context),
            "Heddle runs this on a CPU alone: mask or attention_bias beside a shared buffer is "
            "filled up to its length. A session without CUDAExecutionProvider takes it.");
  context.inputs[4] = nullptr;
  EXPECT_EQ(run(made, context), "");
  EXPECT_EQ(calls_->appended_k, key.data);
  EXPECT_EQ(calls_->value, 3U);  // past_sequence_length, of the host's memory
}

/// A layer that shares another's cache hands it on: as that cache, or as one of its own.
TEST_F(DeviceKernel, HandsOnACacheThatIsShared) {
  Decoding node;
  node.key.dims[1] = node.next.dims[1] = 0;
  Value present_key = node.past_key, present_value = node.past_value;
  Made made{op("GroupQueryAttention", ElementType::f16)};
  ASSERT_EQ(make(made, node.info), "");
  ASSERT_EQ(run(made, node.context), "");
  node.context.outputs = {&node.output, &present_key, &present_value};
  const int launches = calls_->launches;
  ASSERT_EQ(run(made, node.context), "");
  EXPECT_GT(calls_->launches, launches);
  EXPECT_EQ(calls_->cache_k, present_key.data);
}

/// Q, K and V of one packed input are read where they lie.
TEST_F(DeviceKernel, ReadsPackedHeadsInPlace) {
  Value packed = on_gpu(ElementType::f16, {2, 3, 2, 3, 64}, 2),
        output = on_gpu(ElementType::f16, {2, 3, 128}, 2),
        present_key = on_gpu(ElementType::f16, {2, 2, 3, 64}, 2),
        present_value = on_gpu(ElementType::f16, {2, 2, 3, 64}, 2);
  int stream = 0;
  abi::KernelContext context{{&packed}, {&output, &present_key, &present_value}, &stream};
  const abi::KernelInfo info{
      {{"num_heads", int64_t{2}}}, {"output", "present_key", "present_value"}, "", 0};
  Made made{op("MultiHeadAttention", ElementType::f16)};
  ASSERT_EQ(make(made, info), "");
  ASSERT_EQ(run(made, context), "");
  EXPECT_EQ(calls_->appended_k, static_cast<const char*>(packed.data) + 64 * 2);
  EXPECT_EQ(calls_->cache_k, present_key.data);
}

}  // namespace
}  // namespace heddle::onnxruntime
