// A library of operators against a host that counts and fails: nothing is kept, whatever fails.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "heddle/heddle.h"
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

template <class T>
Value value(ElementType type, std::vector<int64_t> dims, T each) {
  Value out{type, std::move(dims), {}, nullptr};
  size_t count = 1;
  for (const int64_t dim : out.dims) count *= static_cast<size_t>(dim);
  out.owned.resize(count * sizeof(T));
  for (size_t n = 0; n < count; ++n) std::memcpy(&out.owned[n * sizeof(T)], &each, sizeof(T));
  out.data = out.owned.data();
  return out;
}

/// The host of all tests, to which the library is registered once.
Host& host() {
  static Host* const registered = [] {
    auto* const made = new Host;
    EXPECT_EQ(made->sentence(RegisterCustomOps(nullptr, &made->base())), "");
    return made;
  }();
  return *registered;
}

class Kernel : public ::testing::Test {
 protected:
  void TearDown() override {
    host().fail_at(0);
    host().be_out_of_memory(false);
  }
};

const abi::CustomOp& operator_named(const std::string& name) {
  for (const abi::CustomOp* op : host().operators()) {
    if (name == op->name(op) && !op->provider(op)) return *op;
  }
  ADD_FAILURE() << "There is no operator " << name;
  std::abort();
}

/// One token of a batch of two behind a past of three rows, in caches of five.
struct Decoding {
  Value query = value(ElementType::f32, {2, 1, 64}, 0.25F),
        key = value(ElementType::f32, {2, 1, 32}, 0.5F),
        next = value(ElementType::f32, {2, 1, 32}, 2.F),
        past_key = value(ElementType::f32, {2, 2, 5, 16}, 1.F),
        past_value = value(ElementType::f32, {2, 2, 5, 16}, 2.F),
        lengths = value(ElementType::i32, {2}, int32_t{3}),
        total = value(ElementType::i32, {1}, int32_t{4}),
        output = value(ElementType::f32, {2, 1, 64}, -7.F);
  abi::KernelContext context{{&query, &key, &next, &past_key, &past_value, &lengths, &total},
                             {&output, &past_key, &past_value}};
  abi::KernelInfo info{{{"num_heads", int64_t{4}}, {"kv_num_heads", int64_t{2}}, {"scale", 0.5F}},
                       {"output", "present_key", "present_value"}};

  float first() const {
    float out;
    std::memcpy(&out, output.data, sizeof out);
    return out;
  }
};

struct Made {
  const abi::CustomOp& op;
  void* kernel = nullptr;
  ~Made() {
    if (kernel) op.destroy(kernel);
  }
};

TEST(Library, TellsOfItsOperators) {
  EXPECT_EQ(host().domain(), "com.microsoft");
  int overloads = 0;
  for (const abi::CustomOp* op : host().operators()) {
    if (std::string(op->name(op)) != "GroupQueryAttention" || op->provider(op)) continue;
    ++overloads;
    EXPECT_EQ(op->version, abi::CustomOp::kVersion);
    EXPECT_EQ(op->input_count(op), 17U);
    EXPECT_EQ(op->output_count(op), 4U);
    EXPECT_EQ(op->input_memory(op, 6), abi::MemoryType::cpu_input);
    EXPECT_EQ(op->input_memory(op, 5), abi::MemoryType::provider);
    EXPECT_EQ(op->input_characteristic(op, 1), abi::Characteristic::optional);
    EXPECT_EQ(op->input_characteristic(op, 6), abi::Characteristic::required);
    EXPECT_EQ(op->input_type(op, 0), op->output_type(op, 0));
    EXPECT_EQ(op->input_type(op, 3), op->output_type(op, 1));
    EXPECT_EQ(op->start_version(op), 1);
  }
  EXPECT_EQ(overloads, 12);  // three types of query, four of caches
  EXPECT_EQ(host().lent(), Lent{});
}

TEST(Library, IsRegisteredAnewWithoutItsOperatorsBeingAddedAgain) {
  const size_t before = host().operators().size();
  EXPECT_EQ(host().sentence(RegisterCustomOps(nullptr, &host().base())), "");
  EXPECT_EQ(host().operators().size(), before);
}

