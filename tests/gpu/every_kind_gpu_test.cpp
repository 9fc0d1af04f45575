// Every kind of kernel on a few problems: what compute-sanitizer watches (tests/gpu/run
// --sanitizers), and how plans are executed: on two streams at once, inside a CUDA graph, and what
// a call costs the host.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <thread>

#include "engine/cuda/compiled_kernel.h"
#include "engine/cuda/device.h"
#include "engine/cuda/kernel.h"
#include "engine/cuda/target.h"
#include "gpu/device_graph.h"
#include "gpu/gpu_test.h"
#include "gpu/kinds.h"

namespace heddle::testing {
namespace {

class EveryKind : public OnGpu, public ::testing::WithParamInterface<Kind> {
 protected:
  /// The n-th program of the kind, of kPrograms.
  static constexpr size_t kPrograms = 2;
  Built draw(size_t n) {
    const Found& mine = found().at(index_of(GetParam().name));
    if (n < mine.programs.size()) return mine.programs[n];
    ADD_FAILURE() << "too few programs of this kind in " << mine.tried << ", " << mine.refused
                  << " were refused: " << mine.refusal;
    Random random(0);
    return build(GetParam().draw(random));
  }

 private:
  static constexpr int64_t kSeeds = 200;
  struct Found {
    std::vector<Built> programs;
    int64_t tried = 0, refused = 0;
    std::string refusal;  ///< of the last one
  };
  static size_t index_of(std::string_view name) {
    const auto at = std::find_if(kinds().begin(), kinds().end(),
                                 [&](const Kind& kind) { return kind.name == name; });
    return static_cast<size_t>(at - kinds().begin());
  }

  /// Of every kind, by its index. Those of all kinds that this process tests are looked for at
  /// once, when the first is asked for: most of it is compilation.
  const std::vector<Found>& found() {
    // Kept to the end: a plan asks for its context when it goes, and that is gone by then.
    static std::vector<Found>* found = nullptr;
    if (found) return *found;
    found = new std::vector<Found>(kinds().size());
    at_once(static_cast<int64_t>(kinds().size()), [&](int64_t n) {
      const Kind& kind = kinds()[static_cast<size_t>(n)];
      // Kinds drawn alike are to be of different problems.
      if (is_tested(kind)) (*found)[static_cast<size_t>(n)] = some_of(kind, n * kSeeds);
    });
    return *found;
  }

  static bool is_tested(const Kind& kind) {
    const ::testing::UnitTest& all = *::testing::UnitTest::GetInstance();
    for (int n = 0; n < all.total_test_suite_count(); ++n) {
      const ::testing::TestSuite& suite = *all.GetTestSuite(n);
      if (std::string_view(suite.name()) != "Gpu/EveryKind") continue;
      for (int i = 0; i < suite.total_test_count(); ++i) {
        const ::testing::TestInfo& test = *suite.GetTestInfo(i);
        const std::string_view name = test.name();
        if (test.should_run() && name.substr(name.find('/') + 1) == kind.name) return true;
      }
    }
    return false;
  }

  static Found some_of(const Kind& kind, int64_t first) {
    Found found;
    int64_t more = kPrograms;
    // Where most are refused, something is wrong, and compiling the rest takes longer than all
    // tests.
    while (found.programs.size() < kPrograms && found.tried < kSeeds &&
           found.refused <= std::max(kSeeds / 10, found.tried / 2)) {
      const int64_t seed = first + found.tried;
      for (Built& built : build_all(kind.draw, seed, seed + more)) {
        if (!built.executable.is_ok()) {
          ++found.refused;
          found.refusal = built.executable.status().message();
        } else if (found.programs.size() < kPrograms && is_of(kind, built)) {
          found.programs.push_back(std::move(built));
        }
      }
      found.tried += more;
      more *= 2;
    }
    return found;
  }

