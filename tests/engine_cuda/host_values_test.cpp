// Numbers that lie in host memory: kernels read them in the device's.
#include "api/count_allocations.h"
#include "engine/cuda/engine.h"
#include "engine_cuda/fake_machine.h"
#include "kernels/cases.h"

namespace heddle::engine::cuda {
namespace {

using HostValues = FakeMachine;

/// A forward whose score is multiplied by a number in host memory.
problem::AttentionProblem forward_times_host_value(DataType type) {
  problem::AttentionProblem problem = forward_of({});
  const auto id = static_cast<problem::OperandId>(problem.structure.operands.size());
  problem.structure.operands.push_back({.dtype = type, .on_host = true});
  problem.sizes.layouts.push_back({.dims = {1, 1, 1, 1}, .strides = {0, 0, 0, 0}});
  using problem::ScoreOp;
  problem.structure.score = {
      {{ScoreOp::dot}, {.op = ScoreOp::load, .operand = id}, {ScoreOp::multiply, 0, 1}}, 2};
  return problem;
}

TEST_F(HostValues, ANumberPassedByValueIsWrittenForTheKernelThatReadsIt) {
  for (DataType type : {DataType::f32, DataType::bf16, DataType::f64}) {
    const problem::AttentionProblem problem = forward_times_host_value(type);
    const auto plan = cuda_engine().plan(problem);
    ASSERT_TRUE(plan.is_ok()) << plan.status().message();
    Buffers buffers(problem.structure.operands.size());
    double value[2] = {};
    store(type, value, 0, 2.5);
    buffers.pointers.back() = value;
    const int64_t allocations = testing::allocations();
    ASSERT_TRUE((*plan)->execute(buffers.pointers, buffers.memory.data(), nullptr).is_ok());
    EXPECT_EQ(testing::allocations(), allocations);
    const unsigned long long written = calls().value;
    EXPECT_EQ(load(type, &written, 0), 2.5);
    store(type, value, 0, -1.5);
    ASSERT_TRUE((*plan)->execute(buffers.pointers, buffers.memory.data(), nullptr).is_ok());
    const unsigned long long again = calls().value;
    EXPECT_EQ(load(type, &again, 0), -1.5);
  }
}

TEST_F(HostValues, ASinkPassedByValueIsNoAddressOfTheDevice) {
  problem::AttentionProblem problem = forward_of({.features = {Feature::sink}});
  for (const problem::OperandType& type : problem.structure.operands) EXPECT_FALSE(type.on_host);
  problem.structure.operands[static_cast<size_t>(problem.structure.sink)].on_host = true;
  const int before = calls().host_values;
  expect_executes(problem, problem.structure.operands.size());
  EXPECT_GT(calls().host_values, before);
}

}  // namespace
}  // namespace heddle::engine::cuda
