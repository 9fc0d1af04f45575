// Which calls an execution makes, whatever the problem.
#include <fmt/format.h>

#include "engine/cuda/compiled_kernel.h"
#include "engine/cuda/compiler.h"
#include "engine/cuda/engine.h"
#include "engine/cuda/kernel.h"
#include "engine_cuda/fake_machine.h"
#include "kernels/cases.h"
#include "problem/operands.h"

namespace heddle::engine::cuda {
namespace {

using Execution = FakeMachine;

TEST_F(Execution, LaunchesWithoutAllocatingWhateverTheFeature) {
  setenv("HEDDLE_CACHE_DIR", "", 1);
  for (const char* capability : {"90", "80"}) {
    setenv("FAKE_CUDA_CAPABILITY", capability, 1);
    for (auto [qk, v] : {std::pair{8, 8}, {64, 64}, {128, 128}, {192, 128}, {256, 256}}) {
      for (DataType dtype : {DataType::bf16, DataType::f32}) {
        for (int feature = -1; feature <= static_cast<int>(Feature::rope_leading); ++feature) {
          Case c{.dtype = dtype, .qk_dim = qk, .v_dim = v, .length = 320};
          if (feature >= 0) c.features.push_back(static_cast<Feature>(feature));
          SCOPED_TRACE(title(c) + " on " + capability);
          const problem::AttentionProblem forward = forward_of(c);
          expect_executes(forward, forward.structure.operands.size());
          if (!c.has_backward() || c.has(Feature::block_mask) || forward.structure.q_rope) continue;
          const problem::AttentionBackwardProblem backward = backward_of(c);
          expect_executes(backward, backward.structure.forward.operands.size());
        }
      }
    }
  }
}

/// Of one execution; `structure` has the problem's operands.
int launches_of(const problem::Problem& problem, const problem::AttentionStructure& structure) {
  const int before = calls().launches;
  expect_executes(problem, structure.operands.size());
  return calls().launches - before;
}

// A launch costs the host 2 to 4 us, whatever it is of.
TEST_F(Execution, MakesFewLaunches) {
  setenv("HEDDLE_CACHE_DIR", "", 1);
  struct Kind {
    Case c;
    int forward, backward;
  };
  const Kind kinds[] = {
      {{}, 1, 3},
      {{.features = {Feature::causal}}, 1, 3},
      {{.features = {Feature::causal, Feature::deterministic}}, 1, 3},
      {{.qk_dim = 256, .v_dim = 256, .features = {Feature::causal, Feature::philox}}, 1, 3},
      {{.features = {Feature::sink}}, 1, 4},
      {{.features = {Feature::stats_gradient}}, 1, 3},
      {{.features = {Feature::bias}}, 1, 3},
      {{.features = {Feature::bias, Feature::lengths}}, 2, 5},
      {{.features = {Feature::causal, Feature::lengths}}, 2, 4},
      {{.features = {Feature::causal, Feature::ragged}}, 2, 4},
      {{.features = {Feature::causal, Feature::rope_halves}}, 2, 0},
      {{.features = {Feature::unaligned}, .length = 200}, 1, 3},
      {{.features = {Feature::unaligned}}, 2, 5},  // of Q, and of dQ
      {{.dtype = DataType::f32, .features = {Feature::causal}}, 4, 8},
      {{.dtype = DataType::f32, .features = {Feature::causal, Feature::lengths}}, 4, 8},
      {{.dtype = DataType::f32, .features = {Feature::causal, Feature::ragged}}, 4, 8},
  };
  for (const auto& [c, forward, backward] : kinds) {
    SCOPED_TRACE(title(c));
    EXPECT_EQ(launches_of(forward_of(c), forward_of(c).structure), forward);
    if (backward > 0) {
      EXPECT_EQ(launches_of(backward_of(c), backward_of(c).structure.forward), backward);
    }
  }
}

TEST_F(Execution, EveryHeadDimAndStrideHasKernels) {
  setenv("HEDDLE_CACHE_DIR", "", 1);
  for (const char* capability : {"90", "80"}) {
    setenv("FAKE_CUDA_CAPABILITY", capability, 1);
    for (int qk = 8; qk <= 256; qk += 8) {
      for (int v : {qk, 8, 264 - qk, 256}) {
        for (DataType dtype : {DataType::bf16, DataType::f16, DataType::f32}) {
          Case c{.dtype = dtype, .qk_dim = qk, .v_dim = v, .features = {Feature::causal}};
          c.length = qk + 1;
          if (v == 8) c.features.push_back(Feature::unaligned);
          SCOPED_TRACE(title(c) + " on " + capability);
          const problem::AttentionProblem forward = forward_of(c);
          expect_executes(forward, forward.structure.operands.size());
          const problem::AttentionBackwardProblem backward = backward_of(c);
          expect_executes(backward, backward.structure.forward.operands.size());
        }
      }
    }
  }
}

TEST_F(Execution, OperandsAndResultsMayBeOfSeveralTypes) {
  for (const char* capability : {"90", "80"}) {
    setenv("FAKE_CUDA_CAPABILITY", capability, 1);
    for (Feature feature :
         {Feature::causal, Feature::ragged, Feature::paged, Feature::rope_halves, Feature::bias}) {
      problem::AttentionProblem forward = forward_of({.features = {feature}});
      problem::AttentionStructure& structure = forward.structure;
      structure.operands[static_cast<size_t>(structure.o)].dtype = DataType::f32;
      SCOPED_TRACE(title({.features = {feature}}) + " on " + capability);
      expect_executes(forward, structure.operands.size());
      if (feature == Feature::paged || feature == Feature::rope_halves) continue;
      for (auto which :
           {&problem::AttentionBackwardStructure::d_o, &problem::AttentionBackwardStructure::d_q,
            &problem::AttentionBackwardStructure::d_k, &problem::AttentionBackwardStructure::d_v}) {
        problem::AttentionBackwardProblem backward = backward_of({.features = {feature}});
        auto& operands = backward.structure.forward.operands;
        operands[static_cast<size_t>(backward.structure.*which)].dtype = DataType::f32;
        expect_executes(backward, operands.size());
      }
    }
  }
}

TEST_F(Execution, MoreBatchEntriesThanAGridHasLayersTakeSeveralLaunches) {
  for (const char* capability : {"90", "80"}) {
    setenv("FAKE_CUDA_CAPABILITY", capability, 1);
    for (int64_t batch : {65535, 65536, 200000}) {
      SCOPED_TRACE(fmt::format("{} on {}", batch, capability));
      const auto widen = [batch](problem::AttentionSizes& sizes) {
        for (problem::OperandLayout& layout : sizes.layouts) layout.dims[0] = batch;
        sizes.batch = batch;
      };
      problem::AttentionProblem forward =
          forward_of({.features = {Feature::unaligned}, .length = 200});
      widen(forward.sizes);
      const int before = calls().launches;
      expect_executes(forward, forward.structure.operands.size());
      EXPECT_EQ(calls().launches - before, (batch + 65534) / 65535);
      problem::AttentionBackwardProblem backward = backward_of({});
      widen(backward.sizes);
      expect_executes(backward, backward.structure.forward.operands.size());
    }
  }
}

/// Gives the operands the dims that the sizes say.
template <class Kind>
void lay_out(Kind& problem) {
  problem::AttentionSizes& sizes = problem.sizes;
  const auto rows = [&](problem::OperandLayout& layout, int64_t heads, int64_t length) {
    layout.dims = {sizes.batch, heads, length, layout.dims[3]};
    layout.strides = *dense_strides(layout.dims);
  };
  for (problem::OperandLayout& layout : sizes.layouts) rows(layout, sizes.q_heads, sizes.q_length);
  const auto visit = [&](std::string_view name, problem::OperandId id, problem::Use) {
    if (name.ends_with('k') || name.ends_with('K') || name.ends_with('v') || name.ends_with('V'))
      rows(sizes.layout(id), sizes.k_heads, sizes.kv_length);
  };
  problem::tensors(visit, problem.structure);
}

// Else the bytes of a workspace would go beyond 64 bits and begin anew: a plan would ask for few,
// and write behind them.
TEST_F(Execution, MoreRowsThanWorkspacesAreCountedForAreRefused) {
  setenv("HEDDLE_CACHE_DIR", "", 1);
  for (const char* capability : {"90", "80"}) {
    setenv("FAKE_CUDA_CAPABILITY", capability, 1);
    for (bool many_keys : {true, false}) {
      const auto enlarge = [many_keys](problem::AttentionSizes& sizes) {
        sizes.batch = 16000;
        sizes.q_heads = sizes.k_heads = sizes.v_heads = 65535;
        sizes.q_length = many_keys ? 1 : int64_t{1} << 16;
        sizes.kv_length = many_keys ? int64_t{1} << 16 : 1;
      };
      const auto refusal = [](const problem::Problem& problem) -> std::string {
        const auto plan = cuda_engine().plan(problem);
        if (!plan.is_ok()) return plan.status().message();
        return fmt::format("a workspace of {} bytes", (*plan)->workspace_bytes());
      };
      const std::string expected =
          many_keys ? "cuda: sdpa has 1048560000 query rows and 68718428160000 keys in all "
                      "batch entries and heads; kernels take up to 1099511627776 of each"
                    : "cuda: sdpa has 68718428160000 query rows and 1048560000 keys in all "
                      "batch entries and heads; kernels take up to 1099511627776 of each";
      problem::AttentionProblem forward =
          forward_of({.dtype = DataType::f32, .qk_dim = 8, .v_dim = 8});
      enlarge(forward.sizes);
      lay_out(forward);
      EXPECT_EQ(refusal(forward), expected);
      problem::AttentionBackwardProblem backward = backward_of({});
      enlarge(backward.sizes);
      lay_out(backward);
      EXPECT_EQ(refusal(backward), expected);
    }
  }
}

TEST_F(Execution, AMisalignedOperandIsNamed) {
  const problem::AttentionProblem problem = forward_of({.qk_dim = 64, .v_dim = 64});
  const auto plan = cuda_engine().plan(problem);
  ASSERT_TRUE(plan.is_ok()) << plan.status().message();
  Buffers buffers(problem.structure.operands.size());
  buffers.pointers[static_cast<size_t>(problem.structure.k)] = buffers.memory.data() + 2;
  const Status status = (*plan)->execute(buffers.pointers, nullptr, nullptr);
  EXPECT_EQ(status.code(), Code::invalid_variant_pack);
  EXPECT_EQ(
      status.message(),
      fmt::format("cuda: k is at address {}, expected a multiple of 16 for the kernel planned "
                  "for it",
                  buffers.pointers[static_cast<size_t>(problem.structure.k)]));
}

TEST_F(Execution, AMisalignedBiasOfTilesIsNamed) {
  const problem::AttentionProblem problem = forward_of(
      {.qk_dim = 64, .v_dim = 64, .features = {Feature::bias}, .architecture = "sm_90a"});
  const auto plan = cuda_engine().plan(problem);
  ASSERT_TRUE(plan.is_ok()) << plan.status().message();
  Buffers buffers(problem.structure.operands.size());
  buffers.pointers.back() = buffers.memory.data() + 2;
  const Status status = (*plan)->execute(buffers.pointers, nullptr, nullptr);
  EXPECT_TRUE(status.message().starts_with("cuda: what the score reads is at address"))
      << status.message();
}

// Tensor maps are made at execution: a thread that plans need not have a context.
TEST_F(Execution, ADriverWithADeviceIsFound) { EXPECT_TRUE(find_any_device().is_ok()); }

TEST_F(Execution, PlansAreMadeWithoutAContext) {
  setenv("HEDDLE_CACHE_DIR", "", 1);
  for (DataType dtype : {DataType::bf16, DataType::f32}) {
    const Case c{.dtype = dtype, .qk_dim = 64, .v_dim = 64, .length = 320};
    const problem::AttentionProblem forward = forward_of(c);
    const problem::AttentionBackwardProblem backward = backward_of(c);
    for (const problem::Problem& problem :
         {problem::Problem(forward), problem::Problem(backward)}) {
      setenv("FAKE_CUDA_NO_CONTEXT", "1", 1);
      const int maps = calls().maps;
      const Result<std::shared_ptr<const Plan>> plan = cuda_engine().plan(problem);
      ASSERT_TRUE(plan.is_ok()) << plan.status().message();
      EXPECT_EQ(calls().maps, maps) << (*plan)->description();
      unsetenv("FAKE_CUDA_NO_CONTEXT");
      const Buffers buffers(backward.structure.forward.operands.size());
      void* const workspace = const_cast<char*>(buffers.memory.data());
      EXPECT_TRUE((*plan)->execute(buffers.pointers, workspace, nullptr).is_ok());
      EXPECT_GT(calls().maps, maps) << (*plan)->description();
    }
  }
}

// They outlive their plans: work under way, and graphs that captured it, may need them.
TEST_F(Execution, PlansShareKernelsThatStayLoaded) {
  const auto plan = [] {
    ASSERT_TRUE(cuda_engine().plan(backward_of({.qk_dim = 128, .v_dim = 128})).is_ok());
  };
  plan();
  const int libraries = calls().libraries;
  for (int n = 0; n < 3; ++n) plan();
  EXPECT_EQ(calls().libraries, libraries);
}

TEST_F(Execution, AKernelIsAllowedTheMostSharedMemoryThatAPlanAskedFor) {
  const Result<Device> device = current_device(*driver());
  ASSERT_TRUE(device.is_ok()) << device.status().message();
  const Result<std::shared_ptr<const Cubin>> cubin = compiled_kernel({"k", source()}, "sm_90a");
  ASSERT_TRUE(cubin.is_ok()) << cubin.status().message();
  StreamQueue queue(*driver(), nullptr);
  void* arguments[] = {this};
  for (unsigned bytes : {100000U, 60000U, 0U}) {
    const auto kernel = Kernel::load(*driver(), *device, *cubin, "k", bytes);
    ASSERT_TRUE(kernel.is_ok()) << kernel.status().message();
    const Launch launch{.threads = 32, .shared_bytes = 100000};
    EXPECT_TRUE((*kernel)->launch(launch, queue, arguments).is_ok()) << bytes;
  }
}

}  // namespace
}  // namespace heddle::engine::cuda
