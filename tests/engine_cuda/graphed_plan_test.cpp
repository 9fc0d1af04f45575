// Executions by CUDA graphs: which there are, and when their arguments are set.
#include <cstdlib>
#include <memory>
#include <thread>

#include "engine/cuda/engine.h"
#include "engine_cuda/fake_machine.h"
#include "kernels/cases.h"
#include "kernels/streaming_cases.h"

namespace heddle::engine::cuda {
namespace {

using GraphedPlan = FakeMachine;

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

TEST_F(GraphedPlan, LaunchesAreGraphsThatGoWithThePlan) {
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

// Blocks of the decode kernel wait for one another.
TEST_F(GraphedPlan, CooperativeLaunchesAreCooperativeNodes) {
  const int before = calls().cooperative_nodes;
  Executed executed;
  EXPECT_EQ(calls().cooperative_nodes, before);
  executed.plan = *cuda_engine().plan(forward_of({}, 1, 1024));
  EXPECT_EQ(calls().cooperative_nodes, before + 1);
  EXPECT_EQ(executed.execute(), (Executed::Work{1, 1}));
  setenv("FAKE_CUDA_CAPTURES", "1", 1);
  const int launches = calls().cooperative_launches;
  EXPECT_EQ(executed.execute(), (Executed::Work{0, 1}));
  EXPECT_EQ(calls().cooperative_launches, launches + 1);
  unsetenv("FAKE_CUDA_CAPTURES");
}

TEST_F(GraphedPlan, WhatIsCapturedIsLaunches) {
  Executed executed;
  setenv("FAKE_CUDA_CAPTURES", "1", 1);
  EXPECT_EQ(executed.execute(), kByLaunches);
  unsetenv("FAKE_CUDA_CAPTURES");
  EXPECT_EQ(executed.execute(), kByGraph);
}

// Launches of one graph wait for each other: streams at work at once do not share it.
TEST_F(GraphedPlan, EachStreamHasGraphsOfItsOwn) {
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

// As a thread of torch's autograd is whose first node is a plan.
TEST_F(GraphedPlan, AThreadWithoutAContextIsGivenThePlansDevices) {
  setenv("FAKE_CUDA_NO_CONTEXT", "1", 1);
  Executed executed;
  const int retained = calls().retained_contexts;
  for (int n = 0; n < 3; ++n) std::thread([&] { EXPECT_EQ(executed.execute(), kByGraph); }).join();
  EXPECT_LE(calls().retained_contexts, retained + 1);
  unsetenv("FAKE_CUDA_NO_CONTEXT");
  EXPECT_EQ(executed.execute(), kByGraph);
}

// It may run there or not: kernels were allowed their shared memory on the plan's device.
TEST_F(GraphedPlan, APlanThatFailsOnAnotherDeviceSaysSo) {
  Executed executed;
  setenv("FAKE_CUDA_DEVICE", "1", 1);
  const Status status =
      executed.plan->execute(executed.buffers.pointers, executed.buffers.memory.data(), nullptr);
  unsetenv("FAKE_CUDA_DEVICE");
  EXPECT_EQ(status.code(), Code::cuda_api_failed);
  EXPECT_TRUE(status.message().ends_with(
      "; the plan is of device 0, the calling thread's context of device 1"))
      << status.message();
  EXPECT_EQ(executed.execute(), kByGraph);
}

// A plan made without a context is of device 0.
TEST_F(GraphedPlan, AGraphIsRecordedOnThePlansDevice) {
  setenv("FAKE_CUDA_NO_CONTEXT", "1", 1);
  Executed executed;
  unsetenv("FAKE_CUDA_NO_CONTEXT");
  setenv("FAKE_CUDA_DEVICE", "1", 1);
  const int graphs = calls().graphs;
  EXPECT_FALSE(
      executed.plan->execute(executed.buffers.pointers, executed.buffers.memory.data(), nullptr)
          .is_ok());
  EXPECT_EQ(calls().graphs, graphs);
  unsetenv("FAKE_CUDA_DEVICE");
  EXPECT_EQ(executed.execute(), kByGraph);
}

// As a program does that resets its device: what was the context's went with it.
TEST_F(GraphedPlan, AGraphIsRecordedAgainAfterItsContext) {
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

TEST_F(GraphedPlan, ArgumentsAreSetWhereNoGraphHasThem) {
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

TEST_F(GraphedPlan, OfTooManySetsOfBuffersInTurnMostKeepTheirGraphs) {
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

TEST_F(GraphedPlan, EverNewBuffersLeaveTheOthersTheirGraphs) {
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

TEST_F(GraphedPlan, NewBuffersTakeTheGraphsOfForgottenOnes) {
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

TEST_F(GraphedPlan, ArgumentsAreSetAgainAfterAnExecutionThatFailed) {
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

TEST_F(GraphedPlan, ArgumentsAreSetWhereAValueChanges) {
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

TEST_F(GraphedPlan, ThreadsExecuteAPlanAtOnce) {
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

TEST_F(GraphedPlan, AnOldDriverIsGivenLaunches) {
  const auto with = [](const char* version) {
    setenv("FAKE_CUDA_VERSION", version, 1);
    Executed executed;
    std::_Exit(executed.execute() == (version[3] == '2' ? kByLaunches : kByGraph) ? 0 : 1);
  };
  EXPECT_EXIT(with("12020"), ::testing::ExitedWithCode(0), "");
  EXPECT_EXIT(with("12030"), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace heddle::engine::cuda
