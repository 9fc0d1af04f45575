// Plans made and executed by a driver and a compiler that do nothing (fake/): which calls an
// execution makes, what is compiled how often, and what is said when something is missing.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "api/count_allocations.h"
#include "engine/cuda/compiler.h"
#include "engine/cuda/engine.h"
#include "engine/cuda/kernel.h"
#include "engine/cuda/kernel_cache.h"
#include "engine/cuda/shared_object.h"
#include "engine_cuda/fake/calls.h"
#include "kernels/cases.h"
#include "kernels/streaming_cases.h"

namespace heddle::engine::cuda {
namespace {

namespace fs = std::filesystem;

testing::FakeCudaCalls& calls() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  return *reinterpret_cast<testing::FakeCudaCalls* (*)()>(dlsym(library, "fake_cuda_calls"))();
}

class Execution : public ::testing::Test {
 protected:
  void SetUp() override {
    ::testing::FLAGS_gtest_death_test_style = "threadsafe";
    std::string pattern = (fs::temp_directory_path() / "heddle-execution-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
    setenv("HEDDLE_NVRTC", FAKE_NVRTC, 1);
    setenv("HEDDLE_CACHE_DIR", (root_ / "cache").c_str(), 1);
    setenv("FAKE_NVRTC_LOG", log().c_str(), 1);
  }
  void TearDown() override {
    for (const char* name :
         {"FAKE_NVRTC_FAILS", "FAKE_NVRTC_SLOW", "FAKE_NVRTC_AT_ONCE", "FAKE_CUDA_CAPABILITY",
          "FAKE_CUDA_CAPTURES", "FAKE_CUDA_CONTEXT", "FAKE_CUDA_NO_CONTEXT"})
      unsetenv(name);
    fs::remove_all(root_);
  }

  fs::path log() const { return root_ / "compilations"; }
  int64_t compilations() const {
    std::error_code missing;
    const uintmax_t size = fs::file_size(log(), missing);
    return missing ? 0 : static_cast<int64_t>(size);
  }
  /// A source nobody else compiles.
  std::string source(const std::string& text = "") const { return root_.string() + text; }

  fs::path root_;
};

/// Says it where a death test looks.
[[noreturn]] void leave(const Status& status) {
  std::fputs(status.message().c_str(), stderr);
  std::_Exit(status.is_ok() ? 0 : 1);
}

// --- Executions ---------------------------------------------------------------------------------

/// Memory for every operand of a plan that runs nothing; by-value scalars are read of it.
struct Buffers {
  alignas(256) std::array<char, 4096> memory{};
  std::vector<void*> pointers;