  static bool is_of(const Kind& kind, Built& built) {
    const std::string& plan = (*built.executable)->description();
    return std::all_of(kind.words.begin(), kind.words.end(),
                       [&](const char* word) { return plan.find(word) != std::string::npos; }) &&
           !matches_definition(built);  // which it would where no row is to be written
  }
};

TEST_P(EveryKind, MatchesTheDefinition) {
  for (size_t n = 0; n < kPrograms; ++n) {
    Built built = draw(n);
    ASSERT_TRUE(built.executable.is_ok()) << built.executable.status().message();
    execute(built);
    EXPECT_TRUE(matches_definition(built));
  }
}

// Two plans on a stream each, and one of them twice at once, each with its own buffers.
TEST_P(EveryKind, RunsOnTwoStreamsAtOnce) {
  Built first = draw(0), second = draw(1), same = first;
  ASSERT_TRUE(first.executable.is_ok() && second.executable.is_ok());
  OnDevice one(first.program, **first.executable), other(second.program, **second.executable),
      again(same.program, **same.executable);
  ASSERT_TRUE(one.status().is_ok() && other.status().is_ok() && again.status().is_ok());
  const DeviceStream left, right;
  ASSERT_TRUE(left.status().is_ok() && right.status().is_ok());
  for (int turn = 0; turn < 8; ++turn) {
    ASSERT_TRUE(one.queue(left.handle()).is_ok());
    ASSERT_TRUE(other.queue(right.handle()).is_ok());
    ASSERT_TRUE(again.queue(right.handle()).is_ok());
  }
  ASSERT_TRUE(left.synchronise().is_ok() && right.synchronise().is_ok());
  ASSERT_TRUE(one.copy_back().is_ok() && other.copy_back().is_ok() && again.copy_back().is_ok());
  for (Built* built : {&first, &second, &same}) EXPECT_TRUE(matches_definition(*built));
}

// One plan, on one stream, without waiting in between: each execution has the arguments it was
// given.
TEST_P(EveryKind, AlternatesBetweenBuffers) {
  Built first = draw(0), same = first;
  ASSERT_TRUE(first.executable.is_ok());
  OnDevice one(first.program, **first.executable), again(same.program, **same.executable);
  ASSERT_TRUE(one.status().is_ok() && again.status().is_ok());
  const DeviceStream stream;
  ASSERT_TRUE(stream.status().is_ok()) << stream.status().message();
  for (int turn = 0; turn < 20; ++turn) {
    ASSERT_TRUE(one.queue(stream.handle()).is_ok());
    ASSERT_TRUE(again.queue(stream.handle()).is_ok());
  }
  ASSERT_TRUE(stream.synchronise().is_ok());
  ASSERT_TRUE(one.copy_back().is_ok() && again.copy_back().is_ok());
  EXPECT_TRUE(matches_definition(first));
  EXPECT_TRUE(matches_definition(same));
}

// More sets of buffers than a plan keeps graphs for, on two streams, from two threads.
TEST_P(EveryKind, TakesManySetsOfBuffersInTurn) {
  Built first = draw(0), same = first;
  ASSERT_TRUE(first.executable.is_ok());
  const auto work_on = [this](Built& built) {
    ASSERT_TRUE(context_.make_current().is_ok());
    constexpr int kSets = 5;
    std::vector<Built> sets(kSets, built);
    std::vector<std::unique_ptr<OnDevice>> devices;
    for (Built& set : sets)
      devices.push_back(std::make_unique<OnDevice>(set.program, **set.executable));
    const DeviceStream stream;
    ASSERT_TRUE(stream.status().is_ok()) << stream.status().message();
    for (int turn = 0; turn < 40; ++turn) {
      for (const auto& device : devices)
        ASSERT_TRUE(device->queue(stream.handle(), turn % 3).is_ok());
    }
    ASSERT_TRUE(stream.synchronise().is_ok());
    for (int n = 0; n < kSets; ++n) {
      ASSERT_TRUE(devices[static_cast<size_t>(n)]->copy_back().is_ok());
      EXPECT_TRUE(matches_definition(sets[static_cast<size_t>(n)])) << "set " << n;
    }
  };
  std::jthread other(work_on, std::ref(same));
  work_on(first);
}

// Buffers go before the next ones come, which may lie where they lay; the plan goes while its work
// is under way, for none of which it waits.
TEST_P(EveryKind, GoesWhileItIsUnderWay) {
  Program program = draw(0).program;
  for (int n = 0; n < 3; ++n) {
    Built built = build(program);
    ASSERT_TRUE(built.executable.is_ok());
    const DeviceStream stream;
    ASSERT_TRUE(stream.status().is_ok()) << stream.status().message();
    {
      Program gone = program;
      const OnDevice device(gone, **built.executable);
      ASSERT_TRUE(device.queue(stream.handle()).is_ok());
      ASSERT_TRUE(stream.synchronise().is_ok());
    }
    OnDevice device(built.program, **built.executable);
    for (int turn = 0; turn < 200; ++turn) ASSERT_TRUE(device.queue(stream.handle()).is_ok());
    {
      const StreamHold hold(stream);
      ASSERT_TRUE(hold.status().is_ok()) << hold.status().message();
      for (int turn = 0; turn < 20; ++turn)
        ASSERT_TRUE(device.queue(stream.handle(), turn % 3).is_ok());
      built.executable = error(Code::invalid_value, "gone");
      EXPECT_TRUE(hold.holds());
    }
    ASSERT_TRUE(stream.synchronise().is_ok());
    ASSERT_TRUE(device.copy_back().is_ok());
    built.executable = build(program).executable;
    EXPECT_TRUE(matches_definition(built));
  }
}

// Recorded once, replayed twice, when the plan is gone: an execution neither allocates nor
// synchronises, and leaves its workspace so that the next finds nothing in it that it minds.
TEST_P(EveryKind, IsCapturedIntoAGraph) {
  Built built = build(draw(0).program);
  ASSERT_TRUE(built.executable.is_ok());
  OnDevice device(built.program, **built.executable);
  ASSERT_TRUE(device.status().is_ok()) << device.status().message();
  const DeviceGraph graph([&device](void* stream) { return device.queue(stream); });
  ASSERT_TRUE(graph.status().is_ok()) << graph.status().message();
  // Nothing ran yet: every output still holds its poison.
  ASSERT_TRUE(device.copy_back().is_ok());
  EXPECT_FALSE(matches_definition(built));
  built.executable = error(Code::invalid_value, "gone");
  for (int run = 0; run < 2; ++run) {
    const Status replayed = graph.replay();
    ASSERT_TRUE(replayed.is_ok()) << replayed.message();
  }
  ASSERT_TRUE(device.copy_back().is_ok());
  built.executable = build(built.program).executable;
  EXPECT_TRUE(matches_definition(built));
}

/// Microseconds of the host that one call takes, the device's left out: as few are queued as its
/// queue holds, and the least of some rounds counts.
double host_microseconds(const DeviceContext& context, const std::function<Status()>& call) {
  constexpr int kQueued = 40, kRounds = 60;
  double least = 1e9;
  for (int round = 0; round < kRounds; ++round) {
    EXPECT_TRUE(context.synchronise().is_ok());
    const auto begin = std::chrono::steady_clock::now();
    for (int n = 0; n < kQueued; ++n) EXPECT_TRUE(call().is_ok());
    const std::chrono::duration<double, std::micro> taken =
        std::chrono::steady_clock::now() - begin;
    least = std::min(least, taken.count() / kQueued);
  }
  return least;
}

/// What one launch of a kernel that does nothing costs the host, with a block of as many bytes as
/// attention's.
Result<double> idle_microseconds(const DeviceContext& context, void* stream) {
  using namespace engine::cuda;
  constexpr const char* kSource =
      "struct Arguments { char bytes[2048]; };\n"
      "extern \"C\" __global__ void idle(const __grid_constant__ Arguments arguments) {}\n";
  HEDDLE_ASSIGN(const Device device, current_device(*driver()));
  HEDDLE_ASSIGN(const std::shared_ptr<const Cubin> cubin,
                compiled_kernel({"idle", kSource}, target_of(device).architecture));
  HEDDLE_ASSIGN(const std::shared_ptr<const Kernel> idle,
                Kernel::load(*driver(), device, cubin, "idle", 0));
  char bytes[2048] = {};
  void* arguments[] = {bytes};
  StreamQueue queue(*driver(), static_cast<CuStream>(stream));
  return host_microseconds(context, [&] { return idle->launch({}, queue, arguments); });
}

// Measured, not asserted: whatever the host does meanwhile would be in it.
TEST_P(EveryKind, HostTimeOfACall) {
  Built built = draw(0);
  ASSERT_TRUE(built.executable.is_ok());
  OnDevice device(built.program, **built.executable);
  ASSERT_TRUE(device.status().is_ok()) << device.status().message();
  const DeviceGraph graph([&device](void* queue) { return device.queue(queue); });
  ASSERT_TRUE(graph.status().is_ok()) << graph.status().message();
  const DeviceStream stream;
  ASSERT_TRUE(stream.status().is_ok()) << stream.status().message();
  const Result<double> idle = idle_microseconds(context_, stream.handle());
  ASSERT_TRUE(idle.is_ok()) << idle.status().message();
  const double same = host_microseconds(context_, [&] { return device.queue(stream.handle()); });
  Built copy = built;
  OnDevice other(copy.program, **built.executable);
  ASSERT_TRUE(other.status().is_ok()) << other.status().message();
  bool turn = false;
  const double in_turn = host_microseconds(context_, [&] {
    turn = !turn;
    return (turn ? other : device).queue(stream.handle());
  });
  int64_t place = 0;
  const double always_new = host_microseconds(context_, [&] {
    place = (place + 1) % OnDevice::kPlaces;
    return device.queue(stream.handle(), place);
  });
  std::printf(
      "%-28s %5.2f us of the host a call on the same buffers, %5.2f on two sets in turn, %5.2f on "
      "ever new ones; %zu kernels, an idle one's launch takes %.2f\n",
      GetParam().name, same, in_turn, always_new, graph.nodes(), *idle);
}

INSTANTIATE_TEST_SUITE_P(Gpu, EveryKind, ::testing::ValuesIn(kinds()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace heddle::testing
