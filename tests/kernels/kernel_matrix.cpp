// Every kernel the CUDA engine generates, over head dims, types and features, compiled for sm_80
// and sm_90a. Compilation needs no GPU; what it shows is that each source is valid and that no
// kernel spills, needs a stack frame (a register array indexed at run time) or too much shared
// memory.
#include <gtest/gtest.h>

#include "engine/cuda/attention_backward_sm80.h"
#include "engine/cuda/attention_forward_sm80.h"
#include "engine/cuda/compiler.h"

namespace heddle::engine::cuda {
namespace {

using problem::AttentionBackwardProblem;
using problem::AttentionProblem;
using problem::KeyBound;
using problem::OperandId;
using problem::ScoreNode;
using problem::ScoreOp;

enum class Feature {
  plain,
  causal,
  soft_cap,
  bias,
  alibi,
  philox,
  threefry,
  dropout_mask,
  block_mask,
  paged,
  unaligned,
  log2
};

constexpr Feature kFeatures[] = {Feature::plain,    Feature::causal,       Feature::soft_cap,
                                 Feature::bias,     Feature::alibi,        Feature::philox,
                                 Feature::threefry, Feature::dropout_mask, Feature::block_mask,
                                 Feature::paged,    Feature::unaligned,    Feature::log2};

const char* name(Feature feature) {
  constexpr const char* kNames[] = {"plain",      "causal", "soft_cap",  "bias",
                                    "alibi",      "philox", "threefry",  "dropout_mask",
                                    "block_mask", "paged",  "unaligned", "log2"};
  return kNames[static_cast<int>(feature)];
}

struct Case {
  DataType dtype = DataType::bf16;
  int qk_dim = 64, v_dim = 64;
  Feature feature = Feature::plain;
  std::string architecture = "sm_80";
};

std::string title(const Case& c) {
  return fmt::format("{}_{}_{}_{}_{}", heddle::name(c.dtype), c.qk_dim, c.v_dim, name(c.feature),
                     c.architecture);
}

class Builder {
 public:
  explicit Builder(AttentionProblem& problem) : problem_(problem) {}
  OperandId operand(DataType dtype, Dims dims) {
    problem_.structure.operands.push_back({.dtype = dtype});
    problem_.sizes.layouts.push_back({.dims = dims, .strides = *dense_strides(dims)});
    return static_cast<OperandId>(problem_.structure.operands.size()) - 1;
  }