TEST_F(Kernel, RunsInTheHostsMemory) {
  Decoding node;
  Made made{operator_named("GroupQueryAttention")};
  ASSERT_EQ(
      host().sentence(made.op.create_kernel_v2(&made.op, &host().api(), &node.info, &made.kernel)),
      "");
  const uint64_t before = heddle_onnxruntime_calls();
  ASSERT_EQ(host().sentence(made.op.compute_v2(made.kernel, &node.context)), "");
  EXPECT_EQ(heddle_onnxruntime_calls(), before + 1);
  EXPECT_NEAR(node.first(), 2, 1e-6);  // all values are
  float row[16];
  std::memcpy(row, static_cast<const float*>(node.past_key.data) + 3 * 16, sizeof row);
  EXPECT_EQ(row[0], 0.5F);  // the new key, in place
  EXPECT_EQ(host().lent(), Lent{});
}

TEST_F(Kernel, PassesOnWhateverFailsAndKeepsNothing) {
  Decoding node;
  const abi::CustomOp& op = operator_named("GroupQueryAttention");
  int failures = 0;
  for (int n = 1;; ++n, ++failures) {
    host().fail_at(n);
    Made made{op};
    const std::string said =
        host().sentence(op.create_kernel_v2(&op, &host().api(), &node.info, &made.kernel));
    if (said.empty()) break;
    EXPECT_EQ(said, "the host failed");
    EXPECT_EQ(made.kernel, nullptr);
    EXPECT_EQ(host().lent(), Lent{});
  }
  EXPECT_GT(failures, 3);
  host().fail_at(0);

  Made made{op};
  ASSERT_EQ(host().sentence(op.create_kernel_v2(&op, &host().api(), &node.info, &made.kernel)), "");
  for (failures = 0;; ++failures) {
    host().fail_at(failures + 1);
    const uint64_t before = heddle_onnxruntime_calls();
    const std::string said = host().sentence(op.compute_v2(made.kernel, &node.context));
    EXPECT_EQ(host().lent(), Lent{});
    if (said.empty()) break;
    EXPECT_EQ(said, "the host failed");
    EXPECT_EQ(node.first(), -7.F) << "written by a run that failed";
    EXPECT_EQ(heddle_onnxruntime_calls(), before);
  }
  EXPECT_GT(failures, 50);
  EXPECT_NEAR(node.first(), 2, 1e-6);
}

TEST_F(Kernel, SaysWhichPathServesItOnceForEach) {
  const testing::Environment debug("ORT_ENABLE_ATTENTION_KERNEL_DEBUG_INFO", "1");
  Decoding node;
  node.info.name = "layer0/attn";
  const abi::CustomOp& op = operator_named("GroupQueryAttention");
  Made made{op};
  for (int n = 1;; ++n) {  // a name that cannot be had is a failure like others
    host().fail_at(n);
    const std::string said =
        host().sentence(op.create_kernel_v2(&op, &host().api(), &node.info, &made.kernel));
    if (said.empty()) break;
    EXPECT_EQ(host().lent(), Lent{});
  }
  host().fail_at(0);
  ::testing::internal::CaptureStderr();
  for (int run = 0; run < 3; ++run)
    EXPECT_EQ(host().sentence(op.compute_v2(made.kernel, &node.context)), "");
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_TRUE(said.starts_with("heddle: GroupQueryAttention 'layer0/attn': decode: the 2 rows "))
      << said;
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
}

TEST_F(Kernel, IsNotMadeWithASwitchThatIsNeitherOnNorOff) {
  Decoding node;
  const abi::CustomOp& op = operator_named("GroupQueryAttention");
  for (const char* variable : {"HEDDLE_GQA_DEBUG", "ORT_ENABLE_ATTENTION_KERNEL_DEBUG_INFO",
                               "ORT_DISABLE_FLASH_ATTENTION"}) {
    const testing::Environment wrong(variable, "2");
    Made made{op};
    EXPECT_EQ(host().sentence(op.create_kernel_v2(&op, &host().api(), &node.info, &made.kernel)),
              std::string(variable) + " is '2', expected 0 or 1");
    EXPECT_EQ(made.kernel, nullptr);
  }
}

