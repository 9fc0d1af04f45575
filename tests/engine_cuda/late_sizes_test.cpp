// Sizes that come at an execution: the plan's kernels run them, and nothing is compiled.
#include "problem/late_sizes.h"

#include "engine/cuda/engine.h"
#include "engine_cuda/fake_machine.h"
#include "kernels/cases.h"
#include "kernels/streaming_cases.h"

namespace heddle::engine::cuda {
namespace {

class LateSizes : public FakeMachine {
 protected:
  /// The plan of `planned` at the sizes of `given`, which compiles nothing and makes no graphs.
  Result<std::shared_ptr<const Plan>> resized(const Problem& planned, const Problem& given) {
    HEDDLE_ASSIGN(const auto plan, cuda_engine().plan(planned));
    const int64_t compiled = compilations();
    const int graphs = calls().graphs;
    HEDDLE_ASSIGN(const Problem late, problem::at_late_sizes(planned, given));
    auto made = cuda_engine().resized(*plan, late);
    EXPECT_EQ(compilations(), compiled);
    EXPECT_EQ(calls().graphs, graphs);
    if (made.is_ok()) {
      EXPECT_LE((*made)->workspace_bytes(), plan->workspace_bytes());
    }
    return made;
  }
  void expect_runs(const Problem& planned, const Problem& given, size_t operands) {
    const auto late = resized(planned, given);
    ASSERT_TRUE(late.is_ok()) << late.status().message();
    Buffers buffers(operands);
    const int before = calls().launches;
    const Status done = (*late)->execute(buffers.pointers, buffers.memory.data(), nullptr);
    EXPECT_TRUE(done.is_ok()) << done.message();
    EXPECT_GT(calls().launches, before);
  }
};

TEST_F(LateSizes, EachLengthRunsByThePlansKernels) {
  for (const char* capability : {"90", "80"}) {
    setenv("FAKE_CUDA_CAPABILITY", capability, 1);
    for (DataType dtype : {DataType::bf16, DataType::f32}) {
      for (int dim : {64, 128, 256}) {
        for (const std::vector<Feature>& features : std::vector<std::vector<Feature>>{
                 {}, {Feature::causal}, {Feature::lengths}, {Feature::causal, Feature::philox}}) {
          Case planned{.dtype = dtype, .qk_dim = dim, .v_dim = dim, .features = features};
          planned.length = 9000;
          for (int64_t length : {1, 64, 65, 500, 2048, 8191, 9000}) {
            Case given = planned;
            given.length = length;
            SCOPED_TRACE(title(planned) + " at " + std::to_string(length) + " on " + capability);
            const problem::AttentionProblem forward = forward_of(given);
            expect_runs(forward_of(planned), forward, forward.structure.operands.size());
            const problem::AttentionBackwardProblem backward = backward_of(given);
            expect_runs(backward_of(planned), backward, backward.structure.forward.operands.size());
          }
        }
      }
    }
  }
}

// A score that comes by tiles may have any number of keys, and one row or key of many.
TEST_F(LateSizes, ABiasMayHaveAnyLength) {
  setenv("FAKE_CUDA_CAPABILITY", "90", 1);
  const problem::AttentionProblem planned = forward_of({.features = {Feature::bias}});
  for (int64_t length : {1, 23, 511}) {
    problem::AttentionProblem given = planned;
    given.sizes.q_length = given.sizes.kv_length = length;
    for (problem::OperandLayout& layout : given.sizes.layouts) {
      for (int d = 2; d < 4; ++d)
        if (layout.dims[d] == planned.sizes.q_length) layout.dims[d] = length;
    }
    SCOPED_TRACE(length);
    expect_runs(planned, given, given.structure.operands.size());
  }
}

TEST_F(LateSizes, OtherKernelsAreRefused) {
  setenv("FAKE_CUDA_CAPABILITY", "80", 1);
  const auto refused = resized(forward_of({.length = 200}),
                               forward_of({.features = {Feature::unaligned}, .length = 200}));
  ASSERT_FALSE(refused.is_ok());
  EXPECT_EQ(refused.status().message(),
            "cuda: at these sizes the plan would be attention forward, general kernel, 128 x 128 "
            "tiles, sm_80, with a kernel attention_forward that it was not planned with: attention "
            "forward, general kernel, 128 x 128 tiles, sm_80; make a plan for them");
}

}  // namespace
}  // namespace heddle::engine::cuda