  explicit Buffers(size_t operands) : pointers(operands, memory.data()) {}
};

void expect_executes(const problem::Problem& problem, size_t operands) {
  const Result<std::shared_ptr<const Plan>> plan = cuda_engine().plan(problem);
  ASSERT_TRUE(plan.is_ok()) << plan.status().message();
  const Buffers buffers(operands);
  void* const workspace = const_cast<char*>(buffers.memory.data());
  const int launches = calls().launches;
  const int64_t allocations = testing::allocations();
  const Status status = (*plan)->execute(buffers.pointers, workspace, nullptr);
  EXPECT_EQ(testing::allocations(), allocations) << (*plan)->description();
  EXPECT_TRUE(status.is_ok()) << status.message();
  EXPECT_GT(calls().launches, launches) << (*plan)->description();
}

/// Of one execution; `structure` has the problem's operands.
int launches_of(const problem::Problem& problem, const problem::AttentionStructure& structure) {
  const int before = calls().launches;
  expect_executes(problem, structure.operands.size());
  return calls().launches - before;
}

TEST_F(Execution, LaunchesWithoutAllocatingWhateverTheFeature) {
  setenv("HEDDLE_CACHE_DIR", "", 1);
  for (const char* capability : {"90", "80"}) {
    setenv("FAKE_CUDA_CAPABILITY", capability, 1);
    for (auto [qk, v] : {std::pair{8, 8}, {64, 64}, {128, 128}, {192, 128}, {256, 256}}) {
      for (DataType dtype : {DataType::bf16, DataType::f32}) {
        for (int feature = -1; feature <= static_cast<int>(Feature::rope_interleaved); ++feature) {
          Case c{.dtype = dtype, .qk_dim = qk, .v_dim = v, .length = 320};
          if (feature >= 0) c.features.push_back(static_cast<Feature>(feature));
          SCOPED_TRACE(title(c) + " on " + capability);
          const problem::AttentionProblem forward = forward_of(c);
          expect_executes(forward, forward.structure.operands.size());
          if (c.has(Feature::paged) || c.has(Feature::block_mask) || forward.structure.q_rope)
            continue;
          const problem::AttentionBackwardProblem backward = backward_of(c);
          expect_executes(backward, backward.structure.forward.operands.size());
        }
      }
    }
  }
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
      {{.features = {Feature::bias}}, 1, 4},
      {{.features = {Feature::causal, Feature::lengths}}, 2, 4},
      {{.features = {Feature::causal, Feature::ragged}}, 2, 4},
      {{.features = {Feature::causal, Feature::rope_halves}}, 2, 0},
      {{.features = {Feature::unaligned}}, 1, 3},
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

/// A plan, what it is executed on, and by how many graphs and launches that is done.
struct Executed {
  problem::AttentionBackwardProblem problem = backward_of({});
  std::shared_ptr<const Plan> plan = *cuda_engine().plan(problem);
  Buffers buffers{problem.structure.forward.operands.size()};
  int stream_memory[10] = {};

  struct Work {
    int graphs, launches;
    bool operator==(const Work&) const = default;
  };
  Work execute(int stream = 0) {
    const int graphs = calls().graph_launches, launches = calls().launches;
    void* const workspace = buffers.memory.data();
    EXPECT_TRUE(plan->execute(buffers.pointers, workspace, &stream_memory[stream]).is_ok());
    return {calls().graph_launches - graphs, calls().launches - launches};
  }
};
constexpr Executed::Work kByGraph{1, 3}, kByLaunches{0, 3};
/// Sets of arguments, each on its stream, for which a plan has graphs.
constexpr int kCopies = 4;
/// Executions after which one that was not among them is forgotten.
constexpr int kToForget = 64;

TEST_F(Execution, LaunchesAreGraphsThatGoWithThePlan) {
  const int graphs = calls().graphs;
  {
    Executed executed;
    EXPECT_EQ(calls().graphs, graphs + kCopies);
    for (int n = 0; n < 3; ++n) EXPECT_EQ(executed.execute(), kByGraph);
    Executed single;
    single.plan = *cuda_engine().plan(forward_of({}));
    EXPECT_EQ(single.execute(), (Executed::Work{1, 1}));
    EXPECT_EQ(calls().graphs, graphs + 2 * kCopies);
    ASSERT_TRUE(cuda_engine().plan(norm_of({})).is_ok());
    EXPECT_EQ(calls().graphs, graphs + 2 * kCopies) << "a kernel that begins before its turn";
  }
  EXPECT_EQ(calls().graphs, graphs);
}

TEST_F(Execution, WhatIsCapturedIsLaunches) {
  Executed executed;
  setenv("FAKE_CUDA_CAPTURES", "1", 1);
  EXPECT_EQ(executed.execute(), kByLaunches);
  unsetenv("FAKE_CUDA_CAPTURES");
  EXPECT_EQ(executed.execute(), kByGraph);
}

// Launches of one graph wait for each other: streams at work at once do not share it.
TEST_F(Execution, EachStreamHasGraphsOfItsOwn) {
  Executed executed;
  for (int n = 0; n < 3; ++n) {
    for (int stream = 0; stream < kCopies; ++stream)
      EXPECT_EQ(executed.execute(stream), kByGraph) << stream;
    EXPECT_EQ(executed.execute(kCopies), kByLaunches) << "there is none left";
  }
  int before = 0;
  while (executed.execute(kCopies) == kByLaunches && before < 1000) ++before;
  EXPECT_GT(before, kToForget - 2 * kCopies);
  EXPECT_LT(before, kToForget) << "the stream has that of another one, where nothing was";
  EXPECT_EQ(executed.execute(kCopies), kByGraph);
  EXPECT_EQ(executed.execute(0), kByGraph) << "with another one's, as its own has gone";
}

TEST_F(Execution, AGraphIsOfAContext) {
  setenv("FAKE_CUDA_NO_CONTEXT", "1", 1);
  Executed executed;
  EXPECT_EQ(executed.execute(), kByLaunches);
  unsetenv("FAKE_CUDA_NO_CONTEXT");
  EXPECT_EQ(executed.execute(), kByGraph);
  setenv("FAKE_CUDA_NO_CONTEXT", "1", 1);
  EXPECT_EQ(executed.execute(), kByLaunches);
}

// Tensor maps are made at execution: a thread that plans need not have a context.
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

// As a program does that resets its device: what was the context's went with it.
TEST_F(Execution, AGraphIsRecordedAgainAfterItsContext) {
  Executed executed;
  EXPECT_EQ(executed.execute(), kByGraph);
  const int graphs = calls().graphs;
  setenv("FAKE_CUDA_CONTEXT", "2", 1);
  EXPECT_EQ(executed.execute(), kByGraph);
  EXPECT_EQ(calls().graphs, graphs + kCopies) << "new ones; the old ones are not touched";
}

int updates_of(Executed& executed, int stream = 0) {
  const int before = calls().node_updates;
  EXPECT_EQ(executed.execute(stream), kByGraph);
  return calls().node_updates - before;
}

TEST_F(Execution, ArgumentsAreSetWhereNoGraphHasThem) {
  Executed executed;
  void*& changing = executed.buffers.pointers[2];
  char* const places = executed.buffers.memory.data();
  for (int n = 0; n < kCopies; ++n) {
    changing = places + 256 * n;
    EXPECT_EQ(updates_of(executed), 3);
    EXPECT_EQ(updates_of(executed), 0);
  }
  for (int n = 0; n < 3 * kCopies; ++n) {
    changing = places + 256 * (n % kCopies);
    EXPECT_EQ(updates_of(executed), 0);
  }
}

TEST_F(Execution, OfTooManySetsOfBuffersInTurnMostKeepTheirGraphs) {
  Executed executed;
  constexpr int kSets = 12;
  int updates = 0;
  for (int turn = 0; turn < 20; ++turn) {
    for (int n = 0; n < kSets; ++n) {
      executed.buffers.pointers[2] = executed.buffers.memory.data() + 256 * n;
      const int set = updates_of(executed);
      if (turn > 0) updates += set;
    }
  }
  EXPECT_EQ(updates, 19 * 3 * (kSets - kCopies + 1));
}

TEST_F(Execution, EverNewBuffersLeaveTheOthersTheirGraphs) {
  Executed executed;
  int updates = 0;
  for (int n = 0; n < 200; ++n) {
    executed.buffers.pointers[2] = executed.buffers.memory.data() + 256;
    const int set = updates_of(executed);
    if (n > 0) updates += set;
    executed.buffers.pointers[2] = executed.buffers.memory.data() + 512;
    executed.buffers.pointers[3] = executed.buffers.memory.data() + 16 * n;
    updates_of(executed);
    executed.buffers.pointers[3] = executed.buffers.memory.data();
  }
  EXPECT_EQ(updates, 0);
}

TEST_F(Execution, NewBuffersTakeTheGraphsOfForgottenOnes) {
  Executed executed;
  const auto on_sets = [&executed](int first, int turns) {
    int updates = 0;
    for (int n = 0; n < turns * kCopies / 2; ++n) {
      executed.buffers.pointers[2] =
          executed.buffers.memory.data() + 256 * (first + n % (kCopies / 2));
      updates += updates_of(executed);
    }
    return updates;
  };
  for (int first : {0, kCopies / 2, kCopies}) EXPECT_GT(on_sets(first, 1 + kToForget), 0);
  EXPECT_EQ(on_sets(kCopies, 10), 0);
}

TEST_F(Execution, ArgumentsAreSetAgainAfterAnExecutionThatFailed) {
  Executed executed;
  EXPECT_EQ(updates_of(executed), 3);
  void* const right = executed.buffers.pointers[0];
  executed.buffers.pointers[0] = static_cast<char*>(right) + 2;
  for (int n = 0; n < 2 * kCopies; ++n) {
    EXPECT_EQ(executed.plan->execute(executed.buffers.pointers, nullptr, nullptr).code(),
              Code::invalid_variant_pack);
  }
  executed.buffers.pointers[0] = right;
  EXPECT_EQ(executed.execute(), kByGraph);
  EXPECT_EQ(updates_of(executed), 0);
}

TEST_F(Execution, ArgumentsAreSetWhereAValueChanges) {
  problem::AttentionBackwardProblem dropping = backward_of({.features = {Feature::philox}});
  const auto seed_id = static_cast<size_t>(dropping.structure.forward.dropout.seed);
  dropping.structure.forward.operands[seed_id].on_host = true;
  Executed philox{.problem = dropping};
  int64_t seed = 7;
  philox.buffers.pointers[seed_id] = &seed;
  EXPECT_EQ(updates_of(philox), 3);
  EXPECT_EQ(updates_of(philox), 0);
  seed = 8;
  EXPECT_EQ(updates_of(philox), 3) << "a value";
}

TEST_F(Execution, ThreadsExecuteAPlanAtOnce) {
  const Executed executed;
  const int launches = calls().launches;
  constexpr int kThreads = 8, kEach = 200;
  {
    std::vector<std::jthread> threads;
    for (int n = 0; n < kThreads; ++n) {
      threads.emplace_back([&executed] {
        Buffers mine(executed.buffers.pointers.size());
        for (int i = 0; i < kEach; ++i)
          EXPECT_TRUE(executed.plan->execute(mine.pointers, mine.memory.data(), nullptr).is_ok());
      });
    }
  }
  EXPECT_EQ(calls().launches - launches, 3 * kThreads * kEach);
}

TEST_F(Execution, AnOldDriverIsGivenLaunches) {
  const auto with = [](const char* version) {
    setenv("FAKE_CUDA_VERSION", version, 1);
    Executed executed;
    std::_Exit(executed.execute() == (version[3] == '2' ? kByLaunches : kByGraph) ? 0 : 1);
  };
  EXPECT_EXIT(with("12020"), ::testing::ExitedWithCode(0), "");
  EXPECT_EXIT(with("12030"), ::testing::ExitedWithCode(0), "");
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

TEST_F(Execution, MoreBatchEntriesThanAGridHasLayersTakeSeveralLaunches) {
  for (const char* capability : {"90", "80"}) {
    setenv("FAKE_CUDA_CAPABILITY", capability, 1);
    for (int64_t batch : {65535, 65536, 200000}) {
      SCOPED_TRACE(fmt::format("{} on {}", batch, capability));
      const auto widen = [batch](problem::AttentionSizes& sizes) {
        for (problem::OperandLayout& layout : sizes.layouts) layout.dims[0] = batch;
        sizes.batch = batch;
      };
      problem::AttentionProblem forward = forward_of({.features = {Feature::unaligned}});
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

TEST_F(Execution, ANumberPassedByValueIsWrittenForTheKernelThatReadsIt) {
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

TEST_F(Execution, ASinkPassedByValueIsNoAddressOfTheDevice) {
  problem::AttentionProblem problem = forward_of({.features = {Feature::sink}});
  for (const problem::OperandType& type : problem.structure.operands) EXPECT_FALSE(type.on_host);
  problem.structure.operands[static_cast<size_t>(problem.structure.sink)].on_host = true;
  const int before = calls().host_values;
  expect_executes(problem, problem.structure.operands.size());
  EXPECT_GT(calls().host_values, before);
}

TEST_F(Execution, ResultsOfAnotherTypeAreOfTheF32Kernels) {
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
  const Result<std::shared_ptr<const Cubin>> cubin = compiled_kernel(source(), "k", "sm_90a");
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

// --- Compilations -------------------------------------------------------------------------------

TEST_F(Execution, SizesAndStridesShareAKernel) {
  for (int64_t length : {600, 601, 1000}) {
    problem::AttentionProblem problem =
        forward_of({.qk_dim = 72, .v_dim = 40, .features = {Feature::sink}, .length = length});
    problem.sizes.layouts[0].strides[2] += 8 * length;
    problem.sizes.scale = 1.0 / static_cast<double>(length);
    ASSERT_TRUE(cuda_engine().plan(problem).is_ok());
  }
  EXPECT_EQ(compilations(), 1);
}

TEST_F(Execution, ThreadsCompileAKernelOnce) {
  setenv("FAKE_NVRTC_SLOW", "1", 1);
  {
    std::vector<std::jthread> threads;
    for (int n = 0; n < 8; ++n)
      threads.emplace_back([&] { EXPECT_TRUE(compiled_kernel(source(), "k", "sm_90a").is_ok()); });
  }
  EXPECT_EQ(compilations(), 1);
}

/// Plans `problem` once it is prepared.
void expect_prepared(const problem::Problem& problem,
                     const std::function<int64_t()>& compilations) {
  const problem::Problem* const problems[] = {&problem};
  const Status prepared = cuda_engine().prepare(problems);
  ASSERT_TRUE(prepared.is_ok()) << prepared.message();
  const int64_t before = compilations();
  const auto plan = cuda_engine().plan(problem);
  ASSERT_TRUE(plan.is_ok()) << plan.status().message();
  EXPECT_EQ(compilations(), before) << (*plan)->description();
}

TEST_F(Execution, APlanOfAPreparedProblemCompilesNothing) {
  setenv("HEDDLE_CACHE_DIR", "", 1);
  const auto compiled = [this] { return compilations(); };
  for (const char* capability : {"90", "80"}) {
    setenv("FAKE_CUDA_CAPABILITY", capability, 1);
    for (int dim : {56, 120, 248}) {  // of no other test
      for (DataType dtype : {DataType::f16, DataType::f32}) {
        for (int feature = -1; feature <= static_cast<int>(Feature::rope_interleaved); ++feature) {
          Case c{.dtype = dtype, .qk_dim = dim, .v_dim = dim, .length = 320};
          if (feature >= 0) c.features.push_back(static_cast<Feature>(feature));
          SCOPED_TRACE(title(c) + " on " + capability);
          const problem::AttentionProblem forward = forward_of(c);
          expect_prepared(forward, compiled);
          if (c.has(Feature::paged) || c.has(Feature::block_mask) || forward.structure.q_rope)
            continue;
          expect_prepared(backward_of(c), compiled);
        }
      }
    }
  }
  EXPECT_GT(compilations(), 0);
}

TEST_F(Execution, PreparedProblemsCompileAtOnce) {
  if (std::thread::hardware_concurrency() < 2) GTEST_SKIP() << "one core compiles one at a time";
  setenv("HEDDLE_CACHE_DIR", "", 1);
  setenv("FAKE_NVRTC_AT_ONCE", "2", 1);
  const Case c{.qk_dim = 24, .v_dim = 24};
  const problem::Problem forward = forward_of(c), backward = backward_of(c);
  const problem::Problem* const problems[] = {&forward, &backward, &forward};
  const Status prepared = cuda_engine().prepare(problems);
  EXPECT_TRUE(prepared.is_ok()) << prepared.message();
  EXPECT_EQ(compilations(), 1 + 3);
}

TEST_F(Execution, APreparationThatFailsSaysWhatPlanSays) {
  setenv("HEDDLE_CACHE_DIR", "", 1);
  const problem::Problem good = forward_of({.qk_dim = 32, .v_dim = 32}),
                         refused = backward_of({.features = {Feature::paged}});
  const auto prepare = [](const problem::Problem& one, const problem::Problem& other) {
    const problem::Problem* const problems[] = {&one, &other};
    return cuda_engine().prepare(problems);
  };
  EXPECT_EQ(prepare(good, refused).message(), cuda_engine().plan(refused).status().message());
  EXPECT_EQ(compilations(), 0);
  setenv("FAKE_NVRTC_FAILS", "1", 1);
  EXPECT_EQ(prepare(good, good).message(), cuda_engine().plan(good).status().message());
}

bool ended_well(pid_t child) {
  int status = -1;
  return waitpid(child, &status, 0) == child && status == 0;
}

pid_t compile_in_child(const std::string& source) {
  const pid_t child = fork();
  if (child == 0) _exit(compiled_kernel(source, "k", "sm_90a").is_ok() ? 0 : 1);
  return child;
}

TEST_F(Execution, ProcessesCompileAKernelOnce) {
  setenv("FAKE_NVRTC_SLOW", "1", 1);
  std::vector<pid_t> children;
  for (int n = 0; n < 8; ++n) children.push_back(compile_in_child(source()));
  for (const pid_t child : children) EXPECT_TRUE(ended_well(child));
  EXPECT_EQ(compilations(), 1);
  EXPECT_EQ(KernelCache(root_ / "cache").list().size(), 1u);
}

TEST_F(Execution, AProcessKilledAtCompilingHoldsNobodyUp) {
  setenv("FAKE_NVRTC_SLOW", "1", 1);
  const pid_t child = compile_in_child(source());
  while (compilations() == 0) usleep(1000);
  ASSERT_EQ(kill(child, SIGKILL), 0);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_TRUE(compiled_kernel(source(), "k", "sm_90a").is_ok());
  EXPECT_EQ(compilations(), 2);
}

TEST_F(Execution, AProcessForkedAtCompilingHoldsNobodyUp) {
  setenv("FAKE_NVRTC_SLOW", "1", 1);
  const auto lock_of = [this](const std::string& text) {
    return kernel_key(source(text), "sm_90a", *compiler_version())
        .digest()
        .substr(kDigestDigits - 2);
  };
  int same_lock = 1;
  while (lock_of(std::to_string(same_lock)) != lock_of("")) ++same_lock;
  std::jthread compiling([&] { (void)compiled_kernel(source(), "k", "sm_90a"); });
  while (compilations() == 0) usleep(1000);
  const pid_t idle = fork();
  if (idle == 0) {
    pause();
    _exit(0);
  }
  compiling.join();
  const pid_t other = fork();
  if (other == 0) {
    alarm(20);
    const std::string text = source(std::to_string(same_lock));
    _exit(compiled_kernel(text, "k", "sm_90a").is_ok() ? 0 : 1);
  }
  EXPECT_TRUE(ended_well(other));
  ASSERT_EQ(kill(idle, SIGKILL), 0);
  ASSERT_EQ(waitpid(idle, nullptr, 0), idle);
}

TEST_F(Execution, ACacheThatCannotBeWrittenIsNoError) {
  for (const char* root : {"/dev/null/cache", ""}) {
    setenv("HEDDLE_CACHE_DIR", root, 1);
    EXPECT_TRUE(compiled_kernel(source(root), "k", "sm_90a").is_ok());
    EXPECT_TRUE(compiled_kernel(source(root), "k", "sm_90a").is_ok());
  }
  EXPECT_EQ(compilations(), 2);
}

TEST_F(Execution, ADamagedEntryIsCompiledAgain) {
  ASSERT_TRUE(ended_well(compile_in_child(source())));
  const KernelCache cache(root_ / "cache");
  ASSERT_EQ(cache.list().size(), 1u);
  fs::resize_file(cache.root() / cache.list()[0].digest / "kernel.cubin", 3);
  EXPECT_TRUE(compiled_kernel(source(), "k", "sm_90a").is_ok());
  EXPECT_EQ(compilations(), 2);
  EXPECT_TRUE(cache.find(kernel_key(source(), "sm_90a", *compiler_version())).is_ok());
}

TEST_F(Execution, AFailedCompilationSaysWhyAndIsTriedAgain) {
  setenv("FAKE_NVRTC_FAILS", "1", 1);
  const Status status = compiled_kernel(source(), "k", "sm_90a").status();
  EXPECT_EQ(status.code(), Code::nvrtc_compilation_failed);
  EXPECT_EQ(status.message(),
            "kernel k did not compile for sm_90a (NVRTC_ERROR_COMPILATION):\n"
            "kernel.cu(1): error: not today");
  unsetenv("FAKE_NVRTC_FAILS");
  EXPECT_TRUE(compiled_kernel(source(), "k", "sm_90a").is_ok());
}

// --- What is missing ----------------------------------------------------------------------------

TEST_F(Execution, ACompilerThatIsNoneOrTooOldIsNamed) {
  const auto with = [](const char* path, const char* version) {
    setenv("HEDDLE_NVRTC", path, 1);
    setenv("FAKE_NVRTC_VERSION", version, 1);
    leave(compiled_kernel("", "k", "sm_90a").status());
  };
  using ::testing::ExitedWithCode;
  EXPECT_EXIT(with("/no/such", "13000"), ExitedWithCode(1),
              "NVRTC, the CUDA run-time compiler, could not be loaded .tried /no/such.: ");
  EXPECT_EXIT(with("libcuda.so.1", "13000"), ExitedWithCode(1),
              "libcuda.so.1 has no nvrtcVersion: it is too old, or another library");
  EXPECT_EXIT(with(FAKE_NVRTC, "12020"), ExitedWithCode(1),
              "libfake_nvrtc.so is NVRTC 12.2; Heddle needs 12.3 or newer: HEDDLE_NVRTC chooses");
  EXPECT_EXIT(with(FAKE_NVRTC, "12030"), ExitedWithCode(0), "");
}

TEST_F(Execution, ACompilerThatDoesNotKnowTheGpuIsNamed) {
  const Status status = compiled_kernel(source(), "k", "sm_130").status();
  EXPECT_EQ(status.message(),
            std::string(FAKE_NVRTC) +
                " is NVRTC 13.0, which compiles for sm_80, sm_90, sm_120, not for "
                "sm_130: HEDDLE_NVRTC chooses another");
}

TEST_F(Execution, ALibraryThatIsThereAndDoesNotLoadIsNamed) {
  const std::string broken = root_ / "libcuda.so.1";
  std::ofstream(broken) << "no library";
  const std::vector<std::string> names{"/no/such/1", broken, "/no/such/2"};
  EXPECT_EQ(SharedObject::open("the driver", names).status().message(),
            "the driver could not be loaded (tried /no/such/1, " + broken +
                ", /no/such/2): " + broken + ": file too short");
}

TEST_F(Execution, ACompilerFindsWhatItOpensByNameWhereItLies) {
  const auto after_compiling = [this] {
    if (dlopen("libnvrtc-builtins.so.13.0", RTLD_NOW | RTLD_NOLOAD)) std::_Exit(2);
    (void)compiled_kernel(source(), "k", "sm_90a");
    std::_Exit(dlopen("libnvrtc-builtins.so.13.0", RTLD_NOW | RTLD_NOLOAD) ? 0 : 1);
  };
  EXPECT_EXIT(after_compiling(), ::testing::ExitedWithCode(0), "");
}

TEST_F(Execution, ADriverOrDeviceThatIsTooOldIsNamed) {
  const auto with = [](const char* version, const char* capability) {
    setenv("FAKE_CUDA_VERSION", version, 1);
    setenv("FAKE_CUDA_CAPABILITY", capability, 1);
    leave(cuda_engine().plan(forward_of({})).status());
  };
  using ::testing::ExitedWithCode;
  EXPECT_EXIT(with("11080", "90"), ExitedWithCode(1),
              "the NVIDIA driver supports CUDA 11.8; Heddle needs 12.0 or newer");
  EXPECT_EXIT(with("12000", "75"), ExitedWithCode(1),
              "cuda: No GPU has compute capability 7.5; kernels need 8.0 or newer");
  EXPECT_EXIT(with("12000", "120"), ExitedWithCode(0), "");
}

}  // namespace
}  // namespace heddle::engine::cuda