/// A switch changes what equal nodes are planned as.
TEST_F(Kernel, HasAPlanOfItsOwnWhereAPathIsSwitchedOff) {
  Decoding node;
  const abi::CustomOp& op = operator_named("GroupQueryAttention");
  const auto path = [&] {
    const testing::Environment debug("HEDDLE_GQA_DEBUG", "1");
    Made made{op};
    EXPECT_EQ(host().sentence(op.create_kernel_v2(&op, &host().api(), &node.info, &made.kernel)),
              "");
    ::testing::internal::CaptureStderr();
    EXPECT_EQ(host().sentence(op.compute_v2(made.kernel, &node.context)), "");
    const std::string said = ::testing::internal::GetCapturedStderr();
    return said.substr(said.find("': ") + 3, 5);
  };
  EXPECT_EQ(path(), "decod");
  {
    const testing::Environment off("ORT_DISABLE_FLASH_ATTENTION", "1");
    EXPECT_EQ(path(), "memor");
  }
  EXPECT_EQ(path(), "decod");
}

TEST_F(Kernel, OfASkippedNormPassesOnWhateverFailsAndKeepsNothing) {
  Value input = value(ElementType::f16, {2, 3, 8}, uint16_t{0x3c00}),
        skip = value(ElementType::f16, {3, 8}, uint16_t{0x3c00}),
        gamma = value(ElementType::f16, {8}, uint16_t{0x4000}),
        output = value(ElementType::f16, {2, 3, 8}, uint16_t{0}),
        sum = value(ElementType::f16, {2, 3, 8}, uint16_t{0});
  abi::KernelContext context{{&input, &skip, &gamma}, {&output, nullptr, nullptr, &sum}};
  const abi::KernelInfo info{{}, {"output", "", "", "sum"}, ""};
  const abi::CustomOp& op = operator_named("SkipSimplifiedLayerNormalization");
  Made made{op};
  ASSERT_EQ(host().sentence(op.create_kernel_v2(&op, &host().api(), &info, &made.kernel)), "");
  int failures = 0;
  const auto first = [](const Value& tensor) {
    uint16_t bits;
    std::memcpy(&bits, tensor.data, sizeof bits);
    return bits;
  };
  for (;; ++failures) {
    host().fail_at(failures + 1);
    const std::string said = host().sentence(op.compute_v2(made.kernel, &context));
    EXPECT_EQ(host().lent(), Lent{});
    if (said.empty()) break;
    EXPECT_EQ(first(output), 0) << "written by a run that failed";
    EXPECT_EQ(first(sum), 0);
  }
  EXPECT_GT(failures, 20);
  EXPECT_EQ(first(sum), 0x4000);     // 1 + 1
  EXPECT_EQ(first(output), 0x4000);  // normalised to 1, times 2
}

TEST_F(Kernel, SaysThatThereIsNoMemory) {
  Decoding node;
  Made made{operator_named("GroupQueryAttention")};
  ASSERT_EQ(
      host().sentence(made.op.create_kernel_v2(&made.op, &host().api(), &node.info, &made.kernel)),
      "");
  host().be_out_of_memory(true);
  const std::string said = host().sentence(made.op.compute_v2(made.kernel, &node.context));
  EXPECT_NE(said.find("The session's allocator has no"), std::string::npos) << said;
  EXPECT_EQ(node.first(), -7.F);
  EXPECT_EQ(host().lent(), Lent{});
}

TEST_F(Kernel, RefusesWhatTheModelSaysOtherwise) {
  Decoding node;
  Made made{operator_named("GroupQueryAttention")};
  ASSERT_EQ(
      host().sentence(made.op.create_kernel_v2(&made.op, &host().api(), &node.info, &made.kernel)),
      "");
  node.output.type = ElementType::f16;
  EXPECT_EQ(host().sentence(made.op.compute_v2(made.kernel, &node.context)),
            "Output 'output' is of type f16 in the model, expected f32.");
  node.output.type = ElementType::f32;
  node.query.type = static_cast<ElementType>(8);
  EXPECT_EQ(host().sentence(made.op.compute_v2(made.kernel, &node.context)),
            "'query' is of ONNX's element type 8, which no operator takes.");
  node.query.type = ElementType::f32;
  node.query.dims.assign(9, 1);
  EXPECT_EQ(host().sentence(made.op.compute_v2(made.kernel, &node.context)),
            "'query' has 9 dimensions, expected at most 8.");
  node.context.inputs[0] = nullptr;
  EXPECT_EQ(host().sentence(made.op.compute_v2(made.kernel, &node.context)),
            "Input 'query' is required");
  node.context.inputs.clear();
  EXPECT_EQ(host().sentence(made.op.compute_v2(made.kernel, &node.context)),
            "Input 'total_sequence_length' is required");
  EXPECT_EQ(host().lent(), Lent{});
}