 private:
  AttentionProblem& problem_;
};

AttentionProblem forward_of(const Case& c) {
  constexpr int64_t kBatch = 2, kHeads = 8, kLength = 512;
  AttentionProblem problem;
  auto& structure = problem.structure;
  auto& sizes = problem.sizes;
  Builder build(problem);
  const auto io = [&](int64_t columns) {
    return build.operand(c.dtype, {kBatch, kHeads, kLength, columns});
  };
  structure.q = io(c.qk_dim);
  structure.k = io(c.qk_dim);
  structure.v = io(c.v_dim);
  structure.o = io(c.v_dim);
  structure.stats = build.operand(DataType::f32, {kBatch, kHeads, kLength, 1});
  structure.qk_head_dim = c.qk_dim;
  structure.v_head_dim = c.v_dim;
  sizes.batch = kBatch;
  sizes.q_heads = sizes.k_heads = sizes.v_heads = kHeads;
  sizes.q_length = sizes.kv_length = kLength;
  sizes.scale = 0.125;
  const auto constant = [](double value) {
    return ScoreNode{.op = ScoreOp::constant, .value = value};
  };
  switch (c.feature) {
    case Feature::plain:
      break;
    case Feature::causal:
      structure.bounds.push_back(KeyBound{.upper = true, .anchor = problem::Anchor::bottom_right});
      sizes.bound_constants.push_back(1);
      break;
    case Feature::soft_cap:
      structure.score = {{{ScoreOp::dot},
                          constant(50),
                          {ScoreOp::divide, 0, 1},
                          {ScoreOp::tangent_hyperbolic, 2},
                          {ScoreOp::multiply, 3, 1}},
                         4};
      break;
    case Feature::bias: {
      const OperandId bias = build.operand(c.dtype, {1, kHeads, kLength, kLength});
      structure.score = {
          {{ScoreOp::dot}, {.op = ScoreOp::load, .operand = bias}, {ScoreOp::add, 0, 1}}, 2};
      break;
    }
    case Feature::alibi: {
      const OperandId slopes = build.operand(DataType::f32, {1, kHeads, 1, 1});
      structure.score = {{{ScoreOp::dot},
                          {.op = ScoreOp::load, .operand = slopes},
                          {ScoreOp::column},
                          {ScoreOp::row},
                          {ScoreOp::subtract, 2, 3},
                          {ScoreOp::multiply, 1, 4},
                          {ScoreOp::add, 0, 5}},
                         6};
      break;
    }
    case Feature::philox:
      structure.dropout = {.kind = problem::Dropout::Kind::philox,
                           .seed = build.operand(DataType::i64, {1, 1, 1, 1}),
                           .offset = build.operand(DataType::i64, {1, 1, 1, 1})};
      sizes.dropout_probability = 0.1;
      break;
    case Feature::threefry:
      structure.dropout = {.kind = problem::Dropout::Kind::threefry,
                           .seed = build.operand(DataType::u32, {2, 1, 1, 1})};
      sizes.dropout_probability = 0.1;
      sizes.threefry_strides = *dense_strides({kBatch, kHeads, kLength, kLength});
      break;
    case Feature::dropout_mask:
      structure.dropout = {.kind = problem::Dropout::Kind::mask,
                           .mask = build.operand(c.dtype, {kBatch, 1, kLength, kLength})};
      break;
    case Feature::block_mask:
      structure.block_mask = build.operand(DataType::u8, {kBatch, kHeads, 4, 1});
      break;
    case Feature::paged: {
      const OperandId table = build.operand(DataType::i32, {kBatch, 1, 8, 1});
      structure.operands[static_cast<size_t>(structure.k)].page_table = table;
      structure.operands[static_cast<size_t>(structure.v)].page_table = table;
      sizes.layouts[static_cast<size_t>(structure.k)].dims = {16, kHeads, 64, c.qk_dim};
      sizes.layouts[static_cast<size_t>(structure.v)].dims = {16, kHeads, 64, c.v_dim};
      structure.q_lengths = structure.kv_lengths = build.operand(DataType::i32, {kBatch, 1, 1, 1});
      break;
    }
    case Feature::unaligned:
      sizes.layouts[static_cast<size_t>(structure.q)].strides[2] += 1;
      break;
    case Feature::log2:
      structure.softmax_input_is_log2 = true;
      break;
  }
  return problem;
}

AttentionBackwardProblem backward_of(const Case& c) {
  AttentionProblem forward = forward_of(c);
  Builder build(forward);
  const auto like = [&](OperandId id) {
    return build.operand(c.dtype, forward.sizes.layouts[static_cast<size_t>(id)].dims);
  };
  AttentionBackwardProblem problem;
  auto& structure = problem.structure;
  structure.d_o = like(forward.structure.o);
  structure.d_q = like(forward.structure.q);
  structure.d_k = like(forward.structure.k);
  structure.d_v = like(forward.structure.v);
  if (c.feature == Feature::bias) {
    structure.load_gradients.push_back({.load = forward.structure.score.nodes[1].operand,
                                        .gradient = like(forward.structure.score.nodes[1].operand),
                                        .derivative = {{{ScoreOp::gradient}}, 0}});
  }
  if (c.feature == Feature::plain) {
    forward.structure.sink = build.operand(DataType::f32, {1, 8, 1, 1});
    structure.d_sink = build.operand(DataType::f32, {1, 8, 1, 1});
  }
  if (c.feature == Feature::soft_cap) {
    // d/dx of 50 tanh(x / 50) is 1 - tanh(x / 50)^2.
    structure.d_dot = {{{ScoreOp::dot},
                        {.op = ScoreOp::constant, .value = 50},
                        {ScoreOp::divide, 0, 1},
                        {ScoreOp::tangent_hyperbolic, 2},
                        {ScoreOp::multiply, 3, 3},
                        {.op = ScoreOp::constant, .value = 1},
                        {ScoreOp::subtract, 5, 4},
                        {ScoreOp::gradient},
                        {ScoreOp::multiply, 6, 7}},
                       8};
  }
  structure.forward = forward.structure;
  problem.sizes = forward.sizes;
  return problem;
}

void expect_clean(const std::string& source, const std::string& kernel, const Case& c) {
  const Result<Cubin> cubin = compile(source, kernel, c.architecture);
  ASSERT_TRUE(cubin.is_ok()) << cubin.status().message();
  ASSERT_EQ(cubin->kernels.size(), 1u);
  const KernelResources& resources = cubin->kernels[0];
  EXPECT_EQ(resources.kernel, kernel);
  EXPECT_EQ(resources.stack_bytes, 0);
  EXPECT_EQ(resources.spill_store_bytes + resources.spill_load_bytes, 0);
  EXPECT_EQ(cubin->log.find("serialized"), std::string::npos) << cubin->log;
}

class KernelMatrix : public testing::TestWithParam<Case> {};

TEST_P(KernelMatrix, ForwardCompilesWithoutSpills) {
  const AttentionProblem problem = forward_of(GetParam());
  const Result<ForwardSm80Config> config = configure_forward_sm80(problem);
  ASSERT_TRUE(config.is_ok()) << config.status().message();
  EXPECT_LE(config->shared_bytes, kSm80SharedLimit);
  EXPECT_EQ(config->aligned, GetParam().feature != Feature::unaligned);
  std::vector<OperandId> loads;
  expect_clean(source_of_forward_sm80(problem.structure, *config, loads), "attention_forward",
               GetParam());
}

TEST_P(KernelMatrix, BackwardCompilesWithoutSpills) {
  if (GetParam().feature == Feature::paged) {
    EXPECT_EQ(configure_backward_sm80(backward_of(GetParam())).status().message(),
              "cuda: sdpa_backward has no paged K or V");
    return;
  }
  const AttentionBackwardProblem problem = backward_of(GetParam());
  const Result<std::vector<BackwardSm80Step>> steps = configure_backward_sm80(problem);
  ASSERT_TRUE(steps.is_ok()) << steps.status().message();
  for (const BackwardSm80Step& step : *steps) {
    EXPECT_LE(step.shared_bytes, kSm80SharedLimit);
    std::vector<OperandId> loads;
    std::string kernel;
    const std::string source = source_of_backward_sm80(problem.structure, step, loads, kernel);
    SCOPED_TRACE(kernel);
    expect_clean(source, kernel, GetParam());
  }
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const char* architecture : {"sm_80", "sm_90a"}) {
    for (Feature feature : kFeatures) {
      for (int dim : {64, 128, 256})
        all.push_back({DataType::bf16, dim, dim, feature, architecture});
    }
    for (int dim : {8, 72, 96, 192})
      all.push_back({DataType::bf16, dim, dim, Feature::causal, architecture});
    all.push_back({DataType::bf16, 192, 128, Feature::causal, architecture});
    all.push_back({DataType::f16, 128, 128, Feature::causal, architecture});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Sm80Kernels, KernelMatrix, testing::ValuesIn(cases()),
                         [](const testing::TestParamInfo<Case>& info) {
                           return title(info.param);
                         });

}  // namespace
}  // namespace heddle::engine::cuda