TEST_F(Kernel, PlansForMoreShapesThanAreKept) {
  Decoding node;
  Made made{operator_named("GroupQueryAttention")};
  ASSERT_EQ(
      host().sentence(made.op.create_kernel_v2(&made.op, &host().api(), &node.info, &made.kernel)),
      "");
  for (int rows = 4; rows < 304; ++rows) {
    Value k = value(ElementType::f32, {2, 2, rows, 16}, 1.F),
          v = value(ElementType::f32, {2, 2, rows, 16}, 2.F);
    node.context.inputs[3] = node.context.outputs[1] = &k;
    node.context.inputs[4] = node.context.outputs[2] = &v;
    ASSERT_EQ(host().sentence(made.op.compute_v2(made.kernel, &node.context)), "");
    ASSERT_NEAR(node.first(), 2, 1e-6);
  }
  EXPECT_EQ(host().lent(), Lent{});
}

/// One token of two beams behind three rows of shared buffers of five, with everything that a node
/// of MultiHeadAttention may be given.
struct Beams {
  Value query = value(ElementType::f32, {2, 1, 16}, 0.25F),
        key = value(ElementType::f32, {2, 1, 16}, 0.5F),
        next = value(ElementType::f32, {2, 1, 16}, 2.F), bias = value(ElementType::f32, {48}, 1.F),
        mask = value(ElementType::i32, {2, 4}, int32_t{1}),
        added = value(ElementType::f32, {1, 1, 1, 4}, 0.5F),
        past_key = value(ElementType::f32, {2, 2, 5, 8}, 1.F),
        past_value = value(ElementType::f32, {2, 2, 5, 8}, 3.F),
        length = value(ElementType::i32, {1}, int32_t{3}),
        beams = value(ElementType::i32, {1, 2, 5}, int32_t{1}),
        output = value(ElementType::f32, {2, 1, 16}, -7.F),
        scores = value(ElementType::f32, {2, 2, 1, 4}, -7.F);
  abi::KernelContext context{
      {&query, &key, &next, &bias, &mask, &added, &past_key, &past_value, &length, &beams},
      {&output, &past_key, &past_value, &scores}};
  abi::KernelInfo info{{{"num_heads", int64_t{2}}, {"scale", 0.5F}},
                       {"output", "present_key", "present_value", "qk"}};
};

float element(const Value& of, int64_t n) {
  float out;
  std::memcpy(&out, static_cast<const float*>(of.data) + n, sizeof out);
  return out;
}

TEST_F(Kernel, OfMultiHeadAttentionPassesOnWhateverFailsAndKeepsNothing) {
  Beams node;
  const abi::CustomOp& op = operator_named("MultiHeadAttention");
  EXPECT_EQ(op.input_memory(&op, 8), abi::MemoryType::cpu_input);
  Made made{op};
  ASSERT_EQ(host().sentence(op.create_kernel_v2(&op, &host().api(), &node.info, &made.kernel)), "");
  int failures = 0;
  for (;; ++failures) {
    host().fail_at(failures + 1);
    const std::string said = host().sentence(op.compute_v2(made.kernel, &node.context));
    EXPECT_EQ(host().lent(), Lent{});
    if (said.empty()) break;
    EXPECT_EQ(said, "the host failed");
    EXPECT_EQ(element(node.output, 0), -7.F) << "written by a run that failed";
    EXPECT_EQ(element(node.past_key, 3 * 8), 1.F) << "appended by a run that failed";
  }
  EXPECT_GT(failures, 50);
  for (int64_t n = 0; n < 32; ++n) EXPECT_NEAR(element(node.output, n), 3, 1e-6);  // all values are
  for (int64_t head = 0; head < 4; ++head) {
    EXPECT_EQ(element(node.past_key, (head * 5 + 3) * 8), 1.5F);  // the new key with its bias
    EXPECT_EQ(element(node.past_key, (head * 5 + 4) * 8), 1.F);   // behind it nothing is written
    EXPECT_NEAR(element(node.scores, head * 4), 8 * 1.25 * 1 * 0.5 + 0.5, 1e-5);
    EXPECT_NEAR(element(node.scores, head * 4 + 3), 8 * 1.25 * 1.5 * 0.5 + 0.5, 1e-5);
  }
}

}  // namespace
}  // namespace heddle::onnxruntime
